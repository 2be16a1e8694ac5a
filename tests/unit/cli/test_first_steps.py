"""Stumbles of newcomers: mistyped words are answered at once, and answers can be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from oneflow.cli.doctor import doctor
from oneflow.cli.main import cli
from oneflow.cli.pending import WhyPending
from oneflow.cli.records import MAX_CAUSE_CHARS, job_table
from oneflow.cli.results import show_metrics
from oneflow.cli.stacks import ordered
from oneflow.cli.submit import _folder_of, _warn_of_too_few, check_program, folder_size
from oneflow.cluster.local_record import LocalCluster, folder, process_of, write_record
from oneflow.core.errors import JobSpecError
from oneflow.scheduler.jobs.causes import cause_line, log_path
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobSpec, JobState

FIRST = JobRecord("j1", JobSpec(), JobState.QUEUED, attempt=1)


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["train.py"], "-- python train.py`"),
        (["./train.py", "--lr", "1"], "-- python ./train.py --lr 1`"),
        (["python train.py"], "-- python train.py`; a shell runs it after `-- sh -c`"),
    ],
)
def test_words_that_no_host_can_run_are_answered_with_what_was_meant(
    argv: list[str], meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    with pytest.raises(JobSpecError) as found:
        check_program(argv)
    assert meant in str(found.value) and found.value.exit_code == 64


def test_programs_that_can_be_run_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("own.py", "my program"):
        Path(name).touch(0o755)
    for argv in (["python", "x.py"], ["./own.py"], ["./my program"], ["sh", "-c", "a b"]):
        check_program(argv)


def test_the_size_of_what_is_sent_is_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the cluster's own state, which may lie in the folder."""
    state = tmp_path / "state"
    (state / "local").mkdir(parents=True)
    (state / "local" / "cluster.db").write_bytes(b"x" * 50_000)
    (tmp_path / "train.py").write_bytes(b"x" * 1_500_000)
    monkeypatch.setenv("ONEFLOW_STATE_DIR", str(state))
    monkeypatch.chdir(tmp_path)
    assert folder_size(tmp_path) == (1, 1_500_000)
    _folder_of(["python", "train.py"])
    assert f"{tmp_path} along (1 file, 1.5 MB)" in capsys.readouterr().err


def job(record: JobRecord) -> Any:
    return SimpleNamespace(id="j1", status=lambda: record, metrics=lambda follow: iter(()))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (JobSpec(devices=4), "needs 4 cpu devices, and the cluster has 2:"),
        (JobSpec(device_type="cuda"), "needs 1 cuda devices, and the cluster has none:"),
        (JobSpec(devices=2, nodes=2), "needs 2 nodes, and the cluster has cpu devices on 1:"),
        (JobSpec(devices=2), ""),
    ],
)
def test_a_job_that_is_too_large_is_warned_of(
    spec: JobSpec, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    daemons = [SimpleNamespace(node="n0", device=f"cpu:{i}") for i in range(2)]
    cluster: Any = SimpleNamespace(status=lambda: SimpleNamespace(daemons=daemons))
    _warn_of_too_few(cluster, job(replace(FIRST, spec=spec)))
    err = capsys.readouterr().err
    assert said in err if said else not err


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (JobKind.SCRIPT, "it is a script, and has not called flow.report"),
        (JobKind.GRAPH, "points yet"),
    ],
)
def test_an_empty_curve_says_why(
    kind: JobKind, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = JobSpec(kind=kind)
    show_metrics(job(replace(FIRST, spec=spec)), False, "table")
    assert said in capsys.readouterr().err


def test_a_reason_is_cut_at_a_word() -> None:
    why = "needs 2 cpu devices: 0 free, 2 busy with job training; after job first, which waits"
    (line,) = job_table([replace(FIRST, pending=why)], False).splitlines()[1:]
    shown = line[line.index("needs") :]
    assert len(shown) <= MAX_CAUSE_CHARS and shown.endswith(" …")
    assert why.startswith(shown.removesuffix(" …")) and why[len(shown) - 2] in " ,;"
    long = job_table([replace(FIRST, pending="x" * 100)], False)
    assert "x" * (MAX_CAUSE_CHARS - 2) + " …" in long


def test_a_reason_in_which_numbers_change_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    why = WhyPending(job(FIRST))
    for number in (756, 757, 943):
        pending = f"needs 1000 cpu devices: the cluster has only {number}; it waits"
        why.tell(replace(FIRST, pending=pending))
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_log_is_not_named_where_no_process_was() -> None:
    place = Assignment(0, "n0/cpu:0", "n0", "cpu:0", "/jobs")
    failed = replace(FIRST, state=JobState.FAILED, assignments=(place,), first_failed_rank=0)
    never_begun = replace(failed, reason="CONFIG_ERROR", exit_code=78)
    assert log_path(never_begun) == "" and "log=" not in cause_line(never_begun)
    assert log_path(replace(failed, reason="USER_ERROR", pid=42)) == "/jobs/j1/1/rank0/stderr"
    assert log_path(replace(failed, reason="NODE_LOST")) == "/jobs/j1/1/rank0/stderr"


STACKS = """\
Thread 0x01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/opt/venv/lib/python3.11/site-packages/oneflow/services/pulse.py", line 50 in _run

Current thread 0x02 (most recent call first):
  File "/home/u/checkout/oneflow/core/errors.py", line 10 in f
  File "/home/u/oneflow/train.py", line 7 in wait_for_data
  File "/home/u/oneflow/train.py", line 9 in <module>
  File "<frozen runpy>", line 88 in _run_code"""


def test_the_users_own_line_comes_first() -> None:
    first, _, thread, *_ = ordered(STACKS).splitlines()
    assert first == "at /home/u/oneflow/train.py:7, in wait_for_data"
    assert thread == "Current thread 0x02 (most recent call first):"
    assert sorted(ordered(STACKS).split()) == sorted([*STACKS.split(), *first.split()])
    for text in (STACKS.partition("\n\n")[0], "", "no stacks"):
        assert ordered(text) == text


def test_doctor_speaks_of_a_job_only_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFLOW_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("oneflow.cli.doctor._devices", list)
    assert "cluster: none runs on this machine, and none is configured" in doctor()
    folder(tmp_path).mkdir()
    write_record(tmp_path, LocalCluster("127.0.0.1:9400", ()))
    assert "cluster: scheduler at 127.0.0.1:9400" in doctor()
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "1", "RANK": "0"}
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    assert "job: rank 0 of 1, which meet at 127.0.0.1:29500" in doctor()


def test_health_needs_no_address_of_a_local_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFLOW_STATE_DIR", str(tmp_path))
    for words in (["scheduler", "health"], ["daemon", "health"]):
        assert CliRunner().invoke(cli, words).exit_code == 69
    folder(tmp_path).mkdir()
    processes = (process_of("cpu:0", 1), process_of("cpu:1", 1))
    write_record(tmp_path, LocalCluster("127.0.0.1:9400", processes))
    asked: list[Any] = []
    monkeypatch.setattr("oneflow.cluster.connection.is_serving", lambda *a: asked.append(a) or True)
    assert CliRunner().invoke(cli, ["scheduler", "health"]).exit_code == 0
    assert asked == [("127.0.0.1:9400", "oneflow.Scheduler", 5.0, None)]

    daemons = [SimpleNamespace(device="cpu:0", state="up")]

    class Cluster:
        def __enter__(self) -> Any:
            return SimpleNamespace(status=lambda: SimpleNamespace(daemons=daemons))

        def __exit__(self, *_: object) -> None:
            """Nothing to close."""

    monkeypatch.setattr("oneflow.cluster.client.connect", lambda address: Cluster())
    found = CliRunner().invoke(cli, ["daemon", "health"])
    assert (found.exit_code, found.output) == (69, "cpu:0: serving\ncpu:1: gone\n")
    daemons.append(SimpleNamespace(device="cpu:1", state="up"))
    assert CliRunner().invoke(cli, ["daemon", "health"]).exit_code == 0
