"""Writing into a part of a global tensor, in place on each rank's own shard."""

from __future__ import annotations

from typing import Any

from oneflow.boxing.boxes import shard_box
from oneflow.core.device import META
from oneflow.core.errors import PlacementError
from oneflow.core.operand import Number
from oneflow.distributed.world import world
from oneflow.kernels.hardware import array_module
from oneflow.ops.slicing import SliceUpdate, held_part, local_attrs, slices_of
from oneflow.tensor.eager_global import relayout
from oneflow.tensor.global_parts import bound_update
from oneflow.tensor.inplace import overwrite
from oneflow.tensor.tape import record_call
from oneflow.tensor.tensor import Tensor, wrap_global
from oneflow.tensor.views import with_history

Bounds = dict[str, tuple[int, ...]]


def write_slice(x: Tensor, value: Tensor | Number, bounds: Bounds) -> None:
    """x[starts:stops:steps] = value, eagerly: layout and memory of `x` stay.

    value: a number, or a global tensor of the shape and dtype of the slice on the same placement.
    Only the elements of `value` that a rank's part of the slice needs move.
    """
    placement, nd_sbp = x.placement, x.sbp
    if placement.type == META:
        return
    inputs = [with_history(x)]
    if isinstance(value, Tensor):
        _check_place(x, value)
        _write_tensor(x, value, bounds)
        inputs.append(value)
    else:
        _write_number(x, value, bounds)
    new = wrap_global(x._array, x.meta, placement, nd_sbp)

    def backward(grads: list[Any]) -> Any:
        return SliceUpdate.grad(grads[0], x, inputs[-1], x, **bounds)[: len(inputs)]

    record_call("slice_update", inputs, [new], backward)
    overwrite(x, new)


def _check_place(x: Tensor, value: Tensor) -> None:
    if value._placement is None:
        raise PlacementError(
            f"setitem: a local tensor {value.meta} is written into a global one, {x.meta}; make it "
            "global with to_global(placement, sbp)"
        )
    if value._placement != x._placement:
        raise PlacementError(
            "setitem: Expected all tensors to be on the same placement, but found at least two "
            f"placements, {x._placement!r} (positional 0) and {value._placement!r} (positional 1)! "
            "Move one with to_global(placement=..., sbp=...)"
        )


def _write_tensor(x: Tensor, value: Tensor, bounds: Bounds) -> None:
    placement, sbps = x.placement, (x.sbp, value.sbp)
    where = bounds["starts"], bounds["stops"], bounds["steps"]
    wanted, bound = bound_update(value.meta, x.meta, sbps, where, placement, world().rank)
    array = relayout(value._array, value.meta, value.sbp, placement, wanted, placement)
    if bound is not None:
        bound.fill(x._array, (x._array, array), array_module(placement.type))


def _write_number(x: Tensor, value: Number, bounds: Bounds) -> None:
    """Write a number: of partial sums the first summand gets it, the others 0."""
    if world().rank not in x.placement:
        return
    shard = shard_box(x.meta.shape, x.sbp, x.placement, world().rank)
    part = held_part(bounds["starts"], bounds["stops"], bounds["steps"], shard)
    index: Any = (
        *slices_of(**local_attrs(bounds["starts"], bounds["steps"], shard, part)),
        Ellipsis,
    )
    x._array[index] = value if shard.is_first else 0
