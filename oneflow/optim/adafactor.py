"""Adafactor: squares of gradients are kept as a row and a column for each matrix."""

from __future__ import annotations

import math
from typing import Any

from oneflow.core.dtype import float64
from oneflow.ops.binary import add, div, minimum, mul, sub
from oneflow.ops.cast import cast
from oneflow.ops.reduce import reduce_sum
from oneflow.ops.scalar import scalar_mul, scalar_pow
from oneflow.ops.unary import clamp, full_like, neg, rsqrt, sqrt, square
from oneflow.ops.update import sgd_update, square_sum
from oneflow.optim.optimizer import (
    Optimizer,
    ParamGroup,
    Params,
    filled_like,
    gradient_of,
    whole_beside,
)
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor


class Adafactor(Optimizer):
    """Adam without m, whose v is the product of two vectors (Shazeer and Stern, ICML 2018).

    lr: the largest rate relative to the root mean square of the parameter; it falls as 1/√step.
    beta2_decay: v takes in step^beta2_decay of a new square.  eps: added to squares (None: the
    dtype's eps), and the least root mean square of a parameter.  d: the largest root mean square of
    a step.  weight_decay: a step of its own.  maximize: climbs instead.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        squares, sizes = group["eps"]
        if not group["beta2_decay"] <= 0.0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {group['beta2_decay']}")
        if squares is not None and not squares >= 0.0:
            raise ValueError(f"epsilon1 should be >= 0 but is: {squares}")
        if not sizes >= 0.0:
            raise ValueError(f"epsilon2 should be >= 0 but is: {sizes}")
        if not group["d"] >= 1.0:
            raise ValueError(f"Clipping threshold d should be >= 1 but is: {group['d']}")

    def init_state(self, param: Tensor) -> dict[str, Any]:
        states: dict[str, Any] = self.state[param]
        if not states:
            shape = param.meta.shape
            states["step"] = 0
            if len(shape) > 1:
                parts = {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}
                for name, part in parts.items():
                    states[name] = whole_beside(param, param.meta.with_shape(part), 0.0)
            else:
                states["variance"] = filled_like(param, 0.0)
        return states

    def update_param(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        dtype = param.meta.dtype
        grad = neg(gradient_of(param)) if group["maximize"] else gradient_of(param)
        count = cast(step, dtype=float64)
        share = scalar_pow(count, value=float(group["beta2_decay"]))
        least, smallest = group["eps"]
        least = finfo(dtype).eps if least is None else least
        squares = clamp(_squares(grad, states, share, least), min=least * least, max=None)
        move = mul(rsqrt(squares), grad)
        rate = minimum(lr, scalar_pow(count, value=-0.5))
        rate = mul(clamp(_size(param), min=float(smallest), max=None), rate)
        rate = div(rate, clamp(scalar_mul(_size(move), value=1 / group["d"]), min=1.0, max=None))
        move = mul(move, cast(rate, dtype=dtype))
        if group["weight_decay"]:
            decay = scalar_mul(lr, value=float(group["weight_decay"]))
            move = add(move, mul(param, cast(decay, dtype=dtype)))
        sgd_update(param, move, full_like(lr, value=1.0))


def _squares(grad: Tensor, states: dict[str, Tensor], share: Tensor, least: float) -> Tensor:
    """The running mean of the squared gradient. share: float64[], of the new square."""
    new = square(grad)
    if "variance" in states:
        _approach(states["variance"], new, share)
        return states["variance"]
    last = grad.ndim - 1
    row, column = states["row_var"], states["col_var"]
    _approach(row, _mean(new, last), share)
    _approach(column, _mean(new, last - 1), share)
    mean = clamp(_mean(row, last - 1), min=least, max=None)
    return mul(div(row, mean), column)


def _mean(x: Tensor, dim: int) -> Tensor:
    return scalar_mul(reduce_sum(x, dims=(dim,), keepdim=True), value=1 / x.meta.shape[dim])


def _approach(state: Tensor, value: Tensor, share: Tensor) -> None:
    """state += share * (value - state)."""
    sgd_update(state, sub(state, value), share)


def _size(x: Tensor) -> Tensor:
    """The root mean square of x, float64[]."""
    total = cast(square_sum(x), dtype=float64)
    return sqrt(scalar_mul(total, value=1 / max(1, math.prod(x.meta.shape))))
