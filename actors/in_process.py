"""All ranks of a plan in one process, run in turn by one thread: the same actors, boxing and
registers, without sockets or shared memory.

Good for tests, for looking at a distributed plan in a debugger, and for trying a layout on a
laptop.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from oneflow.actors.bind import BoundPlan, bind, shared_nbytes
from oneflow.actors.bus import InProcessBus
from oneflow.actors.executor import Executor
from oneflow.core.draws import Randomness
from oneflow.core.errors import GraphError, HangError
from oneflow.core.job_config import DEFAULT, BindOptions
from oneflow.core.plan import Plan
from oneflow.kernels.array import aligned_buffer
from oneflow.kernels.hardware import Cpu


class _Memory:
    """Shared registers of every rank, as plain arrays."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._buffers: dict[int, np.ndarray[Any, Any]] = {}

    def shared(self, rank: int) -> np.ndarray[Any, Any]:
        if rank not in self._buffers:
            self._buffers[rank] = aligned_buffer(max(shared_nbytes(self._plan, rank), 1))
        return self._buffers[rank]

    def collectives(self, ranks: tuple[int, ...]) -> NoReturn:
        raise GraphError(
            "ranks that one thread runs in turn cannot wait in a collective: compile without "
            "lower_all_reduce"
        )


class InProcessCluster:
    """variables: per rank, name -> array of its part, overwritten in place.

    seed: shuffles which rank moves next, so that many interleavings can be tried; None: in turn.
    """

    def __init__(
        self,
        plan: Plan,
        variables: Sequence[Mapping[str, Any]],
        seed: int | None = None,
        options: BindOptions = DEFAULT,
    ) -> None:
        inboxes: dict[int, deque[tuple[int, int]]] = {}
        memory, hardware = _Memory(plan), Cpu()
        self._random = random.Random(seed) if seed is not None else None
        self.executors: list[Executor] = []
        for rank in range(plan.world_size):
            bus = InProcessBus(rank, inboxes)
            bound = bind(plan, rank, hardware, memory, variables[rank], options=options)
            self.executors.append(Executor(bound, bus))

    def draw(self, randomness: Randomness) -> None:
        """Set where the generators are before the next step; each step moves them on."""
        for executor in self.executors:
            executor.bound.clock.randomness = randomness

    @property
    def bound(self) -> list[BoundPlan]:
        return [e.bound for e in self.executors]

    def step(self, feeds: Sequence[Mapping[str, Any]]) -> list[dict[int, Any]]:
        """One step on every rank. Returns the outputs of each. Raises HangError if the actors
        cannot go on.
        """
        for executor, given in zip(self.executors, feeds, strict=True):
            executor.bound.feed.arrays = given
            executor.bound.fetch.arrays = {}
            executor.begin_step()
        while not all(e.is_done for e in self.executors):
            if not any([e.advance() for e in self._turns()]):
                reports = "\n".join(f"rank {e.bound.rank}:\n{e.report()}" for e in self.executors)
                raise HangError(f"no rank can go on:\n{reports}")
        for executor in self.executors:
            executor.bound.clock.step += 1
            executor.bound.clock.draw_anew()
        return [e.bound.fetch.arrays for e in self.executors]

    def _turns(self) -> list[Executor]:
        turns = list(self.executors)
        if self._random is not None:
            self._random.shuffle(turns)
        return turns
