"""`torch.quasirandom`: Sobol sequences, by scipy."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np

from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import ArgumentError
from oneflow.functional.from_data import tensor
from oneflow.functional.promotion import get_default_dtype
from oneflow.tensor.tensor import Tensor

__all__ = ["SobolEngine"]


class SobolEngine:
    """Points of a Sobol sequence in the unit cube, which fill it evenly.

    dimension: of the cube, at most MAXDIM.  scramble: shuffle and shift digits by random numbers of
    `seed`; None: of another one each time. Unscrambled points are PyTorch's.

    Example::

        points = torch.quasirandom.SobolEngine(dimension=5, scramble=True, seed=0).draw(8)  # (8, 5)
    """

    MAXBIT, MAXDIM = 30, 21201

    def __init__(self, dimension: int, scramble: bool = False, seed: int | None = None) -> None:
        if not 1 <= dimension <= self.MAXDIM:
            raise ArgumentError(
                f"SobolEngine: dimension must be from 1 to {self.MAXDIM}, got {dimension}"
            )
        module: Any = importlib.import_module("scipy.stats.qmc")
        self.dimension, self.scramble, self.seed = dimension, scramble, seed
        self.num_generated = 0
        self._engine = module.Sobol(dimension, scramble=scramble, bits=self.MAXBIT, rng=seed)

    def draw(self, n: int = 1, out: Tensor | None = None, dtype: DType | None = None) -> Tensor:
        """Return the next `n` points, (n, dimension). out: gets them, too."""
        wanted = get_default_dtype() if dtype is None else dtype_of(dtype)
        points = self._points(n)
        self.num_generated += n
        made = tensor(points, dtype=wanted)
        if out is None:
            return made
        out.data = made
        return out

    def _points(self, n: int) -> np.ndarray[Any, Any]:
        if n == 0:
            return np.zeros((0, self.dimension))
        with warnings.catch_warnings():  # that the first points of any number are less even
            warnings.filterwarnings("ignore", "The balance properties", UserWarning)
            points: np.ndarray[Any, Any] = self._engine.random(n)
        return points

    def draw_base2(self, m: int, out: Tensor | None = None, dtype: DType | None = None) -> Tensor:
        """Return the next 2^m points. Raises ArgumentError if they do not end at a power of 2."""
        n = 1 << m
        total = self.num_generated + n
        if total & (total - 1):
            raise ArgumentError(
                f"SobolEngine.draw_base2: {self.num_generated} points were drawn, and {n} more "
                "make no power of 2"
            )
        return self.draw(n, out, dtype)

    def fast_forward(self, n: int) -> SobolEngine:
        """Leave `n` points out."""
        self._engine.fast_forward(n)
        self.num_generated += n
        return self

    def reset(self) -> SobolEngine:
        """Begin again."""
        self._engine.reset()
        self.num_generated = 0
        return self

    def __repr__(self) -> str:
        more = ["scramble=True"] if self.scramble else []
        more += [] if self.seed is None else [f"seed={self.seed}"]
        return f"SobolEngine({', '.join([f'dimension={self.dimension}', *more])})"
