"""Weight normalisation: a weight as its length times its direction, which learn apart.

Salimans and Kingma, NeurIPS 2016.
"""

from __future__ import annotations

from typing import TypeVar

from oneflow.functional.dims import one_dim
from oneflow.functional.linalg.norms import vector_norm
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import Tensor

__all__ = ["WeightNorm", "remove_weight_norm", "weight_norm"]

M = TypeVar("M", bound=Module)


def norm_except_dim(v: Tensor, dim: int) -> Tensor:
    """The length of each slice along `dim`, or of the whole (-1), in a shape that broadcasts."""
    if dim == -1:
        return vector_norm(v)
    kept = one_dim(dim, v.ndim, "weight_norm")
    return vector_norm(v, dim=tuple(d for d in range(v.ndim) if d != kept), keepdim=True)


class WeightNorm:
    """The hook that makes a module's weight of its length g and its direction v at each call."""

    def __init__(self, name: str, dim: int) -> None:
        self.name, self.dim = name, dim

    def compute_weight(self, module: Module) -> Tensor:
        """g · v / |v|."""
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        weight: Tensor = v * (g / norm_except_dim(v, self.dim))
        return weight

    def __call__(self, module: Module, inputs: object) -> None:
        object.__setattr__(module, self.name, self.compute_weight(module))


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Replace the parameter `name` by `name_g`, its length along `dim` (None: of the whole), and
    `name_v`, its direction. Raises RuntimeError if it is done already.
    """
    if any(isinstance(h, WeightNorm) and h.name == name for h in _hooks(module)):
        raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
    hook = WeightNorm(name, -1 if dim is None else dim)
    weight = module.get_parameter(name)
    del module._parameters[name]
    module.register_parameter(f"{name}_g", Parameter(norm_except_dim(weight.detach(), hook.dim)))
    module.register_parameter(f"{name}_v", Parameter(weight.detach()))
    hook(module, ())
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: M, name: str = "weight") -> M:
    """Make `name` a parameter again. Raises ValueError if `weight_norm` was not applied to it."""
    for number, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, WeightNorm) and hook.name == name:
            weight = hook.compute_weight(module).detach()
            del module._forward_pre_hooks[number]
            delattr(module, f"{name}_g")
            delattr(module, f"{name}_v")
            module.__dict__.pop(name, None)
            module.register_parameter(name, Parameter(weight))
            return module
    raise ValueError(f"weight_norm of '{name}' not found in {module}")


def _hooks(module: Module) -> list[object]:
    return list(module._forward_pre_hooks.values())
