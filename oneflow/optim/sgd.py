"""Gradient descent, with or without momentum."""

from __future__ import annotations

from oneflow.ops.update import MomentumUpdate, SgdUpdate
from oneflow.optim.optimizer import Optimizer, ParamGroup, Params, Rule


class SGD(Optimizer):
    """Stochastic gradient descent, with g = grad + weight_decay · w: w -= lr · g, or with momentum
    buf = momentum · buf + (1 - dampening) · g and w -= lr · buf (nesterov: w -= lr · (g + momentum
    · buf)).

    buf starts as 0, so dampening acts in the first step too. maximize: climbs instead.
    contiguous_params and fused are accepted and change nothing.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        contiguous_params: bool = False,
        fused: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "contiguous_params": contiguous_params,
            "fused": fused,
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")

    def state_names_of(self, group: ParamGroup) -> tuple[str, ...]:
        return ("momentum_buf",) if group["momentum"] else ()

    def rule(self, group: ParamGroup) -> Rule:
        attrs = {"weight_decay": group["weight_decay"], "maximize": group["maximize"]}
        if not group["momentum"]:
            return SgdUpdate, attrs
        for name in ("momentum", "dampening", "nesterov"):
            attrs[name] = group[name]
        return MomentumUpdate, attrs
