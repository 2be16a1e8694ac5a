"""Spectral normalisation by a hook: a weight over its largest singular value.

Miyato et al., ICLR 2018. `parametrizations.spectral_norm` is the same as a parametrization.
"""

from __future__ import annotations

from typing import TypeVar

from oneflow.functional.creation import randn
from oneflow.functional.nn.layers import normalize
from oneflow.functional.shaping import permute, reshape
from oneflow.nn.module import Module
from oneflow.nn.modules.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from oneflow.nn.parameter import Parameter
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

__all__ = ["SpectralNorm", "remove_spectral_norm", "spectral_norm"]

M = TypeVar("M", bound=Module)


class SpectralNorm:
    """The hook that makes a module's weight of `weight_orig` at each call; `weight_u` and
    `weight_v` follow the singular vectors in training.
    """

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        if n_power_iterations <= 0:
            raise ValueError(
                "Expected n_power_iterations to be positive, but got "
                f"n_power_iterations={n_power_iterations}"
            )
        self.name, self.dim, self.eps = name, dim, eps
        self.n_power_iterations = n_power_iterations

    def as_matrix(self, weight: Tensor) -> Tensor:
        """Dim `dim` in rows, all others in columns."""
        order = (self.dim, *(d for d in range(weight.ndim) if d != self.dim))
        return reshape(permute(weight, *order), (weight.shape[self.dim], -1))

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        """The weight over its largest singular value."""
        weight = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        matrix = self.as_matrix(weight)
        if do_power_iteration:
            with no_grad():
                for _ in range(self.n_power_iterations):
                    v.copy_(normalize(matrix.detach().t() @ u, dim=0, eps=self.eps))
                    u.copy_(normalize(matrix.detach() @ v, dim=0, eps=self.eps))
            u, v = u.clone(), v.clone()  # a later call moves what this one's gradient needs
        out: Tensor = weight / (u * (matrix @ v)).sum()
        return out

    def __call__(self, module: Module, inputs: object) -> None:
        made = self.compute_weight(module, do_power_iteration=module.training)
        object.__setattr__(module, self.name, made)


def spectral_norm(
    module: M,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> M:
    """Replace the parameter `name` by `name_orig`, of which each call makes the weight.

    dim: of the outputs; None: 1 for transposed convolutions, else 0.  n_power_iterations: steps
    towards the singular vectors at each call in training. Raises RuntimeError if the parameter is
    normalised already.
    """
    if any(isinstance(h, SpectralNorm) and h.name == name for h in _hooks(module)):
        raise RuntimeError(f"Cannot register two spectral_norm hooks on the same parameter {name}")
    if dim is None:
        transposed = (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
        dim = 1 if isinstance(module, transposed) else 0
    hook = SpectralNorm(name, n_power_iterations, dim, eps)
    weight = module.get_parameter(name)
    matrix = hook.as_matrix(weight.detach())
    where = layout_of(matrix, no_partial=True)
    drawn = [
        normalize(randn(size, dtype=weight.dtype, **where), dim=0, eps=eps) for size in matrix.shape
    ]
    del module._parameters[name]
    module.register_parameter(f"{name}_orig", Parameter(weight.detach(), weight.requires_grad))
    object.__setattr__(module, name, weight.detach())
    for letter, vector in zip("uv", drawn, strict=True):
        module.register_buffer(f"{name}_{letter}", vector)
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: M, name: str = "weight") -> M:
    """Make `name` a parameter again. Raises ValueError if `spectral_norm` was not applied to it."""
    for number, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, SpectralNorm) and hook.name == name:
            with no_grad():
                weight = hook.compute_weight(module, do_power_iteration=False)
            del module._forward_pre_hooks[number]
            del module._parameters[f"{name}_orig"]
            for letter in "uv":
                del module._buffers[f"{name}_{letter}"]
            delattr(module, name)
            module.register_parameter(name, Parameter(weight.detach()))
            return module
    raise ValueError(f"spectral_norm of '{name}' not found in {module}")


def _hooks(module: Module) -> list[object]:
    return list(module._forward_pre_hooks.values())
