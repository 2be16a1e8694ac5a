"""Optimizers that scale each element by a history of its squared gradients: Adagrad, RMSprop,
Adadelta.
"""

from __future__ import annotations

from oneflow.ops.update import AdadeltaUpdate, AdagradUpdate, RmspropUpdate
from oneflow.optim.optimizer import Optimizer, ParamGroup, Params, Rule


class Adagrad(Optimizer):
    """sum += g²;  w -= lr / (1 + (step - 1) · lr_decay) · g / (√sum + eps)   (Duchi, Hazan, Singer,
    JMLR 2011). maximize: climbs instead.
    """

    state_names = ("sum",)

    def __init__(
        self,
        params: Params,
        lr: float = 0.001,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        contiguous_params: bool = False,
        maximize: bool = False,
    ) -> None:
        if initial_accumulator_value < 0:
            raise ValueError(
                f"Invalid initial_accumulator_value: {initial_accumulator_value}; it must be "
                "at least 0"
            )
        options = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
            "contiguous_params": contiguous_params,
            "maximize": maximize,
        }
        super().__init__(params, options)

    def initial_value(self, group: ParamGroup, name: str) -> float:
        value: float = group["initial_accumulator_value"]
        return value

    def rule(self, group: ParamGroup) -> Rule:
        names = ("lr_decay", "eps", "weight_decay", "maximize")
        return AdagradUpdate, {name: group[name] for name in names}


class RMSprop(Optimizer):
    """ms = alpha · ms + (1 - alpha) · g²;  w -= lr · g / √(ms + eps), eps inside the root.

    centered: the square of the running mean of g is taken off ms.  momentum: steps are accumulated
    first.  maximize: climbs instead.
    """

    state_names = ("square_avg", "grad_avg", "momentum_buf")

    def __init__(
        self,
        params: Params,
        lr: float = 0.001,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        contiguous_params: bool = False,
        maximize: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "contiguous_params": contiguous_params,
            "maximize": maximize,
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        if not 0.0 <= group["alpha"] <= 1.0:
            raise ValueError(f"Invalid alpha: {group['alpha']}; it must be in [0, 1]")

    def rule(self, group: ParamGroup) -> Rule:
        names = ("alpha", "eps", "momentum", "centered", "weight_decay", "maximize")
        return RmspropUpdate, {name: group[name] for name in names}


class Adadelta(Optimizer):
    """d = g · √(acc + eps) / √(sq + eps);  w -= lr · d; sq and acc are running means of g² and d²
    (Zeiler, 2012).
    """

    state_names = ("square_avgs", "acc_deltas")

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        maximize: bool = False,
        contiguous_params: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "contiguous_params": contiguous_params,
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        if not 0.0 <= group["rho"] <= 1.0:
            raise ValueError(f"Invalid rho: {group['rho']}; it must be in [0, 1]")

    def rule(self, group: ParamGroup) -> Rule:
        names = ("rho", "eps", "weight_decay", "maximize")
        return AdadeltaUpdate, {name: group[name] for name in names}
