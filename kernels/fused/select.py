"""Choice by a mask, on bits: the arrays are seen as unsigned integers, so that one loop serves
every dtype.

NumPy's copyto(where=mask) branches on every element, which costs some twenty times as much on a
random mask.
"""

from __future__ import annotations

from typing import Any

from numba import prange

from oneflow.kernels.fused.math import vectorized


@vectorized
def where(out: Any, condition: Any, x: Any, y: Any) -> None:
    """Flat arrays of one size."""
    for i in prange(out.size):
        out[i] = x[i] if condition[i] else y[i]


@vectorized
def masked_fill(out: Any, x: Any, mask: Any, value: Any) -> None:
    """Fill elements where the mask is true.

    out, x: (rows, columns). mask: (columns,), the same for every row, or (rows, columns) flat.
    """
    rows, columns = out.shape
    step = 0 if mask.size == columns else columns
    for r in prange(rows):
        for i in range(columns):
            out[r, i] = value if mask[r * step + i] else x[r, i]
