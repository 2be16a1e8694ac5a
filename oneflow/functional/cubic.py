"""Cubic interpolation between four neighbours (Keys, 1981), of arrays and of tensors."""

from __future__ import annotations

from typing import TypeVar

from oneflow.kernels.array import Array
from oneflow.tensor.tensor import Tensor

_SLOPE = -0.75  # of the cubic at its ends
Weight = TypeVar("Weight", Array, Tensor)


def cubic_weights(gap: Weight) -> list[tuple[int, Weight]]:
    """Offsets and weights of four neighbours, at a place `gap` behind the second."""
    return [(-1, _far(gap + 1)), (0, _near(gap)), (1, _near(1 - gap)), (2, _far(2 - gap))]


def _near(t: Weight) -> Weight:
    return ((_SLOPE + 2) * t - (_SLOPE + 3)) * t * t + 1


def _far(t: Weight) -> Weight:
    return ((_SLOPE * t - 5 * _SLOPE) * t + 8 * _SLOPE) * t - 4 * _SLOPE
