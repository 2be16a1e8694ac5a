"""Optimizers with running means of the gradient and of its square: Adam and its kin."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from oneflow.core.errors import GraphError
from oneflow.core.operand import Attr, Attrs
from oneflow.ops.adam_update import (
    AdamaxUpdate,
    AdamUpdate,
    AmsgradUpdate,
    CycledAdamUpdate,
    LambUpdate,
    NadamUpdate,
    RadamUpdate,
    nadam_product,
    nadam_update,
)
from oneflow.ops.update import Update
from oneflow.optim.optimizer import Optimizer, ParamGroup, Params, Rule, attrs_of, gradient_of
from oneflow.optim.options import EVERY_OPTION, UNFUSED, Settings, Unfused, implementation
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015):  w -= lr · m' / (√v' + eps).

    weight_decay is added to the gradient, or with decoupled_weight_decay is a step of its own.
    amsgrad: v' never gets smaller.  do_bias_correction: m' and v' are m and v over 1 - beta^step,
    else m and v themselves.  maximize: climbs instead.  The other options: see options.py.
    """

    follows_momentum = True
    decouples: ClassVar[bool] = False
    """Whether weight decay is a step of its own by default."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        do_bias_correction: bool = True,
        contiguous_params: bool = False,
        fused: bool | None = None,
        maximize: bool = False,
        decoupled_weight_decay: bool | None = None,
        **given: Unpack[Unfused],
    ) -> None:
        chosen = implementation({**given, "fused": fused}, *EVERY_OPTION)
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            **chosen,
            "decoupled_weight_decay": (
                self.decouples if decoupled_weight_decay is None else decoupled_weight_decay
            ),
            "do_bias_correction": do_bias_correction,
            "contiguous_params": contiguous_params,
        }
        super().__init__(params, options)

    def state_names_of(self, group: ParamGroup) -> tuple[str, ...]:
        names = ("exp_avg", "exp_avg_sq")
        return (*names, "max_exp_avg_sq") if group["amsgrad"] else names

    def rule(self, group: ParamGroup) -> Rule:
        op = AmsgradUpdate if group["amsgrad"] else AdamUpdate
        if group.momentum_of is not None:
            op = CycledAdamUpdate
            if group["amsgrad"]:
                raise GraphError(
                    "Adam: a graph does not follow a schedule of beta1 with amsgrad; give the "
                    "schedule cycle_momentum=False"
                )
        return op, _with_betas(op, group, decoupled=group["decoupled_weight_decay"])


class AdamW(Adam):
    """Adam whose weight decay is a step of its own: w -= lr · weight_decay · w (Loshchilov and
    Hutter, ICLR 2019).
    """

    decouples = True


class LAMB(Optimizer):
    """Adam's step, scaled by ‖w‖ / ‖step‖ of each parameter where both are positive (You et al.,
    ICLR 2020).

    adam_w_mode: weight decay is added to the step, whose norm is taken without it; else to the
    gradient.
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
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
        return LambUpdate, _with_betas(LambUpdate, group, decoupled=group["adam_w_mode"])

    def update_param(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        # Norms are of the whole parameter, which may lie in parts, or its states may.
        held = (param, *states.values())
        sbps = [s for x in held if isinstance(x, Tensor) and x.is_global for s in x.sbp]
        if any(s.is_split for s in sbps) and not any(s.is_partial for s in sbps):
            op, attrs = self.rule(group)
            operands = param, gradient_of(param), *self._listed(group, states), lr, step
            LambUpdate.by_parts(*operands, **op.defaults | attrs)
            return
        super().update_param(group, param, states, lr, step)


class Adamax(Optimizer):
    """Adam with the largest gradient, slowly forgotten, in the denominator (Kingma and Ba, ICLR
    2015):  u = max(beta2 · u, |g| + eps);  w -= lr / (1 - beta1^step) · m / u.
    """

    state_names = ("exp_avg", "exp_inf")

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.002,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        **given: Unpack[Settings],
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            **implementation({**given, "foreach": foreach}, *UNFUSED),
        }
        super().__init__(params, options)

    def rule(self, group: ParamGroup) -> Rule:
        return AdamaxUpdate, _with_betas(AdamaxUpdate, group)


class NAdam(Optimizer):
    """Adam with Nesterov momentum that grows from beta1 / 2 to beta1 (Dozat, ICLR workshop 2016).

    momentum_decay: how fast it grows.  decoupled_weight_decay: weight decay is a step of its own,
    else is added to the gradient.  maximize: climbs instead.
    """

    state_names = ("mu_product", "exp_avg", "exp_avg_sq")
    number_states = ("mu_product",)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.002,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 0.004,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **given: Unpack[Unfused],
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            **implementation(given, *UNFUSED),
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        if not group["momentum_decay"] >= 0.0:
            raise ValueError(f"Invalid momentum_decay: {group['momentum_decay']}; at least 0")

    def initial_value(self, group: ParamGroup, name: str) -> float:
        return 1.0 if name == "mu_product" else 0.0

    def update_param(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        beta1, growth = float(group["betas"][0]), group["momentum_decay"]
        product = nadam_product(states["mu_product"], step, beta1=beta1, momentum_decay=growth)
        nadam_update(
            param,
            gradient_of(param),
            states["exp_avg"],
            states["exp_avg_sq"],
            product,
            lr,
            step,
            **_with_betas(NadamUpdate, group, decoupled=group["decoupled_weight_decay"]),
        )


class RAdam(Optimizer):
    """Adam that moves along m alone while v is the mean of few gradients, and is rectified later
    (Liu et al., ICLR 2020).

    decoupled_weight_decay: weight decay is a step of its own, else is added to the gradient.
    maximize: climbs instead.
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **given: Unpack[Unfused],
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            **implementation(given, *UNFUSED),
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, options)

    def rule(self, group: ParamGroup) -> Rule:
        decoupled = group["decoupled_weight_decay"]
        return RadamUpdate, _with_betas(RadamUpdate, group, decoupled=decoupled)


def _with_betas(op: type[Update], group: ParamGroup, **more: Attr) -> Attrs:
    """`attrs_of` with the betas, as far as the update takes them, and more attributes."""
    betas = dict(zip(("beta1", "beta2"), map(float, group["betas"]), strict=True))
    taken = {name: value for name, value in betas.items() if name in op.defaults}
    return {**taken, **attrs_of(op, group), **more}
