"""The ring of last acts, and traces of real actors: whole, in order, with arrows that meet."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oneflow.actors import running_jobs, tracing
from oneflow.actors.acts import Acts, last_acts
from oneflow.actors.in_process import InProcessCluster
from oneflow.actors.job import Job
from oneflow.actors.tracing import Trace
from oneflow.core.config import Config

from .programs import compile_text, initial, shards, two_layers

PIECES = 2


def cluster_of(world_size: int, pieces: int = PIECES) -> tuple[InProcessCluster, list[Any]]:
    """Two stages on two ranks each, or one of each on one."""
    first, second = (
        ("cpu[0,1]", "cpu[2,3]") if world_size == 4 else ("cpu[0]", f"cpu[{world_size - 1}]")
    )
    plan = compile_text(two_layers(first, second, pieces=pieces), world_size)
    arrays = {**initial(), "lr": np.array(0.005, np.float64)}
    found = InProcessCluster(plan, shards(plan, "variable", arrays))
    return found, shards(plan, "input", arrays)


def run(cluster: InProcessCluster, feeds: list[Any], steps: int) -> None:
    for _ in range(steps):
        cluster.step(feeds)
        for executor in cluster.executors:
            if executor.recorder is not None:
                executor.recorder.step_done()


def recorded(
    folder: Path, steps: int, cluster: InProcessCluster, feeds: list[Any], **options: Any
) -> list[dict[str, Any]]:
    """The files of all ranks, parsed whole by a reader that is not ours."""
    ranks = options.pop("traced", range(len(cluster.executors)))
    traces = [Trace(folder, r, steps=steps, ranks=ranks, **options) for r in ranks]
    for trace in traces:
        trace.record(cluster.executors[trace.rank])
    run(cluster, feeds, steps)
    for trace in traces:
        trace.close()
        assert trace.state == "done", trace.error
    return [json.loads(gzip.decompress(trace.path.read_bytes())) for trace in traces]


def of_kind(file: dict[str, Any], ph: str) -> list[dict[str, Any]]:
    return [event for event in file["traceEvents"] if event["ph"] == ph]


def acts_of(file: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in of_kind(file, "X") if event["cat"] not in ("kernel", "wait")]


def test_the_ring_keeps_the_newest_acts_and_numbers_them() -> None:
    ring = Acts(4)
    for number in range(6):  # actors 0 and 1 in turn
        at = number & ring.mask
        ring.actors[at], ring.begins[at], ring.ends[at] = number % 2, number + 0.5, number + 1.0

    class Done:
        acts = 3

    found = last_acts([ring], {0: Done(), 1: Done()}, 3)
    assert [(a.actor, a.number, a.begin, a.end) for a in found] == [
        (1, 1, 3.5, 4.0), (0, 2, 4.5, 5.0), (1, 2, 5.5, 6.0),
    ]  # fmt: skip
    assert last_acts([Acts(4)], {}, 3) == []
    with pytest.raises(ValueError, match="power of two"):
        Acts(3)


def test_a_rank_tells_its_last_acts_with_their_ages() -> None:
    plan = compile_text(two_layers("cpu[0]", "cpu[0]", "B"), 1)
    plan.graph.name = "told"
    arrays = {**initial(), "lr": np.array(0.005, np.float64)}
    job = Job(plan, 0, shards(plan, "variable", arrays)[0])
    for _ in range(30):
        job.run(shards(plan, "input", arrays)[0])
    told = running_jobs.report().split("last acts of job ")  # there may be jobs of other tests, too
    [text] = [t for t in told if t.startswith(f"{job.bound.plan.graph.name}:")]
    lines = re.findall(r"(\d+\.\d+) s ago: (\S+), call (\d+) piece 0, took \d+\.\d us", text)
    total = sum(b.spec.acts for b in job.bound.actors.values())
    assert len(lines) == running_jobs.LAST_ACTS == min(64, 30 * total)
    ages = [float(age) for age, _, _ in lines]
    assert ages == sorted(ages, reverse=True)
    assert [int(step) for _, _, step in lines[-total:]] == [29] * total
    assert sorted(name for _, name, _ in lines[-total:]) == sorted(
        b.actor.name for b in job.bound.actors.values()
    )
    job.close()


def test_a_rank_tells_its_last_acts_after_a_trace_as_before(tmp_path: Path) -> None:
    cluster, feeds = cluster_of(2)
    run(cluster, feeds, 40)
    [before, _] = [e.describe_last_acts(running_jobs.LAST_ACTS) for e in cluster.executors]
    recorded(tmp_path, 3, cluster, feeds)
    [after, _] = [e.describe_last_acts(running_jobs.LAST_ACTS) for e in cluster.executors]
    assert len(before.splitlines()) == len(after.splitlines()) == running_jobs.LAST_ACTS
    assert ", call 39 " in before and ", call 42 " in after
    ages = [float(age) for age in re.findall(r"(\d+\.\d+) s ago", after)]
    assert ages == sorted(ages, reverse=True)
    run(cluster, feeds, 1)
    again = cluster.executors[0].describe_last_acts(running_jobs.LAST_ACTS)
    assert len(again.splitlines()) == running_jobs.LAST_ACTS and ", call 43 " in again


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_act_of_the_traced_steps_is_in_the_file(world_size: int, tmp_path: Path) -> None:
    cluster, feeds = cluster_of(world_size)
    run(cluster, feeds, 2)
    files = recorded(tmp_path, 3, cluster, feeds)
    for rank, file in enumerate(files):
        actors = cluster.bound[rank].actors
        acts = acts_of(file)
        per_actor: dict[int, list[Any]] = defaultdict(list)
        for act in acts:
            assert act["pid"] == rank
            per_actor[act["tid"]].append(act)
        assert set(per_actor) == set(actors)
        for key, own in per_actor.items():
            bound = actors[key]
            assert {a["name"] for a in own} == {bound.actor.name}
            assert {a["cat"] for a in own} == {bound.kind}
            wanted = [(s, p) for s in (2, 3, 4) for p in range(bound.spec.acts)]
            assert [(a["args"]["step"], a["args"]["piece"]) for a in own] == wanted
            for one, other in pairwise(own):
                assert one["ts"] + one["dur"] <= other["ts"] + 0.002
        assert file["summary"] == {
            "steps": 3, "acts": len(acts), "dropped": 0, "truncated": False,
        }  # fmt: skip
        names = {
            e["tid"]: e["args"]["name"] for e in of_kind(file, "M") if e["name"] == "thread_name"
        }
        assert names.pop(tracing.WAITS) == "waits"
        assert names == {key: bound.actor.name for key, bound in actors.items()}
        assert not of_kind(file, "i")
        times = [e["ts"] for e in file["traceEvents"] if "ts" in e]
        assert times == sorted(times)
    assert all(e.recorder is None for e in cluster.executors)


@pytest.mark.parametrize("world_size", [1, 4])
def test_arrows_lead_from_who_made_to_who_read(world_size: int, tmp_path: Path) -> None:
    cluster, feeds = cluster_of(world_size)
    files = recorded(tmp_path, 2, cluster, feeds)
    starts: dict[str, Any] = {}
    ends: dict[str, Any] = {}
    for file in files:
        acts = {(a["tid"], a["ts"]): a for a in acts_of(file)}
        for event in of_kind(file, "s"):
            assert event["id"] not in starts
            starts[event["id"]] = event
        for event in of_kind(file, "f"):
            assert event["id"] not in ends and (event["tid"], event["ts"]) in acts
            ends[event["id"]] = event
    assert starts and starts.keys() == ends.keys()
    for name, start in starts.items():
        assert start["ts"] <= ends[name]["ts"] + _shift(files, start, ends[name])
    crossing = Counter((s["pid"], ends[n]["pid"]) for n, s in starts.items())
    assert len({pair for pair in crossing if pair[0] != pair[1]}) >= (4 if world_size == 4 else 0)


def _shift(files: list[Any], start: Any, end: Any) -> float:
    """Microseconds between the beginnings of two ranks' files, and a rounding."""
    origin = [file["otherData"]["monotonic_ns"] for file in files]
    return float((origin[end["pid"]] - origin[start["pid"]]) / 1000 + 0.002)


def test_arrows_lead_to_traced_ranks_only(tmp_path: Path) -> None:
    cluster, feeds = cluster_of(4)
    (file,) = recorded(tmp_path, 1, cluster, feeds, traced=[1])
    ids = {e["id"] for e in of_kind(file, "s")}
    assert ids and ids == {e["id"] for e in of_kind(file, "f")}


def test_a_full_file_says_so_and_is_valid(tmp_path: Path) -> None:
    cluster, feeds = cluster_of(1)
    (file,) = recorded(tmp_path, 50, cluster, feeds, max_nbytes=20_000)
    path = tmp_path / "trace-rank0.json.gz"
    assert len(gzip.decompress(path.read_bytes())) <= 20_000
    (last,) = of_kind(file, "i")
    assert last == file["traceEvents"][-1] and last["name"] == "truncated"
    acts = len(acts_of(file))
    assert file["summary"]["truncated"] and file["summary"]["acts"] == acts > 0
    recorded_acts = 50 * sum(b.spec.acts for b in cluster.bound[0].actors.values())
    assert acts + file["summary"]["dropped"] <= recorded_acts
    assert last["args"]["dropped"] == file["summary"]["dropped"] > 0


def test_a_step_too_long_for_a_ring_keeps_its_last_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MIN_SLOTS", 8)
    monkeypatch.setattr(tracing, "MAX_SLOTS", 8)
    cluster, feeds = cluster_of(1)
    total = sum(b.spec.acts for b in cluster.bound[0].actors.values())
    assert total > 8
    (file,) = recorded(tmp_path, 1, cluster, feeds)
    assert file["summary"]["dropped"] == total - 8
    acts = acts_of(file)
    assert len(acts) == 8
    for key, bound in cluster.bound[0].actors.items():  # the last pieces of each
        own = [a["args"]["piece"] for a in acts if a["tid"] == key]
        assert own == list(range(bound.spec.acts))[bound.spec.acts - len(own) :]


def test_a_rank_that_ends_in_a_step_has_its_first_acts(tmp_path: Path) -> None:
    cluster, feeds = cluster_of(1)
    trace = Trace(tmp_path, 0)
    executor = cluster.executors[0]
    trace.record(executor)
    run(cluster, feeds, 2)
    whole = executor.acts.count
    cluster.step(feeds)
    executor.acts.count = count = (whole + executor.acts.count) // 2  # the half of a step
    trace.close()
    acts = acts_of(json.loads(gzip.decompress(trace.path.read_bytes())))
    assert len(acts) == trace.acts == count and trace.dropped == 0
    for key, bound in cluster.bound[0].actors.items():
        own = [(a["args"]["step"], a["args"]["piece"]) for a in acts if a["tid"] == key]
        assert own == [divmod(n, bound.spec.acts) for n in range(len(own))]
        assert len(own) >= 2 * bound.spec.acts
    assert {a["args"]["step"] for a in acts} == {0, 1, 2}


def test_a_disk_that_fails_ends_the_trace_and_not_the_job(tmp_path: Path) -> None:
    cluster, feeds = cluster_of(1)
    (tmp_path / "file").write_text("")
    trace = Trace(tmp_path / "file" / "folder", 0)
    trace.record(cluster.executors[0])
    run(cluster, feeds, 3)
    trace.close()
    assert trace.state == "failed" and "folder" in trace.error
    run(cluster, feeds, 1)


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    for name in (".trace-rank0.json.gz.x1y2", ".trace-rank1.json.gz.x1y2", "trace-rank0.json.gz"):
        (tmp_path / name).write_text("old")
    cluster, feeds = cluster_of(1)
    recorded(tmp_path, 1, cluster, feeds)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {".trace-rank1.json.gz.x1y2", "trace-rank0.json.gz"}


def test_a_slow_writer_drops_acts_and_counts_them(tmp_path: Path) -> None:
    cluster, feeds = cluster_of(1)
    trace = Trace(tmp_path, 0)
    trace.record(cluster.executors[0])
    recorder = cluster.executors[0].recorder
    assert recorder is not None
    taken = [recorder.empty.get() for _ in range(tracing.RINGS - 1)]
    run(cluster, feeds, 1)
    recorder._hand_over()  # as when the ring is full
    for ring in taken:
        recorder.empty.put(ring)
    run(cluster, feeds, 1)
    trace.close()
    file = json.loads(gzip.decompress(trace.path.read_bytes()))
    total = sum(b.spec.acts for b in cluster.bound[0].actors.values())
    assert file["summary"] == {"steps": 2, "acts": total, "dropped": total, "truncated": False}
    assert {a["args"]["step"] for a in acts_of(file)} == {1}
    assert of_kind(file, "i")[0]["args"] == {"why": "acts were dropped", "dropped": total}


def test_the_environment_asks_for_a_trace_of_all_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_own", None)
    monkeypatch.setattr(tracing.atexit, "register", lambda *_: None)
    monkeypatch.setattr(
        tracing, "current_config", lambda: Config(trace_dir=tmp_path / "new", trace_steps=2)
    )
    plan = compile_text(two_layers("cpu[0]", "cpu[0]", "B"), 1)
    arrays = {**initial(), "lr": np.array(0.005, np.float64)}
    jobs = [Job(plan, 0, shards(plan, "variable", arrays)[0]) for _ in range(2)]
    for job in (jobs[0], jobs[1], jobs[0], jobs[1], jobs[0]):
        job.run(shards(plan, "input", arrays)[0])
    trace = tracing._own
    assert isinstance(trace, Trace) and not trace.is_open
    trace.close()
    file = json.loads(gzip.decompress((tmp_path / "new" / "trace-rank0.json.gz").read_bytes()))
    steps = Counter(a["tid"] // tracing.GRAPHS_APART for a in acts_of(file))
    total = sum(b.spec.acts for b in jobs[0].bound.actors.values())
    assert steps == {0: 2 * total, 1: 2 * total}
    ids = [e["id"] for e in of_kind(file, "s")]
    assert len(ids) == len(set(ids)) and len(of_kind(file, "f")) == len(ids)
    for job in jobs:
        job.close()
