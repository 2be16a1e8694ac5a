"""Nonlinearities as layers."""

from __future__ import annotations

from typing import Any

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike
from oneflow.functional.creation import full
from oneflow.nn import functional as F
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import Tensor


class _Elementwise(Module):
    """A function of each element. inplace: the result also replaces the argument."""

    function: Any
    inplace = False

    def options(self) -> dict[str, Any]:
        """The layer's own arguments of `function`."""
        return {}

    def forward(self, x: Tensor) -> Tensor:
        options = self.options()
        if self.inplace:
            options["inplace"] = True
        result: Tensor = type(self).function(x, **options)
        return result

    def extra_repr(self) -> str:
        parts = [f"{name}={value}" for name, value in self.options().items()]
        return ", ".join([*parts, "inplace=True"] if self.inplace else parts)


class _InPlace(_Elementwise):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


class ReLU(_InPlace):
    """max(x, 0)."""

    function = staticmethod(F.relu)


class ReLU6(_InPlace):
    """min(max(x, 0), 6)."""

    function = staticmethod(F.relu6)


class SiLU(_InPlace):
    """x · sigmoid(x)."""

    function = staticmethod(F.silu)


class Mish(_InPlace):
    """x · tanh(softplus(x))."""

    function = staticmethod(F.mish)


class SELU(_InPlace):
    """scale · elu(x, alpha) with the constants that keep mean and variance."""

    function = staticmethod(F.selu)


class Hardsigmoid(_InPlace):
    """clamp(x + 3, 0, 6) / 6."""

    function = staticmethod(F.hardsigmoid)


class Hardswish(_InPlace):
    """x · hardsigmoid(x)."""

    function = staticmethod(F.hardswish)


class Softsign(_InPlace):
    """x / (1 + |x|)."""

    function = staticmethod(F.softsign)


class Sigmoid(_Elementwise):
    """1 / (1 + exp(-x))."""

    function = staticmethod(F.sigmoid)


class Tanh(_Elementwise):
    """tanh(x)."""

    function = staticmethod(F.tanh)


class LogSigmoid(_Elementwise):
    """log(sigmoid(x))."""

    function = staticmethod(F.logsigmoid)


class QuickGELU(_Elementwise):
    """x · sigmoid(1.702 x)."""

    function = staticmethod(F.quick_gelu)


class SquareReLU(_Elementwise):
    """max(x, 0)²."""

    function = staticmethod(F.square_relu)


class GELU(_Elementwise):
    """x · Φ(x). approximate: "none" or "tanh"."""

    function = staticmethod(F.gelu)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def options(self) -> dict[str, Any]:
        return {"approximate": self.approximate}


class LeakyReLU(_InPlace):
    """x where x > 0, else negative_slope · x."""

    function = staticmethod(F.leaky_relu)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def options(self) -> dict[str, Any]:
        return {"negative_slope": self.negative_slope}


class ELU(_InPlace):
    """x where x > 0, else alpha · (exp(x) - 1)."""

    function = staticmethod(F.elu)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def options(self) -> dict[str, Any]:
        return {"alpha": self.alpha}


class CELU(ELU):
    """x where x > 0, else alpha · (exp(x / alpha) - 1)."""

    function = staticmethod(F.celu)


class Softplus(_Elementwise):
    """log(1 + exp(beta · x)) / beta; x itself where beta · x > threshold."""

    function = staticmethod(F.softplus)

    def __init__(self, beta: float = 1, threshold: float = 20) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def options(self) -> dict[str, Any]:
        return {"beta": self.beta, "threshold": self.threshold}


class Hardtanh(_InPlace):
    """clamp(x, min_val, max_val). min_value and max_value are older names."""

    function = staticmethod(F.hardtanh)

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(inplace)
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value
        if self.min_val >= self.max_val:
            raise ValueError(
                f"min_val must be less than max_val, got {self.min_val} and {self.max_val}"
            )

    def options(self) -> dict[str, Any]:
        return {"min_val": self.min_val, "max_val": self.max_val}


class Hardshrink(_InPlace):
    """x where |x| > lambd, else 0."""

    function = staticmethod(F.hardshrink)

    def __init__(self, lambd: float = 0.5, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.lambd = lambd

    def options(self) -> dict[str, Any]:
        return {"lambd": self.lambd}


class Softshrink(Hardshrink):
    """x moved towards 0 by lambd, but not beyond."""

    function: Any = staticmethod(F.softshrink)


class Threshold(_Elementwise):
    """x where x > threshold, else value."""

    function = staticmethod(F.threshold)

    def __init__(self, threshold: float, value: float) -> None:
        super().__init__()
        self.threshold, self.value = threshold, value

    def options(self) -> dict[str, Any]:
        return {"threshold": self.threshold, "value": self.value}


class Softmax(_Elementwise):
    """exp(x) over its sum along dim."""

    function = staticmethod(F.softmax)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def options(self) -> dict[str, Any]:
        return {"dim": self.dim}


class LogSoftmax(Softmax):
    """log of softmax along dim."""

    function = staticmethod(F.log_softmax)


class GLU(_Elementwise):
    """The first half along dim times the sigmoid of the second."""

    function = staticmethod(F.glu)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def options(self) -> dict[str, Any]:
        return {"dim": self.dim}


class PReLU(Module):
    """x where x > 0, else weight · x; weight: (num_parameters,), one for all channels (dim 1) or
    one each.
    """

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(full((num_parameters,), float(init), device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class RReLU(_InPlace):
    """leaky_relu with slopes drawn from [lower, upper) in training, else with their mean."""

    function = staticmethod(F.rrelu)

    def __init__(
        self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False
    ) -> None:
        super().__init__(inplace)
        self.lower, self.upper = lower, upper

    def options(self) -> dict[str, Any]:
        return {"lower": self.lower, "upper": self.upper, "training": self.training}

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}"
