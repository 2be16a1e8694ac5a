"""Counter-based random numbers over the global element index: Philox2x32-10.

Element i of a random tensor depends on (seed, i) alone, never on who computes it. So a shard holds
exactly the elements that the whole tensor would have there, whatever the placement, SBP or number
of ranks. Philox: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
2011.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

COMPILED_FROM = 1 << 14
"""Elements from which the compiled loop of philox.py is worth its import."""

_MULTIPLIER = np.uint64(0xD256D193)
_WEYL = np.uint32(0x9E3779B9)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


@dataclass(frozen=True)
class Rng:
    """What a random kernel needs to make its shard.

    seed: 64 bits, of this op call (see `mix_seed`).  global_shape: of the whole tensor.  starts:
    where this shard begins along each dim; its shape is the output's.
    """

    seed: int
    global_shape: tuple[int, ...]
    starts: tuple[int, ...]

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
        from oneflow.core.philox import fill_words

        # Trailing dims that this shard holds whole make one run of consecutive indices.
        outer = len(shape) - 1
        while outer > 0 and shape[outer] == self.global_shape[outer]:
            outer -= 1
        rows, run = math.prod(shape[:outer]), math.prod(shape[outer:])
        inner = math.prod(self.global_shape[outer:])
        firsts = Rng(0, self.global_shape[:outer], self.starts[:outer]).indices(shape[:outer])
        begin = self.starts[outer] * math.prod(self.global_shape[outer + 1 :])
        firsts = firsts.reshape(rows) * np.uint64(inner) + np.uint64(begin)
        words = np.empty((2, rows, run), np.uint32)
        key, fold = self.seed & 0xFFFFFFFF, (self.seed >> 32) & 0xFFFFFFFF
        fill_words(words[0], words[1], firsts, np.uint32(key), np.uint32(fold))
        return words[0].reshape(shape), words[1].reshape(shape)

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """float64 in [0, 1), 53 bits."""
        high, low = self.words(shape)
        bits = (high.astype(np.uint64) << np.uint64(21)) ^ (low.astype(np.uint64) >> np.uint64(11))
        unit: np.ndarray[Any, Any] = bits.astype(np.float64) * 2.0**-53
        return unit

    def normal(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """float64, standard normal: Box and Muller, Ann. Math. Stat. 29(2), 1958."""
        high, low = self.words(shape)
        radius = np.sqrt(-2.0 * np.log((high.astype(np.float64) + 1.0) * 2.0**-32))
        return radius * np.cos(low.astype(np.float64) * (2.0 * np.pi * 2.0**-32))


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


def mix_seed(*parts: int) -> int:
    """One well-mixed 64-bit seed of several integers (splitmix64 over the parts)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & 0xFFFFFFFFFFFFFFFF)) & 0xFFFFFFFFFFFFFFFF
        state = (state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state
