"""Optimizers with running means of the gradient and of its square: Adam, AdamW, LAMB."""

from __future__ import annotations

from typing import Any

from oneflow.ops.update import adam_update, amsgrad_update, lamb_update
from oneflow.optim.optimizer import Optimizer, ParamGroup
from oneflow.tensor.tensor import Tensor


class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015):  w -= lr · m' / (√v' + eps).

    weight_decay is added to the gradient.  amsgrad: v' never gets smaller.  do_bias_correction: m'
    and v' are m and v over 1 - beta^step, else m and v themselves.
    """

    decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        do_bias_correction: bool = True,
        contiguous_params: bool = False,
        fused: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "do_bias_correction": do_bias_correction,
            "contiguous_params": contiguous_params,
            "fused": fused,
        }
        super().__init__(params, options)

    def state_names_of(self, group: ParamGroup) -> tuple[str, ...]:
        names = ("exp_avg", "exp_avg_sq")
        return (*names, "max_exp_avg_sq") if group["amsgrad"] else names

    def update_param(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        operation: Any = amsgrad_update if group["amsgrad"] else adam_update
        operation(
            param,
            param.grad,
            *(states[name] for name in self.state_names_of(group)),
            lr,
            step,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            decoupled=self.decoupled,
            do_bias_correction=group["do_bias_correction"],
        )


class AdamW(Adam):
    """Adam whose weight decay is a step of its own: w -= lr · weight_decay · w (Loshchilov and
    Hutter, ICLR 2019).
    """

    decoupled = True


class LAMB(Optimizer):
    """Adam's step, scaled by ‖w‖ / ‖step‖ of each parameter where both are positive (You et al.,
    ICLR 2020).

    adam_w_mode: weight decay is added to the step, else to the gradient.
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
        do_bias_correction: bool = True,
        amsgrad: bool = False,
        contiguous_params: bool = False,
        fused: bool = False,
    ) -> None:
        if amsgrad:
            raise ValueError("LAMB does not support the AMSGrad variant; leave amsgrad False")
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adam_w_mode": adam_w_mode,
            "do_bias_correction": do_bias_correction,
            "contiguous_params": contiguous_params,
            "fused": fused,
        }
        super().__init__(params, options)

    def update_param(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        lamb_update(
            param,
            param.grad,
            states["exp_avg"],
            states["exp_avg_sq"],
            lr,
            step,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            decoupled=group["adam_w_mode"],
            do_bias_correction=group["do_bias_correction"],
        )
