"""Stacks and dumps of a job's ranks, asked of their daemons: bounded in time, and partial if some
do not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from oneflow.core.errors import ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.driver import Driver
from oneflow.scheduler.cluster.lines import Line, Lines
from oneflow.scheduler.cluster.refusals import DeadlineError, RefusedError, UnavailableError
from oneflow.scheduler.jobs.messages import attempt_id
from oneflow.scheduler.jobs.records import Assignment, JobRecord

WHAT = ("stack", "dump")
NODE_S = 10.0  # a daemon has so long to answer
MAX_AT_ONCE = 64
MAX_RANKS = 4096


class Debugger:
    """Asks all ranks at once, as far as that is good for the scheduler."""

    def __init__(self, driver: Driver, lines: Lines, node_s: float = NODE_S) -> None:
        self._driver, self._lines, self._node_s = driver, lines, node_s

    async def read(self, request: pb.DebugRequest) -> AsyncIterator[pb.DebugPiece]:
        """A piece of each rank, as they come. Raises ProtocolError or RefusedError."""
        record = self._driver.job(request.job_id)
        places = _chosen(record, request)
        room = asyncio.Semaphore(MAX_AT_ONCE)
        asked = [
            asyncio.ensure_future(self._piece(record, place, request.what, room))
            for place in places
        ]
        try:
            for piece in asyncio.as_completed(asked):
                yield await piece
        finally:
            for task in asked:
                task.cancel()

    async def _piece(
        self, record: JobRecord, place: Assignment, what: str, room: asyncio.Semaphore
    ) -> pb.DebugPiece:
        piece = pb.DebugPiece(rank=place.rank, host=place.node, phase=self._phase(record, place))
        id_ = attempt_id(record, place.rank)
        wire = pb.Inspect(id=id_, what=what, timeout_s=self._node_s / 2)
        try:
            async with room:
                found = await self._line(place).inspect(wire, self._node_s)
            piece.text, piece.error = found.text, found.error
        except (UnavailableError, DeadlineError) as error:
            piece.error = str(error)
        return piece

    def _line(self, place: Assignment) -> Line:
        """The daemon itself; another one of its node knows at least what is on the disk."""
        line = self._lines.on_node(place.node, place.daemon)
        if line is None:
            raise UnavailableError(f"no daemon of node {place.node} is connected")
        return line

    def _phase(self, record: JobRecord, place: Assignment) -> str:
        attempt = self._driver.table.attempts.live.get(record.id)
        if attempt is None or attempt.number != record.attempt:
            return "ended"
        return attempt.ranks[place.rank].phase.value


def _chosen(record: JobRecord, request: pb.DebugRequest) -> list[Assignment]:
    if request.what not in WHAT:
        raise ProtocolError(f"debug {request.what[:40]!r}: must be {' or '.join(WHAT)}")
    if len(request.ranks) > MAX_RANKS:
        raise ProtocolError("too many ranks")
    if not record.assignments:
        raise RefusedError(f"job {record.id} is {record.state}: it has no ranks")
    if request.what == "stack" and record.state.is_final:
        raise RefusedError(f"job {record.id} is {record.state}: nothing of it runs any more")
    unknown = [rank for rank in request.ranks if rank >= len(record.assignments)]
    if unknown:
        last = len(record.assignments) - 1
        raise RefusedError(f"job {record.id} has no rank {unknown[0]}: its last one is {last}")
    return [a for a in record.assignments if not request.ranks or a.rank in set(request.ranks)]
