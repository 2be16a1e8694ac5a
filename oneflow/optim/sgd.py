"""Gradient descent, with or without momentum, and with the average of its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.core.errors import GraphError
from oneflow.core.spelling import is_mocked
from oneflow.ops.update import (
    CycledMomentumUpdate,
    DampenedUpdate,
    MomentumUpdate,
    SgdUpdate,
    asgd_rates,
    asgd_update,
)
from oneflow.optim.optimizer import Optimizer, ParamGroup, Params, Rule, attrs_of, gradient_of
from oneflow.optim.options import UNFUSED, Unfused, implementation
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SGD(Optimizer):
    """Stochastic gradient descent, with g = grad + weight_decay · w: w -= lr · g, or with momentum
    buf = momentum · buf + (1 - dampening) · g and w -= lr · buf (nesterov: w -= lr · (g + momentum
    · buf)).

    buf starts as 0, so dampening acts in the first step too; dampens_first=False: the first buf is
    g, as in PyTorch and by default under its mock. maximize: climbs instead. contiguous_params and
    the options of options.py are accepted and change nothing.
    """

    saves_steps = False
    follows_momentum = True

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        contiguous_params: bool = False,
        fused: bool | None = None,
        *,
        dampens_first: bool | None = None,
        **given: Unpack[Unfused],
    ) -> None:
        chosen = implementation({**given, "fused": fused}, "foreach", "differentiable", "fused")
        options = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            **chosen,
            "contiguous_params": contiguous_params,
            "dampens_first": not is_mocked() if dampens_first is None else dampens_first,
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")

    def state_names_of(self, group: ParamGroup) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def rule(self, group: ParamGroup) -> Rule:
        if not group["momentum"]:
            return SgdUpdate, attrs_of(SgdUpdate, group)
        is_plain = group["dampens_first"] or not group["dampening"]
        if group.momentum_of is not None:
            if not is_plain:
                raise GraphError(
                    "SGD: a graph follows a schedule of the momentum only if the first update is "
                    "dampened, too, or none is: give dampens_first=True or dampening=0"
                )
            return CycledMomentumUpdate, attrs_of(CycledMomentumUpdate, group)
        op = MomentumUpdate if is_plain else DampenedUpdate
        return op, attrs_of(op, group)


class ASGD(Optimizer):
    """Stochastic gradient descent with a rate that falls, lr / (1 + lambd · lr · step)^alpha, and
    in state "ax" the average of the parameters from step t0 on (Polyak and Juditsky, SIAM J.
    Control Optim. 30(4), 1992).

    lambd: decay of the parameters.  maximize: climbs instead.
    """

    state_names = ("eta", "mu", "ax")
    number_states = ("eta", "mu")

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        given = {
            "foreach": foreach,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        options = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "maximize": maximize,
            **implementation(given, *UNFUSED),
        }
        super().__init__(params, options)

    def initial_value(self, group: ParamGroup, name: str) -> float:
        return {"eta": group.rate, "mu": 1.0}.get(name, 0.0)

    def update_param(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        eta, mu, lambd = states["eta"], states["mu"], group["lambd"]
        asgd_update(
            param,
            gradient_of(param),
            states["ax"],
            eta,
            mu,
            lambd=lambd,
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
        )
        asgd_rates(eta, mu, lr, step, lambd=lambd, alpha=group["alpha"], t0=group["t0"])
