"""The random numbers of a graph: which generators `build` calls, how often, and where they are at
each step.

Eagerly each random op makes one call of a generator. A graph's step makes as many: those of `build`
once for each micro-batch, one after the other, then those of the optimizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oneflow.core.errors import GraphError
from oneflow.core.rng import Draws, Randomness, draw_id
from oneflow.distributed.world import world
from oneflow.functional.random_state import Generator, default_generator

if TYPE_CHECKING:
    from collections.abc import Sequence


class DrawCounter:
    """Numbers the draws of a build that is traced, and puts the generators back to where they
    were: tracing draws nothing.
    """

    def __init__(self) -> None:
        self._generators: list[Generator] = []
        self._starts: list[tuple[int, int]] = []
        self._each: list[int] = []
        self.is_after_pieces = False
        self.know(default_generator)
        self.counts: tuple[tuple[Generator, int, int], ...] = ()
        """Generator, calls by each micro-batch, calls once after them; of those that are called."""

    def know(self, generator: Generator) -> int:
        """Its number; where it is now is where the trace began, for one that is new."""
        for index, known in enumerate(self._generators):
            if known is generator:
                return index
        self._generators.append(generator)
        self._starts.append(generator.position)
        if self.is_after_pieces:
            self._each.append(0)
        return len(self._generators) - 1

    def draw(self, generator: Generator) -> int:
        """Return what stands for the seed of the next random op."""
        index = self.know(generator)
        generator.skip(1)
        seed, calls = generator.position
        before = self._starts[index][1] + (self._each[index] if self.is_after_pieces else 0)
        if seed != self._starts[index][0] or calls <= before:
            raise GraphError(
                "a generator was set to another state inside build(), which is traced once and "
                "run many times; set it before the graph is called"
            )
        return draw_id(index, calls - before, once=self.is_after_pieces)

    def end_pieces(self) -> None:
        """Draw from here on once a step, not by each micro-batch."""
        self._each = [g.position[1] - start for g, (_, start) in self._pairs()]
        self.is_after_pieces = True

    def close(self) -> None:
        """The trace is over."""
        if not self.is_after_pieces:
            self.end_pieces()
        self.counts = tuple(
            (g, each, g.position[1] - start - each)
            for (g, (_, start)), each in zip(self._pairs(), self._each, strict=True)
        )
        self.restore()

    def restore(self) -> None:
        """The generators are where they were before."""
        for generator, start in self._pairs():
            generator.move_to(start)

    def _pairs(self) -> list[tuple[Generator, tuple[int, int]]]:
        return list(zip(self._generators, self._starts, strict=True))


class GraphRandomness:
    """Calls the generators of a compiled graph.

    name: of the graph.  counts: see DrawCounter.  ranks: those that the graph spans, if it draws
    global tensors on more than one: as eagerly, the generator of the first rank of an op's
    placement counts, so they must know of one another. Ranks that call different graphs at once
    get a DesyncError.
    """

    def __init__(
        self,
        name: str,
        counts: Sequence[tuple[Generator, int, int]],
        num_pieces: int,
        ranks: Sequence[int],
    ) -> None:
        self._what = f"random numbers of graph {name}"
        self._counts = counts
        self._num_pieces = num_pieces
        self._ranks = tuple(ranks)

    def default_counts(self) -> list[int]:
        """Calls of the default generator: by each micro-batch, and once after them. Raises
        GraphError if another one is called.
        """
        ((generator, each, once), *others) = self._counts
        if others or generator is not default_generator:
            raise GraphError(f"{self._what}: only those of the default generator can be saved")
        return [each, once]

    def now(self) -> Randomness:
        """Return the randomness of a step that begins now; all ranks of the graph call it."""
        own = tuple(Draws(*g.position, each, once) for g, each, once in self._counts)
        if len(self._ranks) < 2:
            return Randomness(own)
        return Randomness(own, self._of_others(own))

    def skip_step(self) -> None:
        """A step was run."""
        for generator, each, once in self._counts:
            generator.skip(Draws(0, 0, each, once).calls_of_step(self._num_pieces))

    def _of_others(self, own: tuple[Draws, ...]) -> dict[int, tuple[Draws, ...]]:
        here = world()
        if here.rank not in self._ranks:
            return {}
        mine = np.array([(d.seed, d.calls) for d in own], np.uint64).reshape(-1)
        found = here.collectives(self._ranks).all_gather(mine, what=self._what)
        positions = found.reshape(len(self._ranks), -1, 2)
        return {
            rank: tuple(
                d._replace(seed=int(seed), calls=int(calls))
                for d, (seed, calls) in zip(own, at, strict=True)
            )
            for rank, at in zip(self._ranks, positions, strict=True)
        }
