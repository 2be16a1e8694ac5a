"""Parametrizations of weights: by length and direction, and by the largest singular value."""

from __future__ import annotations

from typing import Any, TypeVar

from oneflow.functional.creation import randn
from oneflow.functional.nn.layers import normalize
from oneflow.functional.shaping import permute, reshape
from oneflow.nn.module import Module
from oneflow.nn.modules.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from oneflow.nn.utils.parametrize import register_parametrization
from oneflow.nn.utils.weight_norm import norm_except_dim
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

__all__ = ["spectral_norm", "weight_norm"]

M = TypeVar("M", bound=Module)


class _WeightNorm(Module):
    """weight = g · v / |v|."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_v * (weight_g / norm_except_dim(weight_v, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except_dim(weight, self.dim), weight


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Lets the parameter `name` be its length along `dim` (None: of the whole), `original0`, times
    its direction, `original1`. State dicts of `nn.utils.weight_norm` can be loaded.
    """
    register_parametrization(module, name, _WeightNorm(-1 if dim is None else dim), unsafe=True)

    def rename(state_dict: dict[str, Any], prefix: str, *_: object) -> None:
        for old, new in ((f"{name}_g", "original0"), (f"{name}_v", "original1")):
            if prefix + old in state_dict:
                value = state_dict.pop(prefix + old)
                state_dict[f"{prefix}parametrizations.{name}.{new}"] = value

    module._register_load_state_dict_pre_hook(rename)
    return module


class _SpectralNorm(Module):
    """weight over its largest singular value, which power iteration follows in training."""

    def __init__(
        self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        super().__init__()
        if n_power_iterations <= 0:
            raise ValueError(
                "Expected n_power_iterations to be positive, but got "
                f"n_power_iterations={n_power_iterations}"
            )
        self.dim, self.eps = dim % max(weight.ndim, 1), eps
        self.n_power_iterations = n_power_iterations
        if weight.ndim > 1:
            matrix = self._as_matrix(weight.detach())
            where = layout_of(matrix, no_partial=True)
            for name, size in zip(("_u", "_v"), matrix.shape, strict=True):
                drawn = randn(size, dtype=weight.dtype, **where)
                self.register_buffer(name, normalize(drawn, dim=0, eps=eps))
            self._iterate(matrix, 15)

    def _as_matrix(self, weight: Tensor) -> Tensor:
        """Dim `dim` in rows, all others in columns."""
        order = (self.dim, *(d for d in range(weight.ndim) if d != self.dim))
        return reshape(permute(weight, *order), (weight.shape[self.dim], -1))

    def _iterate(self, matrix: Tensor, times: int) -> None:
        with no_grad():
            for _ in range(times):
                self._u.copy_(normalize(matrix @ self._v, dim=0, eps=self.eps))
                self._v.copy_(normalize(matrix.t() @ self._u, dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = self._as_matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        # copies: a later call moves the vectors that this one's gradient needs
        u, v = self._u.clone(), self._v.clone()
        out: Tensor = weight / (u * (matrix @ v)).sum()
        return out

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: M,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> M:
    """Lets the parameter `name` be itself over its largest singular value.

    dim: of the outputs; None: 1 for transposed convolutions, else 0. n_power_iterations: steps
    towards the singular vectors at each use in training. Miyato et al., ICLR 2018.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if dim is None:
        transposed = (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
        dim = 1 if isinstance(module, transposed) else 0
    made = _SpectralNorm(weight, n_power_iterations, dim, eps)
    return register_parametrization(module, name, made)
