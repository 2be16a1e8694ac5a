"""Following a job's logs ends when it has, with any answers of its daemons, and asks them
seldom.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster import logs
from oneflow.scheduler.cluster.logs import LogRelay, Wanted
from oneflow.scheduler.jobs.records import Assignment, JobRecord, JobSpec, JobState

FOLLOW = pb.LogsRequest(job_id="j1", follow=True)


class Daemon:
    """Has `data` for a stream, and never says that it is all."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked = data, 0

    async def ask(self, request: pb.ReadLog, kind: object, timeout_s: float) -> pb.LogData:
        self.asked += 1
        piece = pb.LogPiece(offset=request.offset, data=self.data[request.offset :])
        return pb.LogData(piece=piece, is_closed=False)


def relay(daemon: Daemon, record: JobRecord) -> LogRelay:
    async def watch(job_id: str) -> AsyncIterator[JobRecord]:
        yield record

    async def places(record: JobRecord, attempt: int) -> tuple[Assignment, ...]:
        return record.assignments

    driver: Any = SimpleNamespace(
        job=lambda job_id: record,
        jobs={record.id: record},
        watch=watch,
        places=places,
    )
    lines: Any = SimpleNamespace(on_node=lambda node, name: daemon)
    return LogRelay(driver, lines)


def test_what_is_never_said_to_be_whole_ends_after_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "GONE_S", 0.3)
    monkeypatch.setattr(logs, "PAUSE_S", 0.1)
    place = (Assignment(0, "n1/cpu:0", "n1", "cpu:0"),)
    record = JobRecord("j1", JobSpec(), JobState.FAILED, attempt=1, assignments=place)
    daemon = Daemon(b"its last words\n")

    async def read() -> list[bytes]:
        pieces = relay(daemon, record).read("j1", Wanted.parse(FOLLOW))
        return [piece.data async for piece in pieces]

    assert asyncio.run(asyncio.wait_for(read(), 10)) == [daemon.data] * 2  # of both streams
    assert daemon.asked < 20
