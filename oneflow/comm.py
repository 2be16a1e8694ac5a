"""Collectives on local tensors, over all ranks of the job. Results are written into the tensors
given.

All ranks must call them in the same order, with equal shapes and dtypes unless said otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneflow.boxing.boxes import Pull
from oneflow.boxing.collectives.base import Collectives
from oneflow.boxing.collectives.exchange import Exchange
from oneflow.core.dtype import dtype_of
from oneflow.core.errors import DeviceError, PlacementError, ShapeError
from oneflow.distributed.world import world
from oneflow.tensor.eager_global import to_host
from oneflow.tensor.tensor import Tensor, wrap

_Array = np.ndarray[Any, Any]


def all_reduce(tensor: Tensor) -> None:
    """Sums `tensor` over all ranks, in place."""
    _store(tensor, _everyone().all_reduce(_array(tensor, "all_reduce")))


def all_gather(tensor_list: list[Tensor], tensor: Tensor) -> None:
    """Fills `tensor_list` with every rank's `tensor`, by rank."""
    mine = _array(tensor, "all_gather")
    _check_count(tensor_list, "all_gather")
    parts = _everyone().all_gather(mine).reshape(-1, *mine.shape)
    for target, part in zip(tensor_list, parts, strict=True):
        _store(target, part)


def all_gather_into_tensor(output: Tensor, input: Tensor) -> None:
    """Every rank's `input`, one after the other along dim 0, into `output`."""
    mine = _array(input, "all_gather_into_tensor")
    _store(output, _everyone().all_gather(mine).reshape(output.type.shape))


def reduce_scatter(output: Tensor, input_list: list[Tensor]) -> None:
    """Sums the lists over all ranks and leaves this rank's entry in `output`."""
    _check_count(input_list, "reduce_scatter")
    stacked = np.stack([_array(x, "reduce_scatter") for x in input_list])
    _store(output, _everyone().reduce_scatter(stacked)[0])


def reduce_scatter_tensor(output: Tensor, input: Tensor) -> None:
    """Sums `input` over all ranks and leaves this rank's equal part of dim 0 in `output`."""
    mine = _array(input, "reduce_scatter_tensor")
    size = _everyone().size
    if mine.ndim == 0 or mine.shape[0] % size:
        raise ShapeError(
            f"reduce_scatter_tensor: dim 0 of {input.type} cannot be divided by {size} ranks"
        )
    _store(output, _everyone().reduce_scatter(mine).reshape(output.type.shape))


def broadcast(tensor: Tensor, src: int) -> None:
    """Copies rank `src`'s `tensor` into everybody's."""
    _check_rank(src, "broadcast")
    _store(tensor, _everyone().broadcast(_array(tensor, "broadcast"), src))


def scatter(tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int = 0) -> None:
    """Entry r of rank `src`'s list goes into the `tensor` of rank r."""
    _check_rank(src, "scatter")
    target = _array(tensor, "scatter").reshape(-1)
    here = _everyone()
    source: _Array | None = None
    if here.rank == src:
        given = _check_count(scatter_list, "scatter")
        source = np.concatenate([_array(x, "scatter").reshape(-1) for x in given])
    n = target.size

    def pulls_of(rank: int) -> list[Pull]:
        return [Pull(src, (slice(rank * n, (rank + 1) * n),), (slice(0, n),), False)]

    _store(tensor, _transfer("scatter", here, source, target, pulls_of).reshape(tensor.type.shape))


def gather(tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0) -> None:
    """Fills rank `dst`'s `gather_list` with every rank's `tensor`."""
    _check_rank(dst, "gather")
    mine = _array(tensor, "gather").reshape(-1)
    here, n = _everyone(), mine.size
    lists = _check_count(gather_list, "gather") if here.rank == dst else []

    def pulls_of(rank: int) -> list[Pull]:
        if rank != dst:
            return []
        whole = (slice(0, n),)
        return [
            Pull(r, whole, (slice(i * n, (i + 1) * n),), False) for i, r in enumerate(here.ranks)
        ]

    target: _Array = np.empty(n * here.size if here.rank == dst else 0, mine.dtype)
    parts = _transfer("gather", here, mine, target, pulls_of).reshape(-1, max(1, n))
    for x, part in zip(lists, parts, strict=False):
        _store(x, part[:n].reshape(tensor.type.shape))


def reduce(tensor: Tensor, dst: int) -> None:
    """Sums `tensor` over all ranks into rank `dst`'s; the others keep theirs."""
    _check_rank(dst, "reduce")
    mine = _array(tensor, "reduce").reshape(-1)
    here, whole = _everyone(), (slice(0, mine.size),)

    def pulls_of(rank: int) -> list[Pull]:
        return [Pull(r, whole, whole, i > 0) for i, r in enumerate(here.ranks) if rank == dst]

    target = np.empty_like(mine) if here.rank == dst else mine
    total = _transfer("reduce", here, mine, target, pulls_of)
    if here.rank == dst:
        _store(tensor, total.reshape(tensor.type.shape))


def all_to_all(output_tensor_list: list[Tensor], input_tensor_list: list[Tensor]) -> None:
    """Sends entry r of the input list to rank r; entry r of the output list comes from rank r.

    All entries have one shape.
    """
    _check_count(output_tensor_list, "all_to_all")
    given = [_array(x, "all_to_all") for x in _check_count(input_tensor_list, "all_to_all")]
    if len({x.shape for x in given}) > 1:
        raise ShapeError("all_to_all: all tensors of the input list must have one shape")
    for target, part in zip(
        output_tensor_list, _everyone().all_to_all(np.stack(given)), strict=True
    ):
        _store(target, part)


def barrier() -> None:
    """Waits until every rank is here."""
    _everyone().barrier()


def send(tensor: Tensor, dst: int, send_meta: bool = True) -> None:
    """Sends `tensor` to rank `dst`, which must call `recv`.

    send_meta: also its shape and dtype; False if the receiver gives them.
    """
    mine = _array(tensor, "send")
    pair = _pair(dst, "send")
    if send_meta:
        pair.gather_bytes(json.dumps([tensor.type.dtype.name, list(tensor.type.shape)]).encode())
    pair.broadcast(mine, pair.rank)


def recv(
    src: int,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    device: Any = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """What rank `src` sends, in `out` or in a new tensor.

    If shape, dtype and device are all given, the sender must use `send_meta=False`.
    """
    pair = _pair(src, "recv")
    if shape is None or dtype is None or device is None:
        said = json.loads(pair.gather_bytes(b"")[pair.ranks.index(src)])
        dtype, shape = dtype_of(said[0]), tuple(said[1])
    assert shape is not None
    wanted = dtype_of(dtype)
    got = pair.broadcast(np.empty(tuple(shape), wanted.np), src)
    if out is None:
        made = wrap(got)
        return made if device is None else made.to(device)
    if out.type.shape != tuple(shape) or out.type.dtype is not wanted:
        raise ShapeError(f"recv: rank {src} sent {wanted.name}{list(shape)}, but out is {out.type}")
    _store(out, got)
    return out


def all_gather_object(value: Any) -> list[Any]:
    """Every rank's value, by rank. Values are what JSON can say: no code can arrive with them."""
    said = _everyone().gather_bytes(_encode(value, "all_gather_object"))
    return [json.loads(data) for data in said]


def broadcast_object(value: Any = None, src: int = 0) -> Any:
    """Rank `src`'s value, on every rank. Values are what JSON can say."""
    _check_rank(src, "broadcast_object")
    here = _everyone()
    mine = _encode(value, "broadcast_object") if here.rank == src else b""
    return json.loads(here.gather_bytes(mine)[src])


# ---- shared by all -------------------------------------------------------------------------------


def _everyone() -> Collectives:
    return world().everyone


def _pair(other: int, who: str) -> Collectives:
    _check_rank(other, who)
    mine = world().rank
    if other == mine:
        raise PlacementError(f"{who}: rank {mine} cannot send to itself")
    return world().collectives((min(mine, other), max(mine, other)))


def _check_rank(rank: int, who: str) -> None:
    if not 0 <= rank < world().world_size:
        raise PlacementError(f"{who}: rank {rank} is not in a world of {world().world_size}")


def _check_count(tensors: list[Tensor] | None, who: str) -> list[Tensor]:
    if tensors is None or len(tensors) != world().world_size:
        got = "none" if tensors is None else str(len(tensors))
        raise ShapeError(
            f"{who}: the list needs one tensor per rank ({world().world_size}), got {got}"
        )
    return tensors


def _array(x: Tensor, who: str) -> _Array:
    """The values on the host. Raises for global tensors and for other ranks' devices."""
    if not x.is_local:
        raise PlacementError(f"{who} takes local tensors; use to_global() to move global ones")
    if x.device.index != world().local_rank:
        raise DeviceError(
            f"{who}: the tensor is on {x.device}, but this rank's device has the number "
            f"{world().local_rank}"
        )
    return to_host(x.detach()._array)


def _store(x: Tensor, values: _Array) -> None:
    if tuple(values.shape) != x.type.shape:
        raise ShapeError(f"the result has shape {list(values.shape)}, but the tensor is {x.type}")
    if isinstance(x._array, np.ndarray):
        x._array[...] = values
    else:
        x._array.set(np.ascontiguousarray(values, x.type.dtype.np))
    x._version[0] += 1


def _transfer(
    what: str,
    here: Collectives,
    source: _Array | None,
    target: _Array,
    pulls_of: Callable[[int], list[Pull]],
) -> _Array:
    result = np.empty_like(target)
    here.transfer(what, source, result, Exchange(here.ranks, pulls_of))
    return result


def _encode(value: Any, who: str) -> bytes:
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{who}: {error}; only None, booleans, numbers, strings, lists and dicts travel"
        ) from None
