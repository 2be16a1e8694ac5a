"""Arguments of collectives on local tensors: checked before anything is sent, written at last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np

from oneflow.boxing.collectives.base import Collectives
from oneflow.core.device import Device
from oneflow.core.errors import DeviceError, DTypeError, GraphError, PlacementError, ShapeError
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import to_host
from oneflow.tensor.tensor import Tensor


class Channel(tuple[int, ...]):
    """Ranks, ascending, and the name of a line of calls between them: calls of one line need no
    order among those of another.
    """

    name: str

    def __new__(cls, ranks: Sequence[int], name: str) -> Channel:
        made = super().__new__(cls, sorted(ranks))
        made.name = name
        return made


Ranks: TypeAlias = Sequence[int] | None
"""The ranks that take part in a call, this one among them; None: all."""

REDUCTIONS = ("sum", "prod", "max", "min")

T = TypeVar("T")


def array_of(x: Tensor | None, who: str) -> Array:
    """The values of a local tensor of this rank, on the host; may share its memory.

    Raises DTypeError for an object that is no tensor, GraphError for a value of a graph,
    PlacementError for a global tensor, DeviceError for a tensor on another rank's device.
    """
    array = check_local(x, who)._array
    return to_host(array)


def check_local(x: Tensor | None, who: str) -> Tensor:
    """See `array_of`."""
    if not isinstance(x, Tensor):
        raise DTypeError(f"{who}: a tensor is needed, got {type(x).__name__}; see flow.tensor()")
    if x.value is not None:
        raise GraphError(
            f"{who}: {x.meta} is a value of an nn.Graph under construction; inside a graph data "
            "move with to_global()"
        )
    if x.is_global:
        raise PlacementError(f"{who} takes local tensors; use to_global() to move global ones")
    if x.device != Device(x.device.type, world().local_rank):
        raise DeviceError(
            f"{who}: the tensor is on {x.device}, but this rank's device has the number "
            f"{world().local_rank}"
        )
    return x


def check_like(x: Tensor, wanted: TensorType, who: str, name: str) -> None:
    """Raises ShapeError or DTypeError unless the local tensor x is of that type.

    name: of the argument, for the message.
    """
    check_local(x, who)
    if x.meta.dtype is not wanted.dtype:
        raise DTypeError(f"{who}: {name} is {x.meta}, but should be {wanted}; cast it with .to()")
    if x.meta.shape != wanted.shape:
        raise ShapeError(f"{who}: {name} is {x.meta}, but should be {wanted}")


def among(ranks: Ranks) -> Collectives:
    """The collectives of these ranks. Raises PlacementError if this rank is not one of them."""
    if ranks is None:
        return world().everyone
    chosen = tuple(sorted(ranks))
    if world().rank not in chosen:
        raise PlacementError(f"rank {world().rank} takes no part in a call of ranks {chosen}")
    return world().collectives(chosen, ranks.name if isinstance(ranks, Channel) else "")


def check_list(
    tensors: Sequence[Tensor] | None, wanted: TensorType, who: str, name: str, size: int
) -> Sequence[Tensor]:
    """`tensors`, if it is one tensor of type `wanted` for each of `size` ranks."""
    checked = check_count(tensors, who, name, size)
    for i, x in enumerate(checked):
        check_like(x, wanted, who, f"{name}[{i}]")
    return checked


def check_count(entries: Sequence[T] | None, who: str, name: str, size: int) -> Sequence[T]:
    """`entries`. Raises ShapeError unless it is a list of one entry for each of `size` ranks."""
    if not isinstance(entries, (list, tuple)) or len(entries) != size:
        got = f"{len(entries)}" if isinstance(entries, (list, tuple)) else type(entries).__name__
        raise ShapeError(f"{who}: {name} needs one entry per rank ({size}), got {got}")
    return entries


def check_rank(rank: object, who: str, ranks: Ranks = None) -> None:
    """Raises PlacementError unless there is such a rank among those that take part."""
    if not isinstance(rank, int) or not 0 <= rank < world().world_size:
        raise PlacementError(f"{who}: rank {rank} is not in a world of {world().world_size}")
    if ranks is not None and rank not in ranks:
        raise PlacementError(f"{who}: rank {rank} is not one of {list(ranks)}")


def check_reduction(op: str, type_: TensorType, who: str) -> None:
    """Raises DTypeError if values of that type have no such reduction."""
    if op not in REDUCTIONS:
        raise DTypeError(f"{who}: op is one of {', '.join(REDUCTIONS)}, got {op!r}")
    if type_.dtype.is_complex and op in ("max", "min"):
        raise DTypeError(f"{who}: {type_.dtype.name} numbers have no {op}")


def store(x: Tensor, values: Array) -> None:
    """Writes into a local tensor. values: of its shape and dtype, or one reshaping away."""
    values = values.reshape(x.meta.shape)
    if isinstance(x._array, np.ndarray):
        x._array[...] = values
    else:
        x._array.set(np.ascontiguousarray(values))
    x._version[0] += 1
