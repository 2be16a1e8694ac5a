"""Verbs of clusters and jobs, as far as they need none."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

import oneflow as flow
from oneflow.cli.cluster import _daemon_filters, _note_of_hosts
from oneflow.cli.config import _shown
from oneflow.cli.follow import Console
from oneflow.cli.group import _file_error, wants_json
from oneflow.cli.main import cli
from oneflow.cli.output import fields, table
from oneflow.cli.records import job_details, job_table, ran_s, record_as_dict
from oneflow.cli.submit import _folder_of, _submit, _submitted, merged
from oneflow.cli.types import RANKS
from oneflow.cluster.connection import StoreTroubleError
from oneflow.cluster.job import Job, RankWaits
from oneflow.cluster.logs import LogBlock
from oneflow.cluster.settings import KEYS
from oneflow.core.errors import ConfigError, JobSpecError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.causes import cause_line, exit_code
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobSpec, JobState
from oneflow.services.quantities import show_time


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"ONEFLOW_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.delenv("ONEFLOW_SCHEDULER_ADDRESS", raising=False)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def verbs(group: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(group, click.Group):
        return [path]
    found = [path]
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += verbs(command, (*path, name))
    return found


def test_every_verb_has_help() -> None:
    paths = [path for path in verbs(cli) if path != ("launch",)]
    assert {("job", "submit"), ("cluster", "token", "rotate"), ("ckpt", "verify")} <= set(paths)
    for path in paths:
        code, out, _ = run(*path, "--help")
        assert code == 0
        assert "Usage:" in out


@pytest.mark.parametrize(
    ("words", "num_modules"),
    [("--help", 16), ("cluster --help", 28), ("cluster up --help", 28), ("job --help", 18)],
)
def test_help_imports_little(words: str, num_modules: int) -> None:
    """num_modules: of ours that help may load besides the table, each about a millisecond."""
    code = f"import sys, oneflow.__main__ as m; sys.argv[1:] = {words.split()!r}\ntry: m.main()\n"
    code += "except SystemExit: pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert not {"grpc", "numba", "numpy", "google.protobuf"}.intersection(loaded)
    ours = [n for n in loaded if n.startswith("oneflow") and not n.startswith("oneflow.api.")]
    assert len(ours) <= num_modules, ours


def test_without_a_cluster_it_says_what_to_do() -> None:
    code, _, err = run("job", "list")
    assert code == 69
    assert "oneflow cluster up" in err
    assert len(err.splitlines()) == 1
    assert run("cluster", "down")[:2] == (0, "oneflow: no cluster runs here\n")


def test_a_scheduler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        monkeypatch.setattr("oneflow.cluster.connection.Patience.__init__.__defaults__", (0.0, 0.0))
        code, _, err = run("job", "get", "j1", "--address", address)
    assert code == 69
    assert address in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["job", "submit"], 64, "a program after --"),
        (["job", "submit", "nothing.job"], 64, "no job file"),
        (["job", "submit", "a", "b"], 64, "goes after --"),
        (["job", "submit", __file__], 64, "is a program, not a job file"),
        (["job", "submit", "x" * 300], 64, "no job file"),
        (["job", "submit", "slow.job", "--", "python", "x"], 64, "not both"),
        (["job", "submit", "--file", "no.toml"], 78, "cannot read"),
        (["job", "submit", "--env", "x", "--", "true"], 2, "key=value"),
        (["job", "submit", "--time-limit", "soon", "--", "true"], 2, "write it like"),
        (["job", "logs", "--rank", "a", "j1"], 2, "not like 0"),
        (["job", "logs", "--since", "noon", "j1"], 2, "write it like 10m"),
        (["cluster", "up", "--memory-nbytes", "4X"], 2, "write it like 1048576"),
        (["cluster", "up", "--queued-per-token", "0"], 2, "range"),
        (["cluster", "up", "--daemons", "0"], 2, "range"),
        (["cluster", "drain"], 2, "--all"),
        (["job", "list", "--address", "nowhere"], 78, "host:port"),
        (["job", "list", "--address", "http://localhost:1"], 78, "without http://"),
        (["job", "list", "--address", ":5"], 78, "must be host:port"),
        (["job", "list", "--address", "localhost:0"], 78, "must be host:port"),
        (["daemon", "run", "--device", "cpu:0", "--scheduler", "http://a:1"], 78, "without http"),
        (["ckpt", "verify", "nothing"], 83, "neither"),
        (["ckpt", "ls", "/etc"], 83, "holds no checkpoint"),
    ],
)
def test_mistakes_are_one_line_and_a_code(arguments: list[str], code: int, said: str) -> None:
    found, _, err = run(*arguments)
    assert found == code
    assert said in " ".join(err.split())


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", (0,)), ("0,3", (0, 3)), ("1-3,2,7", (1, 2, 3, 7))]
)
def test_ranks(text: str, ranks: tuple[int, ...]) -> None:
    assert RANKS.convert(text, None, None) == ranks


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('devices = 2\nname = "a"\nargv = ["x"]\n[env]\nA = "1"\nB = "1"\n')
    flags = {"job_toml": path, "devices": 4, "name": None, "env": (("B", "2"),), "restart_on": ()}
    found = merged((), False, flags)
    assert found["devices"] == 4
    assert found["name"] == "a"
    assert found["env"] == {"A": "1", "B": "2"}
    assert merged(("y", "--z"), True, flags)["argv"] == ["y", "--z"]
    with pytest.raises(JobSpecError, match="one thing to run"):
        merged((), False, {})


FAILED = JobRecord(
    "j7f3",
    JobSpec(argv=("python", "x.py"), name="evil\x1b[2J"),
    JobState.FAILED,
    "USER_ERROR",
    "ValueError: no\x1b",
    exit_code=7,
    first_failed_rank=3,
    host="n2",
    pid=812,
    attempt=2,
    last_step=1841,
    last_checkpoint_step=1800,
    job_key="secret",
)


def test_the_last_line() -> None:
    line = cause_line(FAILED)
    wanted = "oneflow: job=j7f3 attempt=2 state=FAILED reason=USER_ERROR rank=3 host=n2 pid=812 "
    assert line.startswith(wanted + "exit=7 step=1841 ckpt=1800 cause=")
    assert "\x1b" not in line
    assert "\n" not in line
    places = tuple(Assignment(r, f"n{r}/cpu:0", f"n{r}", "cpu:0", f"/s{r}/jobs") for r in range(4))
    line = cause_line(replace(FAILED, assignments=places))
    assert " ckpt=1800 log=/s3/jobs/j7f3/2/rank3/stderr cause=" in line
    again = replace(FAILED, assignments=places, life=1)  # its id was used before
    assert " log=/s3/jobs/j7f3~1/2/rank3/stderr cause=" in cause_line(again)
    assert "n0 cpu:0 /s0/jobs/j7f3~1/2/rank0" in job_details(again, True)


def test_a_success_has_no_cause() -> None:
    line = cause_line(JobRecord("j1", JobSpec(), JobState.SUCCEEDED, attempt=1))
    assert line == "oneflow: job=j1 attempt=1 state=SUCCEEDED reason=NONE exit=0"
    record = JobRecord("j1", JobSpec(kind=JobKind.GRAPH), JobState.SUCCEEDED, attempt=1)
    assert cause_line(record).endswith(" exit=0 step=0 ckpt=0")


@pytest.mark.parametrize(
    ("state", "code", "wanted"),
    [("SUCCEEDED", 0, 0), ("FAILED", 0, 1), ("FAILED", 137, 137), ("CANCELLED", 256, 1)],
)
def test_only_success_is_zero(state: str, code: int, wanted: int) -> None:
    assert exit_code(JobRecord("j", JobSpec(), JobState(state), exit_code=code)) == wanted


def test_no_secret_and_no_control_character_is_shown() -> None:
    assert "secret" not in json.dumps(record_as_dict(FAILED))
    for text in (job_table([FAILED], True), job_details(FAILED)):
        assert "secret" not in text
        assert "\x1b" not in text
        assert "j7f3" in text


def test_tables_align() -> None:
    lines = table(("a", "b"), [("xx", 1), ("", "y\nz")]).splitlines()
    assert lines == ["A   B", "xx  1", "-   y z"]
    assert fields({"a": 1, "long": "x"}).splitlines() == ["a:    1", "long: x"]


def test_config_show_names_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFLOW_SCHEDULER_UI", "1")
    code, out, _ = run("config", "show", "--origin")
    assert code == 0
    assert [line.split()[1:] for line in out.splitlines() if line.startswith("scheduler.ui")] == [
        ["true", "ONEFLOW_SCHEDULER_UI"]
    ]
    code, out, _ = run("config", "show", "-o", "json")
    assert json.loads(out)["client.output"] == {"value": "table", "origin": "default"}


def test_checkpoints_are_listed_and_verified(tmp_path: Path) -> None:
    placement = flow.placement("cpu", [0])
    weight = flow.arange(12).reshape(3, 4).to_global(placement, flow.sbp.broadcast)
    flow.save({"model": {"0.w": weight}, "more": [weight * 2]}, tmp_path / "step-7")
    code, out, _ = run("ckpt", "ls", str(tmp_path))
    assert code == 0
    assert "step-7" in out
    code, out, _ = run("ckpt", "ls", str(tmp_path / "step-7"), "-o", "json")
    rows = json.loads(out)
    assert [row["tensor"] for row in rows] == ["model.0.w", "more.0"]
    assert rows[0]["shape"] == "[3, 4]"
    for path in (tmp_path, tmp_path / "step-7"):
        code, out, _ = run("ckpt", "verify", str(path))
        assert code == 0 and out == f"{tmp_path / 'step-7'}: 2 tensors, 192 bytes: whole\n"
    shard = next((tmp_path / "step-7").glob("shard-*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    code, _, err = run("ckpt", "verify", str(tmp_path / "step-7"))
    assert code == 83
    assert "damaged" in err


def test_a_folder_without_checkpoints_yet_is_an_empty_list(tmp_path: Path) -> None:
    code, out, _ = run("ckpt", "ls", str(tmp_path), "-o", "json")
    assert (code, json.loads(out)) == (0, [])


def test_files_that_cannot_be_are_configuration() -> None:
    assert isinstance(_file_error(FileNotFoundError(errno.ENOENT, "none", "/a/b")), ConfigError)
    full = _file_error(OSError(errno.ENOSPC, "No space left on device", "/a/b"))
    assert (full.exit_code, full.reason) == (86, "DISK_FULL")
    assert str(full) == "/a/b: No space left on device"


def test_top_is_one_look_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    record = JobRecord("j1", JobSpec(), JobState.RUNNING, attempt=1)
    status = pb.ClusterStatus(daemons=[pb.DaemonStatus(device="cpu:0", epoch=7)])
    job = SimpleNamespace(waits=lambda: [RankWaits(0, "loss", {"copy no_input": 0.5})])

    @contextmanager
    def connect(address: str | None) -> Iterator[Any]:
        yield SimpleNamespace(status=lambda: status, jobs=lambda limit: [record], job=lambda _: job)

    monkeypatch.setattr("oneflow.cluster.client.connect", connect)
    code, out, _ = run("top", "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert found["cluster"]["daemons"][0]["device"] == "cpu:0"
    assert found["jobs"][0]["id"] == "j1"
    shares = {"copy no_input": 0.5}
    assert found["waits"] == [{"job": "j1", "rank": 0, "waiting": "loss", "shares": shares}]
    assert found["cluster"]["trouble"] == ""
    assert "trouble" not in run("cluster", "status")[1]
    status.trouble = "the disk is full"
    assert "the disk is full; new jobs are refused" in run("cluster", "status")[1]
    assert found["cluster"]["daemons"][0]["use"] is None
    use = pb.NodeUse(processors=8, load=1.25, disk_nbytes=9 << 30, sent_nbytes_per_s=2e6)
    status.daemons[0].use.CopyFrom(use)
    assert "EPOCH" in run("top", "-o", "wide")[1]
    assert " 1.2/8 " in run("cluster", "nodes", "-o", "wide")[1]
    assert json.loads(run("cluster", "nodes", "-o", "json")[1])["daemons"][0]["use"]["load"] == 1.25
    assert "EPOCH" not in run("top", "--once")[1]


def test_the_folder_of_a_program_is_sent_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    assert _folder_of(["python", "train.py", "--lr", "0.1"]) == tmp_path / "here"
    assert _folder_of(["python", str(tmp_path / "here" / "train.py")]) is None
    assert _folder_of(["python", "../here/train.py", "-c", ""]) is None
    assert _folder_of(["python", "-c", "x=1;" * 500, "a\0b"]) is None  # no names of files


# ---- what is shown -------------------------------------------------------------------------------


def test_settings_are_shown_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFLOW_DAEMON_MEMORY_NBYTES", "1536M")
    code, out, _ = run("config", "show")
    shown = {line.split()[0]: line.split()[1] for line in out.splitlines()}
    assert code == 0
    assert shown["daemon.memory_nbytes"] == "1536MiB"
    assert shown["scheduler.keep_for"] == "30d"
    assert shown["scheduler.requests_per_s"] == "20"


def test_a_job_shows_how_far_it_is() -> None:
    places = tuple(Assignment(r, f"n{r}/cpu:0", f"n{r}", "cpu:0", "/s/jobs") for r in range(20))
    spec = JobSpec(devices=20, max_restarts=3, restart_on=("SIGNAL", "7"), time_limit_s=5400.0)
    record = JobRecord(
        "j1",
        spec,
        JobState.RUNNING,
        attempt=1,
        last_step=10,
        total_steps=100,
        eta_s=90.0,
        last_checkpoint="step-8",
        last_checkpoint_step=8,
        metrics={"loss": 0.25},
        assignments=places,
    )
    text = job_details(record)
    for said in (
        "10/100, about 1m30s left",
        "0 of 3, after SIGNAL, 7 only",
        "1h30m",
        "step-8 (step 8)",
        "loss=0.25",
        "4; -o wide shows all",
    ):
        assert said in text
    assert "n19 cpu:0 /s/jobs/j1/1/rank19" in job_details(record, is_wide=True)


def test_lines_of_ranks_have_the_prefix_that_was_asked_for(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    line = LogBlock(2, 3, "stdout", "n2", b"hello\nyou")
    Console().show(line)
    Console("[${job}.${attempt} ${rank}] ", "j1").show(line)
    Console("").show(line)
    assert capfdbinary.readouterr().out == (
        b"n2:3: hello\nn2:3: you\n[j1.2 3] hello\n[j1.2 3] you\nhello\nyou\n"
    )
    with pytest.raises(ConfigError, match="hostname"):
        Console("${host} ")


def test_daemons_are_filtered_by_what_they_have() -> None:
    wanted = _daemon_filters((("state", "UP,lost"), ("node", "n1")))
    assert wanted == {"state": {"up", "lost"}, "node": {"n1"}}
    for bad in (("state", "off"), ("pid", "1")):
        with pytest.raises(click.UsageError, match="must be one of"):
            _daemon_filters((bad,))


@pytest.mark.parametrize(
    "arguments",
    [
        ["job", "list", "-o", "json", "--limit", "x"],
        ["job", "get", "-ojson"],
        ["cluster", "status", "--output=json", "more"],
        ["nothing", "-o", "json"],
    ],
)
def test_a_wrong_command_line_is_json_for_who_wants_json(arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert code == 2 and not out
    told = json.loads(err)["error"]
    assert (told["type"], told["exit_code"]) == ("UsageError", 2)
    assert told["message"]


def test_words_of_a_program_ask_for_nothing() -> None:
    assert not wants_json(["job", "submit", "--", "x", "-o", "json"])
    assert not wants_json(["job", "list", "-o", "wide"])


def test_every_setting_and_verb_is_documented() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    rows = (docs / "CONFIGURATION.md").read_text()
    for key in KEYS:
        assert f"| `{key.name}` | {key.kind} | {_shown(key, key.default)} |" in rows, key.name
    text = (docs / "CLUSTER.md").read_text() + (docs / "DEPLOY.md").read_text()
    for path in verbs(cli):
        group, verb = path[0] if path else "", path[-1] if path else ""
        if group in ("cluster", "job", "debug", "ckpt", "config") and len(path) > 1:
            assert verb in text, path
    assert "(DEPLOY.md)" in text


def test_the_time_that_a_job_ran_counts_its_attempts_only() -> None:
    asked = JobRecord("j1", JobSpec(), JobState.RUNNING, started_at=100.0)
    again = replace(asked, ran_s=20.0, attempt_started_at=500.0)
    assert ran_s(again, 510.0) == 30.0
    assert ran_s(again, 400.0) == 20.0  # the clock was set back
    over = replace(again, state=JobState.SUCCEEDED, ran_s=31.0, finished_at=9000.0)
    assert ran_s(over, 9999.0) == 31.0


def header_names(path: str) -> set[str]:
    """Names of the tensors in a safetensors file."""
    data = Path(path).read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return set(header) - {"__metadata__"}


def test_a_checkpoint_is_converted_but_not_over_another_file(tmp_path: Path) -> None:
    flow.save({"w": flow.ones(2)}, tmp_path / "x")
    target = str(tmp_path / "y.safetensors")
    code, out, _ = run("ckpt", "convert", str(tmp_path / "x"), target)
    assert (code, out) == (0, f"{target}: 1 tensors, 8 bytes\n")
    assert run("ckpt", "convert", str(tmp_path / "x"), target)[0] == 78
    assert header_names(target) == {"w"}  # as other programs see it
    assert run("ckpt", "convert", "--force", "--tree", str(tmp_path / "x"), target)[0] == 0
    assert flow.load(target)["w"].shape == (2,)
    assert header_names(target) != {"w"}
    assert run("ckpt", "convert", str(tmp_path / "none"), target, "--force")[0] == 78


def test_who_asks_for_several_hosts_hears_of_checkpoints() -> None:
    def status(*nodes: str) -> Any:
        return SimpleNamespace(daemons=[SimpleNamespace(node=node) for node in nodes])

    assert _note_of_hosts(status("a", "a"), False) == ""
    assert "with --data-root here, with --checkpoint-dir" in _note_of_hosts(status("a", "b"), False)
    assert _note_of_hosts(status("a", "b"), True) == ""


def test_a_token_is_rotated_for_as_long_as_before_and_it_is_said_until_when(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[pb.TokenRequest] = []

    class FakeCluster:
        def ask(self, method: str, request: pb.TokenRequest) -> pb.TokenReply:
            asked.append(request)
            ends = 1_790_000_000.0 if len(asked) == 1 else 0.0
            return pb.TokenReply(name=request.name, role="view", secret="oft_x", expires_at=ends)

    @contextmanager
    def connected(address: str | None) -> Iterator[FakeCluster]:
        yield FakeCluster()

    monkeypatch.setattr("oneflow.cluster.client.connect", connected)
    code, out, said = run("cluster", "token", "rotate", "eve")
    assert (code, out) == (0, "oft_x\n")
    assert said == f"oneflow: eve: view, valid until {show_time(1_790_000_000.0)}\n"
    assert not asked[0].HasField("lifetime_s")
    assert "valid for good" in run("cluster", "token", "rotate", "--lifetime", "0", "eve")[2]
    assert asked[1].HasField("lifetime_s")


class FullAtFirst:
    """A cluster without room for the first jobs that it is given."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.ids: list[str] = []

    def submit(self, source: str, *, job_id: str, **_: Any) -> Any:
        self.ids.append(job_id)
        if len(self.ids) <= self.refusals:
            raise StoreTroubleError("no room for 9 bytes")
        return Job(None, job_id)  # type: ignore[arg-type]


def test_submit_that_waits_tries_again_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("oneflow.cli.submit.time.sleep", pauses.append)
    full = FullAtFirst(2)
    job = _submitted(full, {"graph": "x.job"})  # type: ignore[arg-type]
    assert full.ids == [job.id] * 3 and len(pauses) == 2
    said = "oneflow: no room for 9 bytes; tried again every 5 s for 10 minutes\n"
    assert capsys.readouterr().err == said
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr("oneflow.cli.submit.time.monotonic", lambda: next(clock))
    with pytest.raises(StoreTroubleError):
        _submitted(FullAtFirst(100), {"graph": "x.job"})  # type: ignore[arg-type]
    with pytest.raises(StoreTroubleError):
        _submit(FullAtFirst(1), {"graph": "x.job", "job_id": "j"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argv", "is_named"),
    [
        (["python", "nosuch.py"], True),
        (["python3", "-u", "nosuch.py", "--lr", "1"], True),
        (["./nosuch.py"], True),
        (["python", "-m", "pkg.train"], False),
        (["python", "-c", "print(1)"], False),
        (["python", "there.py"], False),
    ],
)
def test_a_program_that_is_not_here_is_named_at_once(
    argv: list[str],
    is_named: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("")
    _folder_of(argv)
    assert ("there is no file" in capsys.readouterr().err) is is_named
