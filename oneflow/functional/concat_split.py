"""Tensors put together and taken apart: cat, stack, split, chunk, unbind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from oneflow.core.errors import CallError, DTypeError, PositionError, ShapeError
from oneflow.functional.arithmetic import add
from oneflow.functional.dims import one_dim
from oneflow.functional.elementwise import clone
from oneflow.functional.promotion import as_type, meet_all
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import atleast_1d, atleast_2d, atleast_3d, unsqueeze
from oneflow.ops import concat as ops
from oneflow.ops import shape as shape_ops
from oneflow.ops import slicing
from oneflow.tensor.tensor import Tensor


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after another along `dim`; dtypes are promoted, empty 1-D tensors left
    out.
    """
    if isinstance(tensors, Tensor):
        raise CallError("cat(): argument 'tensors' (position 1) must be tuple of Tensors, not one")
    xs = list(tensors)
    if not xs:
        raise ShapeError("cat: inputs num must be at least 1, got an empty list")
    for i, x in enumerate(xs):
        if not isinstance(x, Tensor):
            raise CallError(
                f"cat(): expected Tensor as element {i} in argument 0, but got {type(x).__name__}"
            )
    kept = [x for x in xs if x.meta.shape != (0,)] or xs[:1]
    gone = [x for x in xs if x.requires_grad and all(x is not k for k in kept)]
    dtype = meet_all(xs)
    at = one_dim(dim, kept[0].ndim, "cat")
    if len(kept) == 1:
        return _with_history(clone(as_type(kept[0], dtype)), gone)
    return _with_history(ops.concat(*[as_type(x, dtype) for x in kept], dim=at), gone)


def _with_history(x: Tensor, empty: list[Tensor]) -> Tensor:
    """`x`, of which tensors without elements are a part too: their gradients are zeros."""
    for one in empty:
        x = add(x, as_type(total(one), x.meta.dtype))
    return x


concat = cat


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape side by side in a new dim."""
    xs = list(tensors)
    if not xs:
        raise ShapeError("stack expects a non-empty TensorTuple")
    if any(x.meta.shape != xs[0].meta.shape for x in xs):
        shapes = ", ".join(str(x.meta) for x in xs)
        raise ShapeError(f"stack expects each tensor to be equal size, got {shapes}")
    at = one_dim(dim, xs[0].ndim + 1, "stack")
    return cat([unsqueeze(x, at) for x in xs], at)


def split(
    input: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Parts along `dim`: of one size (the last may be smaller), or of the sizes given. Views."""
    if not input.ndim:
        raise ShapeError(f"split expects at least a 1-dimensional tensor, got {input.meta}")
    at = one_dim(dim, input.ndim, "split")
    whole = input.meta.shape[at]
    if isinstance(split_size_or_sections, int):
        size = split_size_or_sections
        if size <= 0:
            raise ShapeError(f"split expects split_size be non-negative, but got split_size={size}")
        sizes = [min(size, whole - i) for i in range(0, whole, size)] or [0]
    else:
        sizes = [int(s) for s in split_size_or_sections]
        if sum(sizes) != whole:
            raise ShapeError(
                f"split_with_sizes expects split_sizes to sum exactly to {whole} (input tensor's "
                "size at "
                f"dimension {at}), but got sum(split_sizes)={sum(sizes)}"
            )
    parts, start = [], 0
    for size in sizes:
        parts.append(narrow(input, at, start, size))
        start += size
    return tuple(parts)


def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """`length` positions of `dim` from `start` on, as a view."""
    if not input.ndim:
        raise ShapeError("narrow() cannot be applied to a 0-dim tensor")
    at = one_dim(dim, input.ndim, "narrow")
    shape = input.meta.shape
    if isinstance(start, Tensor):
        if start.ndim or not start.meta.dtype.is_integer:
            raise DTypeError(f"narrow: start must be an 0-dim integral Tensor, got {start.meta}")
        start = int(start.item())
    if not -shape[at] <= start <= shape[at]:
        raise PositionError(
            f"narrow: start out of range (expected to be in range of [{-shape[at]}, {shape[at]}], "
            f"but got {start})"
        )
    first = start + shape[at] if start < 0 else start
    starts = tuple(first if i == at else 0 for i in range(len(shape)))
    stops = tuple(first + length if i == at else n for i, n in enumerate(shape))
    return slicing.slice(input, starts=starts, stops=stops, steps=(1,) * len(shape))


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Cut into no more than `chunks` parts of equal size along `dim`; the last may be smaller."""
    if chunks <= 0:
        raise ShapeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    if not input.ndim:
        raise ShapeError(f"chunk expects at least a 1-dimensional tensor, got {input.meta}")
    size = input.meta.shape[one_dim(dim, input.ndim, "chunk")]
    if not size:
        return split(input, [0] * chunks, dim)
    return split(input, max(1, -(-size // chunks)), dim)


Sections: TypeAlias = "int | Sequence[int] | Tensor"
"""A number of parts, or the positions of the cuts."""


def tensor_split(
    input: Tensor,
    indices_or_sections: Sections | None = None,
    dim: int = 0,
    *,
    indices: Sections | None = None,
    sections: Sections | None = None,
) -> tuple[Tensor, ...]:
    """Parts along `dim`: a number of nearly equal ones, or cut at the given positions.

    indices_or_sections: an int, a list of them, or an integer tensor of 0 or 1 dims on the CPU;
    also as `indices` or as `sections`. Raises CallError for none of the three, and for several.
    """
    given = [x for x in (indices_or_sections, indices, sections) if x is not None]
    if len(given) != 1:
        raise CallError("tensor_split: give one of indices_or_sections, indices and sections")
    if not input.ndim:
        raise ShapeError(
            f"tensor_split expected at least a 1-dimensional tensor, but got {input.meta}"
        )
    at = one_dim(dim, input.ndim, "tensor_split")
    whole = input.meta.shape[at]
    cuts = _cuts(given[0])
    if isinstance(cuts, int):
        if cuts <= 0:
            raise ShapeError(f"tensor_split: number of sections must be larger than 0, got {cuts}")
        small, extra = divmod(whole, cuts)
        return split(input, [small + (i < extra) for i in range(cuts)], at)
    # Positions count from the end if negative; what lies beyond the ends cuts nothing off.
    places = [0, *(slice(0, cut).indices(whole)[1] for cut in cuts), whole]
    return tuple(narrow(input, at, a, max(0, b - a)) for a, b in itertools.pairwise(places))


def _cuts(indices_or_sections: Sections) -> int | list[int]:
    if isinstance(indices_or_sections, str):
        raise CallError(
            f"parts are cut by an int or a list of them, not by the text {indices_or_sections!r}"
        )
    if isinstance(indices_or_sections, Tensor):
        if indices_or_sections.ndim > 1 or not indices_or_sections.meta.dtype.is_integer:
            raise DTypeError(
                "tensor_split: positions are an integer tensor of 0 or 1 dims, got "
                f"{indices_or_sections.meta}"
            )
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        return indices_or_sections
    return [int(i) for i in indices_or_sections]


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along `dim`, without it."""
    at = one_dim(dim, input.ndim, "unbind")
    if not input.ndim:
        raise PositionError(
            f"unbind: Dimension specified as {dim} but tensor has no dimensions: {input.meta}"
        )
    return tuple(select(input, at, i) for i in range(input.meta.shape[at]))


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The slice at `index` of `dim`, without that dim; a view."""
    at = one_dim(dim, input.ndim, "select")
    if not input.ndim:
        raise PositionError(f"select() cannot be applied to a 0-dim tensor: {input.meta}")
    size = input.meta.shape[at]
    if not -size <= index < size:
        raise PositionError(f"select: index {index} is out of range for dim {at} of {input.meta}")
    part = narrow(input, at, index % size, 1)
    shape = input.meta.shape
    return shape_ops.reshape(part, shape=(*shape[:at], *shape[at + 1 :]))


def _stacker(
    name: str, lift: Callable[[Tensor], Tensor], dim: int
) -> Callable[[Sequence[Tensor]], Tensor]:
    def apply(tensors: Sequence[Tensor]) -> Tensor:
        xs = [lift(x) for x in tensors]
        if not xs:
            raise ShapeError(f"{name} expects a non-empty TensorList")
        return cat(xs, 0 if name == "hstack" and xs[0].ndim == 1 else dim)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"Tensors joined along dim {dim}, after they were given enough dims."
    return apply


hstack = _stacker("hstack", atleast_1d, 1)
vstack = _stacker("vstack", atleast_2d, 0)
dstack = _stacker("dstack", atleast_3d, 2)
column_stack = _stacker(
    "column_stack", lambda x: x if x.ndim > 1 else unsqueeze(atleast_1d(x), 1), 1
)
row_stack = vstack


def _even_split(
    name: str, input: Tensor, indices_or_sections: Sections, dim: int
) -> tuple[Tensor, ...]:
    """`tensor_split` that refuses parts of unequal size."""
    cuts = _cuts(indices_or_sections)
    size = input.meta.shape[dim]
    if isinstance(cuts, int) and (cuts <= 0 or size % cuts):
        raise ShapeError(
            f"{name}: attempted to split along dimension {dim}, but the size {size} of {input.meta}"
            f" is not divisible by {cuts}"
        )
    return tensor_split(input, cuts, dim)


def hsplit(input: Tensor, indices_or_sections: Sections) -> tuple[Tensor, ...]:
    """Equal parts along the columns, or parts cut at the given positions."""
    if input.ndim < 1:
        raise ShapeError(f"hsplit requires a tensor with at least 1 dimension, got {input.meta}")
    return _even_split("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1)


def vsplit(input: Tensor, indices_or_sections: Sections) -> tuple[Tensor, ...]:
    """Equal parts along the rows, or parts cut at the given positions."""
    if input.ndim < 2:
        raise ShapeError(f"vsplit requires a tensor with at least 2 dimensions, got {input.meta}")
    return _even_split("vsplit", input, indices_or_sections, 0)
