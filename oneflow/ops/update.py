"""Optimizer updates: each overwrites a parameter and its states in place.

Common words. param: the parameter. grad: its gradient, same type. lr: float64[], the learning rate.
step: int64[], 1 for the first update. weight_decay: adds weight_decay * param to the gradient
unless said otherwise. maximize: climbs instead of descending. Every op may run on shards: param,
grad and states split alike, lr and step whole.
"""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.errors import ShapeError
from oneflow.core.op import Attr, Op, register
from oneflow.core.sbp import BROADCAST, PARTIAL, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float


class _Update(Op):
    """What all updates share. num_arrays: param, grad and states; num_scalars: lr, step; grad is
    input 1.
    """

    has_effect = True
    num_arrays = 2
    num_scalars = 1

    @classmethod
    def infer(cls, *types: TensorType, **attrs: Attr) -> Any:
        param, grad, *states = types[: cls.num_arrays]
        require_float(cls.name, param)
        if grad != param:
            raise ShapeError(f"{cls.name}: the gradient {grad} does not fit the parameter {param}")
        for state in states:
            if state.shape != param.shape:
                raise ShapeError(
                    f"{cls.name}: the state {state} does not fit the parameter {param}"
                )
        for scalar in types[cls.num_arrays :]:
            if scalar.shape != ():
                raise ShapeError(f"{cls.name}: lr and step must be scalars, got {scalar}")
        return (param, *states) if states else param

    @classmethod
    def sbp(cls, *types: TensorType, **attrs: Attr) -> list[SbpSignature]:
        scalars = (BROADCAST,) * cls.num_scalars
        outputs = cls.num_arrays - 1
        return [
            SbpSignature((Split(i),) * cls.num_arrays + scalars, (Split(i),) * outputs)
            for i in range(types[0].ndim)
        ]


@register
class SgdUpdate(_Update):
    """param -= lr * (grad + weight_decay * param).   Inputs: param, grad, lr."""

    name = "sgd_update"
    mutates = {0: 0}


@register
class MomentumUpdate(_Update):
    """buf = momentum * buf + (1 - dampening) * g;  param -= lr * buf, or lr * (g + momentum * buf)
    if nesterov.

    Inputs: param, grad, buf, lr. buf starts as 0, and the first update is like any other.
    """

    name = "momentum_update"
    mutates = {0: 0, 1: 2}
    num_outputs = 2
    num_arrays = 3


@register
class AdamUpdate(_Update):
    """m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
    param -= lr * m' / (sqrt(v') + eps).

    Inputs: param, grad, m, v, lr, step. m' and v' are m / (1 - beta1^step) and v / (1 - beta2^step)
    if do_bias_correction, else m and v. decoupled: param -= lr * weight_decay * param instead of
    adding to the gradient (AdamW). Kingma and Ba, ICLR 2015; Loshchilov and Hutter, ICLR 2019.
    """

    name = "adam_update"
    mutates = {0: 0, 1: 2, 2: 3}
    num_outputs = 3
    num_arrays = 4
    num_scalars = 2


@register
class AmsgradUpdate(_Update):
    """adam_update with the running maximum of v in the denominator.   Inputs: param, grad, m, v,
    v_max, lr, step.

    Reddi, Kale, Kumar, ICLR 2018.
    """

    name = "amsgrad_update"
    mutates = {0: 0, 1: 2, 2: 3, 3: 4}
    num_outputs = 4
    num_arrays = 5
    num_scalars = 2


@register
class AdagradUpdate(_Update):
    """sum += g^2;  param -= lr / (1 + (step - 1) * lr_decay) * g / (sqrt(sum) + eps).

    Inputs: param, grad, sum, lr, step.
    """

    name = "adagrad_update"
    mutates = {0: 0, 1: 2}
    num_outputs = 2
    num_arrays = 3
    num_scalars = 2


@register
class RmspropUpdate(_Update):
    """ms = alpha ms + (1 - alpha) g^2;  mean = alpha mean + (1 - alpha) g if centered;
    buf = momentum buf + lr * g / sqrt(ms [- mean^2] + eps);  param -= buf.

    Inputs: param, grad, ms, mean, buf, lr. mean and buf stay as they are unless centered, or
    momentum is not 0.
    """

    name = "rmsprop_update"
    mutates = {0: 0, 1: 2, 2: 3, 3: 4}
    num_outputs = 4
    num_arrays = 5


@register
class AdadeltaUpdate(_Update):
    """sq = rho sq + (1 - rho) g^2;  d = g * sqrt(acc + eps) / sqrt(sq + eps);
    acc = rho acc + (1 - rho) d^2;  param -= lr * d.

    Inputs: param, grad, sq, acc, lr.
    """

    name = "adadelta_update"
    mutates = {0: 0, 1: 2, 2: 3}
    num_outputs = 3
    num_arrays = 4


@register
class LambUpdate(_Update):
    """Adam's step, scaled by |param| / |step| where both are positive (You et al., ICLR 2020).

    Inputs: param, grad, m, v, lr, step. decoupled: weight decay is added to Adam's step, before
    scaling; else to the gradient. The norms are of the whole parameter, so it runs on whole
    parameters only.
    """

    name = "lamb_update"
    mutates = {0: 0, 1: 2, 2: 3}
    num_outputs = 3
    num_arrays = 4
    num_scalars = 2

    @classmethod
    def sbp(cls, *types: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return []


@register
class FtrlUpdate(_Update):
    """Follow the regularised leader (McMahan et al., KDD 2013): sparse weights through an L1 term.

    Inputs: param, grad, accumulator, z, lr. With n the accumulator and p = -lr_power:
    z += g - ((n + g^2)^p - n^p) / lr * param;  n += g^2;
    param = 0 where |z| <= l1, else (sign(z) l1 - z) / ((beta + n^p) / lr + l2).
    """

    name = "ftrl_update"
    mutates = {0: 0, 1: 2, 2: 3}
    num_outputs = 3
    num_arrays = 4


@register
class SquareSum(Op):
    """out = sum of x^2 over all elements, at least float32: what gradient clipping by norm needs.
    out: [].
    """

    name = "square_sum"

    @staticmethod
    def infer(x: TensorType) -> TensorType:
        from oneflow.core.dtype import float32

        require_float("square_sum", x)
        return TensorType((), x.dtype if x.dtype.bytes >= 4 else float32)

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return [SbpSignature((Split(i),), (PARTIAL,)) for i in range(x.ndim)]

    @staticmethod
    def grad(d_out: Any, x: Any, out: Any) -> tuple[Any, ...]:
        from oneflow.ops.binary import mul
        from oneflow.ops.cast import cast
        from oneflow.ops.scalar import scalar_mul

        return (lambda: mul(scalar_mul(x, value=2.0), cast(d_out, dtype=x.type.dtype)),)


def sgd_update(
    param: Any, grad: Any, lr: Any, *, weight_decay: float = 0.0, maximize: bool = False
) -> Any:
    """See SgdUpdate."""
    return call(SgdUpdate, param, grad, lr, weight_decay=weight_decay, maximize=maximize)


def momentum_update(
    param: Any,
    grad: Any,
    buf: Any,
    lr: Any,
    *,
    momentum: float,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> Any:
    """See MomentumUpdate. Returns (param, buf)."""
    return call(
        MomentumUpdate,
        param,
        grad,
        buf,
        lr,
        momentum=momentum,
        dampening=dampening,
        nesterov=nesterov,
        weight_decay=weight_decay,
        maximize=maximize,
    )


def adam_update(
    param: Any,
    grad: Any,
    m: Any,
    v: Any,
    lr: Any,
    step: Any,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    do_bias_correction: bool = True,
    maximize: bool = False,
) -> Any:
    """See AdamUpdate. Returns (param, m, v)."""
    return call(
        AdamUpdate,
        param,
        grad,
        m,
        v,
        lr,
        step,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        weight_decay=weight_decay,
        decoupled=decoupled,
        do_bias_correction=do_bias_correction,
        maximize=maximize,
    )


def amsgrad_update(
    param: Any,
    grad: Any,
    m: Any,
    v: Any,
    v_max: Any,
    lr: Any,
    step: Any,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    do_bias_correction: bool = True,
    maximize: bool = False,
) -> Any:
    """See AmsgradUpdate. Returns (param, m, v, v_max)."""
    return call(
        AmsgradUpdate,
        param,
        grad,
        m,
        v,
        v_max,
        lr,
        step,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        weight_decay=weight_decay,
        decoupled=decoupled,
        do_bias_correction=do_bias_correction,
        maximize=maximize,
    )


def adagrad_update(
    param: Any,
    grad: Any,
    sum: Any,
    lr: Any,
    step: Any,
    *,
    lr_decay: float = 0.0,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> Any:
    """See AdagradUpdate. Returns (param, sum)."""
    return call(
        AdagradUpdate,
        param,
        grad,
        sum,
        lr,
        step,
        lr_decay=lr_decay,
        eps=eps,
        weight_decay=weight_decay,
        maximize=maximize,
    )


def rmsprop_update(
    param: Any,
    grad: Any,
    ms: Any,
    mean: Any,
    buf: Any,
    lr: Any,
    *,
    alpha: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    centered: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> Any:
    """See RmspropUpdate. Returns (param, ms, mean, buf)."""
    return call(
        RmspropUpdate,
        param,
        grad,
        ms,
        mean,
        buf,
        lr,
        alpha=alpha,
        eps=eps,
        momentum=momentum,
        centered=centered,
        weight_decay=weight_decay,
        maximize=maximize,
    )


def adadelta_update(
    param: Any,
    grad: Any,
    sq: Any,
    acc: Any,
    lr: Any,
    *,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> Any:
    """See AdadeltaUpdate. Returns (param, sq, acc)."""
    return call(
        AdadeltaUpdate,
        param,
        grad,
        sq,
        acc,
        lr,
        rho=rho,
        eps=eps,
        weight_decay=weight_decay,
        maximize=maximize,
    )


def lamb_update(
    param: Any,
    grad: Any,
    m: Any,
    v: Any,
    lr: Any,
    step: Any,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = True,
    do_bias_correction: bool = True,
    maximize: bool = False,
) -> Any:
    """See LambUpdate. Returns (param, m, v)."""
    return call(
        LambUpdate,
        param,
        grad,
        m,
        v,
        lr,
        step,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        weight_decay=weight_decay,
        decoupled=decoupled,
        do_bias_correction=do_bias_correction,
        maximize=maximize,
    )


def ftrl_update(
    param: Any,
    grad: Any,
    accumulator: Any,
    z: Any,
    lr: Any,
    *,
    lr_power: float = -0.5,
    l1: float = 0.0,
    l2: float = 0.0,
    beta: float = 0.0,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> Any:
    """See FtrlUpdate. Returns (param, accumulator, z)."""
    return call(
        FtrlUpdate,
        param,
        grad,
        accumulator,
        z,
        lr,
        lr_power=lr_power,
        l1=l1,
        l2=l2,
        beta=beta,
        weight_decay=weight_decay,
        maximize=maximize,
    )


def square_sum(x: Any) -> Any:
    """See SquareSum."""
    return call(SquareSum, x)
