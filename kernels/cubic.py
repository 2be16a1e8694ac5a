"""Cubic interpolation between four neighbours (Keys, 1981), of arrays and of tensors."""

from __future__ import annotations

from typing import TypeVar, cast

from oneflow.kernels.array import Array

_SLOPE = -0.75  # of the cubic at its ends
Weight = TypeVar("Weight")


def cubic_weights(gap: Weight) -> list[tuple[int, Weight]]:
    """Offsets and weights of four neighbours, at a place `gap` behind the second: an array or a
    tensor."""
    x = cast("Array", gap)  # a tensor has the same operators
    found = [(-1, _far(x + 1)), (0, _near(x)), (1, _near(1 - x)), (2, _far(2 - x))]
    return cast("list[tuple[int, Weight]]", found)


def _near(t: Array) -> Array:
    made: Array = ((_SLOPE + 2) * t - (_SLOPE + 3)) * t * t + 1
    return made


def _far(t: Array) -> Array:
    made: Array = ((_SLOPE * t - 5 * _SLOPE) * t + 8 * _SLOPE) * t - 4 * _SLOPE
    return made
