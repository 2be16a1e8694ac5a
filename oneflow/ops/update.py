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
from typing import Any, ClassVar, cast

from oneflow.core.dtype import float32
from oneflow.core.errors import CallError, ShapeError
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
from oneflow.core.op import Declared, Op, declare, register
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


class Effect(Op):
    """Base of updates, and of ops that overwrite the numbers which updates read."""

    has_effect = True

    @classmethod
    def sbp(cls, *types: TensorType, **_: Attr) -> list[SbpSignature]:
        arrays = sum(name not in NUMBERS for name in cls.operands)
        scalars = (BROADCAST,) * (len(types) - arrays)
        return [
            SbpSignature((Split(i),) * arrays + scalars, (Split(i),) * (arrays - 1))
            for i in range(types[0].ndim)
        ]


class Update(Effect):
    """Common part of all updates.

    takes: the operands: param, grad, the states, and after them those among NUMBERS; param and the
    states are overwritten.  required: attrs without a default.
    """

    takes: ClassVar[str] = "param grad lr"
    required: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def infer(
        cls, param: Operand, grad: Operand, /, *rest: Operand, **_: Attr
    ) -> tuple[TensorType, ...]:
        if len(rest) + 2 != len(cls.operands):
            raise CallError(
                f"{cls.name} takes {', '.join(cls.operands)}; got {len(rest) + 2} operands"
            )
        require_float(cls.name, param)
        if grad.meta != param.meta:
            raise ShapeError(
                f"{cls.name}: the gradient {grad.meta} does not fit the parameter {param.meta}"
            )
        states = rest[: len(cls.mutates) - 1]
        for state in states:
            if state.shape != param.shape:
                raise ShapeError(
                    f"{cls.name}: the state {state.meta} does not fit the parameter {param.meta}"
                )
        for number in rest[len(states) :]:
            if number.shape != ():
                raise ShapeError(f"{cls.name}: lr and step must be scalars, got {number.meta}")
        return param.meta, *[state.meta for state in states]


def declare_update(op: type[Update]) -> Declared[..., Any]:
    """`declare` for an update, whose operands and attrs stand in its members, not in `infer`."""
    names = tuple(op.takes.split())
    states = [i for i, name in enumerate(names) if i > 1 and name not in NUMBERS]
    op.mutates = {0: 0, **dict(enumerate(states, 1))}
    declared = cast("Declared[..., Any]", register(op))
    op.operands, op.num_outputs = names, len(op.mutates)
    op.attrs = frozenset((*op.required, *op.defaults))
    return declared


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
        return (*base.infer(*given, **attrs), copy.meta)

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
        "mutates": {**base.mutates, len(states): arrays},
    }
    made: type[Update] = type(f"{base.__name__}AndCast", (base,), members)
    register(made)
    made.num_outputs, made.attrs = len(states) + 1, base.attrs
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
    takes = "param grad lr"
    defaults = {"weight_decay": 0.0, "maximize": False}

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        return (PARAM - LR * with_decay(attrs),)


sgd_update = declare_update(SgdUpdate)
cast_too(SgdUpdate)


class MomentumUpdate(Update):
    """buf = momentum * buf + (1 - dampening) * g;  param -= lr * buf, or lr * (g + momentum * buf)
    if nesterov. buf starts as 0, and the first update is like any other.
    """

    name = "momentum_update"
    takes = "param grad buf lr"
    required: ClassVar[tuple[str, ...]] = ("momentum",)
    defaults = {"dampening": 0.0, "nesterov": False, "weight_decay": 0.0, "maximize": False}

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        share = 1 - scalar("dampening") if attrs["dampening"] else None
        return _with_momentum(attrs, share)


declare_update(MomentumUpdate)
cast_too(MomentumUpdate)


class CycledMomentumUpdate(MomentumUpdate):
    """momentum_update with a momentum that is fed, float64[], as a schedule may change it."""

    name = "cycled_momentum_update"
    takes = "param grad buf lr momentum"
    required = ()


declare_update(CycledMomentumUpdate)


def _with_momentum(attrs: Mapping[str, Any], share: Expression | None) -> Formulas:
    """share: of the gradient, that goes into buf; None: all of it."""
    (buf,) = symbols("buf")
    g = with_decay(attrs)
    new = scalar("momentum") * buf + (g if share is None else share * g)
    move = g + scalar("momentum") * new if attrs["nesterov"] else new
    return PARAM - LR * move, new


class DampenedUpdate(MomentumUpdate):
    """momentum_update whose first update takes the whole gradient into buf, as PyTorch's does."""

    name = "dampened_update"
    takes = "param grad buf lr step"

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        return _with_momentum(attrs, 1 - minimum(STEP - 1, 1) * scalar("dampening"))


declare_update(DampenedUpdate)


class AdagradUpdate(Update):
    """sum += g^2;  param -= lr / (1 + (step - 1) * lr_decay) * g / (sqrt(sum) + eps)."""

    name = "adagrad_update"
    takes = "param grad sum lr step"
    defaults = {"lr_decay": 0.0, "eps": 1e-10, "weight_decay": 0.0, "maximize": False}

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        (squares,) = symbols("sum")
        g = with_decay(attrs)
        new = squares + g * g
        rate = LR / (1 + (STEP - 1) * scalar("lr_decay"))
        return PARAM - rate * (g / (sqrt(new) + scalar("eps"))), new


declare_update(AdagradUpdate)


class RmspropUpdate(Update):
    """ms = alpha ms + (1 - alpha) g^2;  mean = alpha mean + (1 - alpha) g if centered;
    buf = momentum buf + lr * g / sqrt(ms [- mean^2] + eps);  param -= buf.

    mean and buf stay as they are unless centered, or momentum is not 0. eps_in_root=False:
    g / (sqrt(ms [- mean^2]) + eps), and lr is a factor of buf, not of its new term.
    """

    name = "rmsprop_update"
    takes = "param grad ms mean buf lr"
    defaults = {
        "alpha": 0.99,
        "eps": 1e-08,
        "momentum": 0.0,
        "centered": False,
        "weight_decay": 0.0,
        "maximize": False,
        "eps_in_root": True,
    }

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


declare_update(RmspropUpdate)


class AdadeltaUpdate(Update):
    """sq = rho sq + (1 - rho) g^2;  d = g * sqrt(acc + eps) / sqrt(sq + eps);
    acc = rho acc + (1 - rho) d^2;  param -= lr * d.
    """

    name = "adadelta_update"
    takes = "param grad sq acc lr"
    defaults = {"rho": 0.9, "eps": 1e-06, "weight_decay": 0.0, "maximize": False}

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        sq, acc = symbols("sq acc")
        g = with_decay(attrs)
        new_sq = average(sq, g * g, "rho")
        move = g * (sqrt(acc + scalar("eps")) / sqrt(new_sq + scalar("eps")))
        return PARAM - LR * move, new_sq, average(acc, move * move, "rho")


declare_update(AdadeltaUpdate)


class AsgdUpdate(Update):
    """param = (1 - lambd * eta) * param - eta * g;  ax += mu * (param - ax): the average of the
    parameters so far (Polyak and Juditsky, SIAM J. Control Optim. 30(4), 1992).
    """

    name = "asgd_update"
    takes = "param grad ax eta mu"
    defaults = {"lambd": 0.0001, "weight_decay": 0.0, "maximize": False}

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Formulas:
        ax, eta = symbol("ax"), scalar("eta")
        new = (1 - scalar("lambd") * eta) * PARAM - eta * with_decay(attrs)
        return new, ax + scalar("mu") * (new - ax)


asgd_update = declare_update(AsgdUpdate)


class AsgdRates(Effect):
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
    takes = "param grad prev size"
    defaults = {
        "etaminus": 0.5,
        "etaplus": 1.2,
        "size_min": 1e-06,
        "size_max": 50.0,
        "maximize": False,
    }

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


declare_update(RpropUpdate)


class FtrlUpdate(Update):
    """Follow the regularised leader (McMahan et al., KDD 2013): sparse weights through an L1 term.

    With n the accumulator and p = lr_power, as it stands in upstream:
    z += g - ((n + g^2)^p - n^p) / lr * param;  n += g^2;
    param = 0 where |z| <= l1, else (sign(z) l1 - z) / ((beta + n^p) / lr + l2).
    """

    name = "ftrl_update"
    takes = "param grad accumulator z lr"
    defaults = {
        "lr_power": -0.5,
        "l1": 0.0,
        "l2": 0.0,
        "beta": 0.0,
        "weight_decay": 0.0,
        "maximize": False,
    }

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


declare_update(FtrlUpdate)


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
