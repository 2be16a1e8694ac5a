"""Arrangements: blocks, products of sets, triangles, rotations, and parts of tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DType, bool_, dtype_of
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.functional.arithmetic import add, mul
from oneflow.functional.complex_numbers import conj
from oneflow.functional.concat_split import cat, chunk, narrow, split, stack, tensor_split, unbind
from oneflow.functional.creation import empty, zeros_like
from oneflow.functional.dims import argument_dims, one_dim
from oneflow.functional.elementwise import clone
from oneflow.functional.from_data import beside, place
from oneflow.functional.gather_scatter import index_select
from oneflow.functional.linalg.products import bmm, matmul, mv, outer, tensordot
from oneflow.functional.promotion import as_type
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import (
    diag_embed,
    diagonal,
    expand,
    flip,
    meshgrid,
    permute,
    reshape,
    squeeze,
    t,
    transpose,
    unsqueeze,
    view,
)
from oneflow.functional.sort_and_search import sort
from oneflow.functional.strides import as_strided, unfold_dim
from oneflow.tensor.tensor import Tensor

Places: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


def _many(tensors: tuple[Tensor | Sequence[Tensor], ...]) -> list[Tensor]:
    """`f(a, b)` and `f([a, b])` alike."""
    found: list[Tensor] = []
    for item in tensors:
        if isinstance(item, Tensor):
            found.append(item)
        else:
            found.extend(item)
    return found


def block_diag(*tensors: Tensor | Sequence[Tensor]) -> Tensor:
    """Matrices as blocks on the diagonal of one; other elements are 0."""
    blocks = []
    for x in _many(tensors):
        if x.ndim > 2:
            raise ShapeError(f"block_diag: input tensors must have 2 or fewer dimensions, {x.meta}")
        blocks.append(reshape(x, (1,) * (2 - x.ndim) + x.meta.shape))
    if not blocks:
        return empty(1, 0)
    width = sum(b.meta.shape[1] for b in blocks)
    rows, before = [], 0
    for b in blocks:
        height, own = b.meta.shape
        after = width - before - own
        edges = [b.new_zeros((height, n)) for n in (before, after)]
        rows.append(cat([edges[0], b, edges[1]], 1))
        before += own
    return cat(rows, 0)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """Every combination of an element of each vector, as rows."""
    xs = _many(tensors)
    if any(x.ndim != 1 for x in xs):
        raise ShapeError("cartesian_prod: expect 1-D vectors")
    if len(xs) == 1:
        return xs[0]
    return stack([reshape(g, (-1,)) for g in meshgrid(xs, indexing="ij")], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Every combination of r elements of a vector, as rows."""
    if input.ndim != 1:
        raise ShapeError(f"combinations: expect a 1-D vector, got {input.meta}")
    if r < 0:
        raise ArgumentError(f"combinations: expect a non-negative number, got {r}")
    if r == 0:
        return input[:0]
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = np.array(list(choose(range(input.meta.numel), r)), np.int64).reshape(-1, r)
    flat = index_select(input, 0, beside(input, rows.reshape(-1)))
    return reshape(flat, rows.shape)


def fliplr(input: Tensor) -> Tensor:
    """The columns in the opposite order."""
    if input.ndim < 2:
        raise ShapeError(f"fliplr: input must be >= 2-d, got {input.meta}")
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """The rows in the opposite order."""
    if input.ndim < 1:
        raise ShapeError(f"flipud: input must be >= 1-d, got {input.meta}")
    return flip(input, 0)


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """A plane of two dims turned k times by 90 degrees, from the first towards the second."""
    if len(dims) != 2:
        raise ShapeError(f"rot90: expected total rotation dims == 2, got {list(dims)}")
    if input.ndim < 2:
        raise ShapeError(f"rot90: expected total dims >= 2, got {input.meta}")
    a, b = (one_dim(d, input.ndim, "rot90") for d in dims)
    if a == b:
        raise ShapeError(f"rot90: expected rotation dims to be different, got {list(dims)}")
    turns = k % 4
    if turns == 1:
        return transpose(flip(input, b), a, b)
    if turns == 2:
        return flip(input, (a, b))
    return flip(transpose(input, a, b), b) if turns == 3 else clone(input)


def ravel(input: Tensor) -> Tensor:
    """The tensor as a vector whose elements lie side by side."""
    return reshape(input.contiguous(), (-1,))


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements on a diagonal."""
    return diag_embed(reshape(input, (-1,)), offset)


def diag_embed_dims(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Square matrices in two dims, with the last dim of the input on a diagonal."""
    out = diag_embed(input, offset)
    a, b = one_dim(dim1, out.ndim, "diag_embed"), one_dim(dim2, out.ndim, "diag_embed")
    if a == b:
        raise ShapeError(f"diag_embed: diagonal dimensions cannot be identical {dim1}, {dim2}")
    rest = iter(range(out.ndim - 2))
    where = {a: out.ndim - 2, b: out.ndim - 1}
    return permute(out, tuple(where[i] if i in where else next(rest) for i in range(out.ndim)))


class _Triangle(Protocol):
    def __call__(
        self,
        row: int,
        col: int,
        offset: int = 0,
        *,
        dtype: DType | None = None,
        device: DeviceLike | None = None,
        layout: object = None,
    ) -> Tensor: ...


def _triangle(
    name: str, places: Callable[[int, int, int], tuple[Places, Places]], side: str
) -> _Triangle:
    """The positions of one triangle of a matrix, which NumPy's `places(row, offset, col)` finds."""

    def indices(
        row: int,
        col: int,
        offset: int = 0,
        *,
        dtype: DType | None = None,
        device: DeviceLike | None = None,
        layout: object = None,
    ) -> Tensor:
        table = np.stack([p.astype(np.int64) for p in places(row, offset, col)])
        out = place(table, device, None, None)
        return out if dtype is None else as_type(out, dtype_of(dtype))

    indices.__name__ = indices.__qualname__ = name
    indices.__doc__ = f"The rows and columns (2, n) of the elements on and {side} a diagonal."
    return indices


tril_indices = _triangle("tril_indices", np.tril_indices, "below")
triu_indices = _triangle("triu_indices", np.triu_indices, "above")


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Every element of `input` times all of `other`, as blocks."""
    ndim = max(input.ndim, other.ndim)
    a = (1,) * (ndim - input.ndim) + input.meta.shape
    b = (1,) * (ndim - other.ndim) + other.meta.shape
    wide = mul(
        reshape(input, tuple(n for size in a for n in (size, 1))),
        reshape(other, tuple(n for size in b for n in (1, size))),
    )
    return reshape(wide, tuple(m * n for m, n in zip(a, b, strict=True)))


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Products of the elements of the last dims, added up."""
    if not input.ndim or not other.ndim:
        return mul(input, other)
    if input.meta.shape[-1] != other.meta.shape[-1]:
        raise ShapeError(f"inner: the last dims of {input.meta} and {other.meta} must match")
    return tensordot(input, other, ([-1], [-1]))


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors, the first conjugated."""
    if input.ndim != 1 or other.ndim != 1 or input.meta.shape != other.meta.shape:
        raise ShapeError(f"vdot: 1D tensors of one size expected, got {input.meta}, {other.meta}")
    if input.meta.dtype is not other.meta.dtype:
        raise ShapeError(f"vdot: {input.meta} and {other.meta} must have one dtype")
    return total(mul(conj(input), other), dtype=input.meta.dtype)


def _scaled(x: Tensor, factor: float | int | bool) -> Tensor:
    if factor == 1:
        return x
    return mul(x, int(factor) if x.meta.dtype.is_integer else factor)


def _sum_of(x: Tensor, beta: float, product: Tensor, alpha: float) -> Tensor:
    """beta * x + alpha * product; a beta of 0 drops NaN and infinities too."""
    if beta == 0:
        x = zeros_like(x)
    return add(_scaled(x, beta), _scaled(product, alpha))


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * mat @ vec."""
    return _sum_of(input, beta, mv(mat, vec), alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * the outer product of two vectors."""
    if vec1.ndim != 1 or vec2.ndim != 1:
        raise ShapeError(f"addr: expected 1-D vectors, got {vec1.meta} and {vec2.meta}")
    if input.meta.dtype is bool_:
        return (input & bool(beta)) | (outer(vec1, vec2) & bool(alpha))
    return _sum_of(input, beta, outer(vec1, vec2), alpha)


def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta * input + alpha * the sum of the products of two lists of matrices."""
    product = total(bmm(batch1, batch2), 0, dtype=batch1.meta.dtype)
    return _sum_of(input, beta, product, alpha)


def chain_matmul(*matrices: Tensor | Sequence[Tensor]) -> Tensor:
    """The product of several matrices, in the order that needs fewest multiplications."""
    return multi_dot(_many(matrices))


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices, in the order that needs fewest multiplications; the first
    and the last may be vectors.
    """
    xs = list(tensors)
    if len(xs) < 2:
        raise ShapeError("multi_dot: expected at least 2 tensors")
    if any(x.ndim != 2 for x in xs[1:-1]) or not {xs[0].ndim, xs[-1].ndim} <= {1, 2}:
        raise ShapeError("multi_dot: expected matrices, or vectors at the ends")
    first, last = xs[0].ndim == 1, xs[-1].ndim == 1
    xs[0] = unsqueeze(xs[0], 0) if first else xs[0]
    xs[-1] = unsqueeze(xs[-1], 1) if last else xs[-1]
    sizes = [x.meta.shape[0] for x in xs] + [xs[-1].meta.shape[1]]
    cost: dict[tuple[int, int], tuple[int, int]] = {(i, i): (0, i) for i in range(len(xs))}
    for length in range(1, len(xs)):
        for i in range(len(xs) - length):
            j = i + length
            cost[i, j] = min(
                (cost[i, k][0] + cost[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )

    def product(i: int, j: int) -> Tensor:
        if i == j:
            return xs[i]
        k = cost[i, j][1]
        return matmul(product(i, k), product(k + 1, j))

    out = product(0, len(xs) - 1)
    shape = out.meta.shape[int(first) : 1 if last else 2]
    return reshape(out, shape)


def dsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Equal parts along the third dim, or parts cut at the given positions."""
    if input.ndim < 3:
        raise ShapeError(f"dsplit requires a tensor with at least 3 dimensions, got {input.meta}")
    if isinstance(indices_or_sections, int) and (
        indices_or_sections <= 0 or input.meta.shape[2] % indices_or_sections
    ):
        raise ShapeError(f"dsplit: {input.meta} is not divisible by {indices_or_sections}")
    return tensor_split(input, indices_or_sections, 2)


def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of these sizes along `dim`."""
    return split(input, list(split_sizes), dim)


def msort(input: Tensor) -> Tensor:
    """Sorted along the first dim."""
    found: Tensor = sort(input, 0)[0]
    return found


def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Positions in a flat tensor as index tuples of a tensor of that shape."""
    sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if not indices.meta.dtype.is_integer:
        raise ShapeError(f"unravel_index: expected integers, got {indices.meta}")
    found = []
    rest = indices
    for size in reversed(sizes):
        found.append(rest % size)
        rest = rest.div(size, rounding_mode="floor")
    return tuple(reversed(found))


def sum_to_size(input: Tensor, *size: int | Sequence[int]) -> Tensor:
    """Summed over the dims along which a tensor of that size would be broadcast to this one."""
    wanted = tuple(int(n) for n in argument_dims(size))
    own = input.meta.shape
    lead = len(own) - len(wanted)
    if lead < 0 or any(w not in (1, n) for w, n in zip(wanted, own[lead:], strict=True)):
        raise ShapeError(f"sum_to_size: size {list(wanted)} is not expandable to {input.meta}")
    if not wanted:
        return total(input)
    if wanted == own:
        return input
    dims = [i for i, n in enumerate(own) if i < lead or (n != 1 and wanted[i - lead] == 1)]
    return reshape(total(input, dims), wanted)


def matrix_transpose(input: Tensor) -> Tensor:
    """A view with the last two dims exchanged; of a number, the number."""
    return transpose(input, -2, -1) if input.ndim else input


def conjugate_transpose(input: Tensor) -> Tensor:
    """The last two dims exchanged, and the elements conjugated."""
    return conj(matrix_transpose(input))


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers of each element of a vector as rows, the highest first."""
    out = vandermonde(x, N=N)
    return out if increasing else flip(out, -1)


def vandermonde(x: Tensor, *, N: int | None = None) -> Tensor:
    """The powers 0 .. N - 1 of each element, in a new last dim."""
    x = x if x.ndim else reshape(x, (1,))
    count = x.meta.shape[-1] if N is None else int(N)
    ones = x.new_ones((*x.meta.shape, 1))
    if count < 2:
        return narrow(ones, -1, 0, count)
    wide = expand(unsqueeze(x, -1), (*x.meta.shape, count - 1))
    return cat([ones, wide.cumprod(-1)], -1)


# ---- copies of views -----------------------------------------------------------------------------


def _copying(show: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    def apply(input: Tensor, *args: object, **keywords: object) -> Tensor:
        return clone(show(input, *args, **keywords))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"A copy of what `{name.removesuffix('_copy')}` shows."
    return apply


expand_copy = _copying(expand, "expand_copy")
diagonal_copy = _copying(diagonal, "diagonal_copy")
as_strided_copy = _copying(as_strided, "as_strided_copy")
view_copy = _copying(view, "view_copy")
permute_copy = _copying(permute, "permute_copy")
transpose_copy = _copying(transpose, "transpose_copy")
t_copy = _copying(t, "t_copy")
squeeze_copy = _copying(squeeze, "squeeze_copy")
unsqueeze_copy = _copying(unsqueeze, "unsqueeze_copy")
unfold_copy = _copying(unfold_dim, "unfold_copy")
narrow_copy = _copying(narrow, "narrow_copy")
alias_copy = _copying(lambda x: x, "alias_copy")


def unbind_copy(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Copies of the slices along `dim`."""
    return tuple(clone(x) for x in unbind(input, dim))


def split_with_sizes_copy(
    input: Tensor, split_sizes: Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Copies of parts of these sizes along `dim`."""
    return tuple(clone(x) for x in split_with_sizes(input, split_sizes, dim))


unsafe_split = split
unsafe_chunk = chunk
