"""A trace of a job's steps, as its ranks agree on it.

A daemon's order is heard by a thread. At the next meeting of the ranks (training.py) all of those
that are to record say so, and begin with the step after it: the same on all of them. The number of
steps they count themselves; that seconds are over, or that somebody said stop, one of them tells at
a meeting, and all end there. So arrows have both their ends, and no step waits for anything.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.actors.tracing import Trace
from oneflow.core.log import get_logger
from oneflow.protos import cluster_pb2 as pb
from oneflow.services.traces import boot_id

if TYPE_CHECKING:
    from oneflow.actors.executor import Executor

PATIENCE_S = 30.0
"""So long an order waits for the other ranks to have heard it too."""
ROUNDS = 6
CLOSE_S = 10.0
KEY = "trace"  # in what ranks say at meetings
OUTPUTS = "outputs"

Exchange = Callable[[dict[str, Any]], list[dict[str, Any]]]

log = get_logger(__name__)


class Tracing:
    """The traces of one rank. `answer` is for the thread that hears the daemon, `said` and `hear`
    for the one that runs the steps.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order: pb.TraceOrder | None = None  # one that is heard, but not begun
        self._heard_at = 0.0
        self._is_announced = False  # the other ranks are being told of the order
        self._wants_no_order = False  # it was taken back since
        self._trace: Trace | None = None
        self._name = ""
        self._wants_end = False
        self._deadline = float("inf")
        self._error = ""
        self._executor: Executor | None = None
        self._folder, self._rank = Path(), 0
        self._header: dict[str, Any] = {}

    def begin(
        self, executor: Executor, job_dir: Path, rank: int, header: Mapping[str, Any]
    ) -> None:
        """The steps of a job begin, or go on after it was bound again. header: of its files."""
        with self._lock:
            if self._trace is not None:
                self._trace.stop()
            self._folder, self._rank, self._header = job_dir / OUTPUTS, rank, dict(header)
            self._executor, self._heard_at = executor, time.monotonic()

    def close(self) -> None:
        """No more steps; returns when the file is written."""
        with self._lock:
            self._order = self._executor = None
        if self._trace is not None:
            self._trace.close(CLOSE_S)

    # ---- orders ----------------------------------------------------------------------------------

    def answer(self, request: pb.Inspect) -> pb.Inspected:
        """An Inspected for an Inspect."""
        order = request.trace
        with self._lock:
            error = ""
            if order.what == "start":
                error = self._take(order)
            elif order.what == "stop":
                self._end(order.trace)
            elif order.what != "look":
                error = f"an order {order.what[:40]!r} is not known here"
            return pb.Inspected(request=request.request, trace=self._state(), error=error)

    def _take(self, order: pb.TraceOrder) -> str:
        """Take an order; return why it cannot be done, or ""."""
        if order.trace == (self._order.trace if self._order is not None else self._name):
            return ""
        is_busy = self._trace is not None and self._trace.state in ("recording", "writing")
        if self._order is not None or is_busy:
            return "a trace of it is being recorded already: `oneflow trace stop` ends that"
        self._order, self._heard_at, self._error = order, time.monotonic(), ""
        self._wants_no_order = False
        return ""

    def _end(self, trace: str) -> None:
        """trace: the one that is meant; "": any."""
        if self._order is not None and trace in ("", self._order.trace):
            if self._is_announced:  # the others may begin it: then it ends as it began, on all
                self._wants_no_order = True
            else:
                self._order = None
        elif trace in ("", self._name):
            self._wants_end = True

    def _state(self) -> pb.TraceState:
        found = pb.TraceState(rank=self._rank, host=socket.gethostname(), error=self._error)
        trace = self._trace
        if self._order is not None:
            found.state, found.trace = "asked", self._order.trace
        elif trace is None:
            found.state = "failed" if self._error else "none"
        else:
            found.state, found.trace = trace.state, self._name
            found.error = found.error or trace.error
            found.steps, found.acts, found.nbytes = trace.steps, trace.acts, trace.nbytes
            found.dropped, found.truncated = trace.dropped, trace.is_truncated
            found.file = trace.path.name if trace.state == "done" else ""
        return found

    # ---- meetings --------------------------------------------------------------------------------

    def said(self) -> dict[str, Any]:
        """Return this rank's message to the others: {} if it has nothing to say."""
        with self._lock:
            order = self._order
            if order is not None and time.monotonic() - self._heard_at > PATIENCE_S:
                self._order = order = None
                self._error = "the other ranks did not hear of the trace"
            if order is not None:
                self._is_announced = True
                return {KEY: {"begin": order.trace, "ranks": list(order.ranks)}}
            trace = self._trace
            if trace is not None and trace.is_open:
                is_over = self._wants_end or time.monotonic() >= self._deadline
                return {KEY: {"end": self._name}} if is_over else {}
            return {}

    def hear(self, heard: list[dict[str, Any]], exchange: Exchange) -> None:
        """Take all ranks' messages, between two steps; the same on all of them. A rank that runs
        its graph alone hears itself.
        """
        words = [h.get(KEY) or {} for h in heard]
        ended = next((w["end"] for w in words if "end" in w), "")
        if ended and ended == self._name and self._trace is not None:
            self._trace.stop()
        begun = next((w for w in words if "begin" in w), None)
        if begun is not None:
            self._hear_begin(begun, words, exchange)
        with self._lock:
            self._is_announced = False
            if self._wants_no_order:
                self._order = None

    def _hear_begin(
        self, begun: dict[str, Any], words: list[dict[str, Any]], exchange: Exchange
    ) -> None:
        if len(words) == 1:
            self._record([self._rank], (0, 0), 1)
            return
        ranks = [r for r in begun["ranks"] if r < len(words)]
        if all(words[r].get("begin") == begun["begin"] for r in ranks):
            offset = clock_offset(self._rank, len(words), exchange)
            if self._rank in ranks:
                self._record(ranks, offset, len(words))

    def _record(self, ranks: list[int], offset: tuple[int, int] | None, world_size: int) -> None:
        with self._lock:
            order, self._order = self._order, None
            if order is None or self._executor is None:  # the job ends at this moment
                self._error = "the job ended before it began"
                return
            header = self._header | {"trace": order.trace, "world_size": world_size}
            if offset is not None:
                header["offset_ns"], header["offset_error_ns"] = offset
            self._name, self._wants_end = order.trace, self._wants_no_order
            self._deadline = time.monotonic() + (order.seconds or float("inf"))
            traced = None if len(ranks) == world_size else set(ranks)
            if traced is not None:
                header["ranks"] = ranks
            self._trace = Trace(
                self._folder, self._rank, steps=order.steps, ranks=traced, header=header
            )
            self._trace.record(self._executor)


# ---- clocks --------------------------------------------------------------------------------------


def clock_offset(rank: int, world_size: int, exchange: Exchange) -> tuple[int, int] | None:
    """Nanoseconds that this rank's monotonic clock is ahead of rank 0's, and by how much that may
    be wrong; None if nothing can be said. All ranks call it at once.

    A message that a rank sent at s (its clock) had come to another when the round was over there,
    at g: so g - s, on any two clocks, is at least the offset between them. Each round bounds it
    from both sides; the narrowest bounds are kept.
    """
    if world_size == 1:
        return 0, 0
    boots = exchange({"boot": boot_id()})
    if all(b == boots[0] for b in boots):
        return 0, 0
    return _measure(rank, exchange)


def _measure(rank: int, exchange: Exchange) -> tuple[int, int] | None:
    lower, upper = [], []
    mine: list[int] = []
    got = 0
    for number in range(ROUNDS):
        mine.append(time.perf_counter_ns())
        found = exchange({"sent": mine[-1], "got": got})
        got = time.perf_counter_ns()
        upper.append(got - found[0]["sent"])
        if number:
            lower.append(mine[-2] - found[0]["got"])
    return (0, 0) if rank == 0 else bounded(max(lower), min(upper))


def bounded(lower: int, upper: int) -> tuple[int, int] | None:
    """The middle, and half the width; None for bounds that contradict each other."""
    return ((lower + upper) // 2, (upper - lower + 1) // 2) if lower <= upper else None
