"""Steps of a plan in virtual time: real actors of all ranks, kernels that take as long as told."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oneflow.actors.bind import BoundActor
from oneflow.actors.in_process import InProcessCluster
from oneflow.core.plan import ActorSpec, Plan


class _Bus:
    """Delivers messages `latency` after the sender has sent them."""

    def __init__(self, rank: int, buses: dict[int, _Bus], latency: float) -> None:
        self.now, self._rank, self._buses, self._latency = 0.0, rank, buses, latency
        self._inbox: list[tuple[float, int, int, int]] = []
        self._count = 0
        buses[rank] = self

    def post(self, rank: int, code: int) -> None:
        self._count += 1
        entry = self.now + self._latency, self._rank, self._count, code
        heapq.heappush(self._buses[rank]._inbox, entry)

    def poll(self) -> list[tuple[int, int]]:
        arrived = []
        while self._inbox and self._inbox[0][0] <= self.now:
            _, sender, _, code = heapq.heappop(self._inbox)
            arrived.append((sender, code))
        return arrived

    @property
    def next_arrival(self) -> float:
        return self._inbox[0][0] if self._inbox else float("inf")

    def flush(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> None: ...

    def close(self) -> None: ...


class VirtualCluster:
    """All ranks of a plan.  seconds: of an act of an actor.  latency: of a message between ranks.

    acts: (rank, actor id, begin, end) of every act so far.
    """

    def __init__(
        self,
        plan: Plan,
        variables: Sequence[Mapping[str, Any]],
        seconds: Callable[[ActorSpec], float],
        latency: float = 0.0,
    ) -> None:
        self._cluster = InProcessCluster(plan, variables)
        self.acts: list[tuple[int, int, float, float]] = []
        self._buses: dict[int, _Bus] = {}
        for rank, executor in enumerate(self._cluster.executors):
            executor._bus = bus = _Bus(rank, self._buses, latency)
            for bound in executor.bound.actors.values():
                bound.kernel = self._timed(bound, bus, rank, seconds(bound.spec))

    def _timed(self, bound: BoundActor, bus: _Bus, rank: int, seconds: float) -> Any:
        kernel = bound.kernel

        def run(in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> None:
            begin = bus.now
            kernel(in_slots, out_slots)
            bus.now += seconds
            self.acts.append((rank, bound.spec.id, begin, bus.now))

        return run

    def step(self, feeds: Sequence[Mapping[str, Any]]) -> float:
        """One step. Returns the time at which the last act has ended since the step began."""
        executors, buses = self._cluster.executors, self._buses
        start = max(bus.now for bus in buses.values())
        for bus in buses.values():
            bus.now = start
        for executor, given in zip(executors, feeds, strict=True):
            executor.bound.feed.arrays, executor.bound.fetch.arrays = given, {}
            executor.begin_step()
        idle: set[int] = set()

        def due(rank: int) -> float:
            bus = buses[rank]
            return max(bus.now, bus.next_arrival) if rank in idle else bus.now

        while not all(e.is_done for e in executors):
            rank = min(buses, key=lambda r: (due(r), r))
            if due(rank) == float("inf"):
                reports = "\n".join(e.report() for e in executors)
                raise AssertionError(f"no rank can go on:\n{reports}")
            buses[rank].now = due(rank)
            if executors[rank].advance(1):
                idle.discard(rank)
            else:
                idle.add(rank)
        return max(end for *_, end in self.acts) - start
