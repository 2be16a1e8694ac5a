"""Kernels and views of oneflow/ops/shape.py."""

from __future__ import annotations

from oneflow.core.operand import Number
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import module_of, strided
from oneflow.kernels.registry import kernel, view

Dims = tuple[int, ...]


@kernel("reshape")
def reshape(xp: ArrayModule, out: Array, x: Array, *, shape: Dims) -> None:
    out.reshape(x.shape)[...] = (
        x  # out is contiguous, so it is the one that can be seen in another shape
    )


@view("reshape")
def reshape_view(x: Array, *, shape: Dims) -> Array | None:
    if x.flags.c_contiguous:
        return x.reshape(shape)
    seen = x.reshape(shape)  # both libraries copy only if they must, by the same rule
    return seen if module_of(x).may_share_memory(seen, x) else None


@kernel("transpose")
def transpose(xp: ArrayModule, out: Array, x: Array, *, dims: Dims) -> None:
    out[...] = x.transpose(dims)


@view("transpose")
def transpose_view(x: Array, *, dims: Dims) -> Array:
    seen: Array = x.transpose(dims)
    return seen


@kernel("expand")
def expand(xp: ArrayModule, out: Array, x: Array, *, shape: Dims) -> None:
    out[...] = x


@view("expand")
def expand_view(x: Array, *, shape: Dims) -> Array:
    """Strides are 0 where a dim grows; a new dim of one element has that of the dims behind it."""
    added = len(shape) - x.ndim
    pairs = zip(shape[added:], x.shape, x.strides, strict=True)
    strides = [s if n == old else 0 for n, old, s in pairs]
    for i in reversed(range(added)):
        is_one = shape[i] == 1 and strides
        strides.insert(0, shape[i + 1] * strides[0] if is_one else 0)
    return strided(x, shape, tuple(strides))


@kernel("flip")
def flip(xp: ArrayModule, out: Array, x: Array, *, dims: Dims) -> None:
    backward = slice(None, None, -1)
    out[...] = x[tuple(backward if i in dims else slice(None) for i in range(x.ndim))]


@kernel("roll")
def roll(xp: ArrayModule, out: Array, x: Array, *, shifts: Dims, dims: Dims) -> None:
    """Copies the two parts of every rolled dim to their places: 2 ** len(dims) blocks."""
    blocks: list[tuple[list[slice], list[slice]]] = [([], [])]
    for i, size in enumerate(x.shape):
        shift = shifts[dims.index(i)] % size if i in dims and size else 0
        halves = [(slice(0, size - shift), slice(shift, size))]
        if shift:
            halves.append((slice(size - shift, size), slice(0, shift)))
        blocks = [([*a, s], [*b, t]) for a, b in blocks for s, t in halves]
    for source, target in blocks:
        out[tuple(target)] = x[tuple(source)]


@kernel("pad")
def pad(xp: ArrayModule, out: Array, x: Array, *, pads: Dims, value: Number) -> None:
    inner = tuple(slice(pads[2 * i], pads[2 * i] + n) for i, n in enumerate(x.shape))
    if out.shape != x.shape:
        out.fill(value)
    out[inner] = x


@kernel("tril")
def tril(xp: ArrayModule, out: Array, x: Array, *, diagonal: int) -> None:
    out[...] = x
    for i in range(x.shape[-2]):
        out[..., i, max(0, i + diagonal + 1) :] = 0


@kernel("triu")
def triu(xp: ArrayModule, out: Array, x: Array, *, diagonal: int) -> None:
    out[...] = x
    for i in range(x.shape[-2]):
        out[..., i, : max(0, i + diagonal)] = 0


@kernel("diagonal")
def diagonal(xp: ArrayModule, out: Array, x: Array, *, offset: int) -> None:
    out[...] = xp.diagonal(x, offset, -2, -1)


@view("diagonal")
def diagonal_view(x: Array, *, offset: int) -> Array:
    corner = x[..., max(-offset, 0) :, max(offset, 0) :]
    strides = (*x.strides[:-2], x.strides[-2] + x.strides[-1])
    return strided(corner, (*x.shape[:-2], min(corner.shape[-2:])), strides)


@kernel("diag_embed")
def diag_embed(
    xp: ArrayModule, out: Array, x: Array, *, offset: int, rows: int, columns: int
) -> None:
    out.fill(0)
    length, width = x.shape[-1], out.shape[-1]
    first = -offset * width if offset < 0 else offset
    if x.size:
        flat = out.reshape(*out.shape[:-2], rows * columns)
        flat[..., first : first + (length - 1) * (width + 1) + 1 : width + 1] = x
