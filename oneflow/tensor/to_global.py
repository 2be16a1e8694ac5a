"""`Tensor.to_global` and `Tensor.to_local`, with their gradients."""

from __future__ import annotations

import json
from typing import Any

from oneflow.autograd.tape import record_call
from oneflow.boxing.boxes import groups_of, shard_box
from oneflow.core.config import current_config
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import (
    DesyncError,
    DTypeError,
    GraphError,
    PlacementError,
    SbpError,
    ShapeError,
)
from oneflow.core.placement import Placement, coordinates
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, as_nd_sbp, check_fits
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.tensor.eager_global import (
    check_placement,
    empty_shard,
    relayout,
    to_device,
    to_host,
)
from oneflow.tensor.tensor import Tensor, device_type, raw, wrap_global

_BALANCE_URL = (
    "https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/common/balanced_splitter.h"
)


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
    check_meta: compare shapes and dtypes of all ranks (local to global; default: yes).
    copy: never share memory with x.
    All ranks of the world must call it for a local tensor.
    """
    from oneflow.graph.scope import current_trace

    if current_trace() is not None:
        return _traced(x, placement, sbp, grad_sbp)
    if x._placement is None:
        if placement is None or sbp is None:
            raise PlacementError(
                "Converting a local tensor to global tensor must have placement and sbp parameters."
            )
        return _from_local(
            x, placement, as_nd_sbp(sbp, placement.ndim), check_meta is not False, copy
        )
    target = placement or x._placement
    if sbp is None and target.ndim != x._placement.ndim:
        raise SbpError(
            f"to_global: from {x._placement} to {target} the number of hierarchy axes changes; "
            "give sbp="
        )
    nd_sbp = x.sbp if sbp is None else as_nd_sbp(sbp, target.ndim)
    wanted = None if grad_sbp is None else as_nd_sbp(grad_sbp, x._placement.ndim)
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
    check_placement(placement)
    check_fits(nd_sbp, x.type.shape, "to_global")
    if (placement, nd_sbp) == (source, own) and not copy and grad_sbp is None:
        return x
    shard = relayout(x._array, x.type, own, source, nd_sbp, placement)
    if shard is x._array and copy:
        shard = shard.copy()
    out = wrap_global(shard, x.type, placement, nd_sbp)

    def backward(grads: list[Any]) -> list[Any]:
        grad = grads[0]
        if grad is None:
            return [None]
        kept = grad.sbp if grad.placement.ndim == source.ndim else _no_sums(own)
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


def _no_sums(nd_sbp: NdSbp) -> NdSbp:
    return tuple(BROADCAST if s.is_partial else s for s in nd_sbp)


def check_meta_consistency(x: Tensor) -> None:
    """Raises DesyncError unless x has the same shape, dtype, placement and sbp on all ranks."""
    said = f"{x.type} {x.placement} {x.sbp}"
    if world().world_size == 1:
        return
    for rank, other in enumerate(world().everyone.gather_bytes(said.encode())):
        if other.decode() != said:
            raise DesyncError(
                f"a global tensor is {said} on rank {world().rank}, but {other.decode()} on rank "
                f"{rank}"
            )


# ---- local to global -----------------------------------------------------------------------------


def _from_local(
    x: Tensor, placement: Placement, nd_sbp: NdSbp, check_meta: bool, copy: bool
) -> Tensor:
    check_placement(placement)
    type_ = _whole_type(x, placement, nd_sbp, check_meta or current_config().debug)
    check_fits(nd_sbp, type_.shape, "to_global")
    if world().rank not in placement:
        return wrap_global(empty_shard(type_, placement), type_, placement, nd_sbp)
    array = x._array
    if device_type(x) != placement.type:
        array = to_device(to_host(array), placement.type)
    elif copy:
        array = array.copy()
    array = _first_wins(array, placement, nd_sbp)
    out = wrap_global(array, type_, placement, nd_sbp)
    if array is x._array:
        out._version = x._version
    kind, device = device_type(x), x._device

    def backward(grads: list[Any]) -> list[Any]:
        grad = relaid(grads[0], placement, dual(nd_sbp)) if grads[0] is not None else None
        if grad is None:
            return [None]
        data = grad._array if kind == placement.type else to_device(to_host(grad._array), kind)
        return [raw(TensorType(tuple(data.shape), grad.type.dtype), data, device)]

    record_call("local_to_global", (x,), (out,), backward)
    return out


def _first_wins(array: Any, placement: Placement, nd_sbp: NdSbp) -> Any:
    """On broadcast axes all ranks take the data of the first."""
    axes = tuple(i for i, s in enumerate(nd_sbp) if s.is_broadcast)
    if all(placement.hierarchy[i] == 1 for i in axes):
        return array
    rank = world().rank
    group = next(g for g in groups_of(placement, axes) if rank in g)
    mine = to_host(array)
    first = world().collectives(group).broadcast(mine, group[0])
    return array if rank == group[0] else to_device(first, placement.type)


def _whole_type(x: Tensor, placement: Placement, nd_sbp: NdSbp, check_meta: bool) -> TensorType:
    """The type of the whole. Asks the other ranks only if it must be checked or if some of them
    have no part."""
    here = world()
    if placement.rank_ids == (here.rank,) and here.world_size == 1:
        return x.type
    if not check_meta and placement.size == here.world_size:
        shape = list(x.type.shape)
        for s, n in zip(nd_sbp, placement.hierarchy, strict=True):
            if s.is_split:
                check_fits((s,), x.type.shape, "to_global")
                shape[s.dim] *= n
        return x.type.with_shape(tuple(shape))
    said = json.dumps(
        [str(placement), list(map(str, nd_sbp)), list(x.type.shape), x.type.dtype.name]
    )
    metas = [json.loads(m) for m in here.everyone.gather_bytes(said.encode())]
    _same_request(metas)
    shapes = {r: tuple(metas[r][2]) for r in placement.rank_ids}
    dtype = _same_dtype({r: metas[r][3] for r in placement.rank_ids})
    shape_ = _whole_shape(shapes, placement, nd_sbp)
    if check_meta:
        _check_balance(shapes, shape_, placement, nd_sbp)
    return TensorType(shape_, dtype)


def _same_request(metas: list[Any]) -> None:
    for rank, meta in enumerate(metas):
        if meta[0] != metas[0][0]:
            raise DesyncError(
                "Inconsistent parallel description: Each rank must have the same input placement, "
                f"but rank 0 has {metas[0][0]} and rank {rank} has {meta[0]}"
            )
        if meta[1] != metas[0][1]:
            raise DesyncError(
                f"to_global: rank 0 asks for sbp {metas[0][1]}, rank {rank} for {meta[1]}; "
                "it must be the same on all"
            )


def _same_dtype(names: dict[int, str]) -> DType:
    first_rank, first = next(iter(names.items()))
    for rank, name in names.items():
        if name != first:
            raise DTypeError(
                "Expected all tensors on each rank to be the same dtype, but found at least two "
                f"dtypes, {first} (rank {first_rank}) and {name} (rank {rank})!"
            )
    return dtype_of(first)


def _whole_shape(
    shapes: dict[int, tuple[int, ...]], placement: Placement, nd_sbp: NdSbp
) -> tuple[int, ...]:
    """Joins the parts axis after axis, the last axis first."""
    at = dict(zip(coordinates(placement.hierarchy), placement.rank_ids, strict=True))
    current = {where: shapes[rank] for where, rank in at.items()}
    for axis in reversed(range(placement.ndim)):
        joined: dict[tuple[int, ...], tuple[int, ...]] = {}
        for where, shape in current.items():
            first = joined.get(where[:axis])
            corner = where + (0,) * (placement.ndim - len(where))
            rank = at[corner]
            joined[where[:axis]] = (
                shape if first is None else _join(first, shape, nd_sbp[axis], rank)
            )
        current = joined
    return current[()]


def _join(first: tuple[int, ...], shape: tuple[int, ...], sbp: Any, rank: int) -> tuple[int, ...]:
    if len(first) != len(shape):
        raise ShapeError(
            f"to_global: tensors must have the same number of dims, but got {len(first)} and "
            f"{len(shape)} on rank {rank}"
        )
    dim = sbp.dim if sbp.is_split else -1
    if dim >= len(first):
        check_fits((sbp,), first, "to_global")
    for d, (a, b) in enumerate(zip(first, shape, strict=True)):
        if d != dim and a != b:
            raise ShapeError(
                f"Sizes of tensors must match except in dimension {max(dim, 0)}. Expected size {a} "
                f"but got size {b} for tensor on rank {rank}!"
            )
    return tuple(
        a + b if d == dim else a for d, (a, b) in enumerate(zip(first, shape, strict=True))
    )


def _check_balance(
    shapes: dict[int, tuple[int, ...]],
    whole: tuple[int, ...],
    placement: Placement,
    nd_sbp: NdSbp,
) -> None:
    check_fits(nd_sbp, whole, "to_global")
    for rank, shape in shapes.items():
        expected = shard_box(whole, nd_sbp, placement, rank).shape
        for dim, (a, b) in enumerate(zip(shape, expected, strict=True)):
            if a != b:
                raise ShapeError(
                    f"Sizes of tensors in dimension {dim} must be same or match balanced split "
                    f"distribution: rank {rank} has {a} of {whole[dim]}, but should have {b}. See "
                    f"{_BALANCE_URL} for details of balanced split"
                )
