"""The timeline of steps for the web page: from real traces, and from one with fixed values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oneflow.core.errors import ProtocolError
from oneflow.scheduler.cluster.page import timeline as page_timeline
from oneflow.scheduler.cluster.page.timeline import timeline
from oneflow.services.traces import FORMAT, TraceFileError, TraceWriter
from tests.unit.actors.test_tracing import PIECES, acts_of, cluster_of, recorded

STEPS = 2


def written(folder: Path, rank: int, events: list[dict[str, Any]]) -> Path:
    clock = {"host": "h", "boot_id": "b", "monotonic_ns": 0, "wall_ns": 0, "trace": "t"}
    header = {"format": FORMAT, "rank": rank, "offset_ns": 0, "offset_error_ns": 0, **clock}
    path = folder / f"trace-rank{rank}.json.gz"
    writer = TraceWriter(path, header)
    writer.add([json.dumps({"pid": rank, "tid": 7, **event}) for event in events])
    writer.commit({})
    return path


def named(name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "args": {"name": name}}


def act(at: float, length: float, step: int = 0, piece: int = 0) -> dict[str, Any]:
    args = {"step": step, "piece": piece}
    return {"ph": "X", "cat": "segment", "name": "a", "ts": at, "dur": length, "args": args}


def wait(at: float, length: float, name: str, actor: str) -> dict[str, Any]:
    args = {"step": 0, "act": actor}
    return {"ph": "X", "cat": "wait", "name": name, "ts": at, "dur": length, "args": args}


def arrow(kind: str, name: str, at: float) -> dict[str, Any]:
    return {"ph": kind, "cat": "register", "name": "register", "id": name, "ts": at}


def test_a_wait_ends_with_the_input_that_came_last(tmp_path: Path) -> None:
    makes = [named("segment.1(w)"), act(100, 50), arrow("s", "i0", 149.9)]
    reads = [
        named("boxing.2(w)"),
        act(90, 10),
        wait(100, 60, "rank 0", "boxing.2(w)"),
        arrow("f", "i0", 160),
        act(160, 5, piece=1),
        wait(165, 35, "this rank", "boxing.2(w)"),
        act(200, 5, piece=2),
        wait(205, 5, "the next call", "boxing.2(w)"),
        act(210, 5, step=1),
    ]
    found = timeline([written(tmp_path, 0, makes), written(tmp_path, 1, reads)])
    names = [(row["rank"], row["actor"]) for row in found["rows"]]
    assert names == [(0, "segment.1(w)"), (1, "boxing.2(w)")]
    assert found["acts"] == [
        *[[1, 0, 10, 0, 0], [0, 10, 50, 0, 0], [1, 70, 5, 0, 1]],
        *[[1, 110, 5, 0, 2], [1, 120, 5, 1, 0]],
    ]
    assert found["waits"] == [
        [1, 10, 60, 0, 1, [0, "segment.1(w)"]],
        [1, 75, 35, 0, 2, [-1, "a free slot or a processor"]],
        [1, 115, 5, 0, 0, [-1, "the next step"]],
    ]
    assert (found["length"], found["left_out"]) == (125, 0)


@pytest.fixture
def traced(tmp_path: Path) -> list[dict[str, Any]]:
    return recorded(tmp_path, STEPS, *cluster_of(2), header={"trace": "t"})


def test_every_act_of_real_ranks_is_a_bar(traced: list[Any], tmp_path: Path) -> None:
    found = timeline([tmp_path / f"trace-rank{rank}.json.gz" for rank in range(2)])
    assert len(found["acts"]) == sum(len(acts_of(file)) for file in traced)
    assert {row["rank"] for row in found["rows"]} == {0, 1}
    assert {bar[4] for bar in found["acts"]} == set(range(PIECES))
    assert all(bar[1] >= 0 and bar[1] + bar[2] <= found["length"] + 0.2 for bar in found["acts"])
    assert json.dumps(found, allow_nan=False)


def test_of_many_steps_the_last_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_timeline, "MAX_BARS", 5)
    events = [named("a"), *(act(10 * n, 5, step=n // 2) for n in range(10))]
    found = timeline([written(tmp_path, 0, events)])
    assert [bar[3] for bar in found["acts"]] == [3, 3, 4, 4]
    assert found["left_out"] == 6
    monkeypatch.setattr(page_timeline, "MAX_BARS", 1)
    assert [bar[1] for bar in timeline([tmp_path / "trace-rank0.json.gz"])["acts"]] == [0]


def test_what_a_job_wrote_itself_is_no_timeline(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"x")
    with pytest.raises(TraceFileError):
        timeline([path])
    odd = [{"ph": "X", "tid": [], "ts": 1.0}, {"ph": "X", "ts": 1.0, "args": []}]
    with pytest.raises(ProtocolError, match="no act"):
        timeline([written(tmp_path, 0, odd)])
    strange = act(1.0, 1.0) | {"dur": "long", "args": {"step": -1, "piece": "p"}}
    assert timeline([written(tmp_path, 0, [strange])])["acts"] == [[0, 0, 0, 0, 0]]
