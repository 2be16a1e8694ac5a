"""Softmax and log-softmax over the last dim, and causal softmax of attention scores."""

from __future__ import annotations

from typing import Any

from oneflow.core.errors import ShapeError
from oneflow.core.op import Op, declare, leading_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float, require_same


class Softmax(Op):
    """out = exp(x) / sum of exp(x) over the last dim."""

    name = "softmax"

    @staticmethod
    def infer(x: Operand) -> TensorType:
        _check_rows("softmax", x)
        return x.type

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 1, 1)

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (lambda: softmax_grad(d_out, out),)


softmax = declare(Softmax)


class SoftmaxGrad(Op):
    """d_x = scale * out * (d_out - sum of d_out * out over the last dim); out: of softmax."""

    name = "softmax_grad"

    @staticmethod
    def infer(d_out: Operand, out: Operand, *, scale: float = 1.0) -> TensorType:
        require_same("softmax_grad", d_out, out)
        return out.type

    @staticmethod
    def sbp(d_out: TensorType, out: TensorType, **_: object) -> list[SbpSignature]:
        return leading_signatures(out.ndim - 1, 2)

    @staticmethod
    def grad(dd: Tensor, d_out: Tensor, out: Tensor, d_x: Tensor, *, scale: float) -> Gradients:
        """dd is the gradient of d_x = s y (g - <g, y>): d_g = s y (dd - <dd, y>), and
        d_y = s (dd (g - <g, y>) - g <dd, y>), where <,> sums over the last dim."""
        from oneflow.ops.binary import mul, sub
        from oneflow.ops.reduce import reduce_sum
        from oneflow.ops.scalar import scalar_mul

        def inner(a: Any, b: Any) -> Any:
            return reduce_sum(mul(a, b), dims=(a.type.ndim - 1,), keepdim=True)

        def d_y() -> Any:
            first = mul(dd, sub(d_out, inner(d_out, out)))
            return scalar_mul(sub(first, mul(d_out, inner(dd, out))), value=scale)

        return (lambda: softmax_grad(dd, out, scale=scale), d_y)


softmax_grad = declare(SoftmaxGrad)


class LogSoftmax(Op):
    """out = x - log of the sum of exp(x) over the last dim."""

    name = "log_softmax"

    @staticmethod
    def infer(x: Operand) -> TensorType:
        _check_rows("log_softmax", x)
        return x.type

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 1, 1)

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (lambda: log_softmax_grad(d_out, out),)


log_softmax = declare(LogSoftmax)


class LogSoftmaxGrad(Op):
    """d_x = d_out - exp(out) * sum of d_out over the last dim; out: of log_softmax."""

    name = "log_softmax_grad"

    @staticmethod
    def infer(d_out: Operand, out: Operand) -> TensorType:
        require_same("log_softmax_grad", d_out, out)
        return out.type

    @staticmethod
    def sbp(d_out: TensorType, out: TensorType) -> list[SbpSignature]:
        return leading_signatures(out.ndim - 1, 2)

    @staticmethod
    def grad(dd: Tensor, d_out: Tensor, out: Tensor, d_x: Tensor) -> Gradients:
        """Differentiate again, with p = exp(out): the gradients of g - p * sum(g) are dd - sum(dd *
        p) and -dd * p * sum(g).
        """
        from oneflow.ops.binary import mul, sub
        from oneflow.ops.reduce import reduce_sum
        from oneflow.ops.unary import exp, neg

        def total(a: Any) -> Any:
            return reduce_sum(a, dims=(a.type.ndim - 1,), keepdim=True)

        return (
            lambda: sub(dd, total(mul(dd, exp(out)))),
            lambda: neg(mul(mul(dd, exp(out)), total(d_out))),
        )


log_softmax_grad = declare(LogSoftmaxGrad)


class CausalSoftmax(Op):
    """Softmax of scale * x where row i of the last two dims sees columns 0..i only; the others get
    0.

    x: (..., rows, columns); row i stands for position i + columns - rows, so that rows may be the
    last of a longer sequence. Computes scale, mask and softmax in one pass.
    """

    name = "causal_softmax"

    @staticmethod
    def infer(x: Operand, *, scale: float = 1.0) -> TensorType:
        require_float("causal_softmax", x)
        if x.ndim < 2 or x.shape[-1] < x.shape[-2]:
            raise ShapeError(f"causal_softmax: needs (..., rows, columns >= rows), got {x}")
        return x.type

    @staticmethod
    def sbp(x: TensorType, **_: object) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 2, 1)

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, out: Tensor, *, scale: float) -> Gradients:
        return (lambda: softmax_grad(d_out, out, scale=scale),)


causal_softmax = declare(CausalSoftmax)


def _check_rows(who: str, x: Operand) -> None:
    require_float(who, x)
    if x.ndim < 1:
        raise ShapeError(f"{who}: needs at least one dim, got {x}")
