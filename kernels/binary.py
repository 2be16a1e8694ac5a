"""Checks of the inputs of ops of oneflow/ops/binary.py; their kernels follow from formulas."""

from __future__ import annotations

import numpy as np

from oneflow.core.errors import ArgumentError
from oneflow.kernels.array import Array
from oneflow.kernels.registry import precheck


def _check_divisor(name: str, out: Array, divisor: Array) -> None:
    """Raises ArgumentError for an integer 0; on a GPU, where looking would wait for the device,
    the quotient by 0 is no number in particular.
    """
    if not isinstance(divisor, np.ndarray) or divisor.dtype.kind not in "iu" or not out.size:
        return
    if int(np.count_nonzero(divisor)) != divisor.size:
        raise ArgumentError(
            f"{name}: ZeroDivisionError: the divisor {divisor.dtype.name}{list(divisor.shape)} has "
            "a zero, by which integers cannot be divided"
        )


@precheck("floor_divide")
def check_floor_divide(out: Array, a: Array, b: Array, *workspace: Array, **_: object) -> None:
    _check_divisor("floor_divide", out, b)


@precheck("fmod")
def check_fmod(out: Array, a: Array, b: Array, *workspace: Array, **_: object) -> None:
    _check_divisor("fmod", out, b)
