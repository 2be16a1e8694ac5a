"""Optimizers with running means of the gradient and of its square: Adam, AdamW, LAMB."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.core.operand import Attrs
from oneflow.ops.binary import add, div, mul, sub
from oneflow.ops.cast import cast
from oneflow.ops.compare import scalar_compare
from oneflow.ops.scalar import scalar_mul
from oneflow.ops.unary import full_like, neg, sqrt
from oneflow.ops.update import (
    AdamUpdate,
    AmsgradUpdate,
    LambUpdate,
    adam_update,
    sgd_update,
    square_sum,
)
from oneflow.ops.where import where
from oneflow.optim.optimizer import Optimizer, ParamGroup, Params, Rule, gradient_of
from oneflow.tensor.tensor import Tensor


class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015):  w -= lr · m' / (√v' + eps).

    weight_decay is added to the gradient.  amsgrad: v' never gets smaller.  do_bias_correction: m'
    and v' are m and v over 1 - beta^step, else m and v themselves.  maximize: climbs instead.
    """

    decoupled = False

    def __init__(
        self,
        params: Params,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        do_bias_correction: bool = True,
        contiguous_params: bool = False,
        fused: bool = False,
        maximize: bool = False,
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
            "maximize": maximize,
        }
        super().__init__(params, options)

    def state_names_of(self, group: ParamGroup) -> tuple[str, ...]:
        names = ("exp_avg", "exp_avg_sq")
        return (*names, "max_exp_avg_sq") if group["amsgrad"] else names

    def rule(self, group: ParamGroup) -> Rule:
        names = ("eps", "weight_decay", "do_bias_correction", "maximize")
        attrs = _with_betas(group, names)
        attrs["decoupled"] = self.decoupled
        return AmsgradUpdate if group["amsgrad"] else AdamUpdate, attrs


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
        params: Params,
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

    def rule(self, group: ParamGroup) -> Rule:
        attrs = _with_betas(group, ("eps", "weight_decay", "do_bias_correction"))
        attrs["decoupled"] = group["adam_w_mode"]
        return LambUpdate, attrs

    def update_param(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        sbps = param.sbp if param.is_global else ()
        if any(s.is_split for s in sbps) and not any(s.is_partial for s in sbps):
            self._update_split(group, param, states, lr, step)
            return
        super().update_param(group, param, states, lr, step)

    def _update_split(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        """The same out of smaller ops: norms are of the whole parameter, the rest is of shards."""
        decay = scalar_mul(param, value=float(group["weight_decay"]))
        decays_step = group["adam_w_mode"]
        below = full_like(param, value=0.0)  # takes Adam's step from 0, so it becomes -step
        adam_update(
            below,
            gradient_of(param) if decays_step else add(gradient_of(param), decay),
            states["exp_avg"],
            states["exp_avg_sq"],
            full_like(lr, value=1.0),
            step,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            do_bias_correction=group["do_bias_correction"],
        )
        move = sub(decay, below) if decays_step else neg(below)
        trust = cast(_trust(param, move), dtype=param.dtype)
        sgd_update(param, mul(move, trust), lr)


def _with_betas(group: ParamGroup, names: Sequence[str]) -> Attrs:
    """Options of a group as attributes of an update."""
    beta1, beta2 = group["betas"]
    return {"beta1": beta1, "beta2": beta2, **{name: group[name] for name in names}}


def _trust(param: Tensor, move: Tensor) -> Tensor:
    """‖param‖ / ‖move‖ where both are positive, else 1."""
    own, other = sqrt(square_sum(param)), sqrt(square_sum(move))
    one = full_like(own, value=1.0)
    ratio = where(scalar_compare(other, value=0.0, kind="gt"), div(own, other), one)
    chosen: Tensor = where(scalar_compare(own, value=0.0, kind="gt"), ratio, one)
    return chosen
