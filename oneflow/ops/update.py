"""Optimizer updates: each overwrites a parameter and its states in place.

Common words. param: the parameter. grad: its gradient, same type. lr: float64[], the learning rate.
step: int64[], 1 for the first update. weight_decay: adds weight_decay * param to the gradient
unless said otherwise. maximize: climbs instead of descending. Every op may run on shards: param,
grad and states split alike, lr and step whole.

`formula` gives the new values of what is overwritten, in that order; kernels/elementwise.py makes
the kernels of every device from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oneflow.core.dtype import float32, float64
from oneflow.core.errors import ShapeError
from oneflow.core.expression import (
    Expression,
    apply,
    cast,
    maximum,
    minimum,
    scalar,
    sqrt,
    symbols,
    total,
    where,
)
from oneflow.core.op import Op, declare
from oneflow.core.operand import Attr, Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops.binary import mul
from oneflow.ops.cast import cast as to_dtype
from oneflow.ops.checks import require_float
from oneflow.ops.scalar import scalar_mul

Formulas = tuple[Expression, ...]
_PARAM, _GRAD, _M, _V = symbols("param grad m v")
_LR, _STEP = scalar("lr"), scalar("step")


class _Update(Op):
    """Common part of all updates. grad is input 1; states follow it, then lr and step."""

    has_effect = True

    @classmethod
    def sbp(cls, *types: TensorType, **_: Attr) -> list[SbpSignature]:
        arrays = sum(name not in ("lr", "step") for name in cls.operands)
        scalars = (BROADCAST,) * (len(types) - arrays)
        return [
            SbpSignature((Split(i),) * arrays + scalars, (Split(i),) * (arrays - 1))
            for i in range(types[0].ndim)
        ]


def _check(
    name: str, param: Operand, grad: Operand, states: tuple[Operand, ...], *scalars: Operand
) -> None:
    require_float(name, param)
    if grad.type != param.type:
        raise ShapeError(
            f"{name}: the gradient {grad.type} does not fit the parameter {param.type}"
        )
    for state in states:
        if state.shape != param.shape:
            raise ShapeError(
                f"{name}: the state {state.type} does not fit the parameter {param.type}"
            )
    for number in scalars:
        if number.shape != ():
            raise ShapeError(f"{name}: lr and step must be scalars, got {number.type}")


def _gradient(attrs: Mapping[str, Any], *, decays: bool = True) -> Expression:
    """The gradient with its sign, and weight decay added."""
    g = -_GRAD if attrs["maximize"] else _GRAD
    return g + scalar("weight_decay") * _PARAM if decays and attrs["weight_decay"] else g


def _average(state: Expression, value: Expression, decay: str) -> Expression:
    return scalar(decay) * state + (1 - scalar(decay)) * value


class SgdUpdate(_Update):
    """param -= lr * (grad + weight_decay * param)."""

    name = "sgd_update"
    mutates = {0: 0}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        lr: Operand,
        *,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> TensorType:
        _check("sgd_update", param, grad, (), lr)
        return param.type

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        return (_PARAM - _LR * _gradient(attrs),)


sgd_update = declare(SgdUpdate)


class MomentumUpdate(_Update):
    """buf = momentum * buf + (1 - dampening) * g;  param -= lr * buf, or lr * (g + momentum * buf)
    if nesterov. buf starts as 0, and the first update is like any other.
    """

    name = "momentum_update"
    mutates = {0: 0, 1: 2}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        buf: Operand,
        lr: Operand,
        *,
        momentum: float,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType]:
        _check("momentum_update", param, grad, (buf,), lr)
        return param.type, buf.type

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        (buf,) = symbols("buf")
        g = _gradient(attrs)
        fresh = (1 - scalar("dampening")) * g if attrs["dampening"] else g
        new = scalar("momentum") * buf + fresh
        move = g + scalar("momentum") * new if attrs["nesterov"] else new
        return _PARAM - _LR * move, new


momentum_update = declare(MomentumUpdate)


def _adam(attrs: Mapping[str, Any], v_max: Expression | None = None) -> Formulas:
    """(m' / (sqrt(v') + eps), m, v[, v_max]); v_max: takes the place of v in the denominator."""
    g = _gradient(attrs, decays=not attrs["decoupled"])
    m = _average(_M, g, "beta1")
    v = _average(_V, g * g, "beta2")
    states = (m, v) if v_max is None else (m, v, maximum(v_max, v))
    root, top = sqrt(states[-1]), m
    if attrs["do_bias_correction"]:
        # Numbers of the call are computed once; then every element has two products, no quotient.
        root = root * (1 / sqrt(1 - scalar("beta2") ** _STEP))
        top = m * (1 / (1 - scalar("beta1") ** _STEP))
    return top / (root + scalar("eps")), *states


def _descended(move: Expression, attrs: Mapping[str, Any]) -> Expression:
    """param - lr * move, and - lr * weight_decay * param if that is decoupled."""
    decays = attrs["decoupled"] and attrs["weight_decay"]
    kept = (1 - _LR * scalar("weight_decay")) * _PARAM if decays else _PARAM
    return kept - _LR * move


class AdamUpdate(_Update):
    """m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
    param -= lr * m' / (sqrt(v') + eps).

    m' and v' are m / (1 - beta1^step) and v / (1 - beta2^step) if do_bias_correction, else m and v.
    decoupled: param -= lr * weight_decay * param instead of adding to the gradient (AdamW).
    Kingma and Ba, ICLR 2015; Loshchilov and Hutter, ICLR 2019.
    """

    name = "adam_update"
    mutates = {0: 0, 1: 2, 2: 3}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        m: Operand,
        v: Operand,
        lr: Operand,
        step: Operand,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        do_bias_correction: bool = True,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType, TensorType]:
        _check("adam_update", param, grad, (m, v), lr, step)
        return param.type, m.type, v.type

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        move, *states = _adam(attrs)
        return _descended(move, attrs), *states


adam_update = declare(AdamUpdate)


class AmsgradUpdate(_Update):
    """adam_update with the running maximum of v in the denominator (Reddi, Kale, Kumar, ICLR
    2018)."""

    name = "amsgrad_update"
    mutates = {0: 0, 1: 2, 2: 3, 3: 4}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        m: Operand,
        v: Operand,
        v_max: Operand,
        lr: Operand,
        step: Operand,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        do_bias_correction: bool = True,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType, TensorType, TensorType]:
        _check("amsgrad_update", param, grad, (m, v, v_max), lr, step)
        return param.type, m.type, v.type, v_max.type

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        (v_max,) = symbols("v_max")
        move, *states = _adam(attrs, v_max)
        return _descended(move, attrs), *states


amsgrad_update = declare(AmsgradUpdate)


class AdagradUpdate(_Update):
    """sum += g^2;  param -= lr / (1 + (step - 1) * lr_decay) * g / (sqrt(sum) + eps)."""

    name = "adagrad_update"
    mutates = {0: 0, 1: 2}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        sum: Operand,
        lr: Operand,
        step: Operand,
        *,
        lr_decay: float = 0.0,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType]:
        _check("adagrad_update", param, grad, (sum,), lr, step)
        return param.type, sum.type

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        (squares,) = symbols("sum")
        g = _gradient(attrs)
        new = squares + g * g
        rate = _LR / (1 + (_STEP - 1) * scalar("lr_decay"))
        return _PARAM - rate * (g / (sqrt(new) + scalar("eps"))), new


adagrad_update = declare(AdagradUpdate)


class RmspropUpdate(_Update):
    """ms = alpha ms + (1 - alpha) g^2;  mean = alpha mean + (1 - alpha) g if centered;
    buf = momentum buf + lr * g / sqrt(ms [- mean^2] + eps);  param -= buf.

    mean and buf stay as they are unless centered, or momentum is not 0.
    """

    name = "rmsprop_update"
    mutates = {0: 0, 1: 2, 2: 3, 3: 4}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        ms: Operand,
        mean: Operand,
        buf: Operand,
        lr: Operand,
        *,
        alpha: float = 0.99,
        eps: float = 1e-8,
        momentum: float = 0.0,
        centered: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType, TensorType, TensorType]:
        _check("rmsprop_update", param, grad, (ms, mean, buf), lr)
        return param.type, ms.type, mean.type, buf.type

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        ms, mean, buf = symbols("ms mean buf")
        g = _gradient(attrs)
        new_ms = _average(ms, g * g, "alpha")
        new_mean = _average(mean, g, "alpha") if attrs["centered"] else mean
        spread = new_ms - new_mean * new_mean if attrs["centered"] else new_ms
        move = _LR * (g / sqrt(spread + scalar("eps")))
        if attrs["momentum"]:
            move = new_buf = scalar("momentum") * buf + move
        else:
            new_buf = buf
        return _PARAM - move, new_ms, new_mean, new_buf


rmsprop_update = declare(RmspropUpdate)


class AdadeltaUpdate(_Update):
    """sq = rho sq + (1 - rho) g^2;  d = g * sqrt(acc + eps) / sqrt(sq + eps);
    acc = rho acc + (1 - rho) d^2;  param -= lr * d.
    """

    name = "adadelta_update"
    mutates = {0: 0, 1: 2, 2: 3}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        sq: Operand,
        acc: Operand,
        lr: Operand,
        *,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType, TensorType]:
        _check("adadelta_update", param, grad, (sq, acc), lr)
        return param.type, sq.type, acc.type

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        sq, acc = symbols("sq acc")
        g = _gradient(attrs)
        new_sq = _average(sq, g * g, "rho")
        move = g * (sqrt(acc + scalar("eps")) / sqrt(new_sq + scalar("eps")))
        return _PARAM - _LR * move, new_sq, _average(acc, move * move, "rho")


adadelta_update = declare(AdadeltaUpdate)


class LambUpdate(_Update):
    """Adam's step, scaled by |param| / |step| where both are positive (You et al., ICLR 2020).

    decoupled: weight decay is added to Adam's step, before scaling; else to the gradient. The norms
    are of the whole parameter, so it runs on whole parameters only.
    """

    name = "lamb_update"
    mutates = {0: 0, 1: 2, 2: 3}

    @staticmethod
    def row_dims(param: TensorType, *_: TensorType, **attrs: Attr) -> int:
        return param.ndim

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        m: Operand,
        v: Operand,
        lr: Operand,
        step: Operand,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = True,
        do_bias_correction: bool = True,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType, TensorType]:
        _check("lamb_update", param, grad, (m, v), lr, step)
        return param.type, m.type, v.type

    @classmethod
    def sbp(cls, *types: TensorType, **_: Attr) -> list[SbpSignature]:
        return []

    @staticmethod
    def formula(*types: TensorType, **attrs: Attr) -> Formulas:
        move, *states = _adam(attrs)
        if attrs["decoupled"] and attrs["weight_decay"]:
            move = move + scalar("weight_decay") * _PARAM
        own, other = _square_norm(_PARAM), _square_norm(move)
        both = apply("logical_and", own > 0, other > 0)
        trust = sqrt(where(both, own / where(both, other, 1), 1)) * _LR
        dtype = types[0].dtype if types[0].dtype.bytes >= 4 else float32
        return _PARAM - cast(trust, dtype) * move, *states


lamb_update = declare(LambUpdate)


def _square_norm(x: Expression) -> Expression:
    wide = cast(x, float64)
    return total(wide * wide)


class FtrlUpdate(_Update):
    """Follow the regularised leader (McMahan et al., KDD 2013): sparse weights through an L1 term.

    With n the accumulator and p = -lr_power:
    z += g - ((n + g^2)^p - n^p) / lr * param;  n += g^2;
    param = 0 where |z| <= l1, else (sign(z) l1 - z) / ((beta + n^p) / lr + l2).
    """

    name = "ftrl_update"
    mutates = {0: 0, 1: 2, 2: 3}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        accumulator: Operand,
        z: Operand,
        lr: Operand,
        *,
        lr_power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 0.0,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType, TensorType]:
        _check("ftrl_update", param, grad, (accumulator, z), lr)
        return param.type, accumulator.type, z.type

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        n, z = symbols("accumulator z")
        g = _gradient(attrs)
        new_n = n + g * g
        power = -scalar("lr_power")
        is_root = attrs["lr_power"] == -0.5
        old_root, root = (sqrt(n), sqrt(new_n)) if is_root else (n**power, new_n**power)
        new_z = z + g - (root - old_root) / _LR * _PARAM
        # -(z - clip(z, -l1, l1)) is 0 exactly where |z| <= l1.
        inside = minimum(maximum(new_z, -scalar("l1")), scalar("l1"))
        below = (root + scalar("beta")) / _LR + scalar("l2")
        return (inside - new_z) / below, new_n, new_z


ftrl_update = declare(FtrlUpdate)


class SquareSum(Op):
    """out = sum of x^2 over all elements, at least float32: what gradient clipping by norm needs.
    out: [].
    """

    name = "square_sum"

    @staticmethod
    def infer(x: Operand) -> TensorType:
        require_float("square_sum", x)
        return TensorType((), x.dtype if x.dtype.bytes >= 4 else float32)

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return [SbpSignature((Split(i),), (PARTIAL,)) for i in range(x.ndim)]

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (lambda: mul(scalar_mul(x, value=2.0), to_dtype(d_out, dtype=x.type.dtype)),)


square_sum = declare(SquareSum)
