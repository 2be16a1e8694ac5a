"""A profile of a graph: the acts and kernels of some steps, as a trace and as sums."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oneflow.actors.tracing import Trace, file_name
from oneflow.core.errors import GraphError
from oneflow.core.machine_peak import measured_peak
from oneflow.distributed.world import world
from oneflow.services.kernel_sums import GROUPS, KERNEL, KernelSums
from oneflow.services.kernel_sums import SHOWN as KERNELS_SHOWN
from oneflow.services.traces import TraceReader

if TYPE_CHECKING:
    from oneflow.actors.executor import Executor

SHOWN = 8
"""Actors in the text of a profile: those that took longest."""


@dataclass(frozen=True)
class ActorTime:
    """Acts of one actor on this rank, and the seconds of them together."""

    name: str
    acts: int
    seconds: float


@dataclass(frozen=True)
class Sums:
    """The events of one file. waits: seconds by cause. kernels: by op, module, line and kernel."""

    steps: int
    actors: list[ActorTime]
    waits: dict[str, float]
    kernels: KernelSums


class GraphProfile:
    """The acts of a graph on this rank in some steps, recorded while they run.

    Each rank writes `path`, which ui.perfetto.dev shows: a row for each actor with a slice for each
    kernel, arrows along the registers, and a row of waits with their causes. `oneflow trace merge`
    puts ranks together. The text has a table of the time by op, module, source line and kernel,
    each beside the most that this machine was measured to do.
    """

    def __init__(self, graph: str, steps: int, folder: str | Path) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"Graph.profile: steps must be an int of at least 1, got {steps!r}")
        self._graph, self._steps, self._folder = graph, steps, Path(folder)
        self._trace: Trace | None = None
        self._sums: Sums | None = None
        self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def path(self) -> Path:
        """The file of this rank; it is there once the steps were done, or `close` was called."""
        return self._folder / file_name(world().rank)

    @property
    def is_open(self) -> bool:
        """Whether steps are still to be recorded."""
        return self._trace is None or self._trace.is_open

    def record(self, executor: Executor) -> None:
        """Record the executor's next steps. Raises GraphError if something else records them."""
        if executor.recorder is not None:
            raise GraphError(
                f"Graph.profile: the steps of graph {self._graph} are recorded already, by "
                "another profile or because of ONEFLOW_TRACE; end that first"
            )
        header = {"job": self._graph, "attempt": 1, "world_size": world().world_size}
        header |= {"trace": f"{self._graph}.1"}
        self._trace = Trace(self._folder, world().rank, steps=self._steps, header=header)
        self._trace.record(executor)

    def close(self) -> Path:
        """End the recording between two steps, wait for the file and return its path.

        Raises GraphError if no step has begun, or the file could not be written.
        """
        trace = self._trace
        if trace is None:
            raise GraphError(f"the profile of graph {self._graph} is empty: it was not called")
        trace.close()
        if trace.state == "failed":
            raise GraphError(f"the profile of graph {self._graph} is lost: {trace.error}")
        return self.path

    def sums(self) -> Sums:
        """Time by kernel, by actor, longest first, and by the awaited actor; ends the
        recording.
        """
        if self._sums is None:
            self._sums = _sums(self.close())
        return self._sums

    def table(self, by: str = "op", most: int | None = None) -> str:
        """The kernels by "op", "module", "line" or "kernel", per step. most: rows; None: all."""
        sums = self.sums()
        return sums.kernels.table(by, sums.steps, measured_peak(), most)

    def __str__(self) -> str:
        sums = self.sums()
        tables = [self.table(group, KERNELS_SHOWN) for group in GROUPS]
        return "\n\n".join([*(tables if sums.kernels.seconds else ()), _text(sums)])


def _text(sums: Sums) -> str:
    """The lines of actors and of waits."""
    per_step = 1e3 / max(sums.steps, 1)
    lines = [f"{'ms a step':>10}  {'acts':>6}  actor"]
    lines += [
        f"{actor.seconds * per_step:10.3f}  {actor.acts:6}  {actor.name}"
        for actor in sums.actors[:SHOWN]
    ]
    if len(sums.actors) > SHOWN:
        lines.append(f"{'':10}  {'':6}  and {len(sums.actors) - SHOWN} more")
    lines += [
        f"{seconds * per_step:10.3f}  {'':6}  waiting for {cause}"
        for cause, seconds in sorted(sums.waits.items(), key=lambda item: -item[1])
    ]
    return "\n".join(lines)


def _sums(path: Path) -> Sums:
    acts: dict[str, list[float]] = defaultdict(list)
    waits: dict[str, float] = defaultdict(float)
    steps = set()
    kernels = KernelSums()
    reader = TraceReader(path)
    try:
        for event in reader.events():
            if event["ph"] != "X":
                continue
            seconds = event["dur"] * 1e-6
            if event["cat"] == "wait":
                waits[event["name"]] += seconds
            elif event["cat"] == KERNEL:
                kernels.add(event["name"], seconds, event["args"])
            else:
                acts[event["name"]].append(seconds)
                if event["cat"] != "beside":
                    steps.add(event["args"]["step"])
    finally:
        reader.close()
    actors = [ActorTime(name, len(all_), sum(all_)) for name, all_ in acts.items()]
    return Sums(len(steps), sorted(actors, key=lambda a: -a.seconds), dict(waits), kernels)
