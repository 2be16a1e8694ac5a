"""Quantization: the scale and zero point of a range of numbers, and numbers rounded to integers.

Two formulas: "google", where a number is scale * (integer - zero_point), with integers that are
symmetric about 0 or, if the scheme is "affine", begin at 0; and "cambricon", where it is
2 ** scale * integer. Rounding is to even; gradients pass it as if it were not there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oneflow.core.dtype import float32
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.functional.arithmetic import add, div, mul, pow, sub
from oneflow.functional.dims import one_dim
from oneflow.functional.elementwise import clamp
from oneflow.functional.elementwise import round as rounded
from oneflow.functional.from_data import beside
from oneflow.functional.promotion import as_type
from oneflow.functional.reduction import amax, amin
from oneflow.functional.shaping import reshape
from oneflow.functional.sort_and_search import where
from oneflow.ops import unary
from oneflow.ops.binary import maximum
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

FORMULAS = ("google", "cambricon")
SCHEMES = ("symmetric", "affine")


@dataclass(frozen=True)
class Integers:
    """The integers that numbers become: formula and scheme as above, `bits` of each."""

    formula: str = "google"
    bits: int = 8
    scheme: str = "symmetric"

    def __post_init__(self) -> None:
        if self.formula not in FORMULAS or self.scheme not in SCHEMES:
            raise ArgumentError(
                f"quantization knows the formulas {FORMULAS} and the schemes {SCHEMES}, got "
                f"{self.formula!r} and {self.scheme!r}"
            )
        if not 2 <= self.bits <= 16 or (self.formula == "cambricon" and self.scheme == "affine"):
            raise ArgumentError(f"quantization of {self} is not supported")

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest integer."""
        if self.scheme == "affine":
            return 0, 2**self.bits - 1
        top = 2 ** (self.bits - 1) - 1
        return (-top, top) if self.formula == "cambricon" else (-top - 1, top)

    def of_range(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and zero point for numbers between low and high."""
        largest = maximum(unary.abs(low), unary.abs(high))
        if self.formula == "cambricon":
            scale = sub(unary.floor(unary.log2(largest)), self.bits - 2)
            return scale, unary.full_like(scale, value=0.0)
        if self.scheme == "symmetric":
            return div(largest, 2 ** (self.bits - 1) - 1), unary.full_like(largest, value=0.0)
        scale = div(sub(high, low), 2**self.bits - 1)
        return scale, unary.neg(rounded(div(low, scale)))

    def unit(self, scale: Tensor) -> Tensor:
        """The number that the integer 1 stands for."""
        return pow(2.0, scale) if self.formula == "cambricon" else scale

    def round(self, x: Tensor, scale: Tensor, zero_point: Tensor) -> tuple[Tensor, Tensor]:
        """The integers, and the numbers they stand for."""
        unit = self.unit(scale)
        low, high = self.limits
        whole = clamp(add(rounded(div(x, unit)), zero_point), low, high)
        return whole, mul(sub(whole, zero_point), unit)


def _beside(x: Tensor, value: Tensor) -> Tensor:
    """One number for all of x, or one per slice of its first dim."""
    count = value.numel()
    if count == 1:
        return reshape(value, (1,) * max(x.ndim, 1))
    if not x.ndim or count != x.meta.shape[0]:
        raise ShapeError(
            f"quantization: {value.meta} is neither one number nor one for each slice of dim 0 of "
            f"{x.meta}"
        )
    return reshape(value, (-1, *(1,) * (x.ndim - 1)))


def min_max_observer(
    input: Tensor,
    quantization_formula: str = "google",
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    per_layer_quantization: bool = True,
) -> tuple[Tensor, Tensor]:
    """(scale, zero_point) of a tensor, of shape (1,), or of each slice of its first dim."""
    kind = Integers(quantization_formula, quantization_bit, quantization_scheme)
    with no_grad():
        rows = reshape(input, (1, -1) if per_layer_quantization else (input.meta.shape[0], -1))
        return kind.of_range(amin(rows, 1), amax(rows, 1))


def moving_average_min_max_observer(
    input: Tensor,
    current_train_step: Tensor,
    moving_max: Tensor,
    moving_min: Tensor,
    training: bool,
    stop_update_after_iters: int = 1,
    quantization_formula: str = "google",
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    momentum: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """(scale, zero_point) of running extremes, which are moved toward those of `input` in training
    while current_train_step is at most stop_update_after_iters. The first step sets them.
    """
    kind = Integers(quantization_formula, quantization_bit, quantization_scheme)
    with no_grad():
        if training:
            goes_on = as_type(current_train_step <= stop_update_after_iters, float32)
            for moving, found in ((moving_max, amax(input)), (moving_min, amin(input))):
                is_first = as_type(moving == 0, float32)
                mixed = add(mul(moving, momentum), mul(found, 1 - momentum))
                new = add(mul(is_first, found), mul(sub(1, is_first), mixed))
                moving.copy_(add(mul(goes_on, new), mul(sub(1, goes_on), moving)))
        return kind.of_range(moving_min.clone(), moving_max.clone())


def fake_quantization(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quantization_formula: str = "google",
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
) -> Tensor:
    """The numbers that the integers nearest to `input` stand for; its gradient is handed on."""
    kind = Integers(quantization_formula, quantization_bit, quantization_scheme)
    with no_grad():
        found = kind.round(input, _beside(input, scale), _beside(input, zero_point))[1]
    return add(found, sub(input, input.detach())) if input.requires_grad else found


def quantization(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quantization_formula: str = "google",
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
) -> Tensor:
    """The integers nearest to `input`, in its own dtype."""
    kind = Integers(quantization_formula, quantization_bit, quantization_scheme)
    with no_grad():
        return kind.round(input, _beside(input, scale), _beside(input, zero_point))[0]


def _round_to_levels(
    x: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, name: str
) -> Tensor:
    """Numbers on the grid of an affine quantization; gradients pass where nothing was cut off."""
    if quant_min > quant_max:
        raise ArgumentError(f"{name}: quant_min {quant_min} is above quant_max {quant_max}")
    with no_grad():
        zeros = rounded(zero_point)
        level = add(rounded(mul(x, div(1.0, scale))), zeros)
        found = mul(sub(clamp(level, quant_min, quant_max), zeros), scale)
        is_inside = (level >= quant_min) & (level <= quant_max)
    if not x.requires_grad:
        return found
    return add(found, where(is_inside, sub(x, x.detach()), 0.0))


def fake_quantize_per_tensor_affine(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """The numbers scale * (q - zero_point) nearest to `input`, of integers q from quant_min to
    quant_max. The gradient is handed on where q was not cut off, else it is 0.
    """
    name = "fake_quantize_per_tensor_affine"
    whole = []
    for value in (scale, zero_point):
        given = value if isinstance(value, Tensor) else beside(input, np.asarray(value, np.float32))
        if given.numel() != 1:
            raise ShapeError(f"{name}: scale and zero_point are one number each, got {given.meta}")
        whole.append(reshape(as_type(given, input.dtype), ()))
    return _round_to_levels(input, whole[0], whole[1], quant_min, quant_max, name)


def fake_quantize_per_channel_affine(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """The same numbers, with a scale and a zero point for each place of `axis`."""
    name = "fake_quantize_per_channel_affine"
    axis = one_dim(axis, input.ndim, name)
    size = input.meta.shape[axis]
    if scale.meta.shape != (size,) or zero_point.meta.shape != (size,):
        raise ShapeError(
            f"{name}: dim {axis} of {input.meta} needs {size} scales and zero points, got "
            f"{scale.meta} and {zero_point.meta}"
        )
    shape = [size if dim == axis else 1 for dim in range(input.ndim)]
    scales, zeros = (reshape(as_type(v, input.dtype), shape) for v in (scale, zero_point))
    return _round_to_levels(input, scales, zeros, quant_min, quant_max, name)
