"""Local tensors as the parts of a global one: the type of the whole, the ranks that must agree, and
those whose data count."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from oneflow.boxing.boxes import groups_of, shard_box
from oneflow.boxing.collectives.base import shortened
from oneflow.core.config import current_config
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import DesyncError, DTypeError, OneFlowError, ShapeError
from oneflow.core.location import user_location
from oneflow.core.placement import Placement, coordinates
from oneflow.core.sbp import NdSbp, Sbp, check_fits
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.kernels.array import Array
from oneflow.tensor.eager_global import check_placement, empty_shard, to_device, to_host
from oneflow.tensor.grad_mode import is_grad_enabled
from oneflow.tensor.layout import check_layout
from oneflow.tensor.redistribution import dual, relaid
from oneflow.tensor.tape import nothing_saved, record_call
from oneflow.tensor.tensor import Tensor, device_type, raw, wrap_global

_MAX_LINE_NBYTES = 60  # of a source line told to the others: their beginnings are all alike
_BALANCE_URL = (
    "https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/common/balanced_splitter.h"
)


@dataclass(frozen=True)
class Whole:
    """The tensor that the parts make together. requires_grad: whether some rank's part asks for
    gradients.
    """

    type: TensorType
    requires_grad: bool


def from_local(
    x: Tensor, placement: Placement, nd_sbp: NdSbp, check_meta: bool, copy: bool
) -> Tensor:
    """This rank's part of a global tensor as that tensor. All ranks of the world must call it;
    tensors of ranks outside the placement are ignored.

    Broadcast axes: the data of the first rank of each group wins and is written into x of the
    others, unless `copy`.  Raises on all ranks alike if the parts do not fit.
    """
    check_placement(placement)
    whole = _whole(x, placement, nd_sbp, _checks(check_meta))
    check_layout(whole.type, nd_sbp, "to_global")
    if world().rank not in placement:
        out = wrap_global(empty_shard(whole.type, placement), whole.type, placement, nd_sbp)
    else:
        array = x._array
        if device_type(x) != placement.type:
            array = to_device(to_host(array), placement.type)
        elif copy:
            array = array.copy()
        array, is_new = _first_wins(array, placement, nd_sbp)
        out = wrap_global(array, whole.type, placement, nd_sbp)
        if array is x._array:
            x._version[0] += is_new
            out._version = x._version
    if whole.requires_grad and is_grad_enabled():
        _record(x, out)
    return out


def _record(x: Tensor, out: Tensor) -> None:
    """All ranks record the step if one does: in backward they move the gradient together."""
    placement, nd_sbp = out.placement, dual(out.sbp)
    kind, device = device_type(x), x._device
    is_part = world().rank in placement and x._requires_grad
    if is_part:
        source = x
    else:
        source = raw(x.meta, x._array, x._device)
        source._requires_grad = True

    def backward(grads: list[Any]) -> list[Any]:
        if grads[0] is None:
            return [None]
        grad = relaid(grads[0], placement, nd_sbp)
        if not is_part:
            return [None]
        data = grad._array if kind == placement.type else to_device(to_host(grad._array), kind)
        return [raw(TensorType(tuple(data.shape), grad.meta.dtype), data, device)]

    record_call("local_to_global", (source,), (out,), backward, on_release=nothing_saved)


def _checks(check_meta: bool) -> bool:
    """The caller's wish, unless the environment turns the checks on (debug) or off."""
    config = current_config()
    return config.debug or (check_meta and not config.trust_local_sizes)


def _first_wins(array: Array, placement: Placement, nd_sbp: NdSbp) -> tuple[Array, bool]:
    """Give all ranks on broadcast axes the data of the first, in their own memory if it can be
    written. Returns this rank's array and whether it holds data of another.
    """
    axes = tuple(i for i, s in enumerate(nd_sbp) if s.is_broadcast)
    rank = world().rank
    group = next(g for g in groups_of(placement, axes) if rank in g)
    if len(group) == 1:
        return array, False
    ranks = world().collectives_on(placement.type, group)
    first = ranks.broadcast(array, group[0], "to_global of a local tensor")
    if rank == group[0] or _bytes_equal(array, first):
        return array, False
    if not _may_be_written(array):
        return first, True
    array[...] = first
    return array, True


def _bytes_equal(a: Array, b: Array) -> bool:
    """Are they equal? Then nothing is written, and values that autograd saved of the tensor stay
    valid.
    """
    flat = (x.ravel().view(np.uint8) for x in (a, b))
    return bool((next(flat) == next(flat)).all())


def _may_be_written(array: Array) -> bool:
    """Not read-only, and no two elements in one place (an expanded tensor)."""
    flags = array.flags
    strides = zip(array.shape, array.strides, strict=True)
    return getattr(flags, "writeable", True) and all(s != 0 or n <= 1 for n, s in strides)


# ---- what the whole is ---------------------------------------------------------------------------


def _whole(x: Tensor, placement: Placement, nd_sbp: NdSbp, check_meta: bool) -> Whole:
    """Asks the other ranks only if it must be checked or if some of them have no part."""
    here = world()
    if here.world_size == 1:
        return Whole(x.meta, x._requires_grad)
    if not check_meta and placement.size == here.world_size:
        return Whole(_as_if_equal(x.meta, placement, nd_sbp), x._requires_grad)
    mine = [
        placement.notation,
        list(map(str, nd_sbp)),
        list(x.meta.shape),
        x.meta.dtype.name,
        x._requires_grad,
        shortened(user_location(), _MAX_LINE_NBYTES, 0.0),
    ]
    said = here.everyone.gather_bytes(json.dumps(mine).encode(), "to_global of a local tensor")
    return _agreed(tuple(said), placement, nd_sbp, check_meta)


@lru_cache(maxsize=1024)
def _agreed(
    said: tuple[bytes, ...], placement: Placement, nd_sbp: NdSbp, check_meta: bool
) -> Whole:
    """Return the whole of the parts that all ranks describe. Raises on all ranks alike."""
    metas = [json.loads(text) for text in said]
    try:
        return _joined(metas, placement, nd_sbp, check_meta)
    except OneFlowError as error:
        lines = ", ".join(f"rank {rank}: {meta[5]}" for rank, meta in enumerate(metas))
        error.args = (f"{error.args[0]} (called at {lines})",)
        error.location = lines
        raise


def _joined(metas: list[Any], placement: Placement, nd_sbp: NdSbp, check_meta: bool) -> Whole:
    _same_request(metas)
    parts = {r: metas[r] for r in placement.rank_ids}
    shapes = {r: tuple(meta[2]) for r, meta in parts.items()}
    dtype = _same_dtype({r: meta[3] for r, meta in parts.items()})
    shape = whole_shape(shapes, placement, nd_sbp)
    if check_meta:
        _check_balance(shapes, shape, placement, nd_sbp)
    return Whole(TensorType(shape, dtype), any(meta[4] for meta in parts.values()))


def _as_if_equal(part: TensorType, placement: Placement, nd_sbp: NdSbp) -> TensorType:
    """The whole if every rank has a part of this type."""
    check_fits(nd_sbp, part.shape, "to_global")
    shape = list(part.shape)
    for s, n in zip(nd_sbp, placement.hierarchy, strict=True):
        if s.is_split:
            shape[s.dim] *= n
    return part.with_shape(tuple(shape))


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


def whole_shape(
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


def _join(first: tuple[int, ...], shape: tuple[int, ...], sbp: Sbp, rank: int) -> tuple[int, ...]:
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
                    f"distribution. See {_BALANCE_URL} for details of balanced split; rank {rank} "
                    f"has {a} of {whole[dim]}, but should have {b}"
                )
