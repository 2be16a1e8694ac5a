"""`Tensor.to_global` and `Tensor.to_local`, with their gradients."""

from __future__ import annotations

from typing import Any

from oneflow.core.config import current_config
from oneflow.core.errors import DesyncError, GraphError, PlacementError, SbpError
from oneflow.core.location import located
from oneflow.core.placement import Placement
from oneflow.core.sbp import SbpLike, as_nd_sbp, nd_sbp_str
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.tensor.local_to_global import from_local
from oneflow.tensor.redistribution import dual, relaid
from oneflow.tensor.tape import nothing_saved, record_call
from oneflow.tensor.tensor import Tensor, raw, wrap_global
from oneflow.tensor.views import refresh


@located
def local_to_global(
    x: Tensor, placement: Placement | None, sbp: SbpLike | None, check_meta: bool, copy: bool
) -> Tensor:
    """A local tensor as this rank's part of a global one. All ranks of the world must call it.

    check_meta: compare shapes and dtypes of all parts; else every rank is taken at its word.
    copy: never share memory with x.
    """
    if placement is None or sbp is None:
        raise PlacementError(
            "Converting a local tensor to global tensor must have placement and sbp parameters."
        )
    return from_local(x, placement, as_nd_sbp(sbp, placement.ndim), check_meta, copy)


@located
def global_to_global(
    x: Tensor,
    placement: Placement | None,
    sbp: SbpLike | None,
    grad_sbp: SbpLike | None,
    check_meta: bool | None,
    copy: bool,
) -> Tensor:
    """A global tensor laid out anew; an argument of None stays as it is.

    grad_sbp: the layout of the gradient that flows back.
    check_meta: compare the tensor and the request on all ranks (None: when debugging).
    copy: never share memory with x.
    """
    target = placement or x.placement
    if sbp is None and target.ndim != x.placement.ndim:
        raise SbpError(
            f"to_global: from {x._placement} to {target} the number of hierarchy axes changes; "
            "give sbp="
        )
    nd_sbp = x.sbp if sbp is None else as_nd_sbp(sbp, target.ndim)
    wanted = None if grad_sbp is None else as_nd_sbp(grad_sbp, x.placement.ndim)
    if check_meta or (check_meta is None and current_config().debug):
        said = f"{_described(x)} to {target} {nd_sbp_str(nd_sbp)}"
        _check_everywhere(said, "to_global of a global tensor")
    return relaid(x, target, nd_sbp, wanted, copy)


def to_local(x: Tensor, copy: bool = False) -> Tensor:
    """This rank's part of a global tensor as a local one; shares its memory unless `copy`."""
    if x._placement is None:
        raise PlacementError("Expected global tensor for to_local but got local tensor!")
    if x.value is not None:
        raise GraphError(
            "to_local() of a value of an nn.Graph under construction: it has no data yet; "
            "return it from build()"
        )
    refresh(x)
    array = x._array.copy() if copy else x._array
    out = raw(TensorType(tuple(array.shape), x.meta.dtype), array, x._device)
    if not copy:
        out._version = x._version
    type_, placement, nd_sbp = x.meta, x._placement, dual(x.sbp)

    def backward(grads: list[Any]) -> list[Any]:
        grad = grads[0]
        return [None if grad is None else wrap_global(grad._array, type_, placement, nd_sbp)]

    record_call("to_local", (x,), (out,), backward, on_release=nothing_saved)
    return out


def check_meta_consistency(x: Tensor) -> None:
    """Raises DesyncError unless x has the same shape, dtype, placement and sbp on all ranks, which
    must all call it."""
    _check_everywhere(_described(x), "check_meta_consistency")


def _described(x: Tensor) -> str:
    return f"{x.meta} {x.placement.notation} {nd_sbp_str(x.sbp)}"


def _check_everywhere(said: str, what: str) -> None:
    if world().world_size == 1:
        return
    for rank, other in enumerate(world().everyone.gather_bytes(said.encode(), what)):
        if other.decode() != said:
            raise DesyncError(
                f"a global tensor must be the same on all ranks: it is {said} on rank "
                f"{world().rank}, but {other.decode()} on rank {rank}"
            )
