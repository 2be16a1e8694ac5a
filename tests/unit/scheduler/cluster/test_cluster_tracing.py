"""Orders of traces: to all chosen ranks at once, and taken back if one does not hear of it."""

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


class Scene:
    """Three ranks, the last of which has no daemon now."""

    def __init__(self, kind: JobKind = JobKind.GRAPH, state: JobState = JobState.RUNNING) -> None:
        places = tuple(Assignment(r, f"n{r}/cpu:0", f"n{r}", "cpu:0") for r in range(3))
        spec = JobSpec(kind=kind, devices=3)
        self.record = JobRecord("j1", spec, state, attempt=2, assignments=places)
        self.lines = {
            f"n{n}/cpu:0": Line(pb.Hello(daemon=f"n{n}/cpu:0", node=f"n{n}"), "", None)
            for n in (0, 1)
        }
        self.heard: list[tuple[int, str]] = []
        driver = SimpleNamespace(job=lambda job_id: self.record)
        lines = SimpleNamespace(current=self.lines.get)
        self.ranks = Ranks(driver, lines, node_s=CALL_S)  # type: ignore[arg-type]

    async def ask(self, **order: Any) -> list[Any]:
        answering = [asyncio.ensure_future(self.answer(line)) for line in self.lines.values()]
        wire = pb.TraceRequest(job_id="j1", order=pb.TraceOrder(**order))
        found = await self.ranks.trace(wire)
        for task in answering:
            task.cancel()
        return list(found.ranks)

    async def answer(self, line: Line) -> None:
        while (message := await line.mail.get()) is not None:
            order = message.inspect.trace
            assert message.inspect.what == "trace" and message.inspect.id.attempt == 2
            self.heard.append((message.inspect.id.rank, order.what))
            state = pb.TraceState(state="asked", trace=order.trace, rank=99)
            line.answer(pb.Inspected(request=message.inspect.request, trace=state))


def test_the_chosen_ranks_are_told() -> None:
    scene = Scene()
    found = asyncio.run(scene.ask(what="start", trace="t1", ranks=[1, 0], steps=5))
    assert [(s.rank, s.host, s.state, s.error) for s in found] == [
        (0, "n0", "asked", ""), (1, "n1", "asked", ""),
    ]  # fmt: skip
    assert sorted(scene.heard) == [(0, "start"), (1, "start")]


def test_a_start_that_not_all_hear_is_taken_back() -> None:
    scene = Scene()
    found = asyncio.run(scene.ask(what="start", trace="t1"))
    assert [s.state for s in found] == ["asked", "asked", ""]
    assert "n2/cpu:0 is not connected" in found[2].error
    assert sorted(scene.heard) == [(0, "start"), (0, "stop"), (1, "start"), (1, "stop")]


@pytest.mark.parametrize(
    ("kind", "state", "order", "said"),
    [
        (JobKind.GRAPH, JobState.RUNNING, {"what": "begin"}, "must be one of start, stop, look"),
        (JobKind.GRAPH, JobState.RUNNING, {"what": "start"}, "must be named"),
        (JobKind.GRAPH, JobState.RUNNING, {"what": "start", "trace": "x" * 65}, "must be named"),
        (JobKind.GRAPH, JobState.RUNNING, {"what": "stop", "seconds": -1.0}, "at most 24 hours"),
        (JobKind.GRAPH, JobState.RUNNING, {"what": "stop", "seconds": float("nan")}, "24 hours"),
        (
            JobKind.GRAPH,
            JobState.RUNNING,
            {"what": "start", "trace": "t", "steps": 1, "seconds": 1.0},
            "steps or seconds",
        ),
        (JobKind.GRAPH, JobState.RUNNING, {"what": "stop", "ranks": [3]}, "no rank 3"),
        (JobKind.GRAPH, JobState.FAILED, {"what": "stop"}, "among its outputs"),
        (JobKind.GRAPH, JobState.QUEUED, {"what": "stop"}, "nothing of it runs now"),
        (JobKind.SCRIPT, JobState.RUNNING, {"what": "stop"}, "ONEFLOW_TRACE"),
        (JobKind.INFERENCE, JobState.RUNNING, {"what": "stop"}, "only graph jobs that train"),
    ],
)
def test_what_cannot_be_traced(
    kind: JobKind, state: JobState, order: dict[str, Any], said: str
) -> None:
    scene = Scene(kind, state)
    with pytest.raises(OneFlowError, match=said):
        asyncio.run(scene.ask(**order))
    assert not scene.heard
