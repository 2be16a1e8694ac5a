"""Layers that only rearrange."""

from __future__ import annotations

from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor


class Flatten(Module):
    """Makes one dim of dims start_dim ... end_dim."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        flat: Tensor = x.flatten(self.start_dim, self.end_dim)
        return flat

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"
