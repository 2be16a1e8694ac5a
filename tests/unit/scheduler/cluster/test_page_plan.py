"""Pictures of plans for the web page: every actor, the tensors between them, in which layout."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import ProtocolError
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.plan import Plan
from oneflow.scheduler.cluster.page import plan as page_plan
from oneflow.scheduler.cluster.page.memory import memory_of
from oneflow.scheduler.cluster.page.plan import MAX_PLAN_NBYTES, Pictures, picture
from oneflow.scheduler.compiler.pipeline import compile_graph
from oneflow.scheduler.jobs.records import JobRecord, JobSpec
from tests.unit.actors.programs import two_layers

RECORD = JobRecord("j1", JobSpec())


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Two layers on two ranks each, so that their gradients are reduced."""
    text = two_layers("cpu[0, 1]", "cpu[0, 1]", width=16)
    return compile_graph(parse_graph(text), JobConfig("job"), Cluster(2))


def test_each_actor_and_register_is_there_once(plan: Plan) -> None:
    found = picture(plan)
    assert [box["id"] for box in found["boxes"]] == [actor.id for actor in plan.actors]
    assert sum(box["nodes"] for box in found["boxes"]) == sum(len(a.nodes) for a in plan.actors)
    wanted: dict[tuple[int, int], int] = {}
    for register in plan.registers:
        for reader in {consumer.id for consumer in register.consumers}:
            ends = (register.producer.id, reader)
            wanted[ends] = wanted.get(ends, 0) + sum(v.type.nbytes for v in register.values)
    assert {(e["from"], e["to"]): e["nbytes"] for e in found["edges"]} == wanted
    assert json.dumps(found, allow_nan=False)


def test_gradients_come_out_of_a_reduction_whole(plan: Plan) -> None:
    found = picture(plan)
    kinds = {box["id"]: box["kind"] for box in found["boxes"]}
    reduced = [
        e for e in found["edges"] if kinds[e["to"]].startswith(("flat_reduce", "all_reduce"))
    ]
    assert reduced and all("P" in edge["sbp"] for edge in reduced)
    spread = [e for e in found["edges"] if kinds[e["from"]] in ("flat_reduce", "all_reduce")]
    assert all("P" not in edge["sbp"] for edge in spread)


def test_actors_of_a_large_plan_share_boxes(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_plan, "MAX_BOXES", 3)
    monkeypatch.setattr(page_plan, "MAX_EDGES", 1)
    found = picture(plan)
    assert sum(box["count"] for box in found["boxes"]) == len(plan.actors)
    assert len(found["boxes"]) < len(plan.actors)
    assert len(found["edges"]) == 1 and found["edges_left_out"] > 0
    assert all(edge["from"] != edge["to"] for edge in found["edges"])


def pictures(path: Path, digest: str = "d") -> Pictures:
    state: Any = SimpleNamespace(
        plans=SimpleNamespace(plan_of=lambda record: digest),
        blobs=SimpleNamespace(path=lambda digest: path),
    )
    return Pictures(state)


def test_a_plan_is_read_once(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_bytes(plan.to_bytes())
    drawn = pictures(path)
    first = asyncio.run(drawn.of(RECORD))
    path.unlink()
    assert asyncio.run(drawn.of(RECORD)) == first == picture(plan) | {"memory": memory_of(plan)}


def test_what_is_no_plan_or_too_large_is_not_drawn(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(ProtocolError):
        asyncio.run(pictures(path).of(RECORD))
    path.write_bytes(bytes(MAX_PLAN_NBYTES + 1))
    assert "at most" in asyncio.run(pictures(path).of(RECORD))["why"]
    assert "no plan" in asyncio.run(pictures(path, digest="").of(RECORD))["why"]
