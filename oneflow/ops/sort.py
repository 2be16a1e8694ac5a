"""Order along a dim."""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.dtype import int64
from oneflow.core.errors import ShapeError
from oneflow.core.op import Attr, Op, register
from oneflow.core.sbp import SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops import gather, unary
from oneflow.ops.checks import Value, require_dim


def _signatures(x: TensorType, dim: int) -> list[SbpSignature]:
    return [SbpSignature((Split(i),), (Split(i),) * 2) for i in range(x.ndim) if i != dim]


def _to_places(d: Value, x: Value, index: Value, dim: int) -> tuple[Any, ...]:
    """The gradient of values that were taken from the places `index` of x."""
    if d is None:
        return (None,)
    return (lambda: gather.dim_scatter(unary.full_like(x, value=0), index, d, dim=dim),)


@register
class Sort(Op):
    """(values, indices: int64) along `dim`; equal elements keep their order, NaN counts as the
    largest."""

    name = "sort"
    num_outputs = 2

    @staticmethod
    def infer(x: TensorType, *, dim: int, descending: bool = False) -> tuple[TensorType, ...]:
        require_dim("sort", x, dim)
        return x, x.with_dtype(int64)

    @staticmethod
    def sbp(x: TensorType, *, dim: int, **attrs: Attr) -> list[SbpSignature]:
        return _signatures(x, dim)

    @staticmethod
    def grad(
        d: Value, d_index: Value, x: Value, out: Value, index: Value, *, dim: int, **attrs: Attr
    ) -> tuple[Any, ...]:
        return _to_places(d, x, index, dim)


@register
class Topk(Op):
    """(values, indices: int64) of the k largest (smallest) along `dim`, best first; the first of
    equals is taken."""

    name = "topk"
    num_outputs = 2

    @staticmethod
    def infer(x: TensorType, *, k: int, dim: int, largest: bool = True) -> tuple[TensorType, ...]:
        require_dim("topk", x, dim)
        if not 0 <= k <= x.shape[dim]:
            raise ShapeError(f"topk: k must be 0 to {x.shape[dim]} for dim {dim} of {x}, got {k}")
        out = x.with_shape((*x.shape[:dim], k, *x.shape[dim + 1 :]))
        return out, out.with_dtype(int64)

    @staticmethod
    def sbp(x: TensorType, *, dim: int, **attrs: Attr) -> list[SbpSignature]:
        return _signatures(x, dim)

    @staticmethod
    def grad(
        d: Value, d_index: Value, x: Value, out: Value, index: Value, *, dim: int, **attrs: Attr
    ) -> tuple[Any, ...]:
        return _to_places(d, x, index, dim)


def sort(x: Value, *, dim: int, descending: bool = False) -> tuple[Value, Value]:
    values, index = call(Sort, x, dim=dim, descending=descending)
    return values, index


def topk(x: Value, *, k: int, dim: int, largest: bool = True) -> tuple[Value, Value]:
    values, index = call(Topk, x, k=k, dim=dim, largest=largest)
    return values, index
