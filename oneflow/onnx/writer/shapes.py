"""Ops that move elements: shapes, slices, pads, joins."""

from __future__ import annotations

import numpy as np

from oneflow.core.dtype import DType, bool_, int64
from oneflow.onnx.writer.builder import Builder, Call
from oneflow.onnx.writer.elementwise import filled, places
from oneflow.onnx.writer.sizes import is_dynamic
from oneflow.onnx.writer.table import writes

FAR = np.iinfo(np.int64).max


@writes("reshape")
def _reshape(b: Builder, call: Call) -> str:
    return b.reshape(call.inputs[0], call.attrs["shape"])


@writes("transpose")
def _transpose(b: Builder, call: Call) -> str:
    return b.transpose(call.inputs[0], call.attrs["dims"])


@writes("expand")
def _expand(b: Builder, call: Call) -> str:
    return b.expand(call.inputs[0], call.attrs["shape"])


@writes("flip")
def _flip(b: Builder, call: Call) -> str:
    dims = list(call.attrs["dims"])
    if not dims:
        return call.inputs[0]
    back = [-1] * len(dims)
    return b.slice(call.inputs[0], back, [-FAR] * len(dims), dims, back)


@writes("roll")
def _roll(b: Builder, call: Call) -> str:
    (x,), (type_,) = call.inputs, call.types
    for shift, dim in zip(call.attrs["shifts"], call.attrs["dims"], strict=True):
        size = type_.shape[dim]
        cut = -shift if is_dynamic(size) else (-shift) % max(size, 1)
        if cut:
            head, tail = b.slice(x, [0], [cut], [dim]), b.slice(x, [cut], [FAR], [dim])
            x = b("Concat", tail, head, axis=dim)
    return x


@writes("slice")
def _slice(b: Builder, call: Call) -> str:
    starts, stops, steps = (call.attrs[k] for k in ("starts", "stops", "steps"))
    sizes = call.types[0].shape
    wanted = [
        i for i, (a, z, s, size) in enumerate(zip(starts, stops, steps, sizes, strict=True))
        if (int(a), int(s)) != (0, 1) or z != size
    ]  # fmt: skip
    if not wanted:
        return call.inputs[0]
    # An end at the end of a dynamic dim needs no computing.
    ends = [FAR if is_dynamic(stops[i]) and stops[i] == sizes[i] else stops[i] for i in wanted]
    some = [steps[i] for i in wanted]
    strides = None if all(s == 1 for s in some) else some
    return b.slice(call.inputs[0], [starts[i] for i in wanted], ends, wanted, strides)


def _positions(b: Builder, call: Call, shape: tuple[int, ...]) -> tuple[int, str, str] | None:
    """(dim, indices along it, the same as 1-d) if the slice takes all of the other dims."""
    starts, stops, steps = (call.attrs[k] for k in ("starts", "stops", "steps"))
    cut = [
        i for i, size in enumerate(shape)
        if (starts[i], steps[i]) != (0, 1) or stops[i] != size
    ]  # fmt: skip
    return None if len(cut) > 1 else (cut[0] if cut else 0, "", "")


@writes("slice_update", "slice_scatter")
def _slice_update(b: Builder, call: Call) -> str:
    """Write by ScatterND at the positions of the slice, which are constants."""
    if call.op == "slice_update":
        (ref, value), shape = call.inputs, call.types[0].shape
    else:
        value, shape = call.inputs[0], call.attrs["shape"]
        ref = filled(b, shape, 0, call.types[0].dtype)
    a, part = call.attrs, call.types[-1].shape
    if not shape:
        return value
    if is_dynamic((shape, a["starts"], a["stops"], a["steps"])):
        return _slice_update_dynamic(b, call, ref, value, shape, part)
    spans = [
        np.arange(start, start + size * step, step)
        for start, step, size in zip(a["starts"], a["steps"], part, strict=True)
    ]
    # Trailing dims that are whole need no positions of their own.
    last = len(shape)
    while last > 1 and len(spans[last - 1]) == shape[last - 1] and a["steps"][last - 1] == 1:
        last -= 1
    grid = np.stack(np.meshgrid(*spans[:last], indexing="ij"), -1)
    return b("ScatterND", ref, b.constant(grid.astype(np.int64)), value)


def _slice_update_dynamic(
    b: Builder, call: Call, ref: str, value: str, shape: tuple[int, ...], part: tuple[int, ...]
) -> str:
    """Write by ScatterElements along the one dim of which the slice takes a part."""
    a = call.attrs
    cut = [i for i, (n, size) in enumerate(zip(part, shape, strict=True)) if n != size]
    if not cut:
        return value
    if len(cut) > 1:
        raise call.refuse("writes a slice of several dims, with a dynamic dim; fix the sizes")
    (dim,) = cut
    along = b("Mul", places(b, part[dim]), b.number(a["steps"][dim], int64))
    along = b("Add", along, b.number(a["starts"][dim], int64))
    ones = [part[dim] if i == dim else 1 for i in range(len(shape))]
    return b("ScatterElements", ref, b.expand(b.reshape(along, ones), part), value, axis=dim)


@writes("pad")
def _pad(b: Builder, call: Call) -> str:
    pads, dtype = call.attrs["pads"], call.types[0].dtype
    ordered = [*pads[0::2], *pads[1::2]]
    if dtype is bool_:
        return b.cast(_padded(b, b.cast(call.inputs[0], int64), ordered, call, int64), bool_)
    return _padded(b, call.inputs[0], ordered, call, dtype)


def _padded(b: Builder, x: str, pads: list[int], call: Call, dtype: DType) -> str:
    value = b.number(call.attrs["value"], dtype)
    return b("Pad", x, b.ints(pads), value, mode="constant")


@writes("tril", "triu")
def _triangle(b: Builder, call: Call) -> str:
    dtype, k = call.types[0].dtype, b.number(call.attrs["diagonal"], int64)
    x = call.inputs[0]
    if dtype is bool_:
        x = b.cast(x, int64)
    made = b("Trilu", x, k, upper=int(call.op == "triu"))
    return b.cast(made, bool_) if dtype is bool_ else made


def _diagonal_places(call: Call, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    offset = call.attrs["offset"]
    if is_dynamic((rows, columns)):
        raise call.refuse("takes a diagonal of a dynamic dim; export it with fixed sizes")
    first = np.arange(max(0, min(rows, columns - offset) - max(0, -offset))) + max(0, -offset)
    return first, first + offset


@writes("diagonal")
def _diagonal(b: Builder, call: Call) -> str:
    """Gather by positions in the flattened matrix."""
    shape = call.types[0].shape
    rows, columns = _diagonal_places(call, *shape[-2:])
    flat = b.reshape(call.inputs[0], (*shape[:-2], shape[-2] * shape[-1]))
    return b("Gather", flat, b.constant(rows * shape[-1] + columns), axis=len(shape) - 2)


@writes("diag_embed")
def _diag_embed(b: Builder, call: Call) -> str:
    shape, a = call.types[0].shape, call.attrs
    rows, columns = _diagonal_places(call, a["rows"], a["columns"])
    taken = np.full((a["rows"], a["columns"]), shape[-1], np.int64)
    taken[rows, columns] = np.arange(len(rows))
    zero = filled(b, (*shape[:-1], 1), 0, call.types[0].dtype)
    more = b("Concat", call.inputs[0], zero, axis=len(shape) - 1)
    return b("Gather", more, b.constant(taken), axis=len(shape) - 1)


@writes("concat")
def _concat(b: Builder, call: Call) -> str:
    if len(call.inputs) == 1:
        return call.inputs[0]
    return b("Concat", *call.inputs, axis=call.attrs["dim"])


@writes("split")
def _split(b: Builder, call: Call) -> tuple[str, ...]:
    sizes, dim = call.attrs["sizes"], call.attrs["dim"]
    if len(sizes) == 1:
        return call.inputs
    return split(b, call.inputs[0], sizes, dim)


def split(b: Builder, x: str, sizes: tuple[int, ...], dim: int) -> tuple[str, ...]:
    """x cut into parts of these sizes."""
    if b.opset < 13:
        return b.many("Split", len(sizes), x, axis=dim, split=list(sizes))
    return b.many("Split", len(sizes), x, b.ints(sizes), axis=dim)


# ---- windows -------------------------------------------------------------------------------------


@writes("unfold")
def _unfold(b: Builder, call: Call) -> str:
    dim, size, step = (call.attrs[k] for k in ("dim", "size", "step"))
    count, ndim = call.results[0].shape[dim], call.types[0].ndim
    starts = b.unsqueeze(b("Mul", places(b, count), b.number(step, int64)), [1])
    taken = b("Gather", call.inputs[0], b("Add", starts, places(b, size)), axis=dim)
    order = [i for i in range(ndim + 1) if i != dim + 1]
    return b.transpose(taken, [*order, dim + 1])


@writes("unfold_grad")
def _unfold_grad(b: Builder, call: Call) -> str:
    dim, step, length = (call.attrs[k] for k in ("dim", "step", "length"))
    shape = call.types[0].shape
    index = step * np.arange(shape[dim])[:, None] + np.arange(shape[-1])
    order = [*range(dim + 1), len(shape) - 1, *range(dim + 1, len(shape) - 1)]
    moved = b.transpose(call.inputs[0], order)
    lead, rest = shape[:dim], shape[dim + 1 : -1]
    flat = b.reshape(moved, (*lead, index.size, *rest))
    out = (*lead, length, *rest)
    return add_rows(b, flat, index.reshape(-1), out, dim, call)


def add_rows(
    b: Builder, d: str, index: np.ndarray, out: tuple[int, ...], dim: int, call: Call
) -> str:
    """Zeros of shape `out` with d added at constant positions along a dim."""
    shape = (*out[:dim], index.size, *out[dim + 1 :])
    if is_dynamic(shape):
        raise call.refuse("adds up windows of a dynamic dim; export it with fixed sizes")
    ones = [index.size if i == dim else 1 for i in range(len(out))]
    wide = np.broadcast_to(index.reshape(ones), shape)
    zeros = filled(b, out, 0, call.types[0].dtype)
    return b("ScatterElements", zeros, b.constant(wide), d, axis=dim, reduction="add")


def _strided_places(call: Call, size: tuple[int, ...]) -> np.ndarray:
    if is_dynamic((size, call.attrs["stride"])):
        raise call.refuse("reads memory by strides, with a dynamic dim; fix the sizes")
    index = np.full((), call.attrs["offset"], np.int64)
    for count, stride in zip(size, call.attrs["stride"], strict=True):
        index = index[..., None] + np.arange(count) * stride
    return index


@writes("as_strided")
def _as_strided(b: Builder, call: Call) -> str:
    index = _strided_places(call, call.attrs["size"])
    return b("Gather", b.reshape(call.inputs[0], [call.types[0].numel]), b.constant(index), axis=0)


@writes("as_strided_grad")
def _as_strided_grad(b: Builder, call: Call) -> str:
    index = _strided_places(call, call.types[0].shape)
    shape = call.attrs["shape"]
    total = int(np.prod(shape))
    flat = b.reshape(call.inputs[0], [index.size])
    return b.reshape(add_rows(b, flat, index.reshape(-1), (total,), 0, call), shape)


@writes("as_strided_update")
def _as_strided_update(b: Builder, call: Call) -> str:
    index = _strided_places(call, call.types[1].shape).reshape(-1)
    _, last = np.unique(index[::-1], return_index=True)  # of equal places the last wins
    kept = np.sort(index.size - 1 - last)
    flat = b.reshape(call.inputs[0], [call.types[0].numel])
    part = b.reshape(call.inputs[1], [index.size])
    part = b("Gather", part, b.constant(kept), axis=0)
    made = b("ScatterElements", flat, b.constant(index[kept]), part, axis=0)
    return b.reshape(made, call.types[0].shape)
