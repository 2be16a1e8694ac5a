"""Global tensors in other layouts, with history."""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import current_mode
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, without_sums
from oneflow.tensor import on_ranks
from oneflow.tensor.layout import check_layout
from oneflow.tensor.tape import nothing_saved, record_call
from oneflow.tensor.tensor import Tensor, wrap_global
from oneflow.tensor.views import refresh


def relaid(
    x: Tensor,
    placement: Placement,
    nd_sbp: NdSbp,
    grad_sbp: NdSbp | None = None,
    copy: bool = False,
) -> Tensor:
    """A global tensor in another layout; x itself if that is the one it has."""
    source, own = x.placement, x.sbp
    refresh(x)
    on_ranks.check_placement(placement)
    check_layout(x.meta, nd_sbp, "to_global")
    if grad_sbp is not None:
        check_layout(x.meta, grad_sbp, "to_global(grad_sbp=)")
    if (placement, nd_sbp) == (source, own) and not copy and grad_sbp is None:
        return x
    relay = current_mode().relay
    out = None if relay is None else relay(x, placement, nd_sbp)
    if out is None:
        out = _relaid_at_once(x, placement, nd_sbp, copy)

    def backward(grads: list[Any]) -> list[Any]:
        grad = grads[0]
        if grad is None:
            return [None]
        kept = grad.sbp if grad.placement.ndim == source.ndim else without_sums(own)
        return [relaid(grad, source, kept if grad_sbp is None else grad_sbp)]

    record_call("global_to_global", (x,), (out,), backward, on_release=nothing_saved)
    return out


def _relaid_at_once(x: Tensor, placement: Placement, nd_sbp: NdSbp, copy: bool) -> Tensor:
    shard = on_ranks.relayout(x._array, x.meta, x.sbp, x.placement, nd_sbp, placement)
    if shard is x._array and copy:
        shard = shard.copy()
    out = wrap_global(shard, x.meta, placement, nd_sbp)
    if shard is x._array:
        out._version = x._version
    return out


def dual(nd_sbp: NdSbp) -> NdSbp:
    """The layout of a gradient made on each rank alone: copies have summands for gradients, and
    summands copies."""
    swap = {BROADCAST: PARTIAL, PARTIAL: BROADCAST}
    return tuple(swap.get(s, s) for s in nd_sbp)
