"""`oneflow trace`, as far as it needs no cluster, and with one that is played."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from oneflow.cli.main import cli
from oneflow.cluster.job import Job
from oneflow.core.errors import ClusterRequestError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.records import Assignment, JobRecord, JobSpec, JobState
from oneflow.scheduler.jobs.specs import record_to_proto
from oneflow.services.traces import TraceWriter, clock_origin


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"ONEFLOW_{name}_DIR", str(tmp_path / name.lower()))


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ("trace", *arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


class Played:
    """A connection to a scheduler that has one job of three ranks on two nodes."""

    address = "played"

    def __init__(self, state: JobState = JobState.RUNNING) -> None:
        nodes = ("n0", "n0", "n1")
        places = tuple(Assignment(r, f"{n}/cpu:{r}", n, f"cpu:{r}") for r, n in enumerate(nodes))
        self.record = JobRecord("j1", JobSpec(devices=3), state, attempt=1, assignments=places)
        self.asked: list[Any] = []
        self.states = ["recording", "writing", "done"]
        self.errors = ["", "", ""]
        self.files = {0: ["trace-rank0.json.gz", "trace-rank1.json.gz"], 2: ["trace-rank2.json.gz"]}

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: Any) -> None:
        return

    def job(self, job_id: str) -> Job:
        return Job(self, job_id)  # type: ignore[arg-type]

    def retries(self) -> Any:
        return SimpleNamespace()

    def call(self, service: str, method: str, request: Any, **_: Any) -> Any:
        if method == "Get":
            return record_to_proto(self.record)
        self.asked.append(request.order)
        state = self.states.pop(0) if request.order.what == "look" else "asked"
        ranks = [
            pb.TraceState(rank=r, host="h", state=state, error=e) for r, e in enumerate(self.errors)
        ]
        return pb.TraceReply(ranks=ranks)

    def stream(self, service: str, method: str, request: Any, **_: Any) -> Any:
        names = self.files[0 if request.rank < 2 else 2]
        data = "\n".join(names) if not request.name else f"{request.name} of {request.rank}"
        yield pb.BlobChunk(data=data.encode())


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    found = Played()
    monkeypatch.setattr("oneflow.cluster.client.connect", lambda address: found)
    return found


def test_a_start_names_itself_and_shows_the_ranks(played: Played) -> None:
    code, out, err = run("start", "j1", "--steps", "5", "--rank", "0-1")
    assert code == 0 and "asked" in out and "trace stop j1 --when-done --to" in err
    (order,) = played.asked
    assert (order.what, order.steps, list(order.ranks)) == ("start", 5, [0, 1]) and order.trace
    code, out, _ = run("start", "j1", "--seconds", "1m", "-o", "json")
    assert [rank["state"] for rank in json.loads(out)["ranks"]] == ["asked"] * 3
    assert played.asked[1].seconds == 60 and played.asked[1].trace != order.trace
    played.errors[1] = "it has ended"
    code, _, err = run("start", "j1")
    assert code == 64 and "rank 1 on h: it has ended" in err


@pytest.mark.parametrize(
    "ends", [("--seconds", "1m", "--steps", "1"), ("--steps=1", "--seconds=1m")]
)
def test_two_ends_of_a_trace_are_refused_before_anybody_is_asked(
    ends: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oneflow.cluster.client.connect", lambda address: pytest.fail("asked"))
    code, _, err = run("start", "j1", *ends)
    assert code == 2 and "name --steps or --seconds, not both" in err


def test_a_stop_waits_and_fetches_from_every_node(played: Played, tmp_path: Path) -> None:
    code, out, err = run("stop", "j1", "--to", str(tmp_path / "got"))
    assert code == 0, err
    assert [order.what for order in played.asked] == ["stop", "look", "look", "look"]
    found = {path.name: path.read_text() for path in (tmp_path / "got").iterdir()}
    names = [f"trace-rank{rank}.json.gz" for rank in range(3)]
    assert found == {name: f"{name} of {rank}" for rank, name in enumerate(names)}
    assert out.split() == [str(tmp_path / "got" / name) for name in names]


def test_files_are_not_fetched_through_links(played: Played, tmp_path: Path) -> None:
    folder, victim = tmp_path / "shared", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("as it was")
    name = "trace-rank2.json.gz"
    for link in (folder / name, folder / f".{name}.{os.getpid()}.partial"):
        link.symlink_to(victim)
    code, _, err = run("stop", "j1", "--to", str(folder), "--rank", "2")
    assert code == 0, err
    assert victim.read_text() == "as it was" and not (folder / name).is_symlink()
    assert (folder / name).read_text() == f"{name} of 2"


def test_a_fetch_that_fails_leaves_nothing(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("oneflow.cluster.values.shutil.copyfileobj", full)
    assert run("stop", "j1", "--to", str(tmp_path / "got"), "--rank", "2")[0] != 0
    assert not list((tmp_path / "got").iterdir())


def test_one_that_ends_by_itself_is_waited_for(played: Played, tmp_path: Path) -> None:
    code, _, err = run("stop", "j1", "--when-done", "--rank", "2")
    assert (code, err) == (0, "")
    assert [order.what for order in played.asked] == ["look", "look", "look"]


def test_a_stop_that_takes_too_long_gives_up(played: Played) -> None:
    played.states = ["recording"] * 1000
    code, _, err = run("stop", "j1", "--timeout", "0.2s")
    assert code == 75 and "still recording" in err and "debug dump" in err


def test_a_rank_that_failed_is_named(played: Played) -> None:
    played.errors[2] = "no space left"
    played.states = ["failed"]
    code, _, err = run("stop", "j1")
    assert code == 75 and "rank 2 on h: no space left" in err


def test_of_a_job_that_has_ended_there_are_the_files(played: Played, tmp_path: Path) -> None:
    played.record = JobRecord(
        "j1", JobSpec(devices=3), JobState.FAILED, attempt=1, assignments=played.record.assignments
    )
    code, out, _ = run("stop", "j1", "--to", str(tmp_path / "got"), "--rank", "2")
    assert code == 0 and not played.asked
    assert out.split() == [str(tmp_path / "got" / "trace-rank2.json.gz")]
    played.files[0] = ["metrics.jsonl"]
    code, _, err = run("stop", "j1", "--to", str(tmp_path / "got"))
    assert code == 0 and "no file of rank 0, 1:" in err
    code, _, err = run("stop", "j1", "--to", str(tmp_path / "got"), "--rank", "0")
    assert code == 64 and "has no trace" in err


def test_neither_steps_nor_seconds_below_nothing(played: Played) -> None:
    for wrong in ({"steps": -1}, {"seconds": -1.0}, {"steps": 1, "seconds": 1.0}):
        with pytest.raises(ClusterRequestError):
            played.job("j1").start_trace(**wrong)


def test_files_are_merged_and_broken_ones_refused(tmp_path: Path) -> None:
    paths = [tmp_path / f"{rank}.json.gz" for rank in range(2)]
    for rank, path in enumerate(paths):
        head = {"format": "oneflow-trace-1", "trace": "t", "rank": rank, **clock_origin()}
        TraceWriter(path, head).commit({})
    out = tmp_path / "out.json.gz"
    code, said, _ = run("merge", *map(str, paths), "-o", str(out))
    assert code == 0 and said.strip() == str(out) and out.exists()
    paths[1].write_bytes(paths[1].read_bytes()[:40])
    code, _, err = run("merge", *map(str, paths), "-o", str(tmp_path / "no.json.gz"))
    assert code == 65 and "1.json.gz" in err and not (tmp_path / "no.json.gz").exists()
    assert run("merge", str(tmp_path / "gone"), "-o", str(out))[0] == 78
    assert run("merge", str(paths[0]), "-o", str(out), "--max-size", "1K")[0] == 2


def test_kernels_of_all_ranks_are_summed_up(tmp_path: Path) -> None:
    linear = {"op": "linear", "module": "m.up", "line": "a.py:3", "bytes": 4000, "flops": 6000}
    fused = {"bytes": 100, "parts": [
        {"op": "linear", "module": "m.up", "line": "a.py:3", "share": 0.75, "calls": 0, "flops": 9},
        {"op": "tanh", "module": "m", "line": "a.py:4", "share": 0.25, "calls": 1, "flops": 10},
    ]}  # fmt: skip
    paths = [tmp_path / f"trace-rank{rank}.json.gz" for rank in range(2)]
    for rank, path in enumerate(paths):
        head = {"format": "oneflow-trace-1", "rank": rank, "trace": "t1", **clock_origin()}
        writer = TraceWriter(path, head | {"offset_ns": 0, "offset_error_ns": 0})
        where = {"ph": "X", "pid": rank, "tid": 0}
        for at, dur, name, args in (
            (0, 2.0, "linear", linear),
            (2, 4.0, "linear.add + tanh", fused),
        ):
            event = {**where, "cat": "kernel", "name": name, "ts": at, "dur": dur, "args": args}
            writer.add([json.dumps(event)])
        writer.add([json.dumps({**where, "cat": "wait", "name": "rank 1", "ts": 6, "dur": 9.0})])
        writer.commit({"steps": 1})
    code, out, _ = run("kernels", *map(str, paths), "-o", "json")
    found = json.loads(out)
    rows = {row["name"]: row for row in found["rows"]}
    assert code == 0 and found["steps"] == 1 and found["seconds"] == pytest.approx(12e-6)
    assert rows["linear"]["calls"] == 2 and rows["linear"]["seconds"] == pytest.approx(10e-6)
    assert rows["linear"]["nbytes"] == 2 * 4075 and rows["linear"]["flops"] == 2 * 6009
    assert rows["tanh"]["seconds"] == pytest.approx(2e-6) and rows["tanh"]["calls"] == 2
    code, out, _ = run("kernels", *map(str, paths), "--by", "kernel", "--most", "1")
    assert code == 0 and "linear.add + tanh" in out and "and 1 more, 0.004 ms" in out
    code, out, _ = run("kernels", *map(str, paths), "--by", "module")
    assert [line.split()[0] for line in out.splitlines()] == ["by", "m", "m.up"]
    (tmp_path / "broken.gz").write_bytes(b"x")
    code, _, said = run("kernels", str(tmp_path / "broken.gz"))
    assert code == 65 and "broken.gz" in said
