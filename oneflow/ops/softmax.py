"""Softmax and log-softmax over the last dim, and causal softmax of attention scores."""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Op, register
from oneflow.core.sbp import SbpSignature, Split
from oneflow.core.tensor_type import TensorType


def check_float(who: str, *types: TensorType) -> None:
    """Raises DTypeError unless all types are one floating-point dtype."""
    first = types[0]
    if not first.dtype.is_floating_point:
        raise DTypeError(f"{who}: needs a floating-point tensor, got {first}")
    for other in types[1:]:
        if other.dtype is not first.dtype:
            raise DTypeError(f"{who}: {first} and {other} must have one dtype")


def check_same(who: str, *types: TensorType) -> None:
    """Raises ShapeError or DTypeError unless all types are equal and floating-point."""
    check_float(who, *types)
    for other in types[1:]:
        if other.shape != types[0].shape:
            raise ShapeError(f"{who}: {types[0]} and {other} must have one shape")


def leading_signatures(ndim: int, num_inputs: int) -> list[SbpSignature]:
    """Split any of the first `ndim` dims, alike in all inputs and the one output."""
    return [SbpSignature((Split(i),) * num_inputs, (Split(i),)) for i in range(ndim)]


@register
class Softmax(Op):
    """out = exp(x) / sum of exp(x) over the last dim."""

    name = "softmax"

    @staticmethod
    def infer(x: TensorType) -> TensorType:
        _check_rows("softmax", x)
        return x

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 1, 1)

    @staticmethod
    def grad(d_out: Any, x: Any, out: Any) -> tuple[Any, ...]:
        return (lambda: softmax_grad(d_out, out),)


@register
class SoftmaxGrad(Op):
    """d_x = scale * out * (d_out - sum of d_out * out over the last dim); out: of softmax."""

    name = "softmax_grad"

    @staticmethod
    def infer(d_out: TensorType, out: TensorType, *, scale: float = 1.0) -> TensorType:
        check_same("softmax_grad", d_out, out)
        return out

    @staticmethod
    def sbp(d_out: TensorType, out: TensorType, *, scale: float = 1.0) -> list[SbpSignature]:
        return leading_signatures(out.ndim - 1, 2)

    @staticmethod
    def grad(dd: Any, d_out: Any, out: Any, d_x: Any, *, scale: float = 1.0) -> tuple[Any, ...]:
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


@register
class LogSoftmax(Op):
    """out = x - log of the sum of exp(x) over the last dim."""

    name = "log_softmax"

    @staticmethod
    def infer(x: TensorType) -> TensorType:
        _check_rows("log_softmax", x)
        return x

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 1, 1)

    @staticmethod
    def grad(d_out: Any, x: Any, out: Any) -> tuple[Any, ...]:
        return (lambda: log_softmax_grad(d_out, out),)


@register
class LogSoftmaxGrad(Op):
    """d_x = d_out - exp(out) * sum of d_out over the last dim; out: of log_softmax."""

    name = "log_softmax_grad"

    @staticmethod
    def infer(d_out: TensorType, out: TensorType) -> TensorType:
        check_same("log_softmax_grad", d_out, out)
        return out

    @staticmethod
    def sbp(d_out: TensorType, out: TensorType) -> list[SbpSignature]:
        return leading_signatures(out.ndim - 1, 2)

    @staticmethod
    def grad(dd: Any, d_out: Any, out: Any, d_x: Any) -> tuple[Any, ...]:
        """With p = exp(out): the gradients of g - p * sum(g) are dd - sum(dd * p) and -dd * p *
        sum(g).
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


@register
class CausalSoftmax(Op):
    """Softmax of scale * x where row i of the last two dims sees columns 0..i only; the others get
    0.

    x: (..., rows, columns); row i stands for position i + columns - rows, so that rows may be the
    last of a longer sequence. Computes scale, mask and softmax in one pass.
    """

    name = "causal_softmax"

    @staticmethod
    def infer(x: TensorType, *, scale: float = 1.0) -> TensorType:
        check_float("causal_softmax", x)
        if x.ndim < 2 or x.shape[-1] < x.shape[-2]:
            raise ShapeError(f"causal_softmax: needs (..., rows, columns >= rows), got {x}")
        return x

    @staticmethod
    def sbp(x: TensorType, *, scale: float = 1.0) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 2, 1)

    @staticmethod
    def grad(d_out: Any, x: Any, out: Any, *, scale: float = 1.0) -> tuple[Any, ...]:
        return (lambda: softmax_grad(d_out, out, scale=scale),)


def softmax(x: Any) -> Any:
    """See Softmax."""
    return call(Softmax, x)


def softmax_grad(d_out: Any, out: Any, *, scale: float = 1.0) -> Any:
    """See SoftmaxGrad."""
    return call(SoftmaxGrad, d_out, out, scale=scale)


def log_softmax(x: Any) -> Any:
    """See LogSoftmax."""
    return call(LogSoftmax, x)


def log_softmax_grad(d_out: Any, out: Any) -> Any:
    """See LogSoftmaxGrad."""
    return call(LogSoftmaxGrad, d_out, out)


def causal_softmax(x: Any, *, scale: float = 1.0) -> Any:
    """See CausalSoftmax."""
    return call(CausalSoftmax, x, scale=scale)


def _check_rows(who: str, x: TensorType) -> None:
    check_float(who, x)
    if x.ndim < 1:
        raise ShapeError(f"{who}: needs at least one dim, got {x}")
