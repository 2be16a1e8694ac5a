"""Questions to all ranks of a job at once: stacks, and orders of traces, which are taken back if
one rank does not hear of them.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import OneFlowError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.lines import Line
from oneflow.scheduler.cluster.ranks import Ranks
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobSpec, JobState
from tests.support.waiting import CALL_S

RUNNING, GRAPH = JobState.RUNNING, JobKind.GRAPH


class Mail(asyncio.Queue[Any]):
    """A daemon that has answered by the time it was asked: its neighbour's silence is short."""

    def __init__(self, line: Line, heard: list[tuple[int, str]]) -> None:
        super().__init__()
        self.line, self.heard = line, heard

    def put_nowait(self, message: Any) -> None:
        asked = message.inspect
        assert asked.id.attempt == 2
        self.heard.append((asked.id.rank, asked.trace.what or asked.what))
        state = pb.TraceState(state="asked", trace=asked.trace.trace, rank=99)
        answer = pb.Inspected(request=asked.request, text="stack", trace=state)
        asyncio.get_running_loop().call_soon(self.line.answer, answer)


class Scene:
    """Three ranks, the last of which has no daemon now. silent: the daemon that says nothing."""

    def __init__(self, kind: JobKind, state: JobState, silent: str = "") -> None:
        places = tuple(Assignment(r, f"n{r}/cpu:0", f"n{r}", "cpu:0") for r in range(3))
        spec = JobSpec(kind=kind, devices=3)
        record = JobRecord("j1", spec, state, attempt=2, assignments=places)
        self.heard: list[tuple[int, str]] = []
        found = {
            f"n{n}/cpu:0": Line(pb.Hello(daemon=f"n{n}/cpu:0", node=f"n{n}"), "", None)
            for n in (0, 1)
        }
        for name, line in found.items():
            if name != silent:
                line.mail = Mail(line, self.heard)
        driver: Any = SimpleNamespace(
            job=lambda job_id: record,
            table=SimpleNamespace(attempts=SimpleNamespace(live={})),
        )
        lines: Any = SimpleNamespace(
            current=found.get, on_node=lambda node, daemon: found.get(daemon)
        )
        self.ranks = Ranks(driver, lines, node_s=0.2 if silent else CALL_S)

    def debug(self, **request: Any) -> dict[int, pb.DebugPiece]:
        async def ask() -> dict[int, pb.DebugPiece]:
            pieces = self.ranks.debug(pb.DebugRequest(job_id="j1", **request))
            return {piece.rank: piece async for piece in pieces}

        return asyncio.run(ask())

    def trace(self, **order: Any) -> list[pb.TraceState]:
        wire = pb.TraceRequest(job_id="j1", order=pb.TraceOrder(**order))
        return list(asyncio.run(self.ranks.trace(wire)).ranks)


def test_stacks_that_can_be_had_are_had() -> None:
    found = Scene(JobKind.SCRIPT, RUNNING, silent="n1/cpu:0").debug(what="stack")
    assert found[0].text == "stack" and not found[0].error
    assert "no answer within 0.2 s" in found[1].error
    assert "n2/cpu:0 is not connected" in found[2].error
    assert {piece.phase for piece in found.values()} == {"ended"}


@pytest.mark.parametrize(
    ("state", "asked", "said"),
    [
        (RUNNING, {"what": "core"}, "must be stack or dump"),
        (RUNNING, {"what": "stack", "ranks": [3]}, "no rank 3: its last one is 2"),
        (JobState.FAILED, {"what": "stack"}, "nothing of it runs"),
    ],
)
def test_what_cannot_be_asked(state: JobState, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(OneFlowError, match=said):
        Scene(JobKind.SCRIPT, state).debug(**asked)


def test_the_chosen_ranks_are_told_to_trace() -> None:
    scene = Scene(GRAPH, RUNNING)
    found = scene.trace(what="start", trace="t1", ranks=[1, 0], steps=5)
    assert [(s.rank, s.host, s.state, s.error) for s in found] == [
        (0, "n0", "asked", ""), (1, "n1", "asked", ""),
    ]  # fmt: skip
    assert sorted(scene.heard) == [(0, "start"), (1, "start")]


def test_a_start_that_not_all_hear_is_taken_back() -> None:
    scene = Scene(GRAPH, RUNNING)
    found = scene.trace(what="start", trace="t1")
    assert [s.state for s in found] == ["asked", "asked", ""]
    assert "n2/cpu:0 is not connected" in found[2].error
    assert sorted(scene.heard) == [(0, "start"), (0, "stop"), (1, "start"), (1, "stop")]


BOTH = {"what": "start", "trace": "t", "steps": 1, "seconds": 1.0}


@pytest.mark.parametrize(
    ("kind", "state", "order", "said"),
    [
        (GRAPH, RUNNING, {"what": "begin"}, "must be one of start, stop, look"),
        (GRAPH, RUNNING, {"what": "start"}, "must be named"),
        (GRAPH, RUNNING, {"what": "start", "trace": "x" * 65}, "must be named"),
        (GRAPH, RUNNING, {"what": "stop", "seconds": -1.0}, "at most 24 hours"),
        (GRAPH, RUNNING, {"what": "stop", "seconds": float("nan")}, "24 hours"),
        (GRAPH, RUNNING, BOTH, "steps or seconds"),
        (GRAPH, RUNNING, {"what": "stop", "ranks": [3]}, "no rank 3"),
        (GRAPH, JobState.FAILED, {"what": "stop"}, "among its outputs"),
        (GRAPH, JobState.QUEUED, {"what": "stop"}, "nothing of it runs now"),
        (JobKind.SCRIPT, RUNNING, {"what": "stop"}, "ONEFLOW_TRACE"),
    ],
)
def test_what_cannot_be_traced(
    kind: JobKind, state: JobState, order: dict[str, Any], said: str
) -> None:
    scene = Scene(kind, state)
    with pytest.raises(OneFlowError, match=said):
        scene.trace(**order)
    assert not scene.heard
