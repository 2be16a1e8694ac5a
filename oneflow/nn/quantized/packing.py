"""Weights as packed integers: the arithmetic of rounding them."""

from __future__ import annotations

from typing import NamedTuple

from oneflow.core.dtype import DType, float32, uint8
from oneflow.core.errors import ArgumentError
from oneflow.functional.elementwise import clamp, round
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor


class Packed(NamedTuple):
    """A weight as the op `quantized_linear` takes it; see oneflow/ops/quantized.py.

    order: which input comes at which place of a row; None: each at its own.
    """

    weight: Tensor
    scales: Tensor
    zeros: Tensor | None
    order: Tensor | None = None


def pack(weight: Tensor, bits: int, group_size: int | None, has_zeros: bool) -> Packed:
    """Round a weight to integers.

    Args:
        weight: (rows, columns), of floats.
        bits: 4 or 8.
        group_size: Neighbouring columns with one scale; None for all of a row.
        has_zeros: Map the range of a group, widened to contain 0, to all integers; otherwise 0 to
            the middle and the largest magnitude to the end.

    Raises:
        ArgumentError: If groups do not divide the columns.
    """
    rows, columns = weight.shape
    size = columns if group_size is None else group_size
    check_groups("pack", columns, size, bits)
    most, dtype = (1 << bits) - 1, weight.dtype
    with no_grad():
        groups = weight.detach().to(float32).reshape(rows, columns // size, size)
        if has_zeros:
            low, high = clamp(groups.amin(-1), max=0.0), clamp(groups.amax(-1), min=0.0)
            scales = _positive((high - low) / most, dtype)
            zeros = clamp(round(-low / scales), 0.0, most)
        else:
            half = most // 2
            scales = _positive(groups.abs().amax(-1) / half, dtype)
            zeros = scales * 0.0 + (half + 1)
        numbers = round(groups / scales.unsqueeze(-1)) + zeros.unsqueeze(-1)
        numbers = clamp(numbers, 0.0, most).to(uint8).reshape(rows, columns)
        packed = numbers if bits == 8 else numbers[:, 0::2] + numbers[:, 1::2] * 16
        return Packed(packed, scales.to(dtype), zeros.to(uint8) if has_zeros else None)


def check_groups(who: str, columns: int, size: int, bits: int) -> None:
    """Raises ArgumentError unless groups of `size` divide the columns and end at bytes."""
    if size < 1 or columns % size or size * bits % 8:
        raise ArgumentError(
            f"{who}: groups of {size} do not divide {columns} inputs of {bits} bits into whole "
            "bytes; choose another group_size, or leave the layer out by filter_fn"
        )


def _positive(scales: Tensor, dtype: DType) -> Tensor:
    """Scales as their dtype holds them; 1 for groups of zeros."""
    held = scales.to(dtype).to(float32)
    return held + (held == 0).to(float32)
