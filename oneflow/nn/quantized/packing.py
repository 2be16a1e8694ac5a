"""Weights as packed integers: the arithmetic of rounding them."""

from __future__ import annotations

from typing import NamedTuple

from oneflow.core.dtype import float32, uint8
from oneflow.core.errors import ArgumentError
from oneflow.functional.elementwise import clamp, round
from oneflow.functional.sort_and_search import where
from oneflow.ops.quantized import zero_of
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


def pack(weight: Tensor, bits: int, group_size: int | None) -> Packed:
    """Round a weight to integers around the middle of their range, which stands for 0.

    Of 8 bits the largest magnitude of a group becomes the largest integer or its negative; of 4
    bits the smallest integer, which has one more step, by a scale of the opposite sign.

    Args:
        weight: (rows, columns), of floats.
        bits: 4 or 8.
        group_size: Neighbouring columns with one scale; None for all of a row.

    Raises:
        ArgumentError: If groups do not divide the columns.
    """
    rows, columns = weight.shape
    size = columns if group_size is None else group_size
    check_groups("pack", columns, size, bits)
    middle, dtype = zero_of(bits), weight.dtype
    with no_grad():
        groups = weight.detach().to(float32).reshape(rows, columns // size, size)
        high, low = groups.amax(-1), groups.amin(-1)
        if bits == 8:
            scales = groups.abs().amax(-1) / (middle - 1)
        else:
            scales = where(high > -low, high, low) / -middle
        scales = scales.to(dtype)
        held = scales.to(float32)
        held = held + (held == 0).to(float32)  # of groups of zeros
        numbers = round(groups / held.unsqueeze(-1)) + middle
        numbers = clamp(numbers, 0.0, 2 * middle - 1).to(uint8).reshape(rows, columns)
        packed = numbers if bits == 8 else numbers[:, 0::2] + numbers[:, 1::2] * 16
        return Packed(packed, scales, None)


def check_groups(who: str, columns: int, size: int, bits: int) -> None:
    """Raises ArgumentError unless groups of `size` divide the columns and end at bytes."""
    if size < 1 or columns % size or size * bits % 8:
        raise ArgumentError(
            f"{who}: groups of {size} do not divide {columns} inputs of {bits} bits into whole "
            "bytes; choose another group_size, or leave the layer out by filter_fn"
        )
