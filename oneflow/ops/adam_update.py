"""Updates with running means of the gradient and of its square: Adam and its kin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.dtype import float32, float64
from oneflow.core.expression import (
    Expression,
    absolute,
    apply,
    cast,
    maximum,
    scalar,
    sqrt,
    symbol,
    symbols,
    total,
    where,
)
from oneflow.core.op import declare
from oneflow.core.operand import Attr, Operand, Tensor
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.binary import add, div, mul, sub
from oneflow.ops.cast import cast as to_dtype
from oneflow.ops.checks import require_float, require_shape
from oneflow.ops.compare import scalar_compare
from oneflow.ops.scalar import scalar_mul
from oneflow.ops.unary import full_like, neg
from oneflow.ops.unary import sqrt as root
from oneflow.ops.update import (
    LR,
    PARAM,
    STEP,
    Effect,
    Formulas,
    Update,
    average,
    cast_too,
    declare_update,
    sgd_update,
    square_sum,
    with_decay,
)
from oneflow.ops.where import where as choose

_M, _V = symbols("m v")
_BETAS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
_ADAM = {**_BETAS, "weight_decay": 0.0, "decoupled": False, "do_bias_correction": True}


def _adam(attrs: Mapping[str, Any], v_max: Expression | None = None) -> Formulas:
    """(m' / (sqrt(v') + eps), m, v[, v_max]); v_max: takes the place of v in the denominator."""
    g = with_decay(attrs, decays=not attrs["decoupled"])
    m = average(_M, g, "beta1")
    v = average(_V, g * g, "beta2")
    states = (m, v) if v_max is None else (m, v, maximum(v_max, v))
    root, top = sqrt(states[-1]), m
    if attrs["do_bias_correction"]:
        # Numbers of the call are computed once; then every element has two products, no quotient.
        root = root * (1 / sqrt(1 - scalar("beta2") ** STEP))
        top = m * (1 / (1 - scalar("beta1") ** STEP))
    return top / (root + scalar("eps")), *states


def _descended(move: Expression, attrs: Mapping[str, Any]) -> Expression:
    """param - lr * move, and - lr * weight_decay * param if that is decoupled."""
    decays = attrs["decoupled"] and attrs["weight_decay"]
    kept = (1 - LR * scalar("weight_decay")) * PARAM if decays else PARAM
    return kept - LR * move


class AdamUpdate(Update):
    """m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
    param -= lr * m' / (sqrt(v') + eps).

    m' and v' are m / (1 - beta1^step) and v / (1 - beta2^step) if do_bias_correction, else m and v.
    decoupled: param -= lr * weight_decay * param instead of adding to the gradient (AdamW).
    Kingma and Ba, ICLR 2015; Loshchilov and Hutter, ICLR 2019.
    """

    name = "adam_update"
    takes = "param grad m v lr step"
    defaults = {**_ADAM, "maximize": False}

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        move, *states = _adam(attrs)
        return _descended(move, attrs), *states


declare_update(AdamUpdate)
cast_too(AdamUpdate)


class CycledAdamUpdate(AdamUpdate):
    """adam_update with a beta1 that is fed, float64[], as a schedule may change it."""

    name = "cycled_adam_update"
    takes = "param grad m v lr step beta1"
    defaults = {name: value for name, value in AdamUpdate.defaults.items() if name != "beta1"}


declare_update(CycledAdamUpdate)


class AmsgradUpdate(AdamUpdate):
    """adam_update with the running maximum of v in the denominator (Reddi, Kale, Kumar, ICLR
    2018)."""

    name = "amsgrad_update"
    takes = "param grad m v v_max lr step"

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        (v_max,) = symbols("v_max")
        move, *states = _adam(attrs, v_max)
        return _descended(move, attrs), *states


declare_update(AmsgradUpdate)
cast_too(AmsgradUpdate)


class LambUpdate(Update):
    """Adam's step, scaled by |param| / |step| where both are positive (You et al., ICLR 2020).

    decoupled: weight decay is added to Adam's step and scaled with it, but is no part of |step|, as
    in OneFlow; else it is added to the gradient. The norms are of the whole parameter, so it runs
    on whole parameters only.
    """

    name = "lamb_update"
    takes = "param grad m v lr step"
    defaults = {**AdamUpdate.defaults, "decoupled": True}

    @staticmethod
    def row_dims(param: TensorType, *_: TensorType, **attrs: Attr) -> int:
        return param.ndim

    @classmethod
    def sbp(cls, *types: TensorType, **_: Attr) -> list[SbpSignature]:
        return []

    @staticmethod
    def by_parts(
        param: Tensor,
        grad: Tensor,
        m: Tensor,
        v: Tensor,
        lr: Tensor,
        step: Tensor,
        *,
        weight_decay: float,
        decoupled: bool,
        **attrs: Attr,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The norms are of the whole parameter, the rest is of parts."""
        decay = scalar_mul(param, value=float(weight_decay))
        # Laid out as the states; takes Adam's step from 0, so it becomes -step.
        below = full_like(m, value=0.0)
        decayed = grad if decoupled else add(grad, decay)
        one = full_like(lr, value=1.0)
        below, m, v = call(AdamUpdate, below, decayed, m, v, one, step, **attrs)
        trust = to_dtype(_trust(param, below), dtype=param.meta.dtype)
        move = sub(decay, below) if decoupled else neg(below)
        return sgd_update(param, mul(move, trust), lr), m, v

    @staticmethod
    def formula(*types: TensorType, **attrs: Attr) -> Formulas:
        move, *states = _adam(attrs)
        own, other = _square_norm(PARAM), _square_norm(move)
        if attrs["decoupled"] and attrs["weight_decay"]:
            move = move + scalar("weight_decay") * PARAM
        both = apply("logical_and", own > 0, other > 0)
        trust = sqrt(where(both, own / where(both, other, 1), 1)) * LR
        dtype = types[0].dtype if types[0].dtype.bytes >= 4 else float32
        return PARAM - cast(trust, dtype) * move, *states


declare_update(LambUpdate)


def _trust(param: Tensor, move: Tensor) -> Tensor:
    """|param| / |move| where both are positive, else 1."""
    own, other = root(square_sum(param)), root(square_sum(move))
    one = full_like(own, value=1.0)
    ratio = choose(scalar_compare(other, value=0.0, kind="gt"), div(own, other), one)
    chosen: Tensor = choose(scalar_compare(own, value=0.0, kind="gt"), ratio, one)
    return chosen


def _square_norm(x: Expression) -> Expression:
    wide = cast(x, float64)
    return total(wide * wide)


class AdamaxUpdate(Update):
    """m = beta1 m + (1 - beta1) g;  u = max(beta2 u, |g| + eps);
    param -= lr / (1 - beta1^step) * m / u   (Kingma and Ba, ICLR 2015, section 7.1).
    """

    name = "adamax_update"
    takes = "param grad m u lr step"
    defaults = {**_BETAS, "weight_decay": 0.0, "maximize": False}

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        (u,) = symbols("u")
        g = with_decay(attrs)
        m = average(_M, g, "beta1")
        largest = maximum(scalar("beta2") * u, absolute(g) + scalar("eps"))
        rate = LR / (1 - scalar("beta1") ** STEP)
        return PARAM - rate * (m / largest), m, largest


declare_update(AdamaxUpdate)


def _nesterov_momentum(step: Expression) -> Expression:
    """NAdam's momentum at a step: it grows from beta1 / 2 to beta1."""
    return scalar("beta1") * (1 - 0.5 * 0.96 ** (step * scalar("momentum_decay")))


class NadamProduct(Effect):
    """mu_product *= beta1 * (1 - 0.96^(step * momentum_decay) / 2): the momenta of NAdam so far."""

    name = "nadam_product"
    mutates = {0: 0}

    @staticmethod
    def infer(
        product: Operand, step: Operand, *, beta1: float = 0.9, momentum_decay: float = 4e-3
    ) -> TensorType:
        require_float("nadam_product", product)
        require_shape("nadam_product", (), product=product, step=step)
        return product.meta

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        return (symbol("product") * _nesterov_momentum(STEP),)


nadam_product = declare(NadamProduct)


class NadamUpdate(Update):
    """Adam with Nesterov momentum (Dozat, ICLR workshop 2016); m and v as adam_update has them.

    param -= lr * ((1 - mu) / (1 - mu_product) * g + mu' / (1 - mu_product * mu') * m)
             / (sqrt(v / (1 - beta2^step)) + eps)
    with mu and mu' the momenta of this step and the next, and mu_product the product up to mu.
    """

    name = "nadam_update"
    takes = "param grad m v mu_product lr step"
    defaults = {
        **_BETAS,
        "weight_decay": 0.0,
        "momentum_decay": 4e-3,
        "decoupled": False,
        "maximize": False,
    }

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        product = scalar("mu_product")
        g = with_decay(attrs, decays=not attrs["decoupled"])
        m, v = average(_M, g, "beta1"), average(_V, g * g, "beta2")
        mu, following = _nesterov_momentum(STEP), _nesterov_momentum(STEP + 1)
        ahead = following / (1 - product * following) * m
        top = (1 - mu) / (1 - product) * g + ahead
        root = sqrt(v) * (1 / sqrt(1 - scalar("beta2") ** STEP))
        return _descended(top / (root + scalar("eps")), attrs), m, v


nadam_update = declare_update(NadamUpdate)


class RadamUpdate(Update):
    """Adam whose step is rectified while v is of few gradients (Liu et al., ICLR 2020).

    With rho = 2 / (1 - beta2) - 1 and r = rho - 2 step beta2^step / (1 - beta2^step):
    param -= lr * m', times sqrt((r - 4)(r - 2) rho / ((rho - 4)(rho - 2) r)) / (sqrt(v') + eps')
    where r > 5; m' and v' as adam_update has them, eps' = eps / sqrt(1 - beta2^step).
    """

    name = "radam_update"
    takes = "param grad m v lr step"
    defaults = {**_BETAS, "weight_decay": 0.0, "decoupled": False, "maximize": False}

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        g = with_decay(attrs, decays=not attrs["decoupled"])
        m, v = average(_M, g, "beta1"), average(_V, g * g, "beta2")
        decayed = scalar("beta2") ** STEP
        longest = 2 / (1 - scalar("beta2")) - 1
        length = longest - 2 * STEP * decayed / (1 - decayed)
        known = where(length > 5, length, 5.0)  # no root of a negative number is taken
        share = (known - 4) * (known - 2) * longest / ((longest - 4) * (longest - 2) * known)
        rectified = sqrt(share * (1 - decayed)) / (sqrt(v) + scalar("eps"))
        is_long = where(length > 5, 1.0, 0.0)
        factor = is_long * rectified + (1 - is_long)
        move = m * (1 / (1 - scalar("beta1") ** STEP)) * factor
        return _descended(move, attrs), m, v


declare_update(RadamUpdate)
