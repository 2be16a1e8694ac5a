"""Seeds, and draws of a graph from its generators: numbers without arrays (rng.py makes those)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from oneflow.core.errors import InternalError

_NUMBER_BITS = 32
_ONCE = 1 << 31


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
    calls it `each` times, and the ops that follow them, of optimizers for instance, `once` times.
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
