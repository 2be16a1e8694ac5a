"""Questions to the ranks of a job, all at once through their daemons: stacks, dumps, traces.

Bounded in time and in number, and partial if some do not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

from oneflow.core.errors import ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.driver import Driver
from oneflow.scheduler.cluster.lines import Line, Lines
from oneflow.scheduler.cluster.refusals import DeadlineError, RefusedError, UnavailableError
from oneflow.scheduler.jobs.limits import MAX_DEVICES
from oneflow.scheduler.jobs.messages import attempt_id
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobState

DEBUGS = ("stack", "dump")
TRACES = ("start", "stop", "look")
NODE_S = 10.0  # a daemon has so long to answer
MAX_AT_ONCE = 64
MAX_TRACE_STEPS = 1 << 40
MAX_TRACE_S = 24 * 3600.0
MAX_NAME_CHARS = 64
EXEC_S, MAX_EXEC_S = 600.0, 3600.0
MAX_EXECS = 64  # commands at once
MAX_WORDS, MAX_WORDS_NBYTES = 1000, 64 << 10
Ask = Callable[[Assignment], Awaitable[pb.Inspected]]


class Ranks:
    """Asks all ranks at once, as far as that is good for the scheduler."""

    def __init__(self, driver: Driver, lines: Lines, node_s: float = NODE_S) -> None:
        self._driver, self._lines, self._node_s = driver, lines, node_s
        self._num_execs = 0

    async def debug(self, request: pb.DebugRequest) -> AsyncIterator[pb.DebugPiece]:
        """A piece of each rank, as they come. Raises ProtocolError or RefusedError."""
        record = self._driver.job(request.job_id)
        _check_debug(record, request)
        ask = self._asker(record, pb.Inspect(what=request.what), self._lines.on_node)
        asked = [
            asyncio.ensure_future(self._piece(record, place, ask))
            for place in _chosen(record, request.ranks)
        ]
        try:
            for piece in asyncio.as_completed(asked):
                yield await piece
        finally:
            for task in asked:
                task.cancel()

    async def _piece(self, record: JobRecord, place: Assignment, ask: Ask) -> pb.DebugPiece:
        found = await ask(place)
        return pb.DebugPiece(
            rank=place.rank,
            host=place.node,
            phase=self._phase(record, place),
            text=found.text,
            error=found.error,
        )

    def _phase(self, record: JobRecord, place: Assignment) -> str:
        attempt = self._driver.table.attempts.live.get(record.id)
        if attempt is None or attempt.number != record.attempt:
            return "ended"
        return attempt.ranks[place.rank].phase.value

    async def execute(
        self, request: pb.ExecRequest, allows_scripts: bool
    ) -> AsyncIterator[pb.ExecPiece]:
        """Yield the output of a command beside a rank. Raises RefusedError."""
        record = self._driver.job(request.job_id)
        _check_exec(record, allows_scripts)
        (place,) = _chosen(record, [request.rank])
        line = self._lines.current(place.daemon)
        if line is None:
            raise UnavailableError(f"daemon {place.daemon} is not connected")
        if self._num_execs >= MAX_EXECS:
            raise UnavailableError(f"{MAX_EXECS} commands run already: try again later")
        limit_s = request.limit_s or EXEC_S
        wire = pb.Exec(id=attempt_id(record, place.rank), argv=request.argv, limit_s=limit_s)
        self._num_execs += 1
        try:
            async with aclosing(line.execute(wire, limit_s + self._node_s)) as pieces:
                async for piece in pieces:
                    if piece.error:
                        raise RefusedError(piece.error)
                    yield pb.ExecPiece(
                        stream=piece.stream,
                        data=piece.data,
                        is_last=piece.is_last,
                        exit_code=piece.exit_code,
                        note=piece.note,
                    )
        finally:
            self._num_execs -= 1

    async def trace(self, request: pb.TraceRequest) -> pb.TraceReply:
        """The state of each rank that was asked, in order. A start that not all of them heard is
        taken back. Raises ProtocolError or RefusedError.
        """
        record, order = self._driver.job(request.job_id), request.order
        _check_trace(record, order)
        places = _chosen(record, order.ranks)
        if not order.ranks:
            order.ranks.extend(place.rank for place in places)
        states = await self._order(record, places, order)
        if order.what == "start" and any(state.error for state in states):
            await self._order(record, places, pb.TraceOrder(what="stop", trace=order.trace))
        return pb.TraceReply(ranks=states)

    async def _order(
        self, record: JobRecord, places: Sequence[Assignment], order: pb.TraceOrder
    ) -> list[pb.TraceState]:
        inspect = pb.Inspect(what="trace", trace=order)
        ask = self._asker(record, inspect, lambda node, daemon: self._lines.current(daemon))
        found = await asyncio.gather(*map(ask, places))
        for place, each in zip(places, found, strict=True):
            each.trace.error = each.trace.error or each.error
            each.trace.rank, each.trace.host = place.rank, place.node
        return [each.trace for each in found]

    def _asker(
        self, record: JobRecord, inspect: pb.Inspect, line_of: Callable[[str, str], Line | None]
    ) -> Ask:
        """Return a function that asks one rank. line_of: the daemon to ask, by node and name: of
        files on the disk another one of the node knows, too.
        """
        room = asyncio.Semaphore(MAX_AT_ONCE)

        async def ask(place: Assignment) -> pb.Inspected:
            wire = pb.Inspect(id=attempt_id(record, place.rank), timeout_s=self._node_s / 2)
            wire.MergeFrom(inspect)
            try:
                async with room:
                    line = line_of(place.node, place.daemon)
                    if line is None:
                        raise UnavailableError(f"daemon {place.daemon} is not connected")
                    return await line.ask(wire, pb.Inspected, self._node_s)
            except (UnavailableError, DeadlineError) as error:
                return pb.Inspected(error=str(error))

        return ask


# ---- what can be asked ---------------------------------------------------------------------------


def _check_debug(record: JobRecord, request: pb.DebugRequest) -> None:
    if request.what not in DEBUGS:
        raise ProtocolError(f"debug {request.what[:40]!r}: must be {' or '.join(DEBUGS)}")
    if not record.assignments:
        raise RefusedError(f"job {record.id} is {record.state}: it has no ranks")
    if request.what == "stack" and record.state.is_final:
        raise RefusedError(f"job {record.id} is {record.state}: nothing of it runs any more")


def check_command(request: pb.ExecRequest) -> None:
    """Raises ProtocolError."""
    argv, limit_s = request.argv, request.limit_s
    if not argv or not argv[0] or len(argv) > MAX_WORDS:
        raise ProtocolError(f"a command has 1 to {MAX_WORDS} words, the first of them not empty")
    if any("\0" in word for word in argv) or sum(map(len, argv)) > MAX_WORDS_NBYTES:
        raise ProtocolError(f"a command has at most {MAX_WORDS_NBYTES >> 10} KiB, and no zeros")
    if not 0 <= limit_s <= MAX_EXEC_S:
        raise ProtocolError(f"a command runs for at most {MAX_EXEC_S:g} s")


def _check_exec(record: JobRecord, allows_scripts: bool) -> None:
    if not allows_scripts:
        raise RefusedError("this cluster runs no scripts, so no commands beside them")
    if record.spec.kind is not JobKind.SCRIPT:
        raise RefusedError(f"job {record.id} is no script: commands run beside scripts only")
    if record.state is not JobState.RUNNING:
        raise RefusedError(f"job {record.id} is {record.state}: nothing of it runs now")


def _check_trace(record: JobRecord, order: pb.TraceOrder) -> None:
    if order.what not in TRACES:
        raise ProtocolError(f"trace {order.what[:40]!r}: must be one of {', '.join(TRACES)}")
    if not 0 < len(order.trace) <= MAX_NAME_CHARS and order.what == "start":
        raise ProtocolError("a trace must be named by whoever starts it")
    if order.steps > MAX_TRACE_STEPS or not (0 <= order.seconds <= MAX_TRACE_S):
        raise ProtocolError(f"a trace takes at most {MAX_TRACE_S / 3600:g} hours")
    if order.steps and order.seconds:
        raise ProtocolError("name steps or seconds, not both")
    if record.spec.kind is JobKind.SCRIPT:
        raise RefusedError(
            f"job {record.id} is a script; only jobs of graphs are traced by their cluster: "
            "ONEFLOW_TRACE=FOLDER in its environment traces each nn.Graph that it runs"
        )
    if record.state is not JobState.RUNNING:
        over = "; what it has traced is among its outputs" if record.state.is_final else ""
        raise RefusedError(f"job {record.id} is {record.state}: nothing of it runs now{over}")


def _chosen(record: JobRecord, ranks: Sequence[int]) -> list[Assignment]:
    """The places of these ranks; of all, if none is named."""
    if len(ranks) > MAX_DEVICES:
        raise ProtocolError("too many ranks")
    unknown = [rank for rank in ranks if rank >= len(record.assignments)]
    if unknown:
        last = len(record.assignments) - 1
        raise RefusedError(f"job {record.id} has no rank {unknown[0]}: its last one is {last}")
    wanted = set(ranks)
    return [a for a in record.assignments if not wanted or a.rank in wanted]
