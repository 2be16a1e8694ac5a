"""Global tensors in a world of one process, and the choice of signatures for larger ones."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.dtype import float32
from oneflow.core.errors import PlacementError, SbpError
from oneflow.core.op import find_op
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, Split
from oneflow.core.tensor_type import TensorType
from oneflow.nn.parallel import DistributedDataParallel
from oneflow.tensor.eager_global import choose_call
from oneflow.tensor.local_to_global import whole_shape
from oneflow.utils import global_view

ALONE = flow.placement("cpu", [0])
PAIR = Placement("cpu", [0, 1])
GRID = Placement("cpu", [[0, 1], [2, 3]])
S0, S1, B, P = Split(0), Split(1), BROADCAST, PARTIAL


def chosen(name: str, shapes: list[tuple[int, ...]], sbps: list[Any], placement: Placement) -> Any:
    types = tuple(TensorType(s, float32) for s in shapes)
    return choose_call(find_op(name), types, tuple(sbps), {}, placement)


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [(S0, B, S0), (B, S1, S1), (S1, S0, P), (P, B, P), (B, B, B)],
)
def test_a_product_runs_as_its_inputs_lie(left: Any, right: Any, result: Any) -> None:
    call = chosen("matmul", [(8, 6), (6, 4)], [(left,), (right,)], PAIR)
    assert call.in_sbps == ((left,), (right,))
    assert call.out_sbps == ((result,),)


def test_axes_of_a_grid_are_chosen_each() -> None:
    call = chosen("matmul", [(8, 6), (6, 4)], [(S0, B), (B, S1)], GRID)
    assert call.out_sbps == ((S0, S1),)


def test_what_is_not_linear_adds_up_partial_sums_first() -> None:
    call = chosen("relu", [(8, 6)], [(P,)], PAIR)
    assert call.in_sbps[0] != (P,)


def test_copies_are_sliced_rather_than_parts_gathered() -> None:
    call = chosen("add", [(8, 6), (8, 6)], [(S0,), (B,)], PAIR)
    assert call.in_sbps == ((S0,), (S0,))


def test_a_world_of_one_needs_no_other() -> None:
    x = flow.randn(4, 3, placement=ALONE, sbp=flow.sbp.split(0))
    w = flow.randn(3, 2, placement=ALONE, sbp=flow.sbp.broadcast)
    w.requires_grad = True
    (x @ w).sum().backward()
    expected = np.repeat(x.numpy().sum(0)[:, None], 2, axis=1)
    np.testing.assert_allclose(w.grad.numpy(), expected, rtol=1e-5)


def test_local_to_global_and_back_share_memory_unless_copied() -> None:
    x = flow.ones(2, 3)
    g = x.to_global(ALONE, flow.sbp.broadcast)
    assert g.to_local()._array is x._array
    assert x.to_global(ALONE, flow.sbp.broadcast, copy=True)._array is not x._array
    assert g.to_global(sbp=flow.sbp.broadcast) is g
    assert g.to_global(sbp=flow.sbp.broadcast, copy=True) is not g


def test_gradients_go_through_conversions() -> None:
    x = flow.ones(2, 3)
    x.requires_grad = True
    g = x.to_global(ALONE, flow.sbp.split(0)).to_global(
        sbp=flow.sbp.broadcast, grad_sbp=flow.sbp.split(1)
    )
    (g.to_local() * 3.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full((2, 3), 3.0))


def test_mistakes_are_named() -> None:
    x = flow.ones(2, 3)
    with pytest.raises(PlacementError, match="must have placement and sbp"):
        x.to_global()
    with pytest.raises(TypeError, match="sbp parameter must be type of"):
        x.to_global(ALONE, "split")
    with pytest.raises(SbpError, match="Split axis out of range"):
        x.to_global(ALONE, flow.sbp.split(2))
    with pytest.raises(PlacementError, match="less than world size"):
        x.to_global(flow.placement("cpu", [0, 1]), flow.sbp.broadcast)
    with pytest.raises(PlacementError, match="mixed"):
        x.to_global(ALONE, flow.sbp.broadcast) + x
    with pytest.raises(RuntimeError, match="Expected global tensor for to_local"):
        x.to_local()
    with pytest.raises(SbpError, match="only support broadcast or split"):
        flow.randn(2, placement=ALONE, sbp=flow.sbp.partial_sum)


def test_parts_join_axis_after_axis() -> None:
    shapes = {0: (2, 3), 1: (2, 2), 2: (1, 3), 3: (1, 2)}
    assert whole_shape(shapes, GRID, (S0, S1)) == (3, 5)
    with pytest.raises(RuntimeError, match="Expected size 3 but got size 2 for tensor on rank 1"):
        whole_shape(shapes, GRID, (S0, S0))


def test_in_place_ops_write_to_the_tensor_itself() -> None:
    x = flow.zeros(3, placement=ALONE, sbp=flow.sbp.broadcast)
    array = x._array
    x += 2.0
    x.mul_(3.0)
    assert x._array is array
    np.testing.assert_array_equal(x.numpy(), np.full(3, 6.0))


@pytest.mark.parametrize("sbp", [S1, B, P], ids=str)
def test_what_is_written_through_a_view_has_its_own_gradient(sbp: Any) -> None:
    x = flow.ones(3, 4, placement=ALONE, sbp=sbp, requires_grad=True)
    y = x * 2.0
    y[1:2].mul_(5.0)
    (y * y).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[8.0] * 4, [200.0] * 4, [8.0] * 4])


def test_trees_go_to_global_and_back() -> None:
    tree = {"a": flow.ones(2), "b": [flow.zeros(3), (1, "x")]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = global_view.to_global(tree, ALONE, lambda _, x: flow.sbp.split(0))
    assert len(caught) == 2
    assert made["a"].is_global and made["b"][0].sbp == (S0,) and made["b"][1] == (1, "x")
    assert global_view.to_local(made)["b"][0].is_local


def test_data_parallel_of_one_process_changes_nothing() -> None:
    flow.manual_seed(0)
    model = flow.nn.Linear(3, 2)
    x = flow.ones(4, 3)
    model(x).sum().backward()
    expected = model.weight.grad.numpy().copy()
    model.zero_grad()
    wrapped = DistributedDataParallel(model)
    assert wrapped.module is model and wrapped.weight is model.weight
    wrapped(x).sum().backward()
    np.testing.assert_allclose(model.weight.grad.numpy(), expected)
    assert isinstance(model.weight, flow.nn.Parameter)


def test_communication_of_one_process_is_the_identity() -> None:
    x = flow.tensor([1.0, 2.0])
    flow.comm.all_reduce(x)
    flow.comm.broadcast(x, 0)
    out = [flow.zeros(2)]
    flow.comm.all_gather(out, x)
    assert out[0].tolist() == [1.0, 2.0]
    assert flow.comm.all_gather_object([1]) == [[1]]
    with pytest.raises(PlacementError, match="local tensors"):
        flow.comm.all_reduce(flow.ones(2, placement=ALONE, sbp=flow.sbp.broadcast))
    with pytest.raises(PlacementError, match="cannot exchange with itself"):
        flow.comm.send(x, 0)
    with pytest.raises(TypeError, match="only None, booleans"):
        flow.comm.all_gather_object({1, 2})
