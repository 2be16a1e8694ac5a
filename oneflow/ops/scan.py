"""Running extremes and running logarithms of sums along a dim."""

from __future__ import annotations

from oneflow.core.dtype import int64
from oneflow.core.op import Op, declare, leading_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, compare, gather, shape, unary, where
from oneflow.ops.checks import require_dim, require_float
from oneflow.ops.softmax import log_softmax


class Cumextreme(Op):
    """(values, indices: int64) of the largest (smallest) so far along `dim`; of equal ones the
    last. A NaN stays.
    """

    name = "cumextreme"
    precision = "follow"

    @staticmethod
    def infer(x: Operand, *, dim: int, largest: bool) -> tuple[TensorType, TensorType]:
        require_dim("cumextreme", x, dim)
        return x.meta, x.meta.with_dtype(int64)

    @staticmethod
    def sbp(x: TensorType, *, dim: int, **_: object) -> list[SbpSignature]:
        return [SbpSignature((Split(i),), (Split(i),) * 2) for i in range(x.ndim) if i != dim]

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
        if d is None:
            return (None,)
        return (gather.dim_scatter_add(unary.full_like(x, value=0), index, d, dim=dim),)


cumextreme = declare(Cumextreme)


class Logcumsumexp(Op):
    """log of the running sums of exp(x) along `dim`."""

    name = "logcumsumexp"
    precision = "keep"

    @staticmethod
    def infer(x: Operand, *, dim: int) -> TensorType:
        require_float("logcumsumexp", x)
        require_dim("logcumsumexp", x, dim)
        return x.meta

    @staticmethod
    def sbp(x: TensorType, *, dim: int) -> list[SbpSignature]:
        return [s for i, s in enumerate(leading_signatures(x.ndim, 1)) if i != dim]

    @staticmethod
    def written(x: Tensor, *, dim: int) -> Tensor:
        """Each sum over all that it is made of, apart: no term is lost beside a larger one."""
        order = (*(i for i in range(x.ndim) if i != dim), dim)
        back = tuple(order.index(i) for i in range(x.ndim))
        rows = shape.transpose(x, dims=order)
        lead, n = rows.meta.shape[:-1], rows.meta.shape[-1]
        terms = shape.expand(shape.reshape(rows, shape=(*lead, 1, n)), shape=(*lead, n, n))
        later = compare.scalar_compare(
            shape.tril(unary.full_like(terms, value=1.0)), value=0, kind="eq"
        )
        logs = log_softmax(where.masked_fill(terms, later, value=float("-inf")))
        # log_softmax is term - logarithm of the sum; term i of sum i is never left out.
        own = shape.diagonal(logs, offset=0)
        return shape.transpose(binary.sub(rows, own), dims=back)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, dim: int) -> Gradients:
        """Positive and negative parts of d apart, each as a logarithm: nothing overflows."""

        def part(value: Tensor) -> Tensor:
            is_positive = compare.scalar_compare(value, value=0, kind="gt")
            safe = where.masked_fill(value, unary.logical_not(is_positive), value=1.0)
            size = where.masked_fill(
                unary.log(safe), unary.logical_not(is_positive), value=float("-inf")
            )
            turned = shape.flip(binary.sub(size, out), dims=(dim,))
            back = shape.flip(logcumsumexp(turned, dim=dim), dims=(dim,))
            return unary.exp(binary.add(back, x))

        return (lambda: binary.sub(part(d), part(unary.neg(d))),)


logcumsumexp = declare(Logcumsumexp)
