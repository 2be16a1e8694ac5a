"""Results written into tensors that are given, beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import surfaces
from oneflow.api import ROWS, spellings
from oneflow.core.errors import AutogradError, DTypeError

SQUARE = np.array([[2.0, 1.0], [1.0, 3.0]], np.float32)

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda m, x: (m.add(x, x, alpha=2, out=(z := m.zeros(2, 2))), z),
    "mul": lambda m, x: (m.mul(x, 3.0, out=(z := m.zeros(2, 2))), z),
    "exp": lambda m, x: (m.exp(x, out=(z := m.zeros(2, 2))), z),
    "matmul": lambda m, x: (m.matmul(x, x, out=(z := m.zeros(2, 2))), z),
    "cat": lambda m, x: (m.cat([x, x], dim=1, out=(z := m.empty(0))), z),
    "sum": lambda m, x: (m.sum(x, dim=0, out=(z := m.zeros(2))), z),
    "arange": lambda m, x: (m.arange(5, out=(z := m.zeros(5))), z),
    "zeros": lambda m, x: (m.zeros(2, 2, out=(z := m.ones(2, 2))), z),
    "wider": lambda m, x: (m.add(x, x, out=(z := m.zeros(2, 2, dtype=m.float64))), z),
    "narrower": lambda m, x: (m.gt(x, 1.5, out=(z := m.zeros(2, 2))), z),
    "inv": lambda m, x: (m.linalg.inv(x, out=(z := m.zeros(2, 2))), z),
    "norm": lambda m, x: (m.linalg.norm(x, out=(z := m.zeros(()))), z),
    "erf": lambda m, x: (m.special.erf(x, out=(z := m.zeros(2, 2))), z),
    "none": lambda m, x: (z := m.sub(x, 1, out=None), z),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_tensor_given_holds_the_result_and_is_returned(name: str) -> None:
    back, out = CALLS[name](flow, flow.from_numpy(SQUARE))
    _, wanted = CALLS[name](torch, torch.from_numpy(SQUARE))
    assert back is out and str(out.dtype).split(".")[1] == str(wanted.dtype).split(".")[1]
    np.testing.assert_allclose(out.numpy(), wanted.numpy(), rtol=1e-6, atol=1e-7)


def test_several_results_go_to_several_tensors() -> None:
    x = flow.from_numpy(SQUARE)
    values, places = flow.zeros(2), flow.zeros(2, dtype=flow.int64)
    found = flow.max(x, 1, out=(values, places))
    assert found.values is values and found.indices is places
    assert values.tolist() == [2.0, 3.0] and places.tolist() == [0, 1]
    order = flow.sort(x, out=(flow.empty(0), flow.empty(0, dtype=flow.int64)))
    assert order[0].tolist() == [[1, 2], [1, 3]] and order[1].tolist() == [[1, 0], [0, 1]]
    with pytest.raises(TypeError, match="holds 1 tensors, but there are 2 results"):
        flow.max(x, 1, out=(values,))


def test_a_view_of_another_tensor_is_written_through() -> None:
    whole = flow.zeros(3, 2, 2)
    flow.mm(flow.from_numpy(SQUARE), flow.eye(2), out=whole[1])
    np.testing.assert_array_equal(whole[1].numpy(), SQUARE)
    assert whole[0].abs().sum() == 0


def test_what_cannot_be_written_is_refused() -> None:
    x = flow.from_numpy(SQUARE)
    with pytest.raises(
        DTypeError, match=r"float32 can't be cast to the desired output type .*int64"
    ):
        flow.add(x, x, out=flow.zeros(2, 2, dtype=flow.int64))
    with pytest.raises(TypeError, match="must be a tensor, got list"):
        flow.exp(x, out=[0.0])
    leaf = flow.zeros(2, 2, requires_grad=True)
    for call in (lambda: flow.exp(leaf, out=flow.zeros(2, 2)), lambda: flow.exp(x, out=leaf)):
        with pytest.raises(AutogradError, match="don't support automatic differentiation"):
            call()
    with flow.no_grad():
        assert flow.exp(leaf, out=flow.zeros(2, 2)).tolist() == [[1, 1], [1, 1]]
    with pytest.warns(UserWarning, match=r"takes the result's shape \(2, 2\)"):
        assert flow.exp(x, out=flow.zeros(3)).shape == (2, 2)
    with pytest.raises(TypeError, match="out"):
        flow.nn.functional.dropout(x, out=flow.zeros(2, 2))


def test_a_graph_writes_too() -> None:
    class Both(flow.nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            total = flow.zeros(2, 2)
            flow.add(x, x, out=total)
            return total * 2

    with flow.no_grad():
        assert Both()(flow.from_numpy(SQUARE)).tolist() == (SQUARE * 4).tolist()


def test_the_list_holds_public_functions_only() -> None:
    names = {row.names[0] for row in ROWS if not surfaces.WITH_OUT.isdisjoint(row.surfaces)}
    assert not spellings.WRITTEN - names


def test_functions_that_cast_no_result_say_so() -> None:
    x, wide = flow.from_numpy(SQUARE), flow.zeros(2, 2, dtype=flow.float64)
    for call in (flow.matmul, flow.mm):
        with pytest.raises(DTypeError, match=r"float32 can't be cast to .*float64"):
            call(x, x, out=wide)
    with pytest.raises(DTypeError, match="inv: result type"):
        flow.linalg.inv(x, out=wide)
    with pytest.raises(DTypeError, match=r"float32 can't be cast to .*int64"):
        flow.exp(x, out=flow.zeros(2, 2, dtype=flow.int64))


def test_memory_that_cannot_hold_the_result_is_refused() -> None:
    x = flow.from_numpy(SQUARE.copy())
    with pytest.raises(RuntimeError, match="lie in one place of memory"):
        flow.add(x, x, out=flow.zeros(1, 1).expand(2, 2))
    with pytest.raises(RuntimeError, match="share memory"):
        flow.take(x, flow.tensor([[0, 1], [2, 3]]), out=x)
    assert flow.add(x, x, out=x) is x and x.tolist() == [[4, 2], [2, 6]]


IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda m, x: x.add_(1.5),
    "+=": lambda m, x: x.__iadd__(1.5),
    "mul_": lambda m, x: x.mul_(m.tensor([1.5, 1, 1])),
    "sqrt_": lambda m, x: x.sqrt_(),
    "div_": lambda m, x: x.div_(2),
    "clamp_": lambda m, x: x.clamp_(0.5),
    "fill_": lambda m, x: x.fill_(2.5),
    "eq_": lambda m, x: x.eq_(1),
    "copy_": lambda m, x: x.copy_(m.tensor([0.5, 1.5, 2.5])),
    "pow_": lambda m, x: x.pow_(2),
    "bools": lambda m, x: (x > 1).add_(1),
    "narrower": lambda m, x: x.float().sub_(m.tensor([1.0, 2.0, 3.0]).double()),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_floats_are_written_into_integers_by_copies_alone(name: str) -> None:
    try:
        wanted = IN_PLACE[name](torch, torch.tensor([1, 2, 3]))
    except RuntimeError:
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
            IN_PLACE[name](flow, flow.tensor([1, 2, 3]))
    else:
        assert IN_PLACE[name](flow, flow.tensor([1, 2, 3])).tolist() == wanted.tolist()
