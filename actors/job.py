"""A plan bound to this rank and run step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

from oneflow.actors import running_jobs
from oneflow.actors.bind import BoundPlan, Peers, bind, shared_nbytes
from oneflow.actors.bus import Bus
from oneflow.actors.executor import Executor
from oneflow.actors.gpu_faults import explained, is_out_of_memory
from oneflow.actors.rank_memory import plan_memory
from oneflow.actors.segment import Segment
from oneflow.actors.tracing import record_as_configured
from oneflow.boxing.transport.rendezvous import Check
from oneflow.core.draws import Randomness
from oneflow.core.errors import GraphError, InternalError
from oneflow.core.job_config import DEFAULT, BindOptions
from oneflow.core.plan import Plan
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import Hardware, hardware_for


class Fabric(Protocol):
    """The connection of the ranks of one job: shared memory and a bus."""

    peers: Peers
    bus: Bus | None

    def close(self) -> None: ...


class Alone:
    """A job of one rank: nobody to share with."""

    bus: Bus | None = None

    def __init__(self, buffer: Array) -> None:
        self.peers: Peers = self
        self._buffer = buffer

    def shared(self, rank: int) -> Array:
        return self._buffer

    def collectives(self, ranks: tuple[int, ...]) -> NoReturn:
        raise InternalError(f"a job of one rank has no collectives of {list(ranks)}")

    def close(self) -> None:
        return


OpenFabric = Callable[[Plan, int], Fabric]


class Job:
    """variables: name -> array of this rank's part, read and overwritten in place.

    open_fabric: makes the connections to the other ranks of the plan; None if there are none.
    check: see Executor.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        variables: Mapping[str, Any],
        *,
        open_fabric: OpenFabric | None = None,
        check: Check | None = None,
        timeout_s: float = 300.0,
        device_index: int = 0,
        options: BindOptions = DEFAULT,
    ) -> None:
        self._hardware = hardware = hardware_for(plan.device_type, device_index)
        try:
            self._fabric = open_fabric(plan, rank) if open_fabric else _alone(plan, rank, hardware)
            self.bound: BoundPlan = bind(
                plan, rank, hardware, self._fabric.peers, variables, options=options
            )
        except Exception as error:
            if is_out_of_memory(error):
                segments = plan_memory(plan, rank, hardware, options).segments
                self._raise_explained(error, plan, rank, segments)
            raise
        self.executor = Executor(self.bound, self._fabric.bus, check, timeout_s, options.overlap)
        self.calls = 0
        """Steps begun."""
        self._is_broken = False
        self._turn = threading.Lock()
        running_jobs.add(self)
        record_as_configured(self.executor, rank)

    def run(self, feeds: Mapping[str, Any]) -> dict[int, Any]:
        """One step. feeds: input name -> array of this rank's part. Returns output index ->
        array of this rank's part. Threads take turns.
        """
        with self._turn:
            if self._is_broken:
                raise GraphError(
                    "a graph that failed in an earlier step cannot go on: make a new one"
                )
            self._hardware.use()
            self.bound.feed.arrays = feeds
            self.bound.fetch.arrays = {}
            self._is_broken = True
            self.calls += 1
            try:
                self.executor.run_step()
            except Exception as error:
                if self._hardware.kind != "cpu":
                    bound = self.bound
                    self._raise_explained(error, bound.plan, bound.rank, bound.memory.segments)
                raise
            self.bound.clock.draw_anew()
            self._is_broken = False
            return self.bound.fetch.arrays

    def rebind(self, arrays: Mapping[str, Any]) -> None:
        """Read and overwrite other arrays as these variables from the next step on."""
        with self._turn:
            self.bound.rebind(arrays)

    def _raise_explained(
        self, error: Exception, plan: Plan, rank: int, segments: Mapping[int, Segment]
    ) -> None:
        ours = explained(error, plan, rank, segments)
        if ours is not None:
            raise ours from error

    @property
    def step(self) -> int:
        """Steps done."""
        return self.bound.clock.step

    @step.setter
    def step(self, value: int) -> None:
        self.bound.clock.step = value

    def draw(self, randomness: Randomness) -> None:
        """Set where the generators are before the next step; each step moves them on."""
        self.bound.clock.randomness = randomness

    def sample_latency(self) -> None:
        """Put the latency of a bus that can tell it when asked into the counters."""
        sample = getattr(self._fabric.bus, "sample_latency", None)
        if sample is not None:
            sample()

    def close(self) -> None:
        """Gives the shared memory back."""
        running_jobs.remove(self)
        self.executor.close()
        self._fabric.close()


def _alone(plan: Plan, rank: int, hardware: Hardware) -> Fabric:
    return Alone(hardware.allocate(max(shared_nbytes(plan, rank), 1)))
