"""`Tensor.to_global` and `Tensor.to_local`, with their gradients."""

from __future__ import annotations

from typing import Any

from oneflow.autograd.tape import record_call
from oneflow.core.config import current_config
from oneflow.core.errors import DesyncError, GraphError, PlacementError, SbpError
from oneflow.core.location import located
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, as_nd_sbp, nd_sbp_str, without_sums
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.tensor.eager_global import check_placement, relayout
from oneflow.tensor.global_views import take_again
from oneflow.tensor.layout import as_placement, check_layout
from oneflow.tensor.tensor import Tensor, raw, wrap_global


@located
def to_global(
    x: Tensor,
    placement: Placement | None = None,
    sbp: Any = None,
    *,
    grad_sbp: Any = None,
    check_meta: bool | None = None,
    copy: bool = False,
) -> Tensor:
    """A local tensor as this rank's part of a global one; or a global tensor laid out anew.

    placement, sbp: both needed for a local tensor; missing means "keep" for a global one.
    grad_sbp: the layout of the gradient that flows back (global to global).
    check_meta: local to global (default: yes): compare shapes and dtypes of all parts, else every
    rank is taken at its word; global to global (default: no): compare the tensor and what is asked
    for on all ranks.
    copy: never share memory with x.
    All ranks of the world must call it for a local tensor.
    """
    from oneflow.graph.scope import current_trace

    placement = as_placement(placement, "to_global")
    if current_trace() is not None:
        return _traced(x, placement, sbp, grad_sbp)
    if x._placement is None:
        if placement is None or sbp is None:
            raise PlacementError(
                "Converting a local tensor to global tensor must have placement and sbp parameters."
            )
        from oneflow.tensor.local_to_global import from_local

        nd_sbp = as_nd_sbp(sbp, placement.ndim)
        return from_local(x, placement, nd_sbp, check_meta is not False, copy)
    target = placement or x._placement
    if sbp is None and target.ndim != x._placement.ndim:
        raise SbpError(
            f"to_global: from {x._placement} to {target} the number of hierarchy axes changes; "
            "give sbp="
        )
    nd_sbp = x.sbp if sbp is None else as_nd_sbp(sbp, target.ndim)
    wanted = None if grad_sbp is None else as_nd_sbp(grad_sbp, x._placement.ndim)
    if check_meta or (check_meta is None and current_config().debug):
        _check_everywhere(f"{_described(x)} to {target} {nd_sbp_str(nd_sbp)}")
    return relaid(x, target, nd_sbp, wanted, copy)


def _traced(x: Tensor, placement: Placement | None, sbp: Any, grad_sbp: Any) -> Tensor:
    from oneflow.graph.to_global import traced_to_global

    if x._placement is None:
        return traced_to_global(x, placement, None)  # says why it cannot be done
    target = placement or x._placement
    nd_sbp = None if sbp is None else as_nd_sbp(sbp, target.ndim)
    wanted = None if grad_sbp is None else as_nd_sbp(grad_sbp, x._placement.ndim)
    return traced_to_global(x, placement, nd_sbp, wanted)


def relaid(
    x: Tensor,
    placement: Placement,
    nd_sbp: NdSbp,
    grad_sbp: NdSbp | None = None,
    copy: bool = False,
) -> Tensor:
    """A global tensor in another layout; x itself if that is the one it has."""
    source, own = x.placement, x.sbp
    take_again(x)
    check_placement(placement)
    check_layout(x.type, nd_sbp, "to_global")
    if grad_sbp is not None:
        check_layout(x.type, grad_sbp, "to_global(grad_sbp=)")
    if (placement, nd_sbp) == (source, own) and not copy and grad_sbp is None:
        return x
    shard = relayout(x._array, x.type, own, source, nd_sbp, placement)
    if shard is x._array and copy:
        shard = shard.copy()
    out = wrap_global(shard, x.type, placement, nd_sbp)
    if shard is x._array:
        out._version = x._version

    def backward(grads: list[Any]) -> list[Any]:
        grad = grads[0]
        if grad is None:
            return [None]
        kept = grad.sbp if grad.placement.ndim == source.ndim else without_sums(own)
        return [relaid(grad, source, kept if grad_sbp is None else grad_sbp)]

    record_call("global_to_global", (x,), (out,), backward)
    return out


def to_local(x: Tensor, copy: bool = False) -> Tensor:
    """This rank's part of a global tensor as a local one; shares its memory unless `copy`."""
    if x._placement is None:
        raise PlacementError("Expected global tensor for to_local but got local tensor!")
    if x.value is not None:
        raise GraphError(
            "to_local() of a value of an nn.Graph under construction: it has no data yet; "
            "return it from build()"
        )
    take_again(x)
    array = x._array.copy() if copy else x._array
    out = raw(TensorType(tuple(array.shape), x.type.dtype), array, x._device)
    if not copy:
        out._version = x._version
    type_, placement, nd_sbp = x.type, x._placement, dual(x.sbp)

    def backward(grads: list[Any]) -> list[Any]:
        grad = grads[0]
        return [None if grad is None else wrap_global(grad._array, type_, placement, nd_sbp)]

    record_call("to_local", (x,), (out,), backward)
    return out


def dual(nd_sbp: NdSbp) -> NdSbp:
    """The layout of a gradient made on each rank alone: copies have summands for gradients, and
    summands copies."""
    swap = {BROADCAST: PARTIAL, PARTIAL: BROADCAST}
    return tuple(swap.get(s, s) for s in nd_sbp)


def check_meta_consistency(x: Tensor) -> None:
    """Raises DesyncError unless x has the same shape, dtype, placement and sbp on all ranks, which
    must all call it."""
    _check_everywhere(_described(x))


def _described(x: Tensor) -> str:
    return f"{x.type} {x.placement.notation} {nd_sbp_str(x.sbp)}"


def _check_everywhere(said: str) -> None:
    if world().world_size == 1:
        return
    for rank, other in enumerate(world().everyone.gather_bytes(said.encode())):
        if other.decode() != said:
            raise DesyncError(
                f"a global tensor must be the same on all ranks: it is {said} on rank "
                f"{world().rank}, but {other.decode()} on rank {rank}"
            )
