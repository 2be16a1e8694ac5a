"""Order along a dim."""

from __future__ import annotations

from oneflow.core.dtype import int64
from oneflow.core.errors import ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops import gather, unary
from oneflow.ops.checks import require_dim


def _signatures(x: TensorType, dim: int) -> list[SbpSignature]:
    return [SbpSignature((Split(i),), (Split(i),) * 2) for i in range(x.ndim) if i != dim]


def _to_places(d: Tensor | None, x: Tensor, index: Tensor, dim: int) -> Gradients:
    """The gradient of values that were taken from the places `index` of x."""
    if d is None:
        return (None,)
    return (lambda: gather.dim_scatter(unary.full_like(x, value=0), index, d, dim=dim),)


class Sort(Op):
    """(values, indices: int64) along `dim`; equal elements keep their order, NaN counts as the
    largest."""

    name = "sort"
    precision = "follow"

    @staticmethod
    def infer(x: Operand, *, dim: int, descending: bool = False) -> tuple[TensorType, TensorType]:
        require_dim("sort", x, dim)
        return x.meta, x.meta.with_dtype(int64)

    @staticmethod
    def sbp(x: TensorType, *, dim: int, **_: object) -> list[SbpSignature]:
        return _signatures(x, dim)

    @staticmethod
    def grad(
        d: Tensor | None,
        d_index: Tensor | None,
        x: Tensor,
        out: Tensor,
        index: Tensor,
        *,
        dim: int,
        **_: object,
    ) -> Gradients:
        return _to_places(d, x, index, dim)


sort = declare(Sort)


class Topk(Op):
    """(values, indices: int64) of the k largest (smallest) along `dim`, best first; the first of
    equals is taken."""

    name = "topk"
    precision = "follow"

    @staticmethod
    def infer(
        x: Operand, *, k: int, dim: int, largest: bool = True
    ) -> tuple[TensorType, TensorType]:
        require_dim("topk", x, dim)
        if not 0 <= k <= x.shape[dim]:
            raise ShapeError(f"topk: k must be 0 to {x.shape[dim]} for dim {dim} of {x}, got {k}")
        out = x.meta.with_shape((*x.shape[:dim], k, *x.shape[dim + 1 :]))
        return out, out.with_dtype(int64)

    @staticmethod
    def sbp(x: TensorType, *, dim: int, **_: object) -> list[SbpSignature]:
        return _signatures(x, dim)

    @staticmethod
    def grad(
        d: Tensor | None,
        d_index: Tensor | None,
        x: Tensor,
        out: Tensor,
        index: Tensor,
        *,
        dim: int,
        **_: object,
    ) -> Gradients:
        return _to_places(d, x, index, dim)


topk = declare(Topk)
