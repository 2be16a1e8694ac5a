"""Layers that set random elements, or whole channels, to 0 in training."""

from __future__ import annotations

from functools import partial
from typing import Any

from oneflow.core.errors import ArgumentError
from oneflow.functional.random_state import Generator
from oneflow.nn import functional as F
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor


class _Dropout(Module):
    """The settings that all layers here have."""

    function: Any
    generator: Generator | None = None

    def __init__(
        self, p: float = 0.5, inplace: bool = False, generator: Generator | None = None
    ) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ArgumentError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace, self.generator = p, inplace, generator

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Zeros in training with probability p for each element; the others are multiplied by 1 / (1 -
    p).

    Which elements depends on the generator's seed and their global index only, not on the layout.
    """

    function: Any = staticmethod(F.dropout)

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        """x with dropped elements, and `addend` added."""
        drop = partial(type(self).function, x, self.p, self.training, self.inplace, self.generator)
        dropped: Tensor = drop() if addend is None else drop(addend=addend)
        return dropped


class _ChannelDropout(_Dropout):
    def __init__(self, p: float = 0.5, inplace: bool = False, generator: None = None) -> None:
        if generator is not None:
            raise ArgumentError(
                f"{type(self).__name__} draws from the default generator; seed it with manual_seed"
            )
        super().__init__(p, inplace)

    def forward(self, x: Tensor) -> Tensor:
        dropped: Tensor = type(self).function(x, self.p, self.training, self.inplace)
        return dropped


class Dropout1d(_ChannelDropout):
    """Drops whole channels of (n, channels, length) or (channels, length)."""

    function = staticmethod(F.dropout1d)


class Dropout2d(_ChannelDropout):
    """Drops whole channels of (n, channels, height, width) or (channels, height, width)."""

    function = staticmethod(F.dropout2d)


class Dropout3d(_ChannelDropout):
    """Drops whole channels of (n, channels, depth, height, width), or without n."""

    function = staticmethod(F.dropout3d)


class _AlphaDropout(_Dropout):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__(p, inplace)

    def forward(self, x: Tensor) -> Tensor:
        dropped: Tensor = type(self).function(x, self.p, self.training, self.inplace)
        return dropped


class AlphaDropout(_AlphaDropout):
    """Elements saturate in training with probability p, as SELU does; mean and variance stay."""

    function = staticmethod(F.alpha_dropout)


class FeatureAlphaDropout(_AlphaDropout):
    """AlphaDropout of whole channels of (n, channels, ...)."""

    function = staticmethod(F.feature_alpha_dropout)
