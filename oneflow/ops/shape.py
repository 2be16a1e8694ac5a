"""Ops that move elements without changing them: reshape, transpose, expand, flip, roll, pad,
triangles, diagonals."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from functools import partial

from oneflow.core.dtype import bool_
from oneflow.core.errors import ShapeError
from oneflow.core.op import Box, Boxes, Op, declare
from oneflow.core.operand import Attrs, Gradients, Number, Operand, Tensor
from oneflow.core.parts import Index, Part, Parts, clipped, placed
from oneflow.core.sbp import BROADCAST, NdSbp, SbpSignature, Split, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import cast, reduce, slicing, unary, where
from oneflow.ops.checks import require_dim, require_scalar

Dims = tuple[int, ...]
Shape = tuple[int, ...]


def _partial(x: TensorType) -> list[SbpSignature]:
    """Partial sums pass through: for every dtype that can be summed."""
    return [] if x.dtype is bool_ else [signature("P -> P")]


def _local_shape(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
    """Return attrs whose target shape is the shape of the output's shard."""
    return {**attrs, "shape": out_boxes[0].shape}


def reshape_groups(old: Shape, new: Shape) -> list[tuple[Dims, Dims]]:
    """The finest pairs of runs of dims of `old` and `new` with equal products; dims of size 1 are
    left out.

    (2, 3, 4) and (6, 2, 2) give ((0, 1), (0,)) and ((2,), (1, 2)). Both shapes must have one
    product, not 0.
    """
    olds = [(i, n) for i, n in enumerate(old) if n != 1]
    news = [(i, n) for i, n in enumerate(new) if n != 1]
    groups = []
    while olds:
        (i, left), (j, right) = olds.pop(0), news.pop(0)
        ins, outs = [i], [j]
        while left != right:
            if left < right:
                i, n = olds.pop(0)
                ins.append(i)
                left *= n
            else:
                j, n = news.pop(0)
                outs.append(j)
                right *= n
        groups.append((tuple(ins), tuple(outs)))
    return groups


def _reshape_signatures(x: TensorType, shape: Shape, num_ranks: int | None) -> list[SbpSignature]:
    if x.numel == 0:
        return _partial(x)
    result = []
    for ins, outs in reshape_groups(x.shape, shape):
        i, j = ins[0], outs[0]
        is_single = len(ins) == len(outs) == 1
        # Within a longer run the leading dims differ in size, so that balanced parts of both are
        # the same elements only if each rank gets whole multiples of both.
        if is_single or (num_ranks and x.shape[i] % num_ranks == shape[j] % num_ranks == 0):
            result.append(SbpSignature((Split(i),), (Split(j),)))
    return result + _partial(x)


def _reshaped_split(
    old: list[int], new: list[int], dim: int, num_ranks: int
) -> tuple[int, tuple[int, int]] | None:
    """The dim of `new`, the elements of a shard `old` in another shape, that a split of dim `dim`
    of `old` splits, and the sizes of both parts; None: there is no such dim.
    """
    for ins, outs in reshape_groups(tuple(old), tuple(new)):
        if dim in ins and num_ranks == 1:
            return outs[0], (old[dim], new[outs[0]])
        if dim != ins[0]:
            continue
        rests = old[dim] % num_ranks, new[outs[0]] % num_ranks
        if rests == (0, 0) or len(ins) == len(outs) == 1:
            return outs[0], (-(-old[dim] // num_ranks), -(-new[outs[0]] // num_ranks))
    return None


class Reshape(Op):
    """The elements of x, in row-major order, in another shape of the same number of elements."""

    name = "reshape"
    is_view = is_conversion = True
    localize = _local_shape

    @staticmethod
    def infer(x: Operand, *, shape: Shape) -> TensorType:
        out = x.meta.with_shape(shape)
        if any(n < 0 for n in shape) or out.numel != x.meta.numel:
            raise ShapeError(
                f"reshape: {x} has {x.meta.numel} elements, but shape {list(shape)} needs "
                f"{out.numel}"
            )
        return out

    @staticmethod
    def sbp(x: TensorType, *, shape: Shape) -> list[SbpSignature]:
        return _reshape_signatures(x, shape, None)

    @staticmethod
    def sbp_for(num_ranks: int, x: TensorType, *, shape: Shape) -> list[SbpSignature]:
        return _reshape_signatures(x, shape, num_ranks)

    @staticmethod
    def kept(nd_sbp: NdSbp, hierarchy: Shape, x: TensorType, *, shape: Shape) -> NdSbp | None:
        """Axis after axis: a split of the shard that the axes before have left."""
        if x.numel == 0 or (x.dtype is bool_ and any(s.is_partial for s in nd_sbp)):
            return None
        old, new, made = list(x.shape), list(shape), list(nd_sbp)
        for axis, (sbp, size) in enumerate(zip(nd_sbp, hierarchy, strict=True)):
            if not sbp.is_split:
                continue
            found = _reshaped_split(old, new, sbp.dim, size)
            if found is None:
                return None
            dim, (old[sbp.dim], new[dim]) = found
            made[axis] = Split(dim)
        return tuple(made)

    @staticmethod
    def undo(x: Tensor, part: Tensor, *, shape: Shape) -> Tensor:
        return reshape(part, shape=x.meta.shape)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, **_: object) -> Gradients:
        return (reshape(d, shape=x.meta.shape),)


reshape = declare(Reshape)


class Transpose(Op):
    """Dim i of the output is dim dims[i] of x."""

    name = "transpose"
    is_view = True

    @staticmethod
    def infer(x: Operand, *, dims: Dims) -> TensorType:
        if sorted(dims) != list(range(x.ndim)):
            raise ShapeError(
                f"transpose of {x} needs each of its {x.ndim} dims once, got {list(dims)}"
            )
        return x.meta.with_shape(tuple(x.shape[i] for i in dims))

    @staticmethod
    def sbp(x: TensorType, *, dims: Dims) -> list[SbpSignature]:
        moved = [SbpSignature((Split(i),), (Split(j),)) for j, i in enumerate(dims)]
        return moved + _partial(x)

    @staticmethod
    def undo(x: Tensor, part: Tensor, *, dims: Dims) -> Tensor:
        return transpose(part, dims=tuple(sorted(range(len(dims)), key=dims.__getitem__)))

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, dims: Dims) -> Gradients:
        return (Transpose.undo(x, d, dims=dims),)


transpose = declare(Transpose)


class Expand(Op):
    """x broadcast to `shape`, by NumPy's rules."""

    name = "expand"
    is_view = is_conversion = True
    localize = _local_shape

    @staticmethod
    def infer(x: Operand, *, shape: Shape) -> TensorType:
        added = len(shape) - x.ndim
        if added < 0 or any(n not in (1, shape[added + i]) for i, n in enumerate(x.shape)):
            raise ShapeError(
                f"expand: {x} cannot become {list(shape)}; only new leading dims and dims of "
                "size 1 can grow"
            )
        return x.meta.with_shape(shape)

    @staticmethod
    def sbp(x: TensorType, *, shape: Shape) -> list[SbpSignature]:
        added = len(shape) - x.ndim
        result = []
        for j, size in enumerate(shape):
            if size == 1:
                continue
            is_same = j >= added and x.shape[j - added] == size
            source = Split(j - added) if is_same else BROADCAST
            result.append(SbpSignature((source,), (Split(j),)))
        return result + _partial(x)

    @staticmethod
    def uniform(x: TensorType, *, shape: Shape) -> Collection[int]:
        added = len(shape) - x.ndim
        return [d for d in range(len(shape)) if d < added or x.shape[d - added] == 1]

    @staticmethod
    def undo(x: Tensor, part: Tensor, *, shape: Shape) -> Tensor:
        return reshape(part, shape=x.meta.shape)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, **_: object) -> Gradients:
        return (reduce.sum_to_shape(d, x.meta.shape),)


expand = declare(Expand)


class Flip(Op):
    """The order of elements along `dims` reversed."""

    name = "flip"

    @staticmethod
    def infer(x: Operand, *, dims: Dims) -> TensorType:
        for dim in dims:
            require_dim("flip", x, dim)
        return x.meta

    @staticmethod
    def sbp(x: TensorType, *, dims: Dims) -> list[SbpSignature]:
        return reduce.kept_signatures(x, dims, True) + _partial(x)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, dims: Dims) -> Gradients:
        return (flip(d, dims=dims),)

    @staticmethod
    def parts(x: TensorType, *, dims: Dims) -> Parts:
        back = tuple(slice(None, None, -1 if i in dims else 1) for i in range(x.ndim))
        return Parts(dims, (Part(0, partial(_mirrored, x.shape, dims), lambda _: back),))


flip = declare(Flip)


def _mirrored(shape: Shape, dims: Dims, box: Box) -> Box:
    starts, stops = list(box.starts), list(box.stops)
    for d in dims:
        starts[d], stops[d] = shape[d] - box.stops[d], shape[d] - box.starts[d]
    return Box(tuple(starts), tuple(stops))


class Roll(Op):
    """Elements moved by shifts[i] places along dims[i]; those that fall off the end come in at the
    front."""

    name = "roll"

    @staticmethod
    def infer(x: Operand, *, shifts: Dims, dims: Dims) -> TensorType:
        if len(shifts) != len(dims) or len(set(dims)) != len(dims):
            raise ShapeError(f"roll needs one shift per dim, got shifts {shifts} and dims {dims}")
        for dim in dims:
            require_dim("roll", x, dim)
        return x.meta

    @staticmethod
    def sbp(x: TensorType, *, dims: Dims, **_: object) -> list[SbpSignature]:
        return reduce.kept_signatures(x, dims, True) + _partial(x)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, shifts: Dims, dims: Dims) -> Gradients:
        return (roll(d, shifts=tuple(-s for s in shifts), dims=dims),)

    @staticmethod
    def parts(x: TensorType, *, shifts: Dims, dims: Dims) -> Parts | None:
        """Return two parts: elements that stay, and those that come in at the front."""
        if not x.numel:
            return None
        by = dict(zip(dims, shifts, strict=True))
        halves = []
        for d, size in enumerate(x.shape):
            shift = by.get(d, 0) % size
            both = (0, size - shift, shift), (size - shift, size, shift - size)
            halves.append([half for half in both if half[0] < half[1]])
        return Parts(dims, tuple(map(_rolled, itertools.product(*halves))))


roll = declare(Roll)


def _rolled(ranges: tuple[tuple[int, int, int], ...]) -> Part:
    """A region of the input, all of which moves alike. ranges: start, stop and shift of each
    dim."""
    starts, stops, shifts = zip(*ranges, strict=True)
    region = Box(starts, stops)

    def held(shard: Box) -> Box:
        return placed(shifts, clipped(shard, region))

    def cut(shard: Box) -> Index:
        part = clipped(shard, region)
        bounds = zip(part.starts, part.stops, shard.starts, strict=True)
        return tuple(slice(a - o, b - o) for a, b, o in bounds)

    return Part(0, held, cut)


class Pad(Op):
    """`value` around x: pads is (before, after) per dim, flattened. Negative pads are for
    `slice`."""

    name = "pad"

    @staticmethod
    def infer(x: Operand, *, pads: Dims, value: Number = 0) -> TensorType:
        require_scalar("pad", x, value)
        if len(pads) != 2 * x.ndim or min(pads, default=0) < 0:
            raise ShapeError(
                f"pad of {x} needs {2 * x.ndim} pads of at least 0 (before and after each dim), "
                f"got {list(pads)}"
            )
        return x.meta.with_shape(
            tuple(n + pads[2 * i] + pads[2 * i + 1] for i, n in enumerate(x.shape))
        )

    @staticmethod
    def sbp(x: TensorType, *, pads: Dims, value: Number) -> list[SbpSignature]:
        padded = tuple(i for i in range(x.ndim) if pads[2 * i] or pads[2 * i + 1])
        return reduce.kept_signatures(x, padded, True) + (_partial(x) if value == 0 else [])

    @staticmethod
    def parts(x: TensorType, *, pads: Dims, value: Number = 0) -> Parts:
        padded = tuple(i for i in range(x.ndim) if pads[2 * i] or pads[2 * i + 1])
        part = Part(0, partial(placed, pads[::2]))
        return Parts(padded, (part,), fill=value, of_sums=value == 0)

    @staticmethod
    def place(x: TensorType, *, pads: Dims, value: Number = 0) -> Box | None:
        return None if value else placed(pads[::2], Box((0,) * x.ndim, x.shape))

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, pads: Dims, **_: object) -> Gradients:
        starts = pads[::2]
        stops = tuple(a + n for a, n in zip(starts, x.meta.shape, strict=True))
        return (slicing.slice(d, starts=starts, stops=stops, steps=(1,) * len(starts)),)


pad = declare(Pad)


def _triangle_infer(name: str, x: Operand) -> TensorType:
    if x.ndim < 2:
        raise ShapeError(f"{name} needs matrices, that is at least 2 dims, got {x}")
    return x.meta


def _triangle_signatures(x: TensorType) -> list[SbpSignature]:
    return reduce.kept_signatures(x, (x.ndim - 2, x.ndim - 1), True) + _partial(x)


class Tril(Op):
    """Elements [..., i, j] with j <= i + diagonal; zeros elsewhere."""

    name = "tril"
    precision = "either"

    @staticmethod
    def infer(x: Operand, *, diagonal: int = 0) -> TensorType:
        return _triangle_infer("tril", x)

    @staticmethod
    def sbp(x: TensorType, **_: object) -> list[SbpSignature]:
        return _triangle_signatures(x)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, diagonal: int) -> Gradients:
        return (tril(d, diagonal=diagonal),)


tril = declare(Tril)


class Triu(Op):
    """Elements [..., i, j] with j >= i + diagonal; zeros elsewhere."""

    name = "triu"
    precision = "either"

    @staticmethod
    def infer(x: Operand, *, diagonal: int = 0) -> TensorType:
        return _triangle_infer("triu", x)

    @staticmethod
    def sbp(x: TensorType, **_: object) -> list[SbpSignature]:
        return _triangle_signatures(x)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, diagonal: int) -> Gradients:
        return (triu(d, diagonal=diagonal),)


triu = declare(Triu)


def diagonal_length(rows: int, columns: int, offset: int) -> int:
    """Elements on the diagonal that starts `offset` columns right of the corner (left, if
    negative)."""
    return max(0, min(rows + min(offset, 0), columns - max(offset, 0)))


class Diagonal(Op):
    """The diagonal of the last two dims, as the last dim: out[..., k] = x[..., k, k + offset]."""

    name = "diagonal"
    is_view = True

    @staticmethod
    def infer(x: Operand, *, offset: int = 0) -> TensorType:
        _triangle_infer("diagonal", x)
        length = diagonal_length(x.shape[-2], x.shape[-1], offset)
        return x.meta.with_shape((*x.shape[:-2], length))

    @staticmethod
    def sbp(x: TensorType, **_: object) -> list[SbpSignature]:
        return [signature(f"S{i} -> S{i}") for i in range(x.ndim - 2)] + _partial(x)

    @staticmethod
    def undo(x: Tensor, part: Tensor, *, offset: int) -> Tensor:
        rows, columns = x.meta.shape[-2:]
        ones = unary.full_like(part, value=1)
        embed = partial(diag_embed, offset=offset, rows=rows, columns=columns)
        return where.where(cast.cast(embed(ones), dtype=bool_), embed(part), x)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, offset: int) -> Gradients:
        rows, columns = x.meta.shape[-2:]
        return (diag_embed(d, offset=offset, rows=rows, columns=columns),)


diagonal = declare(Diagonal)


class DiagEmbed(Op):
    """Matrices of (rows, columns) that are zero but for x on the diagonal `offset`; inverse of
    `diagonal`."""

    name = "diag_embed"
    precision = "either"

    @staticmethod
    def infer(x: Operand, *, offset: int, rows: int, columns: int) -> TensorType:
        if x.ndim < 1 or x.shape[-1] != diagonal_length(rows, columns, offset):
            raise ShapeError(
                f"diag_embed: {x} does not fit diagonal {offset} of a {rows} x {columns} matrix"
            )
        return x.meta.with_shape((*x.shape[:-1], rows, columns))

    @staticmethod
    def sbp(x: TensorType, **_: object) -> list[SbpSignature]:
        return [signature(f"S{i} -> S{i}") for i in range(x.ndim - 1)] + _partial(x)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, offset: int, **_: object) -> Gradients:
        return (diagonal(d, offset=offset),)


diag_embed = declare(DiagEmbed)
