"""Optimizer updates: each overwrites a parameter and its states in place.

Common words. param: the parameter. grad: its gradient, same type. lr: float64[], the learning rate.
step: int64[], 1 for the first update. weight_decay: adds weight_decay * param to the gradient
unless said otherwise. maximize: climbs instead of descending. Every op may run on shards: param,
grad and states split alike, lr and step whole.

`formula` gives the new values of the overwritten tensors, in that order; kernels/elementwise.py
makes the kernels of every device from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oneflow.core.dtype import float32
from oneflow.core.errors import ShapeError
from oneflow.core.expression import (
    Expression,
    eq,
    maximum,
    minimum,
    scalar,
    sign,
    sqrt,
    symbol,
    symbols,
    where,
)
from oneflow.core.expression import cast as narrowed
from oneflow.core.op import Op, declare, register
from oneflow.core.operand import Attr, Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops.binary import mul
from oneflow.ops.cast import cast as to_dtype
from oneflow.ops.checks import require_float, require_shape
from oneflow.ops.scalar import scalar_mul

Formulas = tuple[Expression, ...]
NUMBERS = ("lr", "step", "mu_product", "eta", "mu", "momentum", "beta1", "is_wanted")
"""Operands that are one number, whole on every rank."""
PARAM, GRAD = symbols("param grad")
LR, STEP = scalar("lr"), scalar("step")


class Update(Op):
    """Common part of all updates. grad is input 1; states follow it, then lr and step."""

    has_effect = True

    @classmethod
    def sbp(cls, *types: TensorType, **_: Attr) -> list[SbpSignature]:
        arrays = sum(name not in NUMBERS for name in cls.operands)
        scalars = (BROADCAST,) * (len(types) - arrays)
        return [
            SbpSignature((Split(i),) * arrays + scalars, (Split(i),) * (arrays - 1))
            for i in range(types[0].ndim)
        ]


def check_update(
    name: str, param: Operand, grad: Operand, states: tuple[Operand, ...], *scalars: Operand
) -> None:
    require_float(name, param)
    if grad.meta != param.meta:
        raise ShapeError(
            f"{name}: the gradient {grad.meta} does not fit the parameter {param.meta}"
        )
    for state in states:
        if state.shape != param.shape:
            raise ShapeError(
                f"{name}: the state {state.meta} does not fit the parameter {param.meta}"
            )
    for number in scalars:
        if number.shape != ():
            raise ShapeError(f"{name}: lr and step must be scalars, got {number.meta}")


def with_decay(attrs: Mapping[str, Any], *, decays: bool = True) -> Expression:
    """The gradient with its sign, and weight decay added."""
    g = -GRAD if attrs["maximize"] else GRAD
    return g + scalar("weight_decay") * PARAM if decays and attrs["weight_decay"] else g


def average(state: Expression, value: Expression, decay: str) -> Expression:
    return scalar(decay) * state + (1 - scalar(decay)) * value


COPY, IS_WANTED = "copy", "is_wanted"
AND_CAST: dict[type[Op], type[Update]] = {}
"""The form of an update that also writes the new parameter in another dtype: the half floats that
the next step of a graph in mixed precision reads, in the same pass over the elements."""


def cast_too(base: type[Update]) -> None:
    """Declare `<name>_and_cast`: `base` with two operands more.

    copy: before the numbers; it is overwritten by the new parameter, in its own dtype.
    is_wanted: last and optional, int64[]; if it is 0 nothing changes.
    """
    names = base.operands
    arrays = sum(name not in NUMBERS for name in names)
    states = [names[i] for i in base.mutates.values()]

    def split(types: tuple[Operand, ...]) -> tuple[tuple[Operand, ...], Operand]:
        return (*types[:arrays], *types[arrays + 1 : len(names) + 1]), types[arrays]

    def infer(*types: Operand, **attrs: Attr) -> tuple[TensorType, ...]:
        given, copy = split(types)
        require_float(made.name, copy)
        require_shape(made.name, types[0].shape, copy=copy)
        require_shape(made.name, (), is_wanted=dict(enumerate(types)).get(len(names) + 1))
        outputs = base.infer(*given, **attrs)
        listed = outputs if isinstance(outputs, tuple) else (outputs,)
        return (*listed, copy.meta)

    def formula(*types: TensorType, **attrs: Attr) -> tuple[Expression, ...]:
        given, copy = split(types)
        assert base.formula is not None
        new = base.formula(*given, **attrs)
        if len(types) > len(names) + 1:
            keeps = eq(scalar(IS_WANTED), 0)
            new = tuple(where(keeps, symbol(n), e) for e, n in zip(new, states, strict=True))
        return (*new, narrowed(new[0], copy.dtype))

    members = {
        "name": f"{base.name}_and_cast",
        "__doc__": f"{base.name}, which also writes the new parameter into `copy`.",
        "infer": staticmethod(infer),
        "formula": staticmethod(formula),
        "declared_by": staticmethod(base.infer),
        "mutates": {**base.mutates, len(states): arrays},
    }
    made: type[Update] = type(f"{base.__name__}AndCast", (base,), members)
    register(made)
    made.num_outputs = len(states) + 1
    made.operands = (*names[:arrays], COPY, *names[arrays:], IS_WANTED)
    AND_CAST[base] = made


def with_copy(
    op: type[Op], inputs: tuple[Tensor, ...], copy: Tensor
) -> tuple[type[Op], tuple[Tensor, ...]]:
    """The form of an update that casts, too, and its operands."""
    made = AND_CAST[op]
    at = made.operands.index(COPY)
    return made, (*inputs[:at], copy, *inputs[at:])


class SgdUpdate(Update):
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
        check_update("sgd_update", param, grad, (), lr)
        return param.meta

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        return (PARAM - LR * with_decay(attrs),)


sgd_update = declare(SgdUpdate)
cast_too(SgdUpdate)


class MomentumUpdate(Update):
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
        check_update("momentum_update", param, grad, (buf,), lr)
        return param.meta, buf.meta

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        share = 1 - scalar("dampening") if attrs["dampening"] else None
        return _with_momentum(attrs, share)


momentum_update = declare(MomentumUpdate)
cast_too(MomentumUpdate)


class CycledMomentumUpdate(Update):
    """momentum_update with a momentum that is fed, float64[], as a schedule may change it."""

    name = "cycled_momentum_update"
    mutates = {0: 0, 1: 2}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        buf: Operand,
        lr: Operand,
        momentum: Operand,
        *,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType]:
        check_update("cycled_momentum_update", param, grad, (buf,), lr, momentum)
        return param.meta, buf.meta

    @staticmethod
    def formula(*types: TensorType, **attrs: Attr) -> Formulas:
        return MomentumUpdate.formula(*types, **attrs)


cycled_momentum_update = declare(CycledMomentumUpdate)


def _with_momentum(attrs: Mapping[str, Any], share: Expression | None) -> Formulas:
    """share: of the gradient, that goes into buf; None: all of it."""
    (buf,) = symbols("buf")
    g = with_decay(attrs)
    new = scalar("momentum") * buf + (g if share is None else share * g)
    move = g + scalar("momentum") * new if attrs["nesterov"] else new
    return PARAM - LR * move, new


class DampenedUpdate(Update):
    """momentum_update whose first update takes the whole gradient into buf, as PyTorch's does."""

    name = "dampened_update"
    mutates = {0: 0, 1: 2}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        buf: Operand,
        lr: Operand,
        step: Operand,
        *,
        momentum: float,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType]:
        check_update("dampened_update", param, grad, (buf,), lr, step)
        return param.meta, buf.meta

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        return _with_momentum(attrs, 1 - minimum(STEP - 1, 1) * scalar("dampening"))


dampened_update = declare(DampenedUpdate)


class AdagradUpdate(Update):
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
        check_update("adagrad_update", param, grad, (sum,), lr, step)
        return param.meta, sum.meta

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        (squares,) = symbols("sum")
        g = with_decay(attrs)
        new = squares + g * g
        rate = LR / (1 + (STEP - 1) * scalar("lr_decay"))
        return PARAM - rate * (g / (sqrt(new) + scalar("eps"))), new


adagrad_update = declare(AdagradUpdate)


class RmspropUpdate(Update):
    """ms = alpha ms + (1 - alpha) g^2;  mean = alpha mean + (1 - alpha) g if centered;
    buf = momentum buf + lr * g / sqrt(ms [- mean^2] + eps);  param -= buf.

    mean and buf stay as they are unless centered, or momentum is not 0. eps_in_root=False:
    g / (sqrt(ms [- mean^2]) + eps), and lr is a factor of buf, not of its new term.
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
        eps_in_root: bool = True,
    ) -> tuple[TensorType, TensorType, TensorType, TensorType]:
        check_update("rmsprop_update", param, grad, (ms, mean, buf), lr)
        return param.meta, ms.meta, mean.meta, buf.meta

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        ms, mean, buf = symbols("ms mean buf")
        g = with_decay(attrs)
        new_ms = average(ms, g * g, "alpha")
        new_mean = average(mean, g, "alpha") if attrs["centered"] else mean
        spread = new_ms - new_mean * new_mean if attrs["centered"] else new_ms
        in_root = attrs["eps_in_root"]
        move = g / (sqrt(spread + scalar("eps")) if in_root else sqrt(spread) + scalar("eps"))
        move = LR * move if in_root else move
        new_buf = buf
        if attrs["momentum"]:
            move = new_buf = scalar("momentum") * buf + move
        return PARAM - (move if in_root else LR * move), new_ms, new_mean, new_buf


rmsprop_update = declare(RmspropUpdate)


class AdadeltaUpdate(Update):
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
        check_update("adadelta_update", param, grad, (sq, acc), lr)
        return param.meta, sq.meta, acc.meta

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        sq, acc = symbols("sq acc")
        g = with_decay(attrs)
        new_sq = average(sq, g * g, "rho")
        move = g * (sqrt(acc + scalar("eps")) / sqrt(new_sq + scalar("eps")))
        return PARAM - LR * move, new_sq, average(acc, move * move, "rho")


adadelta_update = declare(AdadeltaUpdate)


class AsgdUpdate(Update):
    """param = (1 - lambd * eta) * param - eta * g;  ax += mu * (param - ax): the average of the
    parameters so far (Polyak and Juditsky, SIAM J. Control Optim. 30(4), 1992).
    """

    name = "asgd_update"
    mutates = {0: 0, 1: 2}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        ax: Operand,
        eta: Operand,
        mu: Operand,
        *,
        lambd: float = 1e-4,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType]:
        check_update("asgd_update", param, grad, (ax,), eta, mu)
        return param.meta, ax.meta

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        ax, eta = symbol("ax"), scalar("eta")
        new = (1 - scalar("lambd") * eta) * PARAM - eta * with_decay(attrs)
        return new, ax + scalar("mu") * (new - ax)


asgd_update = declare(AsgdUpdate)


class AsgdRates(Update):
    """eta = lr / (1 + lambd * lr * step)^alpha;  mu = 1 / max(1, step - t0): of the next update."""

    name = "asgd_rates"
    mutates = {0: 0, 1: 1}

    @staticmethod
    def infer(
        old_eta: Operand,
        old_mu: Operand,
        lr: Operand,
        step: Operand,
        *,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
    ) -> tuple[TensorType, TensorType]:
        require_shape("asgd_rates", (), old_eta=old_eta, old_mu=old_mu, lr=lr, step=step)
        return old_eta.meta, old_mu.meta

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        eta = LR / (1 + scalar("lambd") * LR * STEP) ** scalar("alpha")
        mu = 1 / maximum(STEP - scalar("t0"), 1.0)
        # An output has the shape of what it reads.
        return symbol("old_eta") * 0 + eta, symbol("old_mu") * 0 + mu


asgd_rates = declare(AsgdRates)


class RpropUpdate(Update):
    """Steps of a size per element, independent of the size of the gradient (Riedmiller and Braun,
    ICNN 1993).

    size *= etaplus where g has the sign of prev, etaminus where it has the other one; it stays in
    [size_min, size_max].  param -= sign(g) * size, but where the sign changed: there g counts as 0.
    prev = g.
    """

    name = "rprop_update"
    mutates = {0: 0, 1: 2, 2: 3}

    @staticmethod
    def infer(
        param: Operand,
        grad: Operand,
        prev: Operand,
        size: Operand,
        *,
        etaminus: float = 0.5,
        etaplus: float = 1.2,
        size_min: float = 1e-6,
        size_max: float = 50.0,
        maximize: bool = False,
    ) -> tuple[TensorType, TensorType, TensorType]:
        check_update("rprop_update", param, grad, (prev, size))
        return param.meta, prev.meta, size.meta

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        prev, size = symbols("prev size")
        g = -GRAD if attrs["maximize"] else GRAD
        turn = sign(g * prev)
        grown = where(turn < 0, size * scalar("etaminus"), size)
        grown = where(turn > 0, size * scalar("etaplus"), grown)
        new = minimum(maximum(grown, scalar("size_min")), scalar("size_max"))
        kept = where(turn < 0, 0, g)
        return PARAM - sign(kept) * new, kept, new


rprop_update = declare(RpropUpdate)


class FtrlUpdate(Update):
    """Follow the regularised leader (McMahan et al., KDD 2013): sparse weights through an L1 term.

    With n the accumulator and p = lr_power, as it stands in upstream:
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
        check_update("ftrl_update", param, grad, (accumulator, z), lr)
        return param.meta, accumulator.meta, z.meta

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        n, z = symbols("accumulator z")
        g = with_decay(attrs)
        new_n = n + g * g
        power = scalar("lr_power")
        is_root = attrs["lr_power"] == 0.5
        old_root, root = (sqrt(n), sqrt(new_n)) if is_root else (n**power, new_n**power)
        new_z = z + g - (root - old_root) / LR * PARAM
        # -(z - clip(z, -l1, l1)) is 0 exactly where |z| <= l1.
        inside = minimum(maximum(new_z, -scalar("l1")), scalar("l1"))
        below = (root + scalar("beta")) / LR + scalar("l2")
        return (inside - new_z) / below, new_n, new_z


ftrl_update = declare(FtrlUpdate)


class SquareSum(Op):
    """out [] = sum of x^2 over all elements, at least float32, for gradient clipping by norm."""

    name = "square_sum"
    precision = "keep"

    @staticmethod
    def infer(x: Operand) -> TensorType:
        require_float("square_sum", x)
        return TensorType((), x.dtype if x.dtype.bytes >= 4 else float32)

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return [SbpSignature((Split(i),), (PARTIAL,)) for i in range(x.ndim)]

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (lambda: mul(scalar_mul(x, value=2.0), to_dtype(d_out, dtype=x.meta.dtype)),)


square_sum = declare(SquareSum)
