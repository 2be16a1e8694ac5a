"""`Tensor.data` against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

BOTH = pytest.mark.parametrize("lib", [flow, torch], ids=["flow", "torch"])
HERE = flow.placement("cpu", [0])
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def parameter(lib: Any) -> Any:
    return lib.nn.Parameter(lib.tensor(VALUES.copy()))


@BOTH
def test_it_shares_memory_and_has_no_history(lib: Any) -> None:
    p = parameter(lib)
    view = (p * 1).data
    assert not view.requires_grad and view.grad_fn is None and view.is_leaf
    assert type(p.data) is lib.Tensor and p.data.size() == p.size()
    p.data.fill_(0)
    assert p.tolist() == [[0.0] * 3] * 2 and p.requires_grad
    p.data.copy_(lib.tensor(VALUES))
    p.data[0, 1] = 9
    p.data.mul_(2)
    assert p.tolist() == [[0.0, 18.0, 4.0], [6.0, 8.0, 10.0]]
    kept = p.data.clone()
    p.data.zero_()
    assert kept.tolist() == [[0.0, 18.0, 4.0], [6.0, 8.0, 10.0]]
    lib.nn.init.constant_(p.data, 4.0)
    assert p.tolist() == [[4.0] * 3] * 2
    p.data.normal_()
    lib.nn.init.normal_(p.data)
    assert len(set(np.ravel(p.tolist()))) == 6


@BOTH
def test_writes_do_not_trip_the_check_of_saved_tensors(lib: Any) -> None:
    p, x = parameter(lib), lib.ones(2, 3, requires_grad=True)
    loss = (p * x).sum()
    p.data.fill_(5.0)
    loss.backward()
    assert x.grad.tolist() == [[5.0] * 3] * 2 and p.grad.tolist() == [[1.0] * 3] * 2
    loss = (p * x).sum()
    with lib.no_grad():
        p.fill_(6.0)
    with pytest.raises(RuntimeError):
        loss.backward()


@BOTH
def test_a_step_by_hand(lib: Any) -> None:
    p = parameter(lib)
    same = p
    (p * p).sum().backward()
    p.data -= 0.25 * p.grad
    p.grad.data.zero_()
    assert p is same and p.is_leaf and p.requires_grad
    assert p.tolist() == (VALUES * 0.5).tolist() and not p.grad.any()
    (p * p).sum().backward()
    assert p.grad.tolist() == VALUES.tolist()


@BOTH
def test_assigning(lib: Any) -> None:
    p, new = parameter(lib), lib.ones(2, 3)
    x = lib.ones(2, 3, requires_grad=True)
    loss = (p * x).sum()
    p.data = new
    loss.backward()
    new[0, 0] = 7
    assert p.tolist()[0] == [7.0, 1.0, 1.0] and p.requires_grad and p.is_leaf
    p.data = lib.zeros(4)
    assert p.tolist() == [0.0] * 4
    base = lib.zeros(4)
    view = base[:2]
    view.data = lib.ones(2)
    view.add_(1)
    assert view.tolist() == [2.0, 2.0] and base.tolist() == [0.0] * 4


def test_of_a_global_tensor() -> None:
    p = flow.nn.Parameter(flow.tensor(VALUES, placement=HERE, sbp=flow.sbp.split(0)))
    assert p.data.is_global and p.data.sbp == p.sbp and p.data.placement == p.placement
    (p * p).sum().backward()
    p.data -= 0.25 * p.grad
    assert p.tolist() == (VALUES * 0.5).tolist() and p.requires_grad and p.is_leaf
    p.grad.data.zero_()
    assert not p.grad.numpy().any()
    p.data.fill_(2)
    assert p.tolist() == [[2.0] * 3] * 2
    flow.nn.init.constant_(p.data, 3.0)
    p.data.copy_(p.data.clone() + 1)
    assert p.tolist() == [[4.0] * 3] * 2
    p.data.normal_()
    p.data = p.detach().to_global(sbp=flow.sbp.broadcast)
    assert p.sbp == (flow.sbp.broadcast,) and p.requires_grad


def test_a_graph_reads_it_and_its_values_cannot_leave() -> None:
    layer = flow.nn.Linear(3, 2)

    class Reads(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            return (x * 2).data + layer.weight.data

    out = Reads()(flow.ones(2, 3))
    np.testing.assert_array_equal(out.numpy(), 2 + layer.weight.detach().numpy())

    class Writes(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            layer.weight.data = x * 2
            return x

    with pytest.raises(flow.core.errors.GraphError, match=r"assigning to \.data"):
        Writes()(flow.ones(2, 3))
