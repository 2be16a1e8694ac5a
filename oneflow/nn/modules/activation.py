"""Nonlinearities as layers: most are made of the functions for which the public table names one.

A made layer takes the parameters of its function but for the tensor, keeps them as attributes and
calls the function with them, `F.softplus(x, self.beta, self.threshold)`. Its docstring is the
function's.
"""

from __future__ import annotations

from inspect import Parameter, Signature, signature
from typing import Any

from oneflow.api import ROWS
from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import ShapeError
from oneflow.functional.creation import full
from oneflow.nn import functional as F
from oneflow.nn.module import Module
from oneflow.nn.modules.attention import MultiheadAttention as MultiheadAttention  # for its path
from oneflow.nn.parameter import Parameter as Weight
from oneflow.surfaces import find
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

_ROWS = {row.layer: row for row in ROWS if row.layer}


def __getattr__(name: str) -> type[Module]:
    """A layer of the table, made when it is first asked for."""
    if name not in _ROWS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = _layer(name)
    return made


def _layer(name: str) -> type[Module]:
    row = _ROWS[name]
    function = find("F", row.names[0])
    parameters = tuple(signature(function).parameters.values())[1:]
    calls = "".join(f", self.{p.name}" for p in parameters)
    space: dict[str, Any] = {"function": function, "__name__": __name__}
    source = f"def forward(self, x): return function(x{calls})"
    exec(compile(source, __file__, "exec"), space)  # a file of ours: the user's line is above it

    def __init__(self: Module, *args: object, **keywords: object) -> None:
        super(made, self).__init__()
        for theirs in row.keywords.keys() & keywords.keys():
            keywords[row.keywords[theirs]] = keywords.pop(theirs)
        given = made.__signature__.bind(*args, **keywords)
        given.apply_defaults()
        self.__dict__.update(given.arguments)
        check = getattr(function, "check", None)
        if check is not None:
            check(**{n: v for n, v in given.arguments.items() if n != "inplace"})

    def extra_repr(self: Module) -> str:
        shown = [p.name for p in parameters if p.name != "inplace" or self.__dict__["inplace"]]
        return ", ".join(f"{name}={self.__dict__[name]}" for name in shown)

    members = {
        **{p.name: p.default for p in parameters if p.default is not Parameter.empty},
        "__module__": __name__,
        "__doc__": function.__doc__,
        "__signature__": Signature(parameters),
        "__init__": __init__,
        "forward": space["forward"],
        "extra_repr": extra_repr,
    }
    made: Any = type(name, (Module,), members)
    layer: type[Module] = made
    return layer


class Softmax(Module):
    """exp(x) over its sum along dim."""

    function = staticmethod(F.softmax)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return type(self).function(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmin(Softmax):
    """softmax of -x along dim."""

    function = staticmethod(F.softmin)


class LogSoftmax(Softmax):
    """log of softmax along dim."""

    function = staticmethod(F.log_softmax)


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
        self.num_parameters, self.init = num_parameters, init
        self.weight = Weight(full((num_parameters,), float(init), device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Set every slope to the one that the layer was made with."""
        with no_grad():
            self.weight.fill_(self.init)

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class RReLU(Module):
    """leaky_relu with slopes drawn from [lower, upper) in training, else with their mean."""

    def __init__(
        self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False
    ) -> None:
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, x: Tensor) -> Tensor:
        return F.rrelu(x, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        shown = f"lower={self.lower}, upper={self.upper}"
        return f"{shown}, inplace=True" if self.inplace else shown


class Softmax2d(Module):
    """Softmax over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: expected input to be 3D or 4D, got {input.meta}")
        return F.softmax(input, -3)
