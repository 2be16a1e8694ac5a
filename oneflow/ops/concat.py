"""Tensors joined along a dim, and cut along it."""

from __future__ import annotations

from functools import partial
from typing import Any

from oneflow.core.dtype import bool_
from oneflow.core.errors import ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.parts import Part, Parts, placed
from oneflow.core.sbp import PARTIAL, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops import slicing, unary
from oneflow.ops.checks import require_dim, require_same_dtype


def _signatures(x: TensorType, dim: int, num_ins: int, num_outs: int) -> list[SbpSignature]:
    listed = [
        SbpSignature((Split(i),) * num_ins, (Split(i),) * num_outs)
        for i in range(x.ndim)
        if i != dim
    ]
    if x.dtype is not bool_:
        listed.append(SbpSignature((PARTIAL,) * num_ins, (PARTIAL,) * num_outs))
    return listed


class Concat(Op):
    """One or more tensors, equal but for their size along `dim`, joined along it."""

    name = "concat"

    @staticmethod
    def infer(*xs: Operand, dim: int) -> TensorType:
        if not xs:
            raise ShapeError("concat needs at least one tensor")
        first = xs[0]
        require_same_dtype("concat", *xs)
        require_dim("concat", first, dim)
        for x in xs[1:]:
            if x.shape[:dim] != first.shape[:dim] or x.shape[dim + 1 :] != first.shape[dim + 1 :]:
                raise ShapeError(f"concat along dim {dim}: {x} does not fit {first}")
            if x.ndim != first.ndim:
                raise ShapeError(f"concat along dim {dim}: {x} does not fit {first}")
        total = sum(x.shape[dim] for x in xs)
        return first.meta.with_shape((*first.shape[:dim], total, *first.shape[dim + 1 :]))

    @staticmethod
    def sbp(*xs: TensorType, dim: int) -> list[SbpSignature]:
        return _signatures(xs[0], dim, len(xs), 1)

    @staticmethod
    def joins(*_: TensorType, dim: int) -> int:
        return dim

    @staticmethod
    def parts(*xs: TensorType, dim: int) -> Parts:
        """Return the parts in the layout of the largest input."""
        largest = max(range(len(xs)), key=lambda i: (xs[i].numel, -i))
        parts, first = [], 0
        for i, x in enumerate(xs):
            by = tuple(first if d == dim else 0 for d in range(x.ndim))
            parts.append(Part(i, partial(placed, by)))
            first += x.shape[dim]
        return Parts((dim,), tuple(parts), lead=largest)

    @staticmethod
    def grad(d: Tensor, *tensors: Tensor, dim: int) -> Gradients:
        shape = d.meta.shape
        parts: list[Any] = []
        start = 0
        for x in tensors[:-1]:
            stop = start + x.meta.shape[dim]
            parts.append(lambda a=start, b=stop: _part(d, shape, dim, a, b))
            start = stop
        return tuple(parts)


concat = declare(Concat)


def _part(x: Tensor, shape: tuple[int, ...], dim: int, start: int, stop: int) -> Tensor:
    starts = tuple(start if i == dim else 0 for i in range(len(shape)))
    stops = tuple(stop if i == dim else n for i, n in enumerate(shape))
    return slicing.slice(x, starts=starts, stops=stops, steps=(1,) * len(shape))


class SplitOp(Op):
    """x cut along `dim` into parts of the given sizes, one output each."""

    name = "split"
    precision = "either"

    @staticmethod
    def infer(x: Operand, *, sizes: tuple[int, ...], dim: int) -> tuple[TensorType, ...]:
        require_dim("split", x, dim)
        if sum(sizes) != x.shape[dim] or min(sizes, default=-1) < 0:
            raise ShapeError(
                f"split of {x} along dim {dim}: the sizes {list(sizes)} must sum to {x.shape[dim]}"
            )
        return tuple(x.meta.with_shape((*x.shape[:dim], n, *x.shape[dim + 1 :])) for n in sizes)

    @staticmethod
    def sbp(x: TensorType, *, sizes: tuple[int, ...], dim: int) -> list[SbpSignature]:
        return _signatures(x, dim, 1, len(sizes))

    @staticmethod
    def grad(*tensors: Tensor, sizes: tuple[int, ...], dim: int) -> Gradients:
        count = len(sizes)
        outs = tensors[count + 1 :]

        def d_x() -> Tensor:
            given = [
                unary.full_like(out, value=0) if d is None else d
                for d, out in zip(tensors[:count], outs, strict=True)
            ]
            return concat(*given, dim=dim)

        return (d_x,)


split = declare(SplitOp)
