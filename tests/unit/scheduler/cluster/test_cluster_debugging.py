"""Stacks and dumps are asked of all daemons at once; who does not answer is named."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import OneFlowError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.lines import Line
from oneflow.scheduler.cluster.ranks import Ranks
from oneflow.scheduler.jobs.records import Assignment, JobRecord, JobSpec, JobState


class Scene:
    """Three ranks: one answers, one is silent, one's node is away."""

    def __init__(self, state: JobState = JobState.RUNNING) -> None:
        places = tuple(Assignment(r, f"n{r}/cpu:0", f"n{r}", "cpu:0") for r in range(3))
        self.record = JobRecord("j1", JobSpec(devices=3), state, attempt=2, assignments=places)
        self.lines = {
            n: Line(pb.Hello(daemon=f"n{n}/cpu:0", node=f"n{n}"), "", None) for n in (0, 1)
        }
        driver = SimpleNamespace(
            job=lambda job_id: self.record,
            table=SimpleNamespace(attempts=SimpleNamespace(live={})),
        )
        lines = SimpleNamespace(on_node=lambda node, daemon: self.lines.get(int(node[1:])))
        self.ranks = Ranks(driver, lines, node_s=0.2)  # type: ignore[arg-type]

        self.lines[0].mail = Answering(self.lines[0])

    async def read(self, **request: Any) -> dict[int, Any]:
        wire = pb.DebugRequest(job_id="j1", **request)
        return {piece.rank: piece async for piece in self.ranks.debug(wire)}


class Answering(asyncio.Queue[Any]):
    """A daemon that has answered by the time it was asked: its neighbour's silence is short."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.line = line

    def put_nowait(self, message: Any) -> None:
        inspected = pb.Inspected(request=message.inspect.request, text="stack")
        asyncio.get_running_loop().call_soon(self.line.answer, inspected)


def test_what_can_be_had_is_had() -> None:
    async def scene() -> dict[int, Any]:
        return await Scene().read(what="stack")

    found = asyncio.run(scene())
    assert found[0].text == "stack" and not found[0].error
    assert "no answer within 0.2 s" in found[1].error
    assert "n2/cpu:0 is not connected" in found[2].error
    assert {piece.phase for piece in found.values()} == {"ended"}


@pytest.mark.parametrize(
    ("state", "request_", "said"),
    [
        (JobState.RUNNING, {"what": "core"}, "must be stack or dump"),
        (JobState.RUNNING, {"what": "stack", "ranks": [3]}, "no rank 3: its last one is 2"),
        (JobState.FAILED, {"what": "stack"}, "nothing of it runs"),
    ],
)
def test_what_cannot_be_asked(state: JobState, request_: dict[str, Any], said: str) -> None:
    async def scene() -> None:
        await Scene(state).read(**request_)

    with pytest.raises(OneFlowError, match=said):
        asyncio.run(scene())
