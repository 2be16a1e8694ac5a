"""Counter-based random numbers over the global element index: Philox2x32-10.

Element i of a random tensor depends on (seed, i) alone, never on who computes it. So a shard holds
exactly the elements that the whole tensor would have there, whatever the placement, SBP or number
of ranks. Philox: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
2011.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from oneflow.core.errors import InternalError

COMPILED_FROM = 1 << 14
"""Elements from which the compiled loop of philox.py is worth its import."""

_NUMBER_BITS = 32
_ONCE = 1 << 31

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
    from oneflow.core.philox import fill_words

    words = np.empty((2, firsts.size, length), np.uint32)
    key, fold = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    fill_words(words[0], words[1], firsts, np.uint32(key), np.uint32(fold))
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


# ---- draws of a graph ----------------------------------------------------------------------------


def draw_id(generator: int, number: int, *, once: bool = False) -> int:
    """Return the `seed` of a random op in a graph, where each step has another one: draw `number`,
    from 1, of the graph's generator `generator`, from 0.

    once: made once a step, after all micro-batches, as in an optimizer, not by each of them.
    """
    return generator << _NUMBER_BITS | (_ONCE if once else 0) | number


def is_drawn_once(draw: int) -> bool:
    """Is it made once a step, not by each micro-batch?"""
    return bool(draw & _ONCE)


class Draws(NamedTuple):
    """A generator of a graph: `seed` and `calls` say where it is before a step; each micro-batch
    calls it `each` times, and what follows them, such as optimizers, `once` times.
    """

    seed: int
    calls: int
    each: int
    once: int = 0

    def calls_of_step(self, num_pieces: int) -> int:
        """Calls that one step makes."""
        return num_pieces * self.each + self.once

    def has(self, draw: int) -> bool:
        """Is it a draw of this generator?"""
        return 0 < draw % _ONCE <= (self.once if is_drawn_once(draw) else self.each)


class DrawnSeed(NamedTuple):
    """A seed that an act of a graph asks for.

    draw: see `draw_id`.  rank: the first of the op's placement.  piece: the micro-batch it draws
    as; -1: the one whose act it is.
    """

    draw: int
    rank: int
    piece: int

    @property
    def generator(self) -> int:
        """The number of its generator."""
        return self.draw >> _NUMBER_BITS

    def row(self, num_pieces: int) -> tuple[int, int]:
        """(micro-batches before it, its number among the calls of one)."""
        once = is_drawn_once(self.draw)
        return num_pieces if once else self.piece, self.draw % _ONCE


@dataclass(frozen=True)
class Randomness:
    """The generators of a graph before one of its steps, in the order of their numbers.

    by_rank: those of ranks whose generators are elsewhere than `generators`, by rank.
    """

    generators: tuple[Draws, ...] = ()
    by_rank: Mapping[int, tuple[Draws, ...]] = field(default_factory=dict)

    def seed(self, draw: int, piece: int, num_pieces: int, rank: int = 0) -> int:
        """The seed of a draw: that of the call that the same op makes where the micro-batches are
        run eagerly, one after the other.

        rank: the first of the op's placement, whose generator counts.
        """
        known = self.of(draw >> _NUMBER_BITS, rank)
        source, number = DrawnSeed(draw, rank, piece).row(num_pieces)
        return mix_seed(known.seed, known.calls + source * known.each + number)

    def of(self, generator: int, rank: int = 0) -> Draws:
        """The place of a generator, by its number. rank: as for `seed`."""
        generators = self.by_rank.get(rank, self.generators)
        if generator >= len(generators):
            raise InternalError(f"a draw is of generator {generator}, there are {len(generators)}")
        return generators[generator]

    def has(self, draw: int) -> bool:
        """Is it a draw of one of these generators?"""
        index = draw >> _NUMBER_BITS
        return 0 <= index < len(self.generators) and self.generators[index].has(draw)

    def after(self, steps: int, num_pieces: int) -> Randomness:
        """So many steps later."""

        def moved(generators: tuple[Draws, ...]) -> tuple[Draws, ...]:
            return tuple(
                g._replace(calls=g.calls + steps * g.calls_of_step(num_pieces)) for g in generators
            )

        return Randomness(
            moved(self.generators), {rank: moved(g) for rank, g in self.by_rank.items()}
        )
