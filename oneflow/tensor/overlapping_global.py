"""Calls on global tensors that a worker's thread runs, the exchanges between ranks included.

All ranks make the same calls in the same order, so each worker's queue is the same on all of them.
A worker exchanges over a channel of its own: two workers, or a worker and the calling thread, need
no common order. The earliest call of the program that is not finished on some rank can always run:
its inputs were queued before it, and every rank comes to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from oneflow.boxing.boxes import local_type
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType
from oneflow.distributed import ending
from oneflow.distributed.world import use_channel, world
from oneflow.kernels.array import Array
from oneflow.tensor.eager_global import (
    GlobalCall,
    brought_together,
    empty_shard,
    find_call,
    relayout,
)
from oneflow.tensor.overlapping import kernel_of, later_of, queue_call, wait_as
from oneflow.tensor.tape import record
from oneflow.tensor.tensor import Tensor, wrap_global
from oneflow.tensor.views import copies, link_view, refresh
from oneflow.tensor.workers import Worker, finish_at_exit


def queue_global(worker: Worker, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
    """Queue one op on global tensors, as `run_global` runs it. attrs: with the defaults."""
    placement = inputs[0]._placement
    if placement is None or any([x._placement is not placement for x in inputs]):
        inputs = brought_together(op, inputs)
        placement = inputs[0].placement
    for x in inputs:
        refresh(x)
    call = find_call(op, inputs, attrs)
    is_view = op.is_view and not copies(op, inputs[0], attrs)
    if is_view and (view := _viewed(op, call, inputs, attrs)) is not None:
        return view
    kinds = list(zip(call.out_types, call.out_sbps, strict=True))
    arrays = [_new_shard(t, placement, s) for t, s in kinds]
    outs = [wrap_global(a, t, placement, s) for a, (t, s) in zip(arrays, kinds, strict=True)]
    if is_view:
        link_view(op, inputs[0], outs[0], attrs, own=True)
    record(op, inputs, outs, attrs, None, call.kept)
    _queue(worker, partial(_compute, call, arrays), inputs, outs, arrays)
    return outs[0] if op.num_outputs == 1 else tuple(outs)


def queue_relay(worker: Worker, x: Tensor, placement: Placement, nd_sbp: NdSbp) -> Tensor | None:
    """Queue a change of layout; None if nothing has to move."""
    if (x.placement, x.sbp) == (placement, nd_sbp):
        return None
    array = _new_shard(x.meta, placement, nd_sbp)
    out = wrap_global(array, x.meta, placement, nd_sbp)
    layouts = x.meta, x.sbp, x.placement, nd_sbp, placement

    def move(shards: list[Array]) -> None:
        after = relayout(shards[0], *layouts)
        if world().rank in placement:
            array[...] = after

    _queue(worker, move, (x,), [out], [array])
    return out


def _queue(
    worker: Worker,
    compute: Callable[[list[Array]], None],
    inputs: tuple[Tensor, ...],
    outs: list[Tensor],
    arrays: list[Array],
) -> None:
    """Queue `compute(shards of the inputs)`, which fills `arrays`."""
    if world().world_size > 1:
        finish_at_exit(_others_may_wait)

    def run(shards: list[Array]) -> None:
        use_channel(f"/{worker.name}")
        compute(shards)

    queue_call(worker, lambda shards: partial(run, shards), inputs, outs, arrays)


def _others_may_wait() -> bool:
    """Whether this rank ends as it should; the others are told of any other end."""
    return not ending.noted_exit()


def _new_shard(type_: TensorType, placement: Placement, nd_sbp: NdSbp) -> Array:
    """Memory for this rank's part."""
    if world().rank not in placement:
        empty: Array = empty_shard(type_, placement)
        return empty
    return np.empty(local_type(type_, nd_sbp, placement, world().rank).shape, type_.dtype.np)


def _viewed(
    op: type[Op], call: GlobalCall, inputs: tuple[Tensor, ...], attrs: Attrs
) -> Tensor | None:
    """The view of the first input's shard, which needs no values; None if the op has to move or to
    copy."""
    bound = call.bound
    if bound is None or bound.view is None or call.parts is not None or call.moves:
        return None
    base = later_of(inputs[0])
    shared = bound.view(base.array, *[later_of(x).array for x in inputs[1:]], **bound.attrs)
    if shared is None:
        return None
    placement = inputs[0].placement
    out = wrap_global(shared, call.out_types[0], placement, call.out_sbps[0])
    link_view(op, inputs[0], out, attrs, own=False)
    record(op, inputs, [out], attrs)
    wait_as(out, base, shared)
    return out


def _compute(call: GlobalCall, outs: list[Array], shards: list[Array]) -> None:
    """This rank's part of the outputs, by exchanges with the others where inputs move."""
    shards = list(shards)
    for move in call.moves:
        shards[move.index] = move.run(shards[move.index])
    if call.bound is not None:
        kernel_of(call.bound, outs, shards)()
    elif call.parts is not None:
        for out, array in zip(outs, call.parts.run(shards, np), strict=True):
            out[...] = array
