"""Counter-based random numbers over the global element index: Philox2x32-10.

Element i of a random tensor depends on (seed, i) alone, never on the rank that computes it. So a
shard holds exactly the elements that the whole tensor would have there, for any placement, SBP and
number of ranks. Philox: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

COMPILED_FROM = 1 << 14
"""Elements from which the machine code of kernels/philox.py is worth its import."""

_MULTIPLIER = np.uint64(0xD256D193)
_WEYL = np.uint32(0x9E3779B9)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


@dataclass(frozen=True)
class Rng:
    """The numbers that a random kernel needs to make its shard.

    seed: 64 bits, of this op call (see `mix_seed`).  global_shape: of the whole tensor.  starts:
    where this shard begins along each dim; its shape is the output's.  recorded: in a CUDA graph, a
    uint64 array of one element on the GPU, which holds the seed by the time that it is replayed.
    """

    seed: int
    global_shape: tuple[int, ...]
    starts: tuple[int, ...]
    recorded: Any = None

    def indices(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Global row-major index (uint64) of each element of a shard of `shape`."""
        index = np.zeros((), dtype=np.uint64)
        for start, size, whole in zip(self.starts, shape, self.global_shape, strict=True):
            along = np.arange(start, start + size, dtype=np.uint64)
            index = index[..., None] * np.uint64(whole) + along
        return index

    def words(self, shape: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Two independent uint32 words per element."""
        if math.prod(shape) < COMPILED_FROM:
            return philox(self.seed, self.indices(shape))
        # Trailing dims that this shard holds whole make one run of consecutive indices.
        outer = len(shape) - 1
        while outer > 0 and shape[outer] == self.global_shape[outer]:
            outer -= 1
        rows, run = math.prod(shape[:outer]), math.prod(shape[outer:])
        inner = math.prod(self.global_shape[outer:])
        firsts = Rng(0, self.global_shape[:outer], self.starts[:outer]).indices(shape[:outer])
        begin = self.starts[outer] * math.prod(self.global_shape[outer + 1 :])
        firsts = firsts.reshape(rows) * np.uint64(inner) + np.uint64(begin)
        high, low = words_of_runs(self.seed, firsts, run)
        return high.reshape(shape), low.reshape(shape)

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """float64 in [0, 1), 53 bits."""
        return as_uniform(*self.words(shape))

    def normal(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Draw standard normal numbers in float64."""
        return as_normal(*self.words(shape))


def as_uniform(high: np.ndarray[Any, Any], low: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float64 in [0, 1), 53 bits, of two uint32 words each."""
    bits = (high.astype(np.uint64) << np.uint64(21)) ^ (low.astype(np.uint64) >> np.uint64(11))
    unit: np.ndarray[Any, Any] = bits.astype(np.float64) * 2.0**-53
    return unit


def as_normal(high: np.ndarray[Any, Any], low: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Standard normal numbers in float64, of two uint32 words each: Box and Muller, Ann. Math.
    Stat. 29(2), 1958.
    """
    radius = np.sqrt(-2.0 * np.log((high.astype(np.float64) + 1.0) * 2.0**-32))
    normal: np.ndarray[Any, Any] = radius * np.cos(
        low.astype(np.float64) * (2.0 * np.pi * 2.0**-32)
    )
    return normal


def words_of_runs(
    seed: int, firsts: np.ndarray[Any, Any], length: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two uint32 words each of the indices `firsts[r]`, `firsts[r]` + 1, ... in row r.

    firsts: uint64[rows].  Returns two arrays (rows, length).
    """
    if firsts.size * length < COMPILED_FROM:
        return philox(seed, firsts[:, None] + np.arange(length, dtype=np.uint64))
    from oneflow.kernels.philox import fill_words

    words = np.empty((2, firsts.size, length), np.uint32)
    fill_words(words, firsts, seed)
    return words[0], words[1]


def philox(
    seed: int, index: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Philox2x32-10 of the 64-bit counters `index` under the 64-bit `seed`: two uint32 words each.

    Philox2x32 has a 32-bit key; the other half of the seed is folded into the counter's high word.
    """
    key = np.uint32(seed & 0xFFFFFFFF)
    left = (index & _LOW).astype(np.uint32)
    right = (index >> _SHIFT).astype(np.uint32) ^ np.uint32((seed >> 32) & 0xFFFFFFFF)
    with np.errstate(over="ignore"):
        for _ in range(10):
            product = left.astype(np.uint64) * _MULTIPLIER
            left, right = (
                (product >> _SHIFT).astype(np.uint32) ^ key ^ right,
                (product & _LOW).astype(np.uint32),
            )
            key = np.uint32(key + _WEYL)
    return left, right
