"""Products: matmul and its relatives, einsum, tensordot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from oneflow.core.errors import ArgumentError, CallError, DTypeError, ShapeError
from oneflow.core.operand import Number, Tensors
from oneflow.functional.arithmetic import add, mul
from oneflow.functional.concat_split import stack, unbind
from oneflow.functional.dims import listed, one_dim
from oneflow.functional.promotion import as_type, meet
from oneflow.functional.reduction import sum as total
from oneflow.functional.results import into
from oneflow.functional.shaping import diagonal, permute, reshape, unsqueeze
from oneflow.ops import matmul as ops
from oneflow.ops import shape as shape_ops
from oneflow.tensor.creation_like import number_of
from oneflow.tensor.tensor import Tensor
from oneflow.tensor.views import unlinked


def matmul(
    input: Tensor,
    other: Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """The matrix product; vectors count as a row on the left and a column on the right; other dims
    are broadcast.
    """
    if out is not None:
        made = matmul(input, other, transpose_a, transpose_b, alpha)
        return into(made, out, (input, other), "matmul")
    if not isinstance(input, Tensor) or not isinstance(other, Tensor):
        raise CallError(
            f"matmul() needs two tensors, got {type(input).__name__} and {type(other).__name__}"
        )
    if not input.ndim or not other.ndim:
        raise ShapeError(
            f"matmul: needs tensors of at least 1 dim, got {input.meta} and {other.meta}"
        )
    if alpha.__class__ is not float:
        alpha = number_of(alpha, "alpha", "matmul")
    if input.meta.dtype is not other.meta.dtype:
        dtype = meet(input, other)
        input, other = as_type(input, dtype), as_type(other, dtype)
    a = unsqueeze(input, 0) if input.ndim == 1 else input
    b = unsqueeze(other, 1) if other.ndim == 1 else other
    out = ops.matmul(a, b, transpose_a=bool(transpose_a), transpose_b=bool(transpose_b))
    shape = list(out.meta.shape)
    if other.ndim == 1:
        shape.pop(-1)
    if input.ndim == 1:
        shape.pop(-1 if other.ndim == 1 else -2)
    if len(shape) != out.ndim:
        out = unlinked(shape_ops.reshape(out, shape=tuple(shape)))
    return out if alpha == 1.0 else mul(out, alpha)


def _of_dims(name: str, x: Tensor, ndim: int) -> None:
    if x.ndim != ndim:
        raise ShapeError(
            f"{name}: Expected {ndim}-dimensional tensor, but got {x.ndim}-dimensional tensor "
            f"{x.meta}"
        )


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices."""
    _of_dims("mm", input, 2)
    _of_dims("mm", mat2, 2)
    return matmul(input, mat2)


def bmm(
    input: Tensor,
    mat2: Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
) -> Tensor:
    """The products of two equally long lists of matrices, times alpha."""
    _of_dims("bmm", input, 3)
    _of_dims("bmm", mat2, 3)
    if input.meta.shape[0] != mat2.meta.shape[0]:
        raise ShapeError(f"bmm: batch dim not match, got {input.meta} and {mat2.meta}")
    a = input.transpose(1, 2) if transpose_a else input
    b = mat2.transpose(1, 2) if transpose_b else mat2
    out = matmul(a, b)
    return out if alpha == 1 else mul(out, alpha)


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """A matrix times a vector."""
    _of_dims("mv", input, 2)
    _of_dims("mv", vec, 1)
    return matmul(input, vec)


def dot(input: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors."""
    _of_dims("dot", input, 1)
    _of_dims("dot", other, 1)
    if input.meta.dtype is not other.meta.dtype:
        raise DTypeError(
            "dot : expected both vectors to have same dtype, but found "
            f"{input.meta} and {other.meta}"
        )
    return matmul(input, other)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """out[i, j] = input[i] * vec2[j]."""
    for name, x in (("self", input), ("vec2", vec2)):
        if x.ndim != 1:
            raise ShapeError(f"outer: Expected 1-D argument {name}, but got {x.ndim}-D: {x.meta}")
    return mul(unsqueeze(input, 1), unsqueeze(vec2, 0))


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, alpha: Number = 1, beta: Number = 1) -> Tensor:
    """beta * input + alpha * mat1 @ mat2."""
    beta, alpha = _factors(input, beta, alpha)
    return add(input if beta == 1 else mul(input, beta), mm(mat1, mat2), alpha=alpha)


def _factors(x: Tensor, *factors: Number) -> list[Number]:
    """Numbers by which integers are multiplied are integers."""
    return [int(f) if x.meta.dtype.is_integer else f for f in factors]


def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * input + alpha * batch1 @ batch2, matrix by matrix."""
    beta, alpha = _factors(input, beta, alpha)
    return add(input if beta == 1 else mul(input, beta), bmm(batch1, batch2), alpha=alpha)


def tensordot(
    a: Tensor,
    b: Tensor,
    dims: int | Sequence[int] | Sequence[Sequence[int]] | Tensor = 2,
    dims_b: Sequence[int] | None = None,
) -> Tensor:
    """Sums products over dims of a and b: the last `dims` of a with the first of b, or two lists of
    dims. Either may be a tensor.
    """
    if isinstance(dims, Tensor):
        dims = int(dims.item()) if dims.meta.numel == 1 else dims.tolist()
    left, right = _contracted(a, b, dims, dims_b)
    # Against a dim of size 1, the other one is summed first.
    pairs = [(a.meta.shape[i], b.meta.shape[j], i, j) for i, j in zip(left, right, strict=True)]
    for n, m, i, j in pairs:
        if n != m and 1 not in (n, m):
            raise ShapeError(
                f"tensordot: contracted dimensions need to match, but first has size {n} in dim "
                f"{i} and second has size {m} in dim {j}"
            )
    alone = [i for n, m, i, _ in pairs if m == 1 != n], [j for n, m, _, j in pairs if n == 1 != m]
    a = total(a, alone[0], True) if alone[0] else a
    b = total(b, alone[1], True) if alone[1] else b
    keep_a = [i for i in range(a.ndim) if i not in left]
    keep_b = [i for i in range(b.ndim) if i not in right]
    summed = math.prod(a.meta.shape[i] for i in left)
    rows = reshape(
        permute(a, (*keep_a, *left)), (math.prod(a.meta.shape[i] for i in keep_a), summed)
    )
    columns = reshape(
        permute(b, (*right, *keep_b)), (summed, math.prod(b.meta.shape[i] for i in keep_b))
    )
    shape = (*(a.meta.shape[i] for i in keep_a), *(b.meta.shape[i] for i in keep_b))
    return reshape(matmul(rows, columns), shape)


def _contracted(
    a: Tensor,
    b: Tensor,
    dims: int | Sequence[int] | Sequence[Sequence[int]],
    dims_b: Sequence[int] | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dims of both that `tensordot` sums over."""
    if dims_b is None and isinstance(dims, int):
        if dims < 0:
            raise ArgumentError(f"tensordot expects dims >= 0, but got dims={dims}")
        if dims > min(a.ndim, b.ndim):
            raise ShapeError(f"tensordot: {a.meta} and {b.meta} have no {dims} dims to sum over")
        return tuple(range(a.ndim - dims, a.ndim)), tuple(range(dims))
    both = cast(Sequence[Sequence[int]], dims if dims_b is None else (dims, dims_b))
    if len(both) != 2 or any(isinstance(named, int) for named in both):
        raise ArgumentError(f"tensordot: dims are a number, or two lists of dims, not {both}")
    left = tuple(one_dim(d, a.ndim, "tensordot") for d in both[0])
    right = tuple(one_dim(d, b.ndim, "tensordot") for d in both[1])
    if len(left) != len(right):
        raise ShapeError(
            f"tensordot: both dimension lists should have same length, got {left} and {right}"
        )
    for named in (left, right):
        for dim in named:
            if named.count(dim) > 1:
                raise ShapeError(
                    f"tensordot: dim {dim} appears multiple times in the list of dims {named}"
                )
    return left, right


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The vector product along a dim of size 3 (by default the first such)."""
    known = next((i for i, n in enumerate(input.meta.shape) if n == 3), 0)
    at = one_dim(known if dim is None else dim, input.ndim, "cross")
    if [x.meta.shape[at] for x in (input, other) if x.ndim > at] != [3, 3]:
        raise ShapeError(f"cross: needs a dim of size 3, got {input.meta} and {other.meta}")
    a, b = unbind(input, at), unbind(other, at)
    parts = [a[(i + 1) % 3] * b[(i + 2) % 3] - a[(i + 2) % 3] * b[(i + 1) % 3] for i in range(3)]
    return stack(parts, at)


def linalg_cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The vector product along a dim of size 3, by default the last."""
    return cross(input, other, dim)


def einsum(equation: str, *operands: Tensors) -> Tensor:
    """Einstein's summation, e.g. "bij,bjk->bik"; "..." stands for any dims in front. Two operands
    at a time, by matmul.
    """
    xs = listed(operands)
    inputs, output = _letters(equation.replace(" ", ""), xs)
    terms = [_diagonals(x, letters) for x, letters in zip(xs, inputs, strict=True)]
    while len(terms) > 1:
        (a, left), (b, right) = terms.pop(0), terms.pop(0)
        needed = set(output).union(*(letters for _, letters in terms)) if terms else set(output)
        terms.insert(0, _contract(a, left, b, right, needed))
    x, letters = _summed(*terms[0], set(output))
    is_done = letters == output and x is not xs[0]  # what nothing happened to is shown by a view
    return x if is_done else permute(x, tuple(letters.index(c) for c in output))


def _letters(equation: str, xs: list[Tensor]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, with "..." replaced by capitals not used
    otherwise.
    """
    left, arrow, output = equation.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(xs):
        raise ShapeError(f"einsum: {equation!r} names {len(inputs)} operands, got {len(xs)}")
    free = [c for c in map(chr, range(0x3B1, 0x3B1 + 24)) if c not in equation]
    hidden = [x.ndim - (len(s) - 3) if "..." in s else 0 for s, x in zip(inputs, xs, strict=True)]
    longest = "".join(free[: max(hidden, default=0)])
    inputs = [
        s.replace("...", longest[len(longest) - n :]) for s, n in zip(inputs, hidden, strict=True)
    ]
    for letters, x in zip(inputs, xs, strict=True):
        if len(letters) != x.ndim:
            raise ShapeError(
                f"einsum: {letters!r} of {equation!r} has {len(letters)} letters, but the operand "
                f"is {x.meta}"
            )
    if not arrow:
        once = sorted(
            c for c in set("".join(inputs)) - set(longest) if "".join(inputs).count(c) == 1
        )
        return inputs, longest + "".join(once)
    return inputs, output.replace("...", longest)


def _diagonals(x: Tensor, letters: str) -> tuple[Tensor, str]:
    """Dims of one letter, such as "ii", become their diagonal."""
    for c in dict.fromkeys(letters):
        while letters.count(c) > 1:
            first = letters.index(c)
            second = letters.index(c, first + 1)
            x = diagonal(x, 0, first, second)
            letters = "".join(o for i, o in enumerate(letters) if i not in (first, second)) + c
    return x, letters


def _summed(x: Tensor, letters: str, needed: set[str]) -> tuple[Tensor, str]:
    """Without the letters nobody needs."""
    gone = [i for i, c in enumerate(letters) if c not in needed]
    if not gone:
        return x, letters
    return total(x, gone), "".join(c for c in letters if c in needed)


def _contract(a: Tensor, left: str, b: Tensor, right: str, needed: set[str]) -> tuple[Tensor, str]:
    """The product of two operands, summed over the letters that are not needed after it."""
    a, left = _summed(a, left, needed | set(right))
    b, right = _summed(b, right, needed | set(left))
    batch = [c for c in left if c in right and c in needed]
    inner = [c for c in left if c in right and c not in needed]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    size = dict(zip(right, b.meta.shape, strict=True))
    for c, n in zip(left, a.meta.shape, strict=True):
        if size.get(c, 1) != n and size.get(c, 1) != 1 and n != 1:
            raise ShapeError(f"einsum: {c!r} has size {n} in {a.meta} and {size[c]} in {b.meta}")
        size[c] = max(size.get(c, 1), n)
    x = _grouped(a, left, (batch, rows, inner), size)
    y = _grouped(b, right, (batch, inner, columns), size)
    letters = "".join(batch + rows + columns)
    return reshape(matmul(x, y), tuple(size[c] for c in letters)), letters


def _grouped(
    x: Tensor, letters: str, groups: tuple[list[str], ...], size: dict[str, int]
) -> Tensor:
    """Dims in the order of the groups, each group made one dim."""
    order = [c for group in groups for c in group]
    x = permute(x, tuple(letters.index(c) for c in order)) if list(letters) != order else x
    full = tuple(size[c] for c in order)
    if x.meta.shape != full:
        x = shape_ops.expand(x, shape=full)
    return reshape(x, tuple(math.prod(size[c] for c in group) for group in groups))
