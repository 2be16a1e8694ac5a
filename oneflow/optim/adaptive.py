"""Optimizers that scale each element by a history of its gradients: Adagrad, RMSprop, Adadelta,
Rprop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.core.spelling import is_mocked
from oneflow.ops.update import AdadeltaUpdate, AdagradUpdate, RmspropUpdate, RpropUpdate
from oneflow.optim.optimizer import Optimizer, ParamGroup, Params, Rule, attrs_of
from oneflow.optim.options import UNFUSED, Implementation, Unfused, implementation
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Adagrad(Optimizer):
    """sum += g²;  w -= lr / (1 + (step - 1) · lr_decay) · g / (√sum + eps)   (Duchi, Hazan, Singer,
    JMLR 2011). maximize: climbs instead.
    """

    state_names = ("sum",)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        contiguous_params: bool = False,
        maximize: bool = False,
        **given: Unpack[Implementation],
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
            **implementation(given, "foreach"),
            "maximize": maximize,
            **implementation(given, "differentiable", "fused"),
            "contiguous_params": contiguous_params,
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        if not group["lr_decay"] >= 0.0:
            raise ValueError(f"Invalid lr_decay: {group['lr_decay']}; it must be at least 0")

    def initial_value(self, group: ParamGroup, name: str) -> float:
        value: float = group["initial_accumulator_value"]
        return value

    def rule(self, group: ParamGroup) -> Rule:
        return AdagradUpdate, attrs_of(AdagradUpdate, group)


class RMSprop(Optimizer):
    """ms = alpha · ms + (1 - alpha) · g²;  w -= lr · g / √(ms + eps), eps inside the root.

    centered: the square of the running mean of g is taken off ms.  momentum: steps are accumulated
    first.  maximize: climbs instead.  eps_in_root=False: w -= lr · g / (√ms + eps), as in PyTorch
    and by default under its mock.
    """

    state_names = ("square_avg", "grad_avg", "momentum_buffer")

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        contiguous_params: bool = False,
        maximize: bool = False,
        *,
        eps_in_root: bool | None = None,
        **given: Unpack[Unfused],
    ) -> None:
        options = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            **implementation(given, *UNFUSED),
            "maximize": maximize,
            "contiguous_params": contiguous_params,
            "eps_in_root": not is_mocked() if eps_in_root is None else eps_in_root,
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        if not 0.0 <= group["alpha"] <= 1.0:
            raise ValueError(f"Invalid alpha: {group['alpha']}; it must be in [0, 1]")

    def rule(self, group: ParamGroup) -> Rule:
        return RmspropUpdate, attrs_of(RmspropUpdate, group)


class Adadelta(Optimizer):
    """d = g · √(acc + eps) / √(sq + eps);  w -= lr · d; sq and acc are running means of g² and d²
    (Zeiler, 2012).
    """

    state_names = ("square_avg", "acc_delta")

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        maximize: bool = False,
        contiguous_params: bool = False,
        **given: Unpack[Unfused],
    ) -> None:
        options = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            **implementation(given, *UNFUSED),
            "contiguous_params": contiguous_params,
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        if not 0.0 <= group["rho"] <= 1.0:
            raise ValueError(f"Invalid rho: {group['rho']}; it must be in [0, 1]")

    def rule(self, group: ParamGroup) -> Rule:
        return AdadeltaUpdate, attrs_of(AdadeltaUpdate, group)


class Rprop(Optimizer):
    """Steps of a size per element, whether gradients are large or small (Riedmiller and Braun, ICNN
    1993); for gradients of all the data.

    lr: the first size.  etas: factors of a size where the sign of the gradient changed, and where
    it did not.  step_sizes: the smallest and largest size.  maximize: climbs instead.
    """

    state_names = ("prev", "step_size")

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
        **given: Unpack[Unfused],
    ) -> None:
        options = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "maximize": maximize,
            **implementation(given, *UNFUSED),
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        if not 0.0 < group["etas"][0] < 1.0 < group["etas"][1]:
            raise ValueError(f"Invalid eta values: {group['etas']}; they must be 0 < e < 1 < f")

    def initial_value(self, group: ParamGroup, name: str) -> float:
        return group.rate if name == "step_size" else 0.0

    def rule(self, group: ParamGroup) -> Rule:
        (minus, plus), (low, high) = group["etas"], group["step_sizes"]
        attrs = {"etaminus": minus, "etaplus": plus, "size_min": low, "size_max": high}
        return RpropUpdate, {**attrs, "maximize": group["maximize"]}
