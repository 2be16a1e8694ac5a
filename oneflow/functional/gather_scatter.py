"""Elements by position: gather, scatter, index_select, index_add, ..."""

from __future__ import annotations

from typing import Protocol

from oneflow import surfaces
from oneflow.core import dtype as dtypes
from oneflow.core.errors import (
    ArgumentError,
    DTypeError,
    ShapeError,
)
from oneflow.core.operand import Number
from oneflow.functional.arithmetic import add, mul
from oneflow.functional.creation import full_like, zeros
from oneflow.functional.dims import one_dim
from oneflow.functional.elementwise import clone
from oneflow.functional.promotion import as_type
from oneflow.functional.shaping import (
    broadcast_shapes,
    reshape,
    stretched,
)
from oneflow.ops import gather as ops
from oneflow.ops import slicing
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.tensor import Tensor


class Scatter(Protocol):
    """A declared op that puts elements at indices of a dim."""

    def __call__(self, x: Tensor, index: Tensor, src: Tensor, /, *, dim: int) -> Tensor: ...


def as_index(index: Tensor) -> Tensor:
    """int64, unless it is int32 or int64 already. Raises DTypeError for a tensor of no integers."""
    if index.meta.dtype.is_floating_point or index.meta.dtype.is_complex:
        raise DTypeError(
            f"tensors used as indices must be integers or bool, got {index.meta}; cast with .long()"
        )
    return (
        index if index.meta.dtype in (dtypes.int32, dtypes.int64) else as_type(index, dtypes.int64)
    )


def positive(index: Tensor, size: int, dim: int = 0) -> Tensor:
    """Positions of a dim of `size`, negative ones counted from the end. Raises IndexError for those
    out of range."""
    return ops.checked_index(as_index(index), size=size, dim=dim, wraps=True)


def within(index: Tensor, size: int, dim: int = 0) -> Tensor:
    """Positions of a dim of `size`, none of which is negative. Raises IndexError for others."""
    return ops.checked_index(as_index(index), size=size, dim=dim, wraps=False)


def gather(input: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """out[i, j] = input[i, index[i, j]] for dim 1, and so on; index may be smaller in other
    dims.
    """
    at = one_dim(dim, input.ndim, "gather")
    if not index.ndim and input.ndim == 1:
        return reshape(gather(input, at, reshape(index, (1,))), ())
    if not index.meta.numel:
        return clone(reshape(reshape(input, (-1,))[:0], index.meta.shape))
    if not input.meta.shape:
        return reshape(
            ops.dim_gather(reshape(input, (1,)), reshape(as_index(index), (-1,)), dim=0),
            index.meta.shape,
        )
    return ops.dim_gather(_cut(input, index, at), as_index(index), dim=at)


def _cut(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """`x` cut to the size of `index` in all dims but `dim`."""
    own, wanted = x.meta.shape, index.meta.shape
    if len(own) != len(wanted) or all(
        i == dim or a <= b for i, (a, b) in enumerate(zip(own, wanted, strict=True))
    ):
        return x
    stops = tuple(
        a if i == dim else min(a, b) for i, (a, b) in enumerate(zip(own, wanted, strict=True))
    )
    return slicing.slice(x, starts=(0,) * len(own), stops=stops, steps=(1,) * len(own))


def batch_gather(input: Tensor, index: Tensor) -> Tensor:
    """out[b, i, ...] = input[b, index[b, i], ...]."""
    lead = index.ndim - 1
    if lead < 0 or index.ndim > input.ndim or index.meta.shape[:lead] != input.meta.shape[:lead]:
        raise ShapeError(
            f"batch_gather: the index {index.meta} must have the batch dims of {input.meta}"
        )
    extra = input.ndim - index.ndim
    wide = reshape(index, (*index.meta.shape, *(1,) * extra))
    wide = stretched(wide, (*index.meta.shape, *input.meta.shape[index.ndim :]))
    return gather(input, index.ndim - 1, wide)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices along `dim` at the positions of the vector `index`."""
    at = one_dim(dim, input.ndim, "index_select")
    if index.ndim > 1:
        raise ShapeError(
            f"index_select: Dimensions of index should be 0-D or 1-D, but got {index.meta}"
        )
    if not input.ndim:
        return reshape(ops.gather(reshape(input, (1,)), reshape(as_index(index), (-1,)), dim=0), ())
    return ops.gather(input, reshape(as_index(index), (-1,)), dim=at)


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Gather as `gather` does, after both were broadcast to each other in the other dims.

    dim: None takes from the flat tensor.
    """
    if indices.meta.dtype is not dtypes.int64:
        raise DTypeError(f"take_along_dim: indices must be int64, got {indices.meta}")
    if dim is None:
        flat = reshape(input, (-1,))
        return gather(flat, 0, positive(reshape(indices, (-1,)), flat.meta.shape[0]))
    if input.ndim != indices.ndim:
        raise ShapeError(
            f"take_along_dim: the input {input.meta} and the indices {indices.meta} must have as "
            "many dims"
        )
    at = one_dim(dim, input.ndim, "take_along_dim")
    own, wanted = list(input.meta.shape), list(indices.meta.shape)
    shared = broadcast_shapes((*own[:at], 1, *own[at + 1 :]), (*wanted[:at], 1, *wanted[at + 1 :]))
    return gather(
        stretched(input, (*shared[:at], own[at], *shared[at + 1 :])),
        at,
        stretched(positive(indices, own[at], at), (*shared[:at], wanted[at], *shared[at + 1 :])),
    )


def gather_nd(input: Tensor, index: Tensor) -> Tensor:
    """The slices at the index tuples in the last dim of `index`."""
    depth = index.meta.shape[-1]
    shape = input.meta.shape
    flat = tuple_index(index, shape[:depth])
    rows = reshape(input, (-1, *shape[depth:])) if depth else input
    return ops.gather(rows, flat, dim=0)


def linear_index(indices: list[Tensor], sizes: tuple[int, ...]) -> Tensor:
    """Row-major position of index tuples in dims of these sizes, none of which is out of its dim:
    beside others it would be another element's."""
    flat = as_index(indices[0])
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        flat = add(mul(flat, size), as_index(index))
    return flat


def tuple_index(index: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """`linear_index` of tuples in the last dim of `index`. Raises IndexError for one outside."""
    return linear_index([within(index[..., k], n, k) for k, n in enumerate(sizes)], sizes)


def _source(input: Tensor, index: Tensor, src: Tensor | Number) -> Tensor:
    if isinstance(src, Tensor):
        stops = index.meta.shape
        if src.meta.shape != stops:
            src = slicing.slice(src, starts=(0,) * src.ndim, stops=stops, steps=(1,) * src.ndim)
        return as_type(src, input.meta.dtype)
    blank = zeros(index.meta.shape, dtype=input.meta.dtype, **layout_of(index, no_partial=True))
    return full_like(blank, src)


def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | Number,
    *,
    reduce: str | None = None,
    inplace: bool = False,
) -> Tensor:
    """A copy of `input` with src[i, j] at [i, index[i, j]] for dim 1, and so on.  reduce: None,
    "add" or "multiply".
    """
    if reduce not in (None, "add", "multiply"):
        raise ArgumentError(f"scatter: reduce must be None, 'add' or 'multiply', got {reduce!r}")
    _require_source("scatter", input, src)
    if reduce == "multiply":
        source = src if isinstance(src, Tensor) else _source(input, index, src)
        made: Tensor = surfaces.find("flow", "scatter_reduce")(input, dim, index, source, "prod")
        return made
    op = ops.dim_scatter if reduce is None else ops.dim_scatter_add
    return _scatter(op, input, one_dim(dim, input.ndim, "scatter"), as_index(index), src)


def _require_source(name: str, input: Tensor, src: Tensor | Number) -> None:
    if isinstance(src, Tensor) and src.meta.dtype is not input.meta.dtype:
        raise DTypeError(
            f"{name}: Expected src {src.meta} to have the dtype of the input {input.meta}"
        )


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy of `input` with src[i, j] added at [i, index[i, j]] for dim 1, and so on."""
    _require_source("scatter_add", input, src)
    return _scatter(
        ops.dim_scatter_add, input, one_dim(dim, input.ndim, "scatter_add"), as_index(index), src
    )


def _scatter(op: Scatter, input: Tensor, dim: int, index: Tensor, src: Tensor | Number) -> Tensor:
    if not input.ndim:
        values = reshape(src, (-1,)) if isinstance(src, Tensor) else src
        return reshape(_scatter(op, reshape(input, (1,)), 0, reshape(index, (-1,)), values), ())
    index = reshape(index, (-1,)) if not index.ndim else index
    if isinstance(src, Tensor) and not src.ndim:
        src = reshape(src, (-1,))
    source = _source(input, index, src)
    part = _cut(input, index, dim)
    if part is input:
        return op(input, index, source, dim=dim)
    shape = part.meta.shape
    return slicing.slice_update(
        input,
        op(part, index, source, dim=dim),
        starts=(0,) * len(shape),
        stops=shape,
        steps=(1,) * len(shape),
    )


def index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1
) -> Tensor:
    """A copy of `input` with the slices of `source` added at the positions `index` of `dim`."""
    at = one_dim(dim, input.ndim, "index_add")
    source = reshape(source, (-1,)) if not source.ndim else source
    wide = reshape(as_index(index), tuple(-1 if i == at else 1 for i in range(source.ndim)))
    scaled = source if alpha == 1 else mul(source, alpha)
    return _scatter(ops.dim_scatter_add, input, at, stretched(wide, source.meta.shape), scaled)
