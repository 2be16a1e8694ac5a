"""Softmax and log-softmax over the last dim, and causal softmax of attention scores."""

from __future__ import annotations

import math

from oneflow.core.errors import ShapeError
from oneflow.core.expression import (
    Expression,
    apply,
    column,
    exp_down,
    largest,
    log,
    row,
    scalar,
    symbols,
    total,
    where,
)
from oneflow.core.op import declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, unary
from oneflow.ops.checks import require_float, require_same
from oneflow.ops.elementwise import Elementwise
from oneflow.ops.formulated import Formulated
from oneflow.ops.reduce import reduce_sum

_X, _D, _OUT = symbols("x d_out out")


def _softmax(x: Expression) -> Expression:
    e = exp_down(x - largest(x))
    return e * apply("reciprocal", total(e))


class Softmax(Formulated):
    """out = exp(x) / sum of exp(x) over the last dim."""

    name = "softmax"
    precision = "follow"
    widens = ("cuda",)

    @staticmethod
    def infer(x: Operand) -> TensorType:
        _check_rows("softmax", x)
        return x.meta

    @staticmethod
    def formula(*_: TensorType) -> Expression:
        return _softmax(_X)

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (lambda: softmax_grad(d_out, out),)


softmax = declare(Softmax)


class SoftmaxGrad(Elementwise):
    """d_x = scale * out * (d_out - sum of d_out * out over the last dim); out: of softmax."""

    name = "softmax_grad"

    @staticmethod
    def infer(d_out: Operand, out: Operand, *, scale: float = 1.0) -> TensorType:
        require_same("softmax_grad", d_out, out)
        return out.meta

    @staticmethod
    def formula(*_: TensorType, scale: float = 1.0) -> Expression:
        d_x = _OUT * (_D - total(_D * _OUT))
        return d_x if scale == 1.0 else d_x * scalar("scale")


softmax_grad = declare(SoftmaxGrad)


class LogSoftmax(Formulated):
    """out = x - log of the sum of exp(x) over the last dim."""

    name = "log_softmax"

    @staticmethod
    def infer(x: Operand) -> TensorType:
        _check_rows("log_softmax", x)
        return x.meta

    @staticmethod
    def formula(*_: TensorType) -> Expression:
        centred = _X - largest(_X)
        return centred - log(total(exp_down(centred)))

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (lambda: log_softmax_grad(d_out, out),)


log_softmax = declare(LogSoftmax)


class LogSoftmaxGrad(Elementwise):
    """d_x = d_out - exp(out) * sum of d_out over the last dim; out: of log_softmax."""

    name = "log_softmax_grad"

    @staticmethod
    def infer(d_out: Operand, out: Operand) -> TensorType:
        require_same("log_softmax_grad", d_out, out)
        return out.meta

    @staticmethod
    def formula(*_: TensorType) -> Expression:
        return _D - exp_down(_OUT) * total(_D)

    @staticmethod
    def written(d_out: Tensor, out: Tensor) -> Tensor:
        whole = reduce_sum(d_out, dims=(d_out.ndim - 1,), keepdim=True)
        return binary.sub(d_out, binary.mul(unary.exp(out), whole))


log_softmax_grad = declare(LogSoftmaxGrad)


class CausalSoftmax(Formulated):
    """Softmax of scale * x where row i of the last two dims sees columns 0..i only; the others get
    0.

    x: (..., rows, columns); row i stands for position i + columns - rows, so that rows may be the
    last of a longer sequence. Computes scale, mask and softmax in one pass.
    """

    name = "causal_softmax"
    precision = "follow"

    @staticmethod
    def infer(x: Operand, *, scale: float = 1.0) -> TensorType:
        require_float("causal_softmax", x)
        if x.ndim < 2 or x.shape[-1] < x.shape[-2]:
            raise ShapeError(f"causal_softmax: needs (..., rows, columns >= rows), got {x}")
        return x.meta

    @staticmethod
    def formula(*_: TensorType, **__: object) -> Expression:
        position = row() + (scalar("columns") - scalar("rows"))
        seen = where(column() <= position, _X * scalar("scale"), -math.inf)
        return _softmax(seen)

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, out: Tensor, *, scale: float) -> Gradients:
        return (lambda: softmax_grad(d_out, out, scale=scale),)


causal_softmax = declare(CausalSoftmax)


def _check_rows(who: str, x: Operand) -> None:
    require_float(who, x)
    if x.ndim < 1:
        raise ShapeError(f"{who}: needs at least one dim, got {x}")
