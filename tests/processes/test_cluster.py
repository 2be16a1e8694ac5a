"""A cluster on this machine, from the command line and from Python, with real processes."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.cluster.local import log_path
from oneflow.cluster.local_record import Process, process_of, read_record
from oneflow.core.errors import AuthError, ClusterRequestError, JobSpecError, StillActiveError
from oneflow.core.job_config import Overrides
from oneflow.core.plan import Plan
from oneflow.core.sbp import Split
from oneflow.jobs.plans import compile_plan
from oneflow.scheduler.jobs.records import JobState
from oneflow.scheduler.jobs.tokens import read_token_file
from oneflow.services.traces import merge
from tests.support.local_cluster import LocalTest, last_line, submit
from tests.support.processes import alive, below, cmdline, listening, listening_paths
from tests.support.waiting import WAIT_S, be_late, wait_until

from .line_graph import Line


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTest]:
    found = LocalTest(tmp_path_factory.mktemp("cluster"))
    try:
        done = found.run("cluster", "up", "--daemons", "2", "--allow-scripts", "--ui")
        assert done.returncode == 0, done.stderr
        yield found
    finally:
        found.run("cluster", "down")


# ---- up ------------------------------------------------------------------------------------------


def test_a_second_up_says_so(local: LocalTest) -> None:
    done = local.run("cluster", "up", "--daemons", "2")
    assert done.returncode == 0
    assert "runs already" in done.stdout
    assert local.record.address in done.stdout
    pages = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("page:")]
    status = local.run("cluster", "status").stdout
    assert [line.split()[1] for line in status.splitlines() if line.startswith("page:")] == pages
    with urllib.request.urlopen(pages[0], timeout=WAIT_S) as page:
        assert b"<html" in page.read()
    for flags in (["--no-allow-scripts"], ["--daemons", "3"]):
        other = local.run("cluster", "up", *flags)
        assert other.returncode == 78
        assert "cluster down" in other.stderr


def test_nothing_listens_but_what_was_announced(local: LocalTest) -> None:
    """A job with the page, and two ranks that have met. Others of this machine may connect to
    nothing that asks for no token, but for /metrics.
    """
    text = "import oneflow as flow; flow.comm.barrier(); print(os.environ['MASTER_PORT'])"
    job_id = submit(local, local.script("meets.py", f"{text}\ntime.sleep(600)")).stdout.strip()
    targets = json.loads(local.run("cluster", "metrics-targets").stdout)
    metrics = {address for target in targets for address in target["targets"]}
    with local.connect() as cluster:
        status = cluster.status()
        lines = cluster.job(job_id).logs(follow=True)
        port = {next(lines).text for _ in range(2)}
        daemons = {process.pid for process in local.record.daemons}
        ranks = {child for pid in daemons for child in below(pid)} - daemons
        found = {
            "scheduler": listening({local.record.scheduler.pid}),
            "daemons": listening(daemons),
            "ranks": listening(ranks),
        }
        own = listening_paths({local.record.scheduler.pid})
        paths = own + listening_paths(daemons | ranks)
        found["scheduler"] |= {f"unix:{path}" for path in own}
        cluster.job(job_id).cancel()
        cluster.job(job_id).wait(WAIT_S)
    assert found["scheduler"] == {status.address, status.metrics_address}
    assert found["daemons"] == metrics - {status.metrics_address}
    assert len(found["daemons"]) == 2
    assert len(port) == 1
    assert f"127.0.0.1:{port.pop()}" in found["ranks"]  # where they meet, with the job's secret
    everywhere = set().union(*found.values()) - {status.address}
    assert status.address.startswith("unix:/")  # nobody has asked for a port
    assert all(address.startswith("127.0.0.1:") for address in everywhere), everywhere
    assert len(found["ranks"]) <= 3, found  # and, at most, a line for tensors of each rank
    for path in paths:
        if re.fullmatch("@oneflow-[0-9a-f]{32}", path):
            continue  # anybody may connect, but it answers to this user only: transport/pages.py
        assert path.startswith("/"), path
        private = [folder for folder in Path(path).parents if folder.stat().st_mode & 0o077 == 0]
        assert private, path


def test_the_token_is_for_its_owner_only(local: LocalTest) -> None:
    assert (local.folder / "config" / "token").stat().st_mode & 0o777 == 0o600
    with pytest.raises(AuthError):
        flow.cluster.connect(local.record.address, "oft_not-a-token-of-this-cluster")
    local.env["ONEFLOW_AUTH_TOKEN"] = "oft_not-a-token-of-this-cluster"
    try:
        done = local.run("cluster", "status")
        assert done.returncode == 77
        assert "(the token is from ONEFLOW_AUTH_TOKEN)" in done.stderr
    finally:
        del local.env["ONEFLOW_AUTH_TOKEN"]


def test_a_program_gets_no_token_and_no_descriptor_of_its_daemon(local: LocalTest) -> None:
    local.env["ONEFLOW_AUTH_TOKEN"] = read_token_file(local.folder / "config" / "token")
    try:
        env = _said(local, "env")
        opened = _said(local, "ls", "/proc/self/fd")
    finally:
        del local.env["ONEFLOW_AUTH_TOKEN"]
    others = set(opened) - {"0", "1", "2", "3"}  # the last is what `ls` reads
    assert len(others) <= 1, opened  # the pipe into which a rank's own process may say it lives
    names = {line.partition("=")[0] for line in env}
    assert "ONEFLOW_JOB_TOKEN" in names  # of this job's own ranks
    assert not [name for name in names if name.startswith("ONEFLOW_AUTH")]
    assert "oft_" not in "".join(env)


def _said(local: LocalTest, *argv: str) -> list[str]:
    """Runs a program of one rank; returns its output."""
    done = local.run("job", "submit", "--wait", "--", *argv)
    assert done.returncode == 0, done.stderr
    lines = local.run("job", "logs", done.stdout.split()[0]).stdout.splitlines()
    return [line.partition(": ")[2] for line in lines]


def test_what_operators_ask(local: LocalTest) -> None:
    status = json.loads(local.run("cluster", "status", "-o", "json").stdout)
    assert [d["device"] for d in status["daemons"]] == ["cpu:0", "cpu:1"]
    assert status["allows_scripts"] is True
    assert "cpu:1" in local.run("cluster", "nodes").stdout
    assert status["address"] in local.run("top", "--once").stdout
    targets = json.loads(local.run("cluster", "metrics-targets").stdout)
    addresses = {entry["targets"][0] for entry in targets} | {status["metrics_address"]}
    assert len(addresses) >= 3
    for address in addresses:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=WAIT_S) as page:
            assert b"oneflow_build_info" in page.read()


def test_a_token_may_what_its_role_may(local: LocalTest) -> None:
    secret = local.run("cluster", "token", "create", "--role", "view", "eve").stdout.strip()
    assert "eve" in local.run("cluster", "token", "list").stdout
    assert secret not in local.run("cluster", "token", "list", "-o", "json").stdout
    with flow.cluster.connect(local.record.address, secret) as cluster:
        list(cluster.jobs())
        with pytest.raises(AuthError, match="view"):
            cluster.submit_script([sys.executable, "-c", "pass"])
    assert local.run("cluster", "token", "revoke", "eve").returncode == 0
    with pytest.raises(AuthError):
        flow.cluster.connect(local.record.address, secret)


# ---- scripts and their exit codes ----------------------------------------------------------------


def test_a_job_that_succeeds(local: LocalTest) -> None:
    script = local.script("ok.py", "print('rank', rank, 'of', os.environ['WORLD_SIZE'])")
    done = submit(local, script, "--wait", "--name", "fine")
    assert done.returncode == 0
    job_id, *lines = done.stdout.splitlines()
    host = os.uname().nodename
    assert sorted(lines) == [f"{host}:{r}: rank {r} of 2" for r in (0, 1)]
    assert last_line(done).startswith(f"oneflow: job={job_id} attempt=1 state=SUCCEEDED")
    listed = json.loads(local.run("job", "list", "-f", "name=fine", "-o", "json").stdout)
    assert [job["id"] for job in listed["jobs"]] == [job_id]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("if rank == 1: sys.exit(7)\ntime.sleep(600)", 7, "reason=USER_ERROR rank=1"),
        ("if rank == 0: os.kill(os.getpid(), 9)\ntime.sleep(600)", 137, "reason=SIGNAL rank=0"),
    ],
    ids=["exit", "kill"],
)
def test_a_job_that_fails_gives_its_own_code(
    local: LocalTest, text: str, code: int, said: str
) -> None:
    done = submit(local, local.script(f"fail{code}.py", text), "--wait")
    assert done.returncode == code
    assert said in last_line(done)
    assert f"exit={code}" in last_line(done)
    log = re.search(r" log=(\S+/rank[01]/stderr) cause=", last_line(done))
    assert log is not None and Path(log[1]).exists()


def test_a_program_that_is_not_there_is_not_waited_for(local: LocalTest) -> None:
    done = local.run("job", "submit", "--wait", "--", "/nonexistent")
    assert done.returncode == 78
    assert "reason=UNSATISFIABLE" in last_line(done)
    assert "/nonexistent" in last_line(done)


def test_words_of_a_program_see_no_shell(local: LocalTest) -> None:
    script = local.script("words.py", "print(sys.argv[1:])")
    words = ["a b", "$HOME", "; echo no", "--devices", "--"]
    done = local.run("job", "submit", "--wait", "--", sys.executable, script, *words)
    assert repr(words) in done.stdout


def test_a_working_directory_is_sent_along(local: LocalTest) -> None:
    folder = local.folder / "work"
    folder.mkdir()
    (folder / "main.py").write_text("import helper, os; print(helper.X, os.environ['Y'])")
    (folder / "helper.py").write_text("X = 'from the folder'")
    asked = ["--wait", "--working-dir", str(folder), "--env", "Y=given"]
    done = local.run("job", "submit", *asked, "--", sys.executable, "main.py")
    assert done.returncode == 0, done.stderr
    assert "from the folder given" in done.stdout


def test_a_folder_that_nobody_named_is_sent_without_what_is_hidden_in_it(local: LocalTest) -> None:
    (local.folder / ".env").write_text("KEY=s3cret")
    (local.folder / "lists.py").write_text("import os; print(sorted(os.listdir()))")
    done = local.run("job", "submit", "--wait", "--", sys.executable, "lists.py")
    assert done.returncode == 0, done.stderr
    assert "without dot files" in done.stderr
    assert "lists.py" in done.stdout and ".env" not in done.stdout
    again = local.run("job", "restart", done.stdout.split()[0])
    assert (again.returncode, "had succeeded: it runs once more" in again.stderr) == (0, True)


# ---- following, cancelling, waiting --------------------------------------------------------------


def test_logs_are_followed_to_the_end(local: LocalTest) -> None:
    text = "for i in range(300): print(i, 'x' * 50, flush=True); time.sleep(0.005)"
    job_id = submit(local, local.script("talks.py", text)).stdout.strip()
    done = local.run("job", "logs", "-f", "--no-prefix", "--rank", "1", job_id)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [str(i) for i in range(300)]


def test_wait_gives_up_and_cancel_ends(local: LocalTest) -> None:
    job_id = submit(local, local.script("long.py", "time.sleep(600)")).stdout.strip()
    done = local.run("job", "wait", "--timeout", "1s", job_id)
    assert done.returncode == 75
    assert local.run("job", "cancel", job_id).returncode == 0
    done = local.run("job", "wait", job_id)
    assert "state=CANCELLED" in last_line(done)
    assert done.returncode != 0
    assert local.run("job", "cancel", job_id).returncode == 0  # again changes nothing
    assert local.run("job", "rm", job_id).returncode == 0
    assert local.run("job", "get", job_id).returncode == 64


def test_a_job_is_restarted_after_the_codes_that_were_named(local: LocalTest) -> None:
    text = "print('attempt', os.environ['ONEFLOW_ATTEMPT'])\n"
    text += "sys.exit({'1': 7, '2': 9}[os.environ['ONEFLOW_ATTEMPT']])"
    options = ["--max-restarts", "5", "--restart-on", "7", "--wait"]
    done = submit(local, local.script("codes.py", text), *options, devices=1)
    assert done.returncode == 9
    assert "attempt=2 state=FAILED" in last_line(done)
    job_id = done.stdout.split()[0]
    first = local.run("job", "logs", "--attempt", "1", "--no-prefix", job_id)
    assert first.stdout == "attempt 1\n"
    assert local.run("job", "logs", "--attempt", "3", job_id).returncode == 64


def test_a_stuck_job_shows_its_stacks_and_the_end_of_its_log(local: LocalTest) -> None:
    text = "def stuck():\n    print('late', flush=True)\n    time.sleep(600)\n"
    go_on = local.folder / "go-on"
    wait = f"while not os.path.exists({str(go_on)!r}): time.sleep(0.02)\n"
    text += f"print('early', flush=True)\n{wait}stuck()"
    job_id = submit(local, local.script("stuck.py", text), "--env", "A_TOKEN=hidden").stdout.strip()
    with local.connect() as cluster:
        job = cluster.job(job_id)
        lines = job.logs(follow=True, ranks=(1,))
        assert next(lines).text == "early"
        be_late(1.5)  # times of lines are kept with whole seconds between them
        since = time.time()
        be_late(0.5)
        go_on.touch()
        assert next(lines).text == "late"
        assert [line.text for line in job.logs(since=since, ranks=(1,))] == ["late"]
        stacks = local.run("debug", "stack", job_id)
        assert stacks.returncode == 0
        assert "rank 0 on" in stacks.stdout and "in stuck" in stacks.stdout
        dump = local.run("debug", "dump", "--rank", "1", job_id).stdout
        (rank,) = json.loads(dump)["ranks"]
        assert rank["runs"] and "in stuck" in rank["stacks"] and "late" in rank["stdout_tail"]
        assert "hidden" not in dump
        job.cancel()
        job.wait(WAIT_S)
    done = local.run("debug", "stack", "-o", "json", job_id)
    assert done.returncode == 64
    assert "nothing of it runs" in json.loads(done.stderr)["error"]["message"]


def test_a_job_that_must_wait_says_why(local: LocalTest) -> None:
    with local.connect() as cluster:
        job = cluster.submit_script([sys.executable, "-c", "pass"], devices=3)
        said = "needs 3 cpu devices: the cluster has only 2; it waits until more join"
        assert next(r.pending for r in job.watch(WAIT_S) if r.pending) == said
        with pytest.raises(StillActiveError):
            job.wait(0.1)
        job.cancel()
        assert job.wait(WAIT_S).state is JobState.CANCELLED


def test_the_same_id_is_one_job_though_the_client_was_killed(local: LocalTest) -> None:
    script = local.script("once.py", "open(f'once-{rank}', 'a').write('x'); time.sleep(0.5)")
    asked = ["job", "submit", "--job-id", "only-once", "--", sys.executable, script]
    for delay_s in (0.15, 0.3, 0.45):
        client = local.start(*asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay_s)
        client.kill()
        client.wait()
    done = local.run(*asked)
    assert done.stdout.strip() == "only-once"
    assert local.run("job", "wait", "only-once").returncode == 0
    listed = json.loads(local.run("job", "list", "-o", "json").stdout)["jobs"]
    assert [job["attempt"] for job in listed if job["id"] == "only-once"] == [1]
    with local.connect() as cluster, pytest.raises((ClusterRequestError, JobSpecError)):
        cluster.submit_script([sys.executable, "-c", "1"], job_id="only-once")


def test_a_removed_id_begins_a_new_life(local: LocalTest) -> None:
    """Nothing of the jobs before it counts for the next one: exit code, log, folder, progress."""
    programs = ("sys.exit(3)", 3), ("pass", 0), ("pass", 0)
    for number, (text, code) in enumerate(programs):
        says = f"open('{number}', 'w').close(); print(os.listdir('.'))"
        script = local.script("again.py", f"{says}\n{text}")
        done = submit(local, script, "--job-id", "again", "--wait", devices=1)
        assert done.returncode == code, done.stderr
        assert local.run("job", "logs", "--no-prefix", "again").stdout == f"['{number}']\n"
        assert local.run("job", "rm", "again").returncode == 0
    with local.connect() as cluster:
        for steps in (40, 5):
            job = cluster.submit(Line(), data=line_data(), steps=steps, job_id="again")
            assert job.wait(WAIT_S).state is JobState.SUCCEEDED
            status = job.status()
            assert (status.last_step, status.total_steps) == (steps, steps)
            assert [point.step for point in job.metrics()] == list(range(1, steps + 1))
            job.remove()


# ---- jobs as data --------------------------------------------------------------------------------


class Words(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        flow.manual_seed(3)
        self.model = nn.Sequential(nn.Embedding(20_000, 8), nn.Linear(8, 20_000, bias=False))
        self.add_optimizer(flow.optim.AdamW(self.model.parameters(), lr=0.01))

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def line_data() -> Any:
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(64, 1)
    return flow.jobs.data.arrays(x=x, y=3 * x).shuffle(1).batch(16).repeat()


def test_a_graph_is_trained_from_python(local: LocalTest) -> None:
    with local.connect() as cluster:
        job = cluster.submit(Line(), data=line_data(), steps=100, devices=2, name="line")
        points = list(job.metrics())
        assert job.wait(WAIT_S).state is JobState.SUCCEEDED
        assert [point.step for point in points] == list(range(1, 101))  # the whole curve
        assert points[-1].values["loss"] < 1e-3 < points[0].values["loss"]
        assert job.variables()["model.weight"] == pytest.approx(3.0, abs=0.05)
        assert float(job.outputs()["loss"]) == pytest.approx(points[-1].values["loss"])
        with pytest.raises(ClusterRequestError):
            job.output("no-such-output")


def test_a_cluster_lays_out_a_job_file(local: LocalTest) -> None:
    """A file without any layout: of many words, whose gradients cost more to sum than to split."""
    words = np.random.default_rng(1).integers(0, 20_000, (2, 32))
    data = flow.jobs.data.arrays(x=words[0], y=words[1]).batch(8)
    path = local.folder / "words.job"
    flow.jobs.save(Words(), path, data=data, checkpoint_every=4)
    graph, expected = Words(), []
    for rows in np.split(words, 4, axis=1):
        expected.append(float(graph(*map(flow.tensor, rows))))
    done = local.run("job", "submit", str(path), "--devices", "2", "--auto-parallel", "--wait")
    assert done.returncode == 0, done.stderr
    found = local.run("job", "get", "-o", "json", done.stdout.strip())
    record = json.loads(found.stdout)
    assert record["spec"]["auto_parallel"] is True
    with local.connect() as cluster:
        losses = [point.values["loss"] for point in cluster.job(record["id"]).metrics()]
    assert losses == pytest.approx(expected, rel=1e-5)
    files = (Path(record["last_checkpoint"]).parents[1] / "files").iterdir()
    (plan,) = [file.read_bytes() for file in files if file.name != record["spec"]["graph"]]
    assert plan == compile_plan(path, 2, "cpu", overrides=Overrides(auto_parallel=True))
    layouts = {node.outputs[0].sbp for node in Plan.from_bytes(plan).graph.of_kind("variable")}
    assert any(isinstance(nd_sbp[0], Split) for nd_sbp in layouts if nd_sbp)


def test_a_job_file_shows_its_progress_curve_and_outputs(local: LocalTest) -> None:
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(64, 1)
    data = flow.jobs.data.arrays(x=x, y=3 * x).batch(16).repeat()
    flow.jobs.save(Line(), local.folder / "line.job", data=data, steps=30, name="fits")
    done = local.run("job", "submit", "line.job", "--wait")
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    assert "oneflow: step=30/30 loss=" in done.stderr.splitlines()[-2]
    with local.connect() as cluster:
        assert [job.id for job in cluster.jobs(name="fits")] == [job_id]  # the file's name
        assert [point.step for point in cluster.job(job_id).metrics()] == list(range(1, 31))
    curve = local.run("job", "metrics", "-f", "-o", "json", job_id)
    points = [json.loads(line) for line in curve.stdout.splitlines()]
    assert [(p["index"], p["step"]) for p in points] == [(i, i + 1) for i in range(30)]
    assert "state=SUCCEEDED" in last_line(curve)
    listed = ["loss.safetensors", "metrics.jsonl", "variables.safetensors"]
    done = local.run("job", "outputs", job_id, "--to", "results")
    assert done.stdout.split() == [f"results/{name}" for name in listed]
    results = local.folder / "results"
    assert sorted(path.name for path in results.iterdir()) == listed
    assert len((results / "metrics.jsonl").read_text().splitlines()) == 30
    done = local.run("job", "outputs", job_id, "nothing", "--to", "results")
    assert done.returncode == 64
    assert "loss.safetensors" in done.stderr


def test_a_graph_job_is_traced_by_all_its_ranks(local: LocalTest) -> None:
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(64, 1)
    data = flow.jobs.data.arrays(x=x, y=3 * x).batch(16).repeat()
    with local.connect() as cluster:
        job = cluster.submit(Line(), data=data, steps=10**7, devices=2, name="traced")
        next(iter(job.metrics()))
        with pytest.raises(ClusterRequestError, match="no rank 7"):
            job.start_trace(ranks=[7])
        asked = job.start_trace(steps=20)
        assert [(t.rank, t.error) for t in asked] == [(0, ""), (1, "")]
        assert {t.state for t in job.wait_trace()} == {"done"}
        names = [f"trace-rank{rank}.json.gz" for rank in range(2)]
        assert [(t.file, t.steps) for t in job.trace_state()] == [(name, 20) for name in names]
        assert set(names) <= set(job.output_names())
        dumps = [json.loads(piece.text) for piece in job.debug("dump")]
        for dump in dumps:  # the last acts of each rank, with their ages
            told = dump["stacks"].partition("last acts of job")[2].splitlines()
            assert len([line for line in told if " s ago: " in line]) == 64
        drawn = timeline_of(local, cluster.status().metrics_address, job.id)
        job.start_trace(seconds=300)  # in place of the one before
        assert [t.state for t in job.stop_trace()] == ["done"] * 2
        second = job.save_traces(local.folder / "second")
        job.cancel()
        job.wait(WAIT_S)
        with pytest.raises(ClusterRequestError, match="among its outputs"):
            job.start_trace()
        files = job.save_traces(local.folder / "after")
    assert len({bar[3] for bar in drawn["acts"]}) == 3  # steps
    assert {row["rank"] for row in drawn["rows"]} == {0, 1}
    merged = merge(files, local.folder / "both.json.gz")
    assert merged.ranks == (0, 1) and set(merged.clocks.values()) == {"the same clock"}
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in second]
    check_traces(files, merged.path)


def timeline_of(local: LocalTest, address: str, job_id: str) -> Any:
    """The timeline of three steps, as the page asks for it."""
    bearer = {"Authorization": f"Bearer {read_token_file(local.folder / 'config' / 'token')}"}

    def ask(path: str, method: str) -> Any:
        url = f"http://{address}/api/jobs/{job_id}/{path}"
        wanted = urllib.request.Request(url, headers=bearer, method=method)
        with urllib.request.urlopen(wanted, timeout=WAIT_S) as reply:
            return json.load(reply)

    before = ask("timeline", "GET")["trace"]
    assert ask("trace?steps=3", "POST") == {"state": "RUNNING"}
    deadline = time.monotonic() + WAIT_S
    while (found := ask("timeline", "GET")).get("trace", before) == before:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def check_traces(paths: list[Path], both: Path) -> None:
    """Each step of each rank is whole, an actor does one thing at a time, arrows go forward."""
    merged = json.loads(gzip.decompress(both.read_bytes()))
    events = merged["traceEvents"]
    acts = [e for e in events if e["ph"] == "X" and e["cat"] not in ("kernel", "wait")]
    assert {e["pid"] for e in acts} == {0, 1}
    steps: list[set[int]] = []
    for rank, path in enumerate(paths):
        own = json.loads(gzip.decompress(path.read_bytes()))
        assert own["otherData"]["rank"] == rank and own["summary"]["dropped"] == 0
        names = [e for e in own["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"]
        actors = {e["tid"] for e in names if e["args"]["name"] != "waits"}
        counts = Counter(e["args"]["step"] for e in acts if e["pid"] == rank and e["tid"] in actors)
        assert set(counts.values()) == {len(actors)}  # without micro-batches each acts once
        steps.append(set(counts))
    assert steps[0] == steps[1] and len(steps[0]) == max(steps[0]) - min(steps[0]) + 1
    until: dict[Any, float] = {}
    for act in acts:
        where = act["pid"], act["tid"]
        assert act["ts"] >= until.get(where, 0.0) - 0.002
        until[where] = act["ts"] + act["dur"]
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert all(begins[name]["ts"] <= ends[name]["ts"] + 0.002 for name in begins)
    crossing = {(begins[name]["pid"], ends[name]["pid"]) for name in begins}
    assert {(0, 1), (1, 0)} <= crossing


# ---- the scheduler goes and comes; everything ends -----------------------------------------------


def test_following_survives_the_scheduler(local: LocalTest) -> None:
    text = "for i in range(40): print(i, flush=True); time.sleep(0.1)"
    job_id = submit(local, local.script("steady.py", text), devices=1).stdout.strip()
    follower = local.start(
        "job", "logs", "-f", "--no-prefix", job_id, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert follower.stdout is not None
    first = os.read(follower.stdout.fileno(), 1 << 16).decode()  # nothing stays in a buffer
    os.kill(local.record.scheduler.pid, signal.SIGKILL)
    done = local.run("cluster", "up")
    assert "whole again" in done.stdout
    out, err = follower.communicate(timeout=WAIT_S)
    assert (first + out).split() == [str(i) for i in range(40)], err
    assert follower.returncode == 0, err
    record = json.loads(local.run("job", "get", "-o", "json", job_id).stdout)
    assert record["attempt"] == 1


def test_a_restored_scheduler_shows_nothing_of_a_lost_job_of_that_id(tmp_path: Path) -> None:
    local = LocalTest(tmp_path)
    script = local.script("lost.py", "print(sys.argv[1]); open(sys.argv[1], 'w').close()")
    command = ["--devices", "1", "--job-id", "b1", "--wait", "--", sys.executable, script]
    try:
        up = local.run("cluster", "up", "--daemons", "1", "--allow-scripts")
        assert up.returncode == 0, up.stderr
        copy = tmp_path / "copy"
        (database,) = (path.parent for path in (tmp_path / "state").rglob("cluster.db"))
        shutil.copytree(database, copy, ignore=shutil.ignore_patterns("*.sock"))
        assert local.run("job", "submit", *command, "lost").returncode == 0
        scheduler = local.record.scheduler
        os.kill(scheduler.pid, signal.SIGKILL)
        wait_until(lambda: not scheduler.is_alive)
        for name in ("cluster.db", "cluster.db-wal", "cluster.db-shm"):
            (database / name).unlink(missing_ok=True)
            if (copy / name).exists():
                shutil.copy2(copy / name, database / name)
        assert local.run("cluster", "up").returncode == 0
        done = local.run("job", "submit", *command, "new")
        assert done.returncode == 0, done.stderr
        assert local.run("job", "logs", "--no-prefix", "b1").stdout == "new\n"
    finally:
        local.run("cluster", "down")


def test_up_replaces_a_frozen_daemon(tmp_path: Path) -> None:
    local = LocalTest(tmp_path)
    assert local.run("cluster", "up", "--daemons", "2").returncode == 0
    try:
        frozen = local.record.daemons[1]
        os.kill(frozen.pid, signal.SIGSTOP)
        done = local.run("cluster", "up")
        assert done.returncode == 0, done.stderr
        assert f"whole again: {frozen.name}" in done.stdout
        assert not frozen.is_alive
        assert local.record.daemons[1].pid != frozen.pid
    finally:
        local.run("cluster", "down")


def test_down_leaves_nothing(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    local = LocalTest(tmp_path)
    assert local.run("cluster", "up", "--daemons", "1", "--allow-scripts").returncode == 0
    processes = local.record.processes
    said = log_path("scheduler", tmp_path / "state").read_text()
    assert "oneflow: the scheduler listens at unix:" in said
    script = local.script("stays.py", "open('pid', 'w').write(str(os.getpid())); time.sleep(600)")
    folder = ["--working-dir", str(tmp_path / "empty")]
    (tmp_path / "empty").mkdir()
    submit(local, script, *folder, devices=1)
    tree = _wait_for_child(processes[1].pid)
    (tmp_path / "config" / "token").unlink()
    lost = local.run("cluster", "up")
    assert (lost.returncode, "`oneflow cluster down`, then" in lost.stderr) == (78, True)
    done = local.run("cluster", "down")
    assert done.returncode == 0, done.stderr
    assert not any(process.is_alive for process in processes)
    assert [process for process in tree if process.is_alive] == []
    assert read_record(tmp_path / "state") is None
    assert list((tmp_path / "run" / "oneflow").iterdir()) == []
    mine = [n for n in set(os.listdir("/dev/shm")) - before if str(processes[1].pid) in n]
    assert mine == []
    assert not [p for p in (tmp_path / "state").rglob("*") if p.is_socket()]


def _wait_for_child(pid: int) -> list[Process]:
    """All below a daemon, once it runs the script."""
    wait_until(lambda: any(b"stays.py" in cmdline(child) for child in below(pid)))
    return [process_of("", child) for child in below(pid)]


def test_who_cannot_listen_says_so_in_one_line(tmp_path: Path) -> None:
    """And not in gRPC's words before that."""
    local = LocalTest(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = local.run(
            "scheduler", "run", "--listen", address, "--state-dir", str(tmp_path / "s")
        )
    assert done.returncode == 78
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"oneflow: cannot listen on {address}")


def test_the_port_of_another_cluster_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    """Its scheduler knows the same token, and its daemons would be taken for our own."""
    first, second = LocalTest(tmp_path / "first"), LocalTest(tmp_path / "second")
    first.env["ONEFLOW_SCHEDULER_LISTEN"] = "127.0.0.1:0"
    assert first.run("cluster", "up", "--daemons", "1").returncode == 0
    try:
        second.env["ONEFLOW_CONFIG_DIR"] = first.env["ONEFLOW_CONFIG_DIR"]
        second.env["ONEFLOW_SCHEDULER_LISTEN"] = first.record.address
        done = second.run("cluster", "up", "--daemons", "1")
        assert done.returncode == 78
        assert f"cannot listen on {first.record.address}: the port is in use" in last_line(done)
        assert str(first.record.scheduler.pid) in last_line(done)
    finally:
        first.run("cluster", "down")
    assert read_record(second.folder / "state") is None
    assert not alive(str(second.folder), "oneflow")
