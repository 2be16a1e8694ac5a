"""The types of what kernels work on, and contiguous forms of arrays."""

from __future__ import annotations

from types import EllipsisType, ModuleType
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
"""An array of NumPy, or of CuPy, which has the same methods."""

ArrayModule: TypeAlias = ModuleType
"""`xp`: numpy or cupy."""


IndexPart: TypeAlias = "int | slice | EllipsisType"


def at(*index: IndexPart) -> tuple[IndexPart, ...]:
    """An index of several parts: `x[at(0, *rest)]`."""
    return index


def as_rows(x: Array) -> Array:
    """A contiguous matrix of the rows of the last dim. Copies only what has gaps."""
    return np.ascontiguousarray(x).reshape(-1, x.shape[-1])


def as_flat(x: Array) -> Array:
    """All elements in one contiguous row. Copies only what has gaps."""
    return np.ascontiguousarray(x).reshape(-1)
