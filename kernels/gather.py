"""Kernels of oneflow/ops/gather.py. Scatter-adds of embedding gradients have a fused CPU
variant."""

from __future__ import annotations

import math

import numpy as np

from oneflow.core.dtype import DType, bool_, int64
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import compute_in_float32, kernel

compute_in_float32("gather_grad", "dim_scatter_add")

Types = tuple[TensorType, ...]


def _rows(types: Types, attrs: Attrs) -> Types:
    """The index as positions within the shard, and which of them lie elsewhere."""
    return types[1].with_dtype(int64), types[1].with_dtype(bool_)


@kernel("gather", workspace=_rows)
def gather(
    xp: ArrayModule,
    out: Array,
    x: Array,
    index: Array,
    rows: Array,
    is_elsewhere: Array,
    *,
    dim: int,
    size: int | None,
    offset: int | None = None,
) -> None:
    on_host = isinstance(x, np.ndarray)
    if x.shape[dim] == 0:
        out.fill(0)
        return
    if on_host and offset is None:
        xp.take(x, index, axis=dim, out=out, mode="clip")
        return
    xp.subtract(index, offset or 0, out=rows)
    xp.clip(rows, 0, x.shape[dim] - 1, out=rows)
    if on_host:
        xp.take(x, rows, axis=dim, out=out, mode="clip")  # mode "raise" would copy `out`
    else:
        xp.take(x, rows, axis=dim, out=out)
    if offset is not None:
        xp.add(rows, offset, out=rows)
        xp.not_equal(rows, index, out=is_elsewhere)
        after = math.prod(x.shape[dim + 1 :])
        flat = out.reshape(math.prod(x.shape[:dim]), is_elsewhere.size, after)
        if on_host:
            flat[:, is_elsewhere.reshape(-1)] = 0
        else:
            xp.copyto(flat, 0, where=is_elsewhere.reshape(1, -1, 1))


@kernel("gather_grad", device="cpu")
def gather_grad(
    xp: ArrayModule,
    out: Array,
    d: Array,
    index: Array,
    *,
    dim: int,
    size: int,
    offset: int | None = None,
) -> None:
    out.fill(0)
    rows = index.reshape(-1) - (offset or 0)
    is_here = (rows >= 0) & (rows < out.shape[dim])
    before, after = math.prod(out.shape[:dim]), math.prod(out.shape[dim + 1 :])
    source = d.reshape(before, rows.size, after)[:, is_here]
    target = out.reshape(before, out.shape[dim], after)
    if source.size:
        xp.add.at(target, (slice(None), rows[is_here]), source)


def _masked(types: Types, attrs: Attrs) -> Types:
    """A copy of the gradient."""
    return (types[0],)


@kernel("gather_grad", device="cuda", workspace=_masked)
def gather_grad_cuda(
    xp: ArrayModule,
    out: Array,
    d: Array,
    index: Array,
    source: Array,
    *,
    dim: int,
    size: int,
    offset: int | None = None,
) -> None:
    """Rows that lie elsewhere add zeros to the edge rows: picking rows by a mask would wait for the
    GPU. Additions are atomic, so their order, and the last bits, may differ from run to run.
    """
    out.fill(0)
    if out.size == 0 or d.size == 0:
        return
    before, after = math.prod(out.shape[:dim]), math.prod(out.shape[dim + 1 :])
    rows = index.reshape(-1) - (offset or 0)
    is_here = (rows >= 0) & (rows < out.shape[dim])
    source[...] = d
    flat = source.reshape(before, rows.size, after)
    xp.multiply(flat, is_here[None, :, None], out=flat)
    xp.clip(rows, 0, out.shape[dim] - 1, out=rows)
    xp.add.at(out.reshape(before, out.shape[dim], after), (slice(None), rows), flat)


@kernel(
    "gather_grad",
    device="cpu",
    min_elements=1 << 14,
    dtypes=("float32", "float64"),
)
def gather_grad_fused(
    xp: ArrayModule,
    out: Array,
    d: Array,
    index: Array,
    *,
    dim: int,
    size: int,
    offset: int | None = None,
) -> None:
    from oneflow.kernels.native.scatter import add_rows

    out.fill(0)
    before = math.prod(out.shape[:dim])
    after = math.prod(out.shape[dim + 1 :])
    add_rows(
        out.reshape(before, out.shape[dim], after),
        xp.ascontiguousarray(d).reshape(before, index.size, after),
        xp.ascontiguousarray(index, dtype=xp.int64).reshape(-1),
        int(offset or 0),
    )


def _places(xp: ArrayModule, index: Array, dim: int) -> tuple[Array | slice, ...]:
    """The places of the elements that `index` chooses: whole rows where all their elements have one
    index, as in `x[rows] = y`; else an open grid over the dims of `index`, with index itself at
    `dim`."""
    dims = enumerate(zip(index.shape, index.strides, strict=True))
    if index.size and all(n == 1 or not step or i == dim for i, (n, step) in dims):
        rows = index[tuple(slice(None) if i == dim else 0 for i in range(index.ndim))]
        return (*(slice(None),) * dim, rows)
    return _grid(xp, index, dim)


def _grid(xp: ArrayModule, index: Array, dim: int) -> tuple[Array, ...]:
    """An open grid over the dims of `index`, with index itself at `dim`."""
    grid = []
    for i, n in enumerate(index.shape):
        along = xp.arange(n).reshape((1,) * i + (n,) + (1,) * (index.ndim - i - 1))
        grid.append(index if i == dim else along)
    return tuple(grid)


def _rows_here(xp: ArrayModule, index: Array, size: int, offset: int) -> tuple[Array, Array]:
    """The index as positions of a shard that begins at `offset`, and which of them lie in it."""
    rows = index - offset
    is_here = (rows >= 0) & (rows < size)
    return xp.clip(rows, 0, max(size - 1, 0)), is_here


def _places_here(
    xp: ArrayModule, index: Array, size: int, offset: int, dim: int
) -> tuple[tuple[Array, ...], Array]:
    """The places of a shard that are written to, each as an array, and which of the source's
    elements go there.
    """
    rows, is_here = _rows_here(xp, index, size, offset)
    grid = _grid(xp, rows, dim)
    return tuple(xp.broadcast_to(g, index.shape)[is_here] for g in grid), is_here


@kernel("dim_gather")
def dim_gather(
    xp: ArrayModule,
    out: Array,
    x: Array,
    index: Array,
    *,
    dim: int,
    size: int | None,
    offset: int | None = None,
) -> None:
    if offset is None:
        out[...] = x[_places(xp, index, dim)]
        return
    out.fill(0)
    if x.size and out.size:
        rows, is_here = _rows_here(xp, index, x.shape[dim], offset)
        xp.copyto(out, x[_places(xp, rows, dim)], where=is_here)


@kernel("dim_scatter")
def dim_scatter(
    xp: ArrayModule,
    out: Array,
    x: Array,
    index: Array,
    source: Array,
    *,
    dim: int,
    size: int | None,
    offset: int | None = None,
) -> None:
    out[...] = x
    dim_assign(xp, out, x, index, source, dim=dim, size=size, offset=offset)


@kernel("dim_assign")
def dim_assign(
    xp: ArrayModule,
    out: Array,
    x: Array,
    index: Array,
    source: Array,
    *,
    dim: int,
    size: int | None,
    offset: int | None = None,
) -> None:
    """Write rows of `source` into x, which is `out` itself."""
    if offset is None:
        out[_places(xp, index, dim)] = source
        return
    places, is_here = _places_here(xp, index, x.shape[dim], offset, dim)
    out[places] = source[is_here]


@kernel("dim_scatter_add")
def dim_scatter_add(
    xp: ArrayModule,
    out: Array,
    x: Array,
    index: Array,
    source: Array,
    *,
    dim: int,
    size: int | None,
    offset: int | None = None,
) -> None:
    if offset is None:
        places, added = _places(xp, index, dim), source
    else:
        places, is_here = _places_here(xp, index, x.shape[dim], offset, dim)
        added = source[is_here]
    out[...] = x
    xp.add.at(out, places, added)


@kernel("one_hot")
def one_hot(xp: ArrayModule, out: Array, index: Array, *, depth: int, dtype: DType) -> None:
    for k in range(depth):
        xp.copyto(out[..., k], index == k, casting="unsafe")
