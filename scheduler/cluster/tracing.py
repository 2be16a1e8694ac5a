"""Traces of a job's ranks: each is told by its daemon to begin or to end one, or is looked at."""

from __future__ import annotations

import asyncio

from oneflow.core.errors import ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.debugging import MAX_AT_ONCE, MAX_RANKS, NODE_S
from oneflow.scheduler.cluster.driver import Driver
from oneflow.scheduler.cluster.lines import Lines
from oneflow.scheduler.cluster.refusals import DeadlineError, RefusedError, UnavailableError
from oneflow.scheduler.jobs.messages import attempt_id
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobState

WHAT = ("start", "stop", "look")
MAX_STEPS = 1 << 40
MAX_S = 24 * 3600.0
MAX_NAME_CHARS = 64


class Tracer:
    """Asks the ranks of a graph job all at once, as far as that is good for the scheduler."""

    def __init__(self, driver: Driver, lines: Lines, node_s: float = NODE_S) -> None:
        self._driver, self._lines, self._node_s = driver, lines, node_s

    async def trace(self, request: pb.TraceRequest) -> pb.TraceReply:
        """The state of each rank that was asked, in order. A start that not all of them heard is
        taken back. Raises ProtocolError or RefusedError.
        """
        record, order = self._driver.job(request.job_id), request.order
        _check(record, order)
        chosen = set(order.ranks)
        places = [a for a in record.assignments if not chosen or a.rank in chosen]
        if not order.ranks:
            order.ranks.extend(a.rank for a in places)
        states = await self._ask(record, places, order)
        if order.what == "start" and any(state.error for state in states):
            await self._ask(record, places, pb.TraceOrder(what="stop", trace=order.trace))
        return pb.TraceReply(ranks=states)

    async def _ask(
        self, record: JobRecord, places: list[Assignment], order: pb.TraceOrder
    ) -> list[pb.TraceState]:
        room = asyncio.Semaphore(MAX_AT_ONCE)
        return await asyncio.gather(*(self._one(record, a, order, room) for a in places))

    async def _one(
        self, record: JobRecord, place: Assignment, order: pb.TraceOrder, room: asyncio.Semaphore
    ) -> pb.TraceState:
        id_ = attempt_id(record, place.rank)
        wire = pb.Inspect(id=id_, what="trace", timeout_s=self._node_s / 2, trace=order)
        try:
            async with room:
                line = self._lines.current(place.daemon)
                if line is None:
                    raise UnavailableError(f"daemon {place.daemon} is not connected")
                found = await line.inspect(wire, self._node_s)
            state = found.trace
            state.error = state.error or found.error
        except (UnavailableError, DeadlineError) as error:
            state = pb.TraceState(error=str(error))
        state.rank, state.host = place.rank, place.node
        return state


def _check(record: JobRecord, order: pb.TraceOrder) -> None:
    if order.what not in WHAT:
        raise ProtocolError(f"trace {order.what[:40]!r}: must be one of {', '.join(WHAT)}")
    if len(order.ranks) > MAX_RANKS:
        raise ProtocolError("too many ranks")
    if not 0 < len(order.trace) <= MAX_NAME_CHARS and order.what == "start":
        raise ProtocolError("a trace must be named by whoever starts it")
    if order.steps > MAX_STEPS or not (0 <= order.seconds <= MAX_S):
        raise ProtocolError(f"a trace takes at most {MAX_S / 3600:g} hours")
    if order.steps and order.seconds:
        raise ProtocolError("name steps or seconds, not both")
    _check_job(record)
    unknown = [rank for rank in order.ranks if rank >= len(record.assignments)]
    if unknown:
        last = len(record.assignments) - 1
        raise RefusedError(f"job {record.id} has no rank {unknown[0]}: its last one is {last}")


def _check_job(record: JobRecord) -> None:
    kind = record.spec.kind
    if kind is not JobKind.GRAPH:
        how = "ONEFLOW_TRACE=FOLDER in its environment traces each nn.Graph that it runs"
        other = f": {how}" if kind is JobKind.SCRIPT else ""
        raise RefusedError(
            f"job {record.id} is of kind {kind.value}; only graph jobs that train are traced by "
            f"their cluster{other}"
        )
    if record.state is not JobState.RUNNING:
        over = "; what it has traced is among its outputs" if record.state.is_final else ""
        raise RefusedError(f"job {record.id} is {record.state}: nothing of it runs now{over}")
