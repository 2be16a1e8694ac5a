"""Global tensors on meta: types and layouts of ops, no values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import OneFlowError

B, S0 = flow.sbp.broadcast, flow.sbp.split(0)
META = {"placement": flow.placement("meta", [0]), "sbp": B}
CPU = {"placement": flow.placement("cpu", [0]), "sbp": B}

WORKS: list[Callable[[Any], Any]] = [
    lambda where: flow.ones(2, 3, **where) + 1,
    lambda where: flow.Tensor([3, 2], **where),
    lambda where: flow.tensor([3, 2], **where).clone(),
    lambda where: flow.rand(3, 2, **where).t(),
    lambda where: flow.ones(4, **where).to_global(sbp=S0).sum(),
    lambda where: nn.Linear(3, 2).to_global(**where)(flow.ones(5, 3, **where)),
    lambda where: flow.zeros(3, 2, **where).add_(1),
    lambda where: flow.ones(6, **where).topk(2)[1],
    lambda where: flow.ones(4, 2, **where)[1:3],
]


@pytest.mark.parametrize("work", WORKS)
def test_ops_give_the_types_and_layouts_of_values(work: Callable[[Any], Any]) -> None:
    wanted, found = work(CPU), work(META)
    assert (found.shape, found.dtype, found.sbp) == (wanted.shape, wanted.dtype, wanted.sbp)
    assert found.placement.type == "meta"
    part = found.to_local()
    assert (part.shape, part.device.type) == (wanted.to_local().shape, "meta")


def test_a_tensor_goes_to_meta_and_cannot_come_back() -> None:
    x = flow.ones(2, **CPU).to("meta")
    x[0] = 3
    assert x.placement == META["placement"]
    for back in (x.numpy, x.sum().item, lambda: x.to("cpu"), lambda: x.to_global(**CPU)):
        with pytest.raises(OneFlowError, match="Cannot copy out of meta tensor; no data"):
            back()


def test_a_local_and_a_global_tensor_become_alike() -> None:
    local, whole = flow.ones(2, dtype=flow.int32), flow.full((2,), 2.5, **CPU)
    there = local.type_as(whole)
    assert (there.placement, there.sbp, there.dtype) == (whole.placement, whole.sbp, whole.dtype)
    back = whole.type_as(local)
    assert not back.is_global and back.dtype is flow.int32
    np.testing.assert_array_equal(back.numpy(), [2, 2])
    with pytest.raises(RuntimeError, match="both local or both global"):
        local.to(whole)


@pytest.mark.parametrize("args", [(), (2, 3), ([1, 2],), (flow.ones(2),)])
def test_new_tensors_of_a_global_one_are_global(args: tuple[Any, ...]) -> None:
    for sbp in (B, S0, flow.sbp.partial_sum):
        x = flow.ones(2, dtype=flow.int64, placement=CPU["placement"], sbp=sbp)
        made = x.new(*args)
        assert (made.placement, made.sbp, made.dtype) == (x.placement, x.sbp, x.dtype)
    for name, size in (("zeros", (2,)), ("ones", (2,)), ("empty", (2,)), ("full", ((2,), 1))):
        assert getattr(x, f"new_{name}")(*size).placement == x.placement
