"""Commands beside ranks: which are refused, which answers are told on, and that callers that left
are not served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import OneFlowError, ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster import lines as lines_module
from oneflow.scheduler.cluster import ranks as ranks_module
from oneflow.scheduler.cluster.lines import Line
from oneflow.scheduler.cluster.ranks import Ranks, check_command
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobSpec, JobState

Answer = Callable[[Line, pb.Exec], None]


def ranks_of(
    answer: Answer, kind: JobKind = JobKind.SCRIPT, state: JobState = JobState.RUNNING
) -> tuple[Ranks, list[pb.Exec]]:
    """A job of one rank, whose daemon answers each command so; and the daemon's orders."""
    place = Assignment(0, "n0/cpu:0", "n0", "cpu:0")
    record = JobRecord("j1", JobSpec(kind=kind), state, attempt=2, assignments=(place,))
    line, told = Line(pb.Hello(daemon="n0/cpu:0", node="n0"), "", None), []

    class Mail(asyncio.Queue[Any]):
        def put_nowait(self, message: Any) -> None:
            told.append(message.exec)
            asyncio.get_running_loop().call_soon(answer, line, message.exec)

    line.mail = Mail()
    driver: Any = SimpleNamespace(job=lambda job_id: record)
    lines: Any = SimpleNamespace(current={"n0/cpu:0": line}.get)
    return Ranks(driver, lines, 0.2), told


def heard(line: Line, asked: pb.Exec) -> None:
    if asked.is_cancelled:
        return
    number = asked.request
    line.answer_exec(pb.ExecData(request=number, stream="stdout", data=b"out"))
    line.answer_exec(pb.ExecData(request=number + 1, data=b"of another"))
    line.answer_exec(pb.ExecData(request=number, is_last=True, exit_code=3, note="why"))


def asked(*argv: str, **more: Any) -> pb.ExecRequest:
    return pb.ExecRequest(job_id="j1", argv=argv or ["ls", "-l"], **more)


async def all_of(ranks: Ranks, request: pb.ExecRequest, allows: bool = True) -> list[pb.ExecPiece]:
    return [piece async for piece in ranks.execute(request, allows)]


def test_what_it_writes_and_its_end_come_in_order() -> None:
    ranks, told = ranks_of(heard)
    first, last = asyncio.run(all_of(ranks, asked(limit_s=5)))
    assert (first.stream, first.data, first.is_last) == ("stdout", b"out", False)
    assert (last.is_last, last.exit_code, last.note) == (True, 3, "why")
    (wire,) = told
    assert (wire.id.job_id, wire.id.attempt, wire.id.rank) == ("j1", 2, 0)
    assert (list(wire.argv), wire.limit_s) == (["ls", "-l"], 5)


@pytest.mark.parametrize(
    ("kind", "state", "allows", "rank", "said"),
    [
        (JobKind.SCRIPT, JobState.RUNNING, False, 0, "runs no scripts"),
        (JobKind.GRAPH, JobState.RUNNING, True, 0, "is no script"),
        (JobKind.SCRIPT, JobState.FAILED, True, 0, "nothing of it runs"),
        (JobKind.SCRIPT, JobState.RUNNING, True, 1, "no rank 1"),
    ],
)
def test_it_is_refused_where_none_may_run(
    kind: JobKind, state: JobState, allows: bool, rank: int, said: str
) -> None:
    ranks, told = ranks_of(heard, kind, state)
    with pytest.raises(OneFlowError, match=said):
        asyncio.run(all_of(ranks, asked(rank=rank), allows))
    assert not told


def test_what_cannot_be_run_is_an_error() -> None:
    def answer(line: Line, command: pb.Exec) -> None:
        line.answer_exec(pb.ExecData(request=command.request, is_last=True, error="cannot run"))

    with pytest.raises(OneFlowError, match="cannot run"):
        asyncio.run(all_of(ranks_of(answer)[0], asked()))


def test_a_daemon_that_says_nothing_or_too_much_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(line: Line, command: pb.Exec) -> None:
        return

    ranks, told = ranks_of(silent)
    with pytest.raises(OneFlowError, match="has not ended within"):
        asyncio.run(all_of(ranks, asked(limit_s=0.01)))
    assert [command.is_cancelled for command in told] == [False, True]
    monkeypatch.setattr(lines_module, "MAX_EXEC_NBYTES", 64)
    with pytest.raises(OneFlowError, match="more than a command may write"):
        asyncio.run(all_of(ranks_of(heard)[0], asked()))


def test_who_leaves_ends_the_command() -> None:
    def answer(line: Line, command: pb.Exec) -> None:
        line.answer_exec(pb.ExecData(request=command.request, stream="stdout", data=b"out"))

    async def leave(ranks: Ranks) -> None:
        pieces: Any = ranks.execute(asked(), True)
        await anext(pieces)
        await pieces.aclose()

    ranks, told = ranks_of(answer)
    asyncio.run(leave(ranks))
    assert [command.is_cancelled for command in told] == [False, True]
    assert told[0].request == told[1].request


def test_too_many_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "MAX_EXECS", 0)
    with pytest.raises(OneFlowError, match="run already"):
        asyncio.run(all_of(ranks_of(heard)[0], asked()))


@pytest.mark.parametrize(
    "request_",
    [
        pb.ExecRequest(job_id="j1"),
        asked(""),
        asked("a\0b"),
        asked("x" * 70_000),
        asked(*["x"] * 1001),
        asked(limit_s=-1),
        asked(limit_s=float("nan")),
        asked(limit_s=3601),
    ],
)
def test_commands_are_bounded(request_: pb.ExecRequest) -> None:
    with pytest.raises(ProtocolError, match=r"a command (has|runs)"):
        check_command(request_)
