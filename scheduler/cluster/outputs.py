"""Outputs of jobs: files on the nodes of their ranks, relayed from there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from oneflow.core.errors import ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.lines import Line
from oneflow.scheduler.cluster.refusals import RefusedError, UnavailableError
from oneflow.scheduler.jobs.records import JobRecord

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.state import State

MAX_OUTPUT_NAME = 1000
OUTPUT_IDLE_S = 30.0


class Outputs:
    """Reads outputs where they are."""

    def __init__(self, state: State) -> None:
        self._driver, self._lines = state.driver, state.lines
        self._spool = state.settings.state_dir / "spool"

    async def read(self, job_id: str, name: str, rank: int = 0) -> AsyncIterator[bytes]:
        """Yield the bytes of an output on the node of a rank; of the list of them, a name a line,
        for the name "". Raises ProtocolError, RefusedError, UnavailableError or NotFoundError.
        """
        record = self._driver.job(job_id)
        if len(name) > MAX_OUTPUT_NAME:
            raise ProtocolError("the name of an output is not so long")
        line = self._home(record, rank)
        wire = pb.ReadFile(job_id=record.id, name=name, life=record.life)
        async for data in line.read_file(wire, self._spool, OUTPUT_IDLE_S):
            yield data

    def _home(self, record: JobRecord, rank: int) -> Line:
        """A daemon of the node that has a rank's outputs."""
        if not record.assignments:
            raise RefusedError(f"job {record.id} has not run yet: it has no outputs")
        if rank >= len(record.assignments):
            raise RefusedError(f"job {record.id} has no rank {rank}")
        place = record.assignments[rank]
        line = self._lines.on_node(place.node, place.daemon)
        if line is None:
            raise UnavailableError(f"no daemon of node {place.node}, where they are, is connected")
        return line
