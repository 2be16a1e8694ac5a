"""Calls of graphs are bound once where they are alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow.boxing import bound_op
from oneflow.boxing.bound_op import BoundOp, Shards, bind_alike
from oneflow.core.dtype import float32
from oneflow.core.op import find_op, infer_types
from oneflow.core.operand import attrs_key
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, Split
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import registry
from oneflow.kernels.registry import Kernel, add_kernel

PAIR = Placement("cpu", [0, 1])


def bound(name: str, rank: int = 0, nd_sbp: NdSbp = (BROADCAST,), **attrs: Any) -> BoundOp:
    op = find_op(name)
    attrs = op.defaults | attrs
    types = (TensorType((4, 6), float32),) * len(op.operands)
    made = infer_types(op, types, attrs)
    shards = Shards(PAIR, rank, [nd_sbp] * len(types), [nd_sbp] * len(made))
    key = attrs_key({k: v for k, v in attrs.items() if k != "seed"})
    return bind_alike(op, types, made, attrs, "cpu", shards, key)


def test_equal_calls_share_what_is_bound() -> None:
    assert bound("leaky_relu", negative_slope=0.5) is bound("leaky_relu", negative_slope=0.5)


def test_other_attributes_layouts_and_ranks_are_bound_apart() -> None:
    x = np.full((4, 6), -2.0, np.float32)
    halves, ones = bound("leaky_relu", negative_slope=0.5), bound("leaky_relu", negative_slope=1.0)
    for call, wanted in ((halves, -1.0), (ones, -2.0)):
        (out,) = call.run(np, [x])
        assert (out == wanted).all()
    split = [bound("exp", rank, (Split(0),)) for rank in (0, 1)]
    assert [call.out_boxes[0].starts for call in split] == [(0, 0), (2, 0)]
    assert bound("exp").out_boxes[0].shape == (4, 6)


def test_random_calls_keep_their_own_seeds() -> None:
    first, second = bound("dropout", p=0.5, seed=3), bound("dropout", p=0.5, seed=4)
    assert (first.attrs["seed"], second.attrs["seed"]) == (3, 4)
    assert first.function is second.function


def test_a_kernel_that_is_registered_later_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_op, "_bound", {})
    bound("neg")
    monkeypatch.setitem(registry._KERNELS, ("neg", "cpu"), [])
    monkeypatch.delitem(registry._candidates, ("neg", "cpu"))

    def new(*_: object) -> None:
        return

    add_kernel("neg", "cpu", Kernel(new))
    assert bound("neg").function is new
