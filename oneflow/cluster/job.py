"""A job of a cluster, as its owner sees it. It holds only an id: it can be made anew anywhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.cluster.connection import Connection, Retries
from oneflow.cluster.logs import LogBlock, LogReader, last_lines
from oneflow.cluster.logs import LogLine as LogLine
from oneflow.cluster.tracing import RankTrace as RankTrace
from oneflow.cluster.tracing import Traces
from oneflow.cluster.values import OutputFile, arrays_of, tensor_message, tensor_of
from oneflow.core.errors import (
    ClusterRequestError,
    ClusterUnreachableError,
    StillActiveError,
)
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.specs import record_from_proto

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

    from oneflow.tensor.tensor import Tensor

    Array = np.ndarray[Any, Any]

MAX_REQUEST_NBYTES = (4 << 20) - (16 << 10)
DEBUG_S = 120.0  # thousands of ranks are not asked all at once
LOOK_S = 0.5  # between looks at a job whose stream ended early


@dataclass(frozen=True)
class MetricPoint:
    """The report of a job at one step. at: seconds since the epoch.

    index: counts all its points; where it jumps within an attempt, those between were left out: of
    more than a thousand a second, of a curve of more than 10,000 points, or of a very long absence.
    """

    index: int
    attempt: int
    step: int
    at: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class RankWaits:
    """The waits of the actors of one rank of a graph job.

    waiting: the actor that is held back now, and by what.  shares: "<kind of actor> <cause>" ->
    share of the last second in which the rank was idle because of it; the cause is no_input (of
    another rank) or no_free_register (the reader of its output is slow).
    """

    rank: int
    waiting: str
    shares: Mapping[str, float]


@dataclass(frozen=True)
class RankDebug:
    """The present act of a rank. phase: as the scheduler sees it. error: why there is no text."""

    rank: int
    host: str
    phase: str
    text: str
    error: str


@dataclass(frozen=True)
class Executed:
    """The end of a command beside a rank. note: why it was ended; "": it ended itself."""

    exit_code: int
    note: str


class Job:
    """A job by its id. Every method may raise ClusterUnreachableError, AuthError and
    ClusterRequestError (there is no such job).
    """

    def __init__(self, connection: Connection, job_id: str) -> None:
        self.id = job_id
        self._connection = connection

    def __repr__(self) -> str:
        return f"<Job {self.id} at {self._connection.address}>"

    # ---- state -----------------------------------------------------------------------------------

    def status(self) -> JobRecord:
        """Return the scheduler's record of the job now."""
        return self._ask("Get")

    def cancel(self) -> JobRecord:
        """Ends it; returns at once, in state CANCELLING unless it had not begun. Idempotent."""
        return self._ask("Cancel")

    def restart(self) -> JobRecord:
        """Queues a job that ended again, from its last checkpoint."""
        return self._ask("Restart")

    def hold(self) -> JobRecord:
        """Keeps a job that waits from being started, until it is released. Idempotent."""
        return self._change(pb.ChangeRequest(job_id=self.id, is_held=True))

    def release(self) -> JobRecord:
        """Lets a job that is held be started. Idempotent."""
        return self._change(pb.ChangeRequest(job_id=self.id, is_held=False))

    def set_priority(self, priority: int) -> JobRecord:
        """Gives a job that has not ended another priority; it counts while the job waits."""
        return self._change(pb.ChangeRequest(job_id=self.id, priority=priority))

    def _change(self, request: pb.ChangeRequest) -> JobRecord:
        return record_from_proto(self._connection.call("Jobs", "Change", request))

    def remove(self) -> None:
        """Forgets a job that ended, with its logs and files."""
        self._connection.call("Jobs", "Remove", pb.JobRequest(job_id=self.id))

    def wait(
        self, timeout: float | None = None, on_change: Callable[[JobRecord], None] | None = None
    ) -> JobRecord:
        """Return the record in its final state. on_change: called with it as it is now,
        and after every change.

        timeout: seconds. Raises StillActiveError (a TimeoutError) when they are over.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for record in self.watch(timeout):
            if on_change is not None:
                on_change(record)
            if record.state.is_final:
                return record
        record = self.status()
        if record.state.is_final:
            return record
        assert deadline is not None  # without one, watch() ends with a final state only
        raise StillActiveError(
            f"gave up waiting for job {self.id} after {timeout:g} s: it is {record.state}"
            + (f" ({record.pending})" if record.pending else "")
        )

    def watch(self, timeout: float | None = None) -> Iterator[JobRecord]:
        """Its record, and again after every change; ends after a final state or the timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        retries = self._connection.retries()
        while deadline is None or time.monotonic() < deadline:
            left_s = None if deadline is None else deadline - time.monotonic()
            request = pb.JobRequest(job_id=self.id)
            try:
                for message in self._connection.stream("Jobs", "Watch", request, left_s, retries):
                    record = record_from_proto(message)
                    yield record
                    if record.state.is_final:
                        return
                time.sleep(LOOK_S)  # ended early: the scheduler is going away
            except ClusterUnreachableError as error:
                if deadline is None or time.monotonic() < deadline:
                    retries.pause(error, deadline)

    def _ask(self, method: str) -> JobRecord:
        return record_from_proto(
            self._connection.call("Jobs", method, pb.JobRequest(job_id=self.id))
        )

    # ---- what it says ----------------------------------------------------------------------------

    def metrics(self, follow: bool = True, start: int = 0) -> Iterator[MetricPoint]:
        """Yield the points that the job reports at its steps, from the beginning. follow: on until
        it ends.

        Of the points reported by now each step comes once: after a resume the steps that were done
        again are those of the later attempt, as in metrics.jsonl. Later points come as they are
        reported; if the job is resumed meanwhile, steps come again, of a larger `attempt`.

        start: index of the first point wanted. A restart of the scheduler is not noticed.
        """
        retries = self._connection.retries()
        yield from curve_of(known := list(self._points(start, retries)))
        if known:
            start = known[-1].index + 1
        while follow:
            for point in self._points(start, retries, follow=True):
                start = point.index + 1
                yield point
            if self.status().state.is_final:  # then once more, for what came last
                yield from self._points(start, retries)
                return

    def _points(self, start: int, retries: Retries, follow: bool = False) -> Iterator[MetricPoint]:
        """Points from an index on, each once; with `follow` until the stream ends."""
        while True:
            request = pb.MetricsRequest(job_id=self.id, follow=follow)
            setattr(request, "from", start)
            try:
                for message in self._connection.stream("Jobs", "Metrics", request, None, retries):
                    if message.index >= start:
                        start = message.index + 1
                        yield _point(message)
                return
            except ClusterUnreachableError as error:
                retries.pause(error)

    def waits(self) -> list[RankWaits]:
        """Return the waits of the actors of each rank of a graph job that runs."""
        found = self._connection.call("Jobs", "Get", pb.JobRequest(job_id=self.id))
        return [RankWaits(w.rank, w.waiting, dict(w.shares)) for w in found.waits]

    def logs(
        self,
        follow: bool = False,
        ranks: tuple[int, ...] = (),
        attempt: int = 0,
        stream: str = "",
        since: float = 0.0,
    ) -> Iterator[LogLine]:
        """Yield the lines that its ranks wrote, of the attempt (0: the last), in the order they
        came.

        follow: on until the job ends, later attempts included, without gaps; of an attempt that is
        named, until it ends.  stream: stdout, stderr, or "" for both.  since: seconds since
        the epoch; earlier lines (to a second) are left out.
        """
        for block in self.log_blocks(follow, ranks, attempt, stream, since):
            yield from block.lines()

    def log_blocks(
        self,
        follow: bool = False,
        ranks: tuple[int, ...] = (),
        attempt: int = 0,
        stream: str = "",
        since: float = 0.0,
        tail: int | None = None,
    ) -> Iterator[LogBlock]:
        """Yield the same in blocks of lines as they came, for reading many of them fast.

        tail: of the lines there are already, so many of each stream of each rank at most.
        """
        reader = LogReader(self._connection, self.id, ranks, attempt, stream, since)
        if tail is not None:
            yield from last_lines(reader.blocks(False, lambda: True), tail)
        if tail is None or follow:
            yield from reader.blocks(follow, lambda: self.status().state.is_final)

    def debug(self, what: str, ranks: tuple[int, ...] = ()) -> Iterator[RankDebug]:
        """Yield, for each rank (none named: all), its stacks, what="stack", or all that its daemon
        knows of it as JSON, what="dump", as they come. A rank that does not answer within 10 s has
        an error.
        """
        request = pb.DebugRequest(job_id=self.id, what=what, ranks=ranks)
        for p in self._connection.stream("Jobs", "Debug", request, DEBUG_S):
            yield RankDebug(p.rank, p.host, p.phase, p.text, p.error)

    def execute(
        self,
        argv: Sequence[str],
        rank: int = 0,
        timeout: float = 600.0,
        on_output: Callable[[str, bytes], None] = lambda stream, data: None,
    ) -> Executed:
        """Run a command beside a rank of a script job, in its folder and with its environment; it
        ends with the rank, or after `timeout` seconds (an hour at most). on_output: told "stdout"
        or "stderr" and its bytes, 4 MiB in all.

        Never repeated: raises ClusterUnreachableError if the line breaks, ClusterRequestError if
        the job does not run.
        """
        request = pb.ExecRequest(job_id=self.id, rank=rank, argv=argv, limit_s=timeout)
        for piece in self._connection.stream("Jobs", "Exec", request, timeout + DEBUG_S):
            if piece.data:
                on_output(piece.stream, piece.data)
            if piece.is_last:
                return Executed(piece.exit_code, piece.note)
        raise ClusterUnreachableError(f"job {self.id}: the scheduler went before the command ended")

    # ---- traces ----------------------------------------------------------------------------------

    def start_trace(
        self, steps: int = 0, seconds: float = 0.0, ranks: Sequence[int] = ()
    ) -> list[RankTrace]:
        """Its ranks (none named: all) record every act of so many steps, or for so many seconds, or
        until `stop_trace`; from the same step on. Returns how each of them is.

        Only of graph jobs that train and run now. Raises ClusterRequestError.
        """
        return self._traces.start(steps, seconds, ranks)

    def trace_state(self) -> list[RankTrace]:
        """Return how far the job's ranks are with a trace."""
        return self._traces.ask("look")

    def stop_trace(self, timeout: float = 30.0) -> list[RankTrace]:
        """Ends the trace at the ranks' next meeting; returns when the files are written.

        timeout: seconds. Raises StillActiveError when they are over.
        """
        self._traces.ask("stop")
        return self._traces.wait(timeout)

    def wait_trace(self, timeout: float = 60.0) -> list[RankTrace]:
        """Returns when a trace of so many steps or seconds is over and its files are written.

        timeout: seconds. Raises StillActiveError when they are over.
        """
        return self._traces.wait(timeout)

    def save_traces(self, folder: str | Path, ranks: Sequence[int] = ()) -> list[Path]:
        """Writes the last trace of each rank into `folder`, also of a job that has ended:
        trace-rank0.json.gz, ... Raises ClusterRequestError if there is none.
        """
        return self._traces.save(self.status(), self._names_on, Path(folder), ranks)

    @property
    def _traces(self) -> Traces:
        return Traces(self._connection, self.id)

    def _names_on(self, rank: int) -> list[str]:
        with OutputFile(self._connection, self.id, "", rank=rank) as file:
            return [name for name in file.read().decode().split("\n") if name]

    # ---- what it gives ---------------------------------------------------------------------------

    def output_names(self) -> list[str]:
        """Names of the files that it has left on the node of rank 0."""
        return self._names_on(0)

    def output(self, name: str) -> bytes:
        """One of them, whole."""
        with self._file(name) as file:
            return file.read()

    def chosen_outputs(self, names: Sequence[str] = ()) -> list[str]:
        """The names of the files that it has left, or `names`. Raises ClusterRequestError if there
        is none of a name.
        """
        there_are = self.output_names()
        if missing := [name for name in names if name not in there_are]:
            known = ", ".join(there_are) or "none"
            raise ClusterRequestError(f"job {self.id} has no output {missing[0]!r}: it has {known}")
        return list(names) or there_are

    def save_outputs(self, folder: str | Path, names: Sequence[str] = ()) -> list[Path]:
        """Writes the files that it has left, or those of these names, into `folder`.

        Raises ClusterRequestError if there is none of a name.
        """
        wanted = self.chosen_outputs(names)
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [self._file(name, Path(folder)).save() for name in wanted]

    def outputs(self) -> dict[str, Array]:
        """The last values of its recorded outputs, by name."""
        found: dict[str, Array] = {}
        for name in self.output_names():
            if name.endswith(".safetensors") and name != "variables.safetensors":
                found |= self._arrays(name)
        return found

    def variables(self) -> dict[str, Array]:
        """The final variables by name, the optimizer's state among them."""
        return self._arrays("variables.safetensors")

    def _arrays(self, name: str) -> dict[str, Array]:
        with self._file(name) as file:
            return arrays_of(file.path)

    def _file(self, name: str, folder: Path | None = None) -> OutputFile:
        return OutputFile(self._connection, self.id, name, folder)

    # ---- inference -------------------------------------------------------------------------------

    def run(
        self,
        inputs: Mapping[str, ArrayLike | Tensor],
        timeout: float = 60.0,
        **more: ArrayLike | Tensor,
    ) -> dict[str, Array]:
        """Outputs of an inference job for these inputs, by name. inputs: arrays, tensors, or lists
        of numbers, taken as `flow.tensor` does.

        Raises ClusterRequestError if the job does not run or an input does not fit.
        """
        request = pb.InferRequest(job_id=self.id, timeout_s=timeout)
        request.inputs.extend(tensor_message(n, x) for n, x in {**inputs, **more}.items())
        if request.ByteSize() > MAX_REQUEST_NBYTES:
            raise ClusterRequestError(
                f"job {self.id}: the inputs have {request.ByteSize()} bytes, more than the "
                f"{MAX_REQUEST_NBYTES} of one request; send them in several"
            )
        reply = self._connection.call("Jobs", "Infer", request, timeout_s=timeout + 5)
        return {tensor.name: tensor_of(tensor) for tensor in reply.outputs}


def curve_of(points: Sequence[MetricPoint]) -> list[MetricPoint]:
    """Drop the points of steps that a later attempt did again."""
    kept: list[MetricPoint] = []
    attempt, first, later = 0, math.inf, math.inf  # the lowest steps, of it and of those after it
    for point in reversed(points):
        if point.attempt != attempt:
            attempt, later = point.attempt, min(later, first)
        first = min(first, point.step)
        if point.step < later:
            kept.append(point)
    return kept[::-1]


def _point(message: pb.MetricPoint) -> MetricPoint:
    return MetricPoint(
        message.index, message.attempt, message.step, message.at, dict(message.values)
    )
