"""Gradient descent, with or without momentum."""

from __future__ import annotations

from typing import Any

from oneflow.ops.update import momentum_update, sgd_update
from oneflow.optim.optimizer import Optimizer, ParamGroup, gradient_of
from oneflow.tensor.tensor import Tensor


class SGD(Optimizer):
    """Stochastic gradient descent, with g = grad + weight_decay · w: w -= lr · g, or with momentum
    buf = momentum · buf + (1 - dampening) · g and w -= lr · buf (nesterov: w -= lr · (g + momentum
    · buf)).

    buf starts as 0, so dampening acts in the first step too. maximize: climbs instead.
    contiguous_params and fused are accepted and change nothing.
    """

    def __init__(
        self,
        params: Any,
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

    def update_param(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        common = {"weight_decay": group["weight_decay"], "maximize": group["maximize"]}
        if not group["momentum"]:
            sgd_update(param, gradient_of(param), lr, **common)
            return
        momentum_update(
            param,
            gradient_of(param),
            states["momentum_buf"],
            lr,
            momentum=group["momentum"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            **common,
        )
