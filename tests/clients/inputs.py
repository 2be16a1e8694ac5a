"""Numbers, weights and folders that a task shares between PyTorch and the library."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def shares(*shape: int, seed: int = 0) -> np.ndarray:
    """Uniform numbers of [0, 1) in float32."""
    return np.random.default_rng(seed).random(shape).astype(np.float32)


def integers(high: int, *shape: int, low: int = 0, seed: int = 0) -> np.ndarray:
    """Integers of [low, high) in int64."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.int64)


def fill(module: Any, *, seed: int = 0, scale: float = 1.0) -> Any:
    """Give a module weights that depend on shapes and the order of names only; return it.

    Args:
        module: Any module of either library.
        seed: Of the generator.
        scale: Multiplies all values.
    """
    import torch

    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters(), key=lambda item: item[0]):
            values = rng.uniform(-1, 1, tuple(parameter.shape))
            if parameter.ndim >= 2:
                values /= np.sqrt(max(1, np.prod(parameter.shape[1:])))
            else:
                values = values / 10 + (0.0 if "bias" in name else 1.0)
            values = torch.tensor((values * scale).astype(np.float32))
            parameter.copy_(values.to(parameter.dtype))
    return module


def is_library(torch: Any) -> bool:
    """Whether a task is given the library; under the mock its name is PyTorch's."""
    return hasattr(torch.nn, "Graph")


def folder() -> Path:
    """Return a new folder, which goes away with the process that runs the task."""
    return Path(tempfile.mkdtemp())
