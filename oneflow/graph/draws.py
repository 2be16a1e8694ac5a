"""The random numbers of a graph: which generators `build` calls, how often, and where they are at
each step.

Eagerly each random op makes one call of a generator. A graph's step makes as many: those of `build`
once for each micro-batch, one after the other, then those of the optimizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from oneflow.core.draws import Draws, Randomness, draw_id
from oneflow.core.errors import GraphError
from oneflow.distributed.world import world
from oneflow.functional.random_state import Generator, default_generator

if TYPE_CHECKING:
    from collections.abc import Sequence

Position = tuple[int, int]
"""The seed of a generator, and the calls made since."""


class DrawCounter:
    """Numbers the draws of a build that is traced, and puts the generators back to where they
    were: tracing draws nothing.
    """

    def __init__(self) -> None:
        self._generators: list[Generator] = []
        self._starts: list[tuple[int, int]] = []
        self._each: list[int] = []
        self.is_after_pieces = False
        self._default_start = default_generator.position
        self.counts: tuple[tuple[Generator, int, int], ...] = ()
        """Generator, calls by each micro-batch, calls once after them; of those that are called."""

    def know(self, generator: Generator) -> int:
        """Its number; where it is now is where the trace began, for one that is new."""
        for index, known in enumerate(self._generators):
            if known is generator:
                return index
        is_default = generator is default_generator
        self._generators.append(generator)
        self._starts.append(self._default_start if is_default else generator.position)
        if self.is_after_pieces:
            self._each.append(0)
        return len(self._generators) - 1

    def draw(self, generator: Generator) -> int:
        """Return the number that stands for the seed of the next random op."""
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
        self._know_default_if_moved()
        self._each = [g.position[1] - start for g, (_, start) in self._pairs()]
        self.is_after_pieces = True

    def close(self) -> None:
        """The trace is over."""
        if not self.is_after_pieces:
            self.end_pieces()
        self._know_default_if_moved()
        self.counts = tuple(
            (g, each, g.position[1] - start - each)
            for (g, (_, start)), each in zip(self._pairs(), self._each, strict=True)
        )
        self.restore()

    def restore(self) -> None:
        """The generators are where they were before."""
        for generator, start in self._pairs():
            generator.move_to(start)

    def _know_default_if_moved(self) -> None:
        """A host's draw, which asks nobody for its number, has moved the generator, too."""
        if default_generator.position != self._default_start:
            self.know(default_generator)

    def _pairs(self) -> list[tuple[Generator, tuple[int, int]]]:
        return list(zip(self._generators, self._starts, strict=True))


_agreed: WeakKeyDictionary[Generator, dict[tuple[int, ...], list[Position]]] = WeakKeyDictionary()
"""The positions of a generator on some ranks, as they told each other and moved on since."""


class GraphRandomness:
    """Calls the generators of a compiled graph.

    name: of the graph.  counts: see DrawCounter.  ranks: those that the graph spans, if it draws
    global tensors on more than one: as eagerly, the generator of the first rank of an op's
    placement counts, so they must know of one another.

    They tell each other here, when the graph is compiled, and from then on count the calls of each
    other's steps. Where a generator was used or seeded between two steps they tell each other anew,
    so all ranks must have done that; no other step waits for an exchange. Ranks that call different
    graphs then get a DesyncError, and so do ranks of which only some used the generator.
    """

    def __init__(
        self,
        name: str,
        counts: Sequence[tuple[Generator, int, int]],
        num_pieces: int,
        ranks: Sequence[int],
    ) -> None:
        self._name = name
        self._counts = counts
        self._num_pieces = num_pieces
        self._ranks = tuple(ranks)
        self._agree()

    @property
    def calls_default(self) -> bool:
        return any(generator is default_generator for generator, _, _ in self._counts)

    def default_counts(self) -> list[int]:
        """Calls of the default generator: by each micro-batch, and once after them. Raises
        GraphError if another one is called.
        """
        ((generator, each, once), *others) = self._counts
        if others or generator is not default_generator:
            raise GraphError(
                f"random numbers of graph {self._name}: only those of the default generator can "
                "be saved"
            )
        return [each, once]

    def now(self) -> Randomness:
        """Return the randomness of a step that begins now; all ranks of the graph call it."""
        own = tuple(Draws(*g.position, each, once) for g, each, once in self._counts)
        if not self._shares:
            return Randomness(own)
        tables = self._agree()
        by_rank = {
            rank: tuple(Draws(*t[i], d.each, d.once) for d, t in zip(own, tables, strict=True))
            for i, rank in enumerate(self._ranks)
        }
        return Randomness(own, by_rank)

    def skip_step(self) -> None:
        """A step was run."""
        for generator, each, once in self._counts:
            calls = Draws(0, 0, each, once).calls_of_step(self._num_pieces)
            generator.skip(calls)
            table = _agreed.get(generator, {}).get(self._ranks, [])
            table[:] = [(seed, before + calls) for seed, before in table]

    @property
    def _shares(self) -> bool:
        """Whether another rank draws with this one."""
        return len(self._ranks) > 1 and world().rank in self._ranks

    def _agree(self) -> list[list[Position]]:
        """Return the positions of each generator on all ranks, which exchange them if one of this
        rank is not where they know it to be.
        """
        if not self._shares:
            return []
        here, generators = world(), [g for g, _, _ in self._counts]
        index = self._ranks.index(here.rank)
        known = [_agreed.setdefault(g, {}).setdefault(self._ranks, []) for g in generators]
        if all(t and t[index] == g.position for t, g in zip(known, generators, strict=True)):
            return known
        mine = np.array([g.position for g in generators], np.uint64).reshape(-1)
        why = ", moved since its last step" if all(known) else ""
        what = f"random numbers of graph {self._name}{why}"
        found = here.collectives(self._ranks).all_gather(mine, what=what)
        told = found.reshape(len(self._ranks), len(generators), 2).tolist()
        for k, table in enumerate(known):
            table[:] = [(seed, calls) for seed, calls in (of_rank[k] for of_rank in told)]
        return known
