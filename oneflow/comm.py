"""Collectives on local tensors, over all ranks of the job or those of `ranks`. Results are written
into the tensors given.

All these ranks must call them in the same order, with equal shapes, dtypes, roots and reductions;
calls that differ are a DesyncError on every rank, before any data moves. Arguments that are wrong
on one rank alone raise there before anything is sent: ShapeError, DTypeError, DeviceError, or
PlacementError for global tensors and for ranks that do not exist. Tensors of GPUs go through host
memory. Sums of bool are "or", products "and". `send`, `recv`, `send_object` and `recv_object` need
their two ranks only, and a sender returns when the other has received.

The functions with `object` in their names take Python values, without pickle: None, booleans, ints
of any size, floats, strings, bytes, lists, tuples, dicts (with keys of these but lists and dicts),
NumPy arrays and scalars without objects, and local tensors. They come out as the types they were,
subclasses as the plain type, tensors without a gradient; one value takes at most 1 GiB, in at most
100 containers in each other. A value that cannot travel is a DTypeError on all ranks of the call,
which names the rank and the place in the value; the calls after it are not disturbed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from oneflow.boxing.row_moves import exchange_rows
from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.spelling import also_called
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.arguments import (
    Ranks,
    among,
    array_of,
    check_like,
    check_list,
    check_local,
    check_rank,
    check_reduction,
    store,
)
from oneflow.distributed.exchanges import from_one, sum_to_one, to_one
from oneflow.distributed.objects import (
    all_gather_object,
    broadcast_object,
    broadcast_object_list,
    gather_object,
    recv_object,
    scatter_object,
    send_object,
)
from oneflow.distributed.pairs import pair_with, pass_on
from oneflow.distributed.world import world
from oneflow.kernels.array import Array
from oneflow.kernels.exchange_rows import row_list
from oneflow.surfaces import accept_paths
from oneflow.tensor.tensor import Tensor, wrap

__all__ = [
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "recv",
    "recv_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object",
    "send",
    "send_object",
]

BITS: dict[str, np.ufunc] = {
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}

_META_NBYTES = 256
"""Size of the description that `send` sends ahead; 64 dims of 2**63 elements in all fit."""


def all_reduce(tensor: Tensor, op: str = "sum", *, ranks: Ranks = None) -> None:
    """Reduces `tensor` over all ranks, in place. op: sum, prod, max, min; of integers and bools
    also band, bor, bxor.
    """
    if op in BITS:
        _reduce_bits(tensor, op, ranks)
    else:
        all_reduce_in(tensor, op, "", ranks)


def _reduce_bits(tensor: Tensor, op: str, ranks: Ranks) -> None:
    mine, here = array_of(tensor, "all_reduce"), among(ranks)
    if mine.dtype.kind not in "bui":
        raise DTypeError(f"all_reduce: {tensor.meta.dtype.name} numbers have no {op}")
    parts = here.all_gather(mine, what=f"all_reduce({op}) {tensor.meta}")
    store(tensor, BITS[op].reduce(parts.reshape(here.size, *mine.shape)))


def all_reduce_in(tensor: Tensor, op: str, what: str, ranks: Ranks = None) -> None:
    """`all_reduce` for a call of another name, `what` holds all arguments that must agree."""
    array = array_of(tensor, "all_reduce")
    check_reduction(op, tensor.meta, "all_reduce")
    if array is tensor._array and array.flags.c_contiguous:
        among(ranks).all_reduce(array, op, out=array, what=what)
        tensor._version[0] += 1
    else:
        store(tensor, among(ranks).all_reduce(array, op, what=what))


def all_gather(tensor_list: list[Tensor], tensor: Tensor, *, ranks: Ranks = None) -> None:
    """Fills `tensor_list` with every rank's `tensor`, by rank."""
    mine, here = array_of(tensor, "all_gather"), among(ranks)
    targets = check_list(tensor_list, tensor.meta, "all_gather", "tensor_list", here.size)
    parts = here.all_gather(mine).reshape(len(targets), *mine.shape)
    for target, part in zip(targets, parts, strict=True):
        store(target, part)


@also_called(output_tensor="output", input_tensor="input")
def all_gather_into_tensor(output: Tensor, input: Tensor, *, ranks: Ranks = None) -> None:
    """Every rank's `input`, one after the other, into `output`.

    output: of any shape with as many elements, (ranks * n, ...) for an input (n, ...), say.
    """
    mine = _flat(input, "all_gather_into_tensor")
    here = among(ranks)
    _check_parts(output, "output", input.meta, "all_gather_into_tensor", here.size)
    gathered = here.all_gather(mine, what="all_gather_into_tensor")
    store(output, gathered.reshape(output.meta.shape))


def reduce_scatter(
    output: Tensor, input_list: list[Tensor], op: str = "sum", *, ranks: Ranks = None
) -> None:
    """Reduces the lists over all ranks and leaves this rank's entry in `output`."""
    check_local(output, "reduce_scatter")
    check_reduction(op, output.meta, "reduce_scatter")
    here = among(ranks)
    given = check_list(input_list, output.meta, "reduce_scatter", "input_list", here.size)
    stacked = np.stack([array_of(x, "reduce_scatter") for x in given])
    store(output, here.reduce_scatter(stacked, op))


@also_called(output_tensor="output", input_tensor="input")
def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: str = "sum", *, ranks: Ranks = None
) -> None:
    """Reduces `input` over all ranks and leaves this rank's equal part of it in `output`.

    input: of any shape with as many elements, (ranks * n, ...) for an output (n, ...), say.
    """
    mine = _flat(input, "reduce_scatter_tensor")
    check_local(output, "reduce_scatter_tensor")
    check_reduction(op, output.meta, "reduce_scatter_tensor")
    here = among(ranks)
    _check_parts(input, "input", output.meta, "reduce_scatter_tensor", here.size)
    stacked = mine.reshape(here.size, output.meta.numel)
    part = here.reduce_scatter(stacked, op, what="reduce_scatter_tensor")
    store(output, part.reshape(output.meta.shape))


def broadcast(tensor: Tensor, src: int, *, ranks: Ranks = None) -> None:
    """Copies rank `src`'s `tensor` into everybody's."""
    check_rank(src, "broadcast", ranks)
    values = among(ranks).broadcast(array_of(tensor, "broadcast"), src)
    if world().rank != src:
        store(tensor, values)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int = 0,
    *,
    ranks: Ranks = None,
) -> None:
    """Entry r of rank `src`'s list goes into the `tensor` of rank r.

    scatter_list: looked at on rank `src` only.
    """
    check_rank(src, "scatter", ranks)
    check_local(tensor, "scatter")
    here, type_ = among(ranks), tensor.meta
    source: Array | None = None
    if here.rank == src:
        given = check_list(scatter_list, type_, "scatter", "scatter_list", here.size)
        source = np.stack([array_of(x, "scatter") for x in given]).reshape(-1)
    target = np.empty(type_.numel, type_.dtype.np)
    exchange = from_one(here.ranks, (type_.numel,) * here.size, src)
    here.transfer(f"scatter(from rank {src}) {type_}", source, target, exchange)
    store(tensor, target)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int = 0,
    *,
    ranks: Ranks = None,
) -> None:
    """Fills rank `dst`'s `gather_list` with every rank's `tensor`.

    gather_list: looked at on rank `dst` only.
    """
    check_rank(dst, "gather", ranks)
    mine, type_ = _flat(tensor, "gather"), tensor.meta
    here = among(ranks)
    targets: Sequence[Tensor] = ()
    if here.rank == dst:
        targets = check_list(gather_list, type_, "gather", "gather_list", here.size)
    parts = np.empty((len(targets), type_.numel), mine.dtype)
    exchange = to_one(here.ranks, (type_.numel,) * here.size, dst)
    here.transfer(f"gather(to rank {dst}) {type_}", mine, parts.reshape(-1), exchange)
    for target, part in zip(targets, parts, strict=True):
        store(target, part)


def reduce(tensor: Tensor, dst: int, op: str = "sum", *, ranks: Ranks = None) -> None:
    """Reduces `tensor` over all ranks into rank `dst`'s; the others keep theirs."""
    check_rank(dst, "reduce", ranks)
    mine, type_ = _flat(tensor, "reduce"), tensor.meta
    check_reduction(op, type_, "reduce")
    here = among(ranks)
    total: Array = np.empty(mine.size if here.rank == dst else 0, mine.dtype)
    exchange = sum_to_one(here.ranks, mine.size, dst)
    here.transfer(f"reduce({op}, to rank {dst}) {type_}", mine, total, exchange, op)
    if here.rank == dst:
        store(tensor, total)


def all_to_all(
    output_tensor_list: list[Tensor], input_tensor_list: list[Tensor], *, ranks: Ranks = None
) -> None:
    """Sends entry r of the input list to rank r; entry r of the output list comes from rank r.

    All entries of all ranks have one shape and dtype: a rank cannot know the sizes of parts between
    two others, and they are not exchanged. Parts of unequal sizes go by `all_to_all_single`. Raises
    ShapeError or DTypeError for other entries, DesyncError if ranks differ.
    """
    first = input_tensor_list[0] if input_tensor_list else None
    mine = array_of(first, "all_to_all")
    type_ = TensorType(tuple(mine.shape), dtype_of(mine.dtype))
    here = among(ranks)
    given = _check_equal_parts(input_tensor_list, type_, "input_tensor_list", here.size)
    targets = _check_equal_parts(output_tensor_list, type_, "output_tensor_list", here.size)
    parts = here.all_to_all(np.stack([array_of(x, "all_to_all") for x in given]))
    for target, part in zip(targets, parts, strict=True):
        store(target, part)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    *,
    ranks: Ranks = None,
) -> None:
    """Sends the first rows of `input` to rank 0, the next to rank 1 ..., and fills `output` with
    the received rows, by rank.

    input_split_sizes, output_split_sizes: rows (of dim 0) for and from each rank; None: as many for
    each. Raises ShapeError or DTypeError for tensors whose rows differ, or sizes that do not add up
    or are not those of the other rank; DesyncError if rows differ between ranks.
    """
    who = "all_to_all_single"
    mine, target = array_of(input, who), array_of(output, who)
    if not mine.ndim or (mine.dtype, mine.shape[1:]) != (target.dtype, target.shape[1:]):
        raise ShapeError(
            f"{who}: output {output.meta} and input {input.meta} must have rows of one kind"
        )
    here = among(ranks)
    sent = _split_sizes(input_split_sizes, mine, "input", here.size)
    wanted = _split_sizes(output_split_sizes, target, "output", here.size)
    came, made = np.empty_like(sent), np.empty(target.shape, target.dtype)
    rows = [row_list(np.ascontiguousarray(mine), 1)]
    what = f"{who} of rows {dtype_of(mine.dtype)}{list(mine.shape[1:])}"
    exchange_rows(here, np, sent, rows, came, [row_list(made, 1)], what=what)
    if came.tolist() != wanted.tolist():
        raise ShapeError(
            f"{who}: output_split_sizes are {wanted.tolist()}, but {came.tolist()} rows came"
        )
    store(output, made)


def _split_sizes(given: Sequence[int] | None, x: Array, name: str, size: int) -> Array:
    """Return the rows of each of `size` ranks, int64. Raises ShapeError."""
    rows = len(x)
    if given is None:
        given = [rows // size] * size
    sizes = np.array([int(n) for n in given], np.int64)
    if len(sizes) != size or sizes.sum() != rows or (sizes < 0).any():
        raise ShapeError(
            f"all_to_all_single: {name}_split_sizes {sizes.tolist()} do not divide {rows} rows "
            f"between {size} ranks"
        )
    return sizes


def _check_equal_parts(
    tensors: Sequence[Tensor], type_: TensorType, name: str, size: int
) -> Sequence[Tensor]:
    try:
        return check_list(tensors, type_, "all_to_all", name, size)
    except ShapeError as error:
        raise ShapeError(
            f"{error}. All parts of all ranks have one shape, because sizes are not exchanged: use "
            "all_to_all_single for others"
        ) from None


def barrier(*, ranks: Ranks = None) -> None:
    """Waits until every rank is here."""
    among(ranks).barrier()


# ---- two ranks -----------------------------------------------------------------------------------


@also_called(input="tensor")
def send(tensor: Tensor, dst: int, send_meta: bool = True, *, ranks: Ranks = None) -> None:
    """Sends `tensor` to rank `dst`, which must call `recv`; returns when it has.

    send_meta: also its shape, dtype and device type; False if the receiver gives all three.
    """
    mine, type_ = _flat(tensor, "send"), tensor.meta
    pair, ends = pair_with(dst, "send", True, ranks)
    what = f"send{ends}"
    if send_meta:
        said = json.dumps([type_.dtype.name, list(type_.shape), tensor.device.type]).encode()
        block = np.frombuffer(said.ljust(_META_NBYTES), np.uint8)
        pass_on(pair, f"{what} of shape and dtype", block, None, pair.rank)
    pass_on(pair, f"{what} {type_}", mine, None, pair.rank)


def recv(
    src: int,
    shape: Sequence[int] | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    *,
    out: Tensor | None = None,
    ranks: Ranks = None,
) -> Tensor:
    """Receive a tensor from rank `src`, in `out` or in a new one.

    If shape, dtype and device are all given, the sender must use `send_meta=False`. Raises
    ShapeError or DTypeError if the tensor does not fit `out` or the arguments.
    """
    if out is not None:
        check_local(out, "recv")
    pair, ends = pair_with(src, "recv", False, ranks)
    what = f"send{ends}"
    wanted = None if dtype is None else dtype_of(dtype)
    if shape is None or wanted is None or device is None:
        block: Array = np.empty(_META_NBYTES, np.uint8)
        pass_on(pair, f"{what} of shape and dtype", None, block, src)
        name, dims, kind = json.loads(block.tobytes())
        type_, device = TensorType(tuple(dims), dtype_of(name)), device or kind
    else:
        type_ = TensorType(tuple(shape), wanted)
    values: Array = np.empty(type_.numel, type_.dtype.np)
    pass_on(pair, f"{what} {type_}", None, values, src)
    _check_asked(type_, shape, wanted, src)
    if out is not None:
        check_like(out, type_, f"recv from rank {src}", "out")
        store(out, values)
        return out
    made = wrap(values.reshape(type_.shape))
    return made if str(device) == "cpu" else made.to(device)


def _check_asked(
    type_: TensorType, shape: Sequence[int] | None, dtype: DType | None, src: int
) -> None:
    """Compare the received type with the wanted one, as far as the sender told."""
    if shape is not None and tuple(shape) != type_.shape:
        raise ShapeError(f"recv: rank {src} sent {type_}, but shape={list(shape)} was asked for")
    if dtype is not None and dtype is not type_.dtype:
        raise DTypeError(f"recv: rank {src} sent {type_}, but dtype={dtype.name} was asked for")


# ---- shared by all -------------------------------------------------------------------------------


def _flat(x: Tensor, who: str) -> Array:
    return np.ascontiguousarray(array_of(x, who)).reshape(-1)


def _check_parts(x: Tensor, name: str, part: TensorType, who: str, size: int) -> None:
    """x must have as many elements as one `part` from each of `size` ranks."""
    check_local(x, who)
    if x.meta.dtype is not part.dtype:
        raise DTypeError(f"{who}: {name} is {x.meta}, but a rank's part is {part}")
    if x.meta.numel != size * part.numel:
        raise ShapeError(
            f"{who}: {name} is {x.meta} of {x.meta.numel} elements, but parts {part} of {size} "
            f"ranks make {size * part.numel}"
        )


accept_paths(__name__)
