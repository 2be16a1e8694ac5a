"""A daemon in a process of its own: its work with the ranks of scripts, as jobs tell it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from campaigns.proxy import DOWN, Proxy
from oneflow.cluster.job import Job
from oneflow.launcher.daemon.cgroups import find_hierarchies, make_group
from oneflow.scheduler.cluster.certificates import init_tls
from oneflow.scheduler.jobs.records import JobRecord, JobState
from tests.support.cluster import PATIENT, QUICK, Patience, Rig, Running
from tests.support.processes import alive
from tests.support.waiting import CALL_S, WAIT_S, be_late, wait_until

Start = Callable[..., Running]
SLOW_TO_LEAVE = QUICK | {"shutdown_grace_s": 60.0}
UNTIL = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.02)\n"


def until(flag: Path) -> str:
    """The begin of a script that waits for a file."""
    return UNTIL.format(str(flag))


def first_line(job: Job) -> str:
    return next(job.logs(follow=True)).text


def end_of(job: Job) -> tuple[int, str, str]:
    record = job.wait(WAIT_S)
    return record.exit_code, record.reason, record.cause


def when_lost(job: Job) -> JobRecord:
    """The record once an attempt has lost its daemon: it goes on with the next one."""
    wait_until(lambda: job.status().reason == "NODE_LOST")
    return job.status()


def output(job: Job) -> str:
    """All that a job writes until it ends."""
    return "".join(f"{line.text}\n" for line in job.logs(follow=True, stream="stdout"))


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("print('hello')", (0, "NONE", "")),
        ("import sys; sys.exit(7)", (7, "USER_ERROR", "exited with code 7")),
        ("import os; os.kill(os.getpid(), 9)", (137, "SIGNAL", "killed by SIGKILL")),
        ("import os; os.abort()", (134, "SIGNAL", "killed by SIGABRT")),
    ],
)
def test_the_end_of_a_script_is_told(
    rig: Rig, start: Start, text: str, end: tuple[int, str, str]
) -> None:
    daemon, job = start(), rig.script(text)
    assert end_of(job) == end
    assert (job.status().pid > 0) == (end[0] != 0)
    assert output(job) == ("hello\n" if end[0] == 0 else "")
    assert list(daemon.temp.iterdir()) == []


CLINGING = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code, "MARK"], start_new_session=True)
open(os.path.join(os.environ["TMPDIR"], "left"), "w").close()
print("up", flush=True)
"""


def clinging(rig: Rig, tmp_path: Path, ending: str = "time.sleep(600)") -> tuple[Job, str]:
    """A script with a grandchild in a session of its own; neither heeds SIGTERM. And a word on the
    command lines of both.
    """
    mark = f"mark-of-{tmp_path.name}"
    return rig.script(CLINGING.replace("MARK", mark) + ending), mark


@pytest.mark.parametrize("use_groups", [None, False])
def test_a_stop_leaves_nothing_whatever_heeds_no_signal(
    rig: Rig, start: Start, tmp_path: Path, use_groups: bool | None
) -> None:
    daemon = start() if use_groups is None else start(use_groups=use_groups)
    job, mark = clinging(rig, tmp_path)
    assert first_line(job) == "up"
    assert len(alive(mark)) == 2
    job.cancel()
    assert end_of(job) == (143, "CANCELLED", "cancelled by admin")
    daemon.told(r"(ended: PREEMPTED cancelled by admin \(killed by SIGKILL\))")
    assert alive(mark) == []
    assert list(daemon.temp.iterdir()) == []


@pytest.mark.parametrize("use_groups", [None, False])
def test_what_outlives_the_rank_is_ended_before_its_end_is_told(
    rig: Rig, start: Start, tmp_path: Path, use_groups: bool | None
) -> None:
    start() if use_groups is None else start(use_groups=use_groups)
    job, mark = clinging(rig, tmp_path, "sys.exit(3)")
    assert end_of(job)[0] == 3
    assert alive(mark) == []


def test_with_the_daemon_all_of_its_rank_dies(rig: Rig, start: Start, tmp_path: Path) -> None:
    daemon = start()
    job, mark = clinging(rig, tmp_path)
    assert first_line(job) == "up"
    daemon.end()
    assert when_lost(job).exit_code == 137
    job.cancel()
    wait_until(lambda: not alive(mark))
    wait_until(lambda: list(daemon.temp.iterdir()) == [])
    wait_until(lambda: not daemon.has_group_with("cgroup.procs"))
    start()
    assert end_of(rig.script("pass"))[0] == 0


@pytest.mark.parametrize("ends_meanwhile", [False, True])
def test_without_a_scheduler_the_job_goes_on(
    rig: Rig, start: Start, tmp_path: Path, ends_meanwhile: bool
) -> None:
    """An end that nobody heard is told to the next scheduler."""
    daemon, flag = start(), tmp_path / "flag"
    job = rig.script(f"print('up', flush=True)\n{until(flag)}print('through')\nraise SystemExit(5)")
    assert first_line(job) == "up"
    rig.kill("scheduler")
    if ends_meanwhile:
        flag.touch()
        daemon.told("(ended: USER_ERROR)")
    else:
        be_late(1.0)
    rig.repair()
    if not ends_meanwhile:
        wait_until(daemon.is_up)
        assert job.status().state is JobState.RUNNING
        flag.touch()
    assert end_of(job) == (5, "USER_ERROR", "exited with code 5")
    assert job.status().attempt == 1
    assert output(job) == "up\nthrough\n"


def test_a_daemon_that_was_given_up_is_fenced_kills_what_it_runs_and_joins_anew(
    tmp_path: Path,
) -> None:
    """Runs at the times that are the default."""
    alone = Rig(tmp_path, armed=False, devices=("cpu:0",), patience=PATIENT)
    alone.given = {"scheduler": {"table": None, "heartbeat_s": None}, "cpu:0": {"times": QUICK}}
    with alone:
        (before,) = alone.client().status().daemons
        job, mark = clinging(alone, tmp_path)
        assert first_line(job) == "up"
        os.kill(before.pid, signal.SIGSTOP)
        record = when_lost(job)
        assert record.exit_code == 137
        assert "daemon rig/cpu:0 was not heard for 9.2 s" in record.cause
        job.cancel()
        os.kill(before.pid, signal.SIGCONT)
        wait_until(lambda: not alive(mark))
        alone.wait_attached()
        (after,) = alone.client().status().daemons
        assert (after.pid, after.epoch > before.epoch) == (before.pid, True)
        assert end_of(alone.script("pass"))[0] == 0


def test_logs_are_followed_without_gaps_while_they_grow(rig: Rig, start: Start) -> None:
    start(logs={"file_nbytes": 1 << 20, "num_files": 16})
    job = rig.script("for i in range(100_000): print(f'line {i} \\x1b[31m\\xff')")
    found = b"\n".join(block.data for block in job.log_blocks(follow=True))
    assert found == "\n".join(f"line {i} \x1b[31m\xff" for i in range(100_000)).encode()


def test_a_rank_is_given_what_the_launcher_gives(rig: Rig, start: Start) -> None:
    for device in ("cpu:0", "cpu:1"):
        start(device)
    text = "import json, os; print(json.dumps(dict(os.environ)))"
    own = {"MINE": "1", "ONEFLOW_TIMEOUT_SECONDS": "60"}
    job = rig.script(text, env=own, devices=2)
    said = {line.rank: json.loads(line.text) for line in job.logs(follow=True, stream="stdout")}
    assert sorted(said) == [0, 1]
    for rank, env in said.items():
        wanted = {
            "MASTER_ADDR": "127.0.0.1",
            "WORLD_SIZE": "2",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "ONEFLOW_JOB_ID": job.id,
            "ONEFLOW_ATTEMPT": "1",
            "OMP_NUM_THREADS": "1",
            "MINE": "1",
            "ONEFLOW_TIMEOUT_SECONDS": "60",
        }
        assert {k: env.get(k) for k in wanted} == wanted
        assert len(env["ONEFLOW_JOB_TOKEN"]) >= 32
    assert len({env["ONEFLOW_JOB_TOKEN"] for env in said.values()}) == 1


def test_two_daemons_run_the_ranks_of_one_job(rig: Rig, start: Start, tmp_path: Path) -> None:
    """Ranks that meet, add up and share the folder that was sent along; one that raises says
    where.
    """
    for device in ("cpu:0", "cpu:1"):
        start(device)
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("import helper\nhelper.go()\n")
    (source / "helper.py").write_text(
        "import os\n"
        "import oneflow as flow\n"
        "def go():\n"
        "    x = flow.ones(2).to_global(flow.placement('cpu', [0, 1]), flow.sbp.partial_sum)\n"
        "    x = x.to_global(sbp=flow.sbp.broadcast).to_local().numpy().tolist()\n"
        "    print(x, os.getcwd(), flush=True)\n"
        "    flow.comm.barrier()\n"
        "    raise ValueError('no such data')\n"
    )
    job = rig.client().submit_script(["python", "train.py"], working_dir=source, devices=2)
    code, reason, cause = end_of(job)
    assert (code, reason, cause) == (1, "USER_ERROR", "ValueError: no such data (train.py:2)")
    where = rig.folder / "node" / "jobs" / job.id / "work"
    said = [line.text for line in job.logs(stream="stdout")]
    assert said == [f"[2.0, 2.0] {where}"] * 2


def test_a_signal_drains_the_daemon(rig: Rig, start: Start) -> None:
    daemon = start(times=SLOW_TO_LEAVE)
    text = "import signal, sys, time\nsignal.signal(15, lambda *a: sys.exit(0))\n"
    job = rig.script(text + "print('up', flush=True)\ntime.sleep(600)")
    assert first_line(job) == "up"
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(WAIT_S) == 0
    assert "ended: PREEMPTED" in daemon.said()


def test_a_second_signal_does_not_wait(rig: Rig, start: Start, tmp_path: Path) -> None:
    daemon = start(times=SLOW_TO_LEAVE, metrics_addr="127.0.0.1:0")
    job, mark = clinging(rig, tmp_path)
    assert first_line(job) == "up"
    ready = daemon.told(r"metrics on (http:\S+)/metrics") + "/readyz"
    daemon.process.send_signal(signal.SIGTERM)
    wait_until(lambda: status_of(ready) == 503)  # two signals that come as one are one
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(WAIT_S) == 143
    assert alive(mark) == []


def test_a_wrong_token_ends_the_daemon(rig: Rig) -> None:
    daemon = Running(rig, "cpu:7", token_file=None, token="guess")
    assert daemon.process.wait(WAIT_S) == 77
    assert "refuses this daemon" in daemon.said()
    assert "guess" not in daemon.said()


def test_named_shared_memory_goes_with_the_rank(rig: Rig, start: Start, tmp_path: Path) -> None:
    start()
    name = f"oneflow-test-{os.getpid()}-{tmp_path.name}"
    theirs = Path("/dev/shm") / f"{name}-theirs"
    theirs.write_bytes(b"x")
    text = f"""
import mmap, os, time
for name in ("{name}", "{name}-theirs"):
    file = os.open("/dev/shm/" + name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 4096)
    keep = [mmap.mmap(file, 4096)] + globals().get("keep", [])
print("up", flush=True)
time.sleep(600)
"""
    try:
        job = rig.script(text)
        assert first_line(job) == "up"
        job.cancel()
        job.wait(WAIT_S)
        assert not (Path("/dev/shm") / name).exists()
        assert theirs.exists()
    finally:
        theirs.unlink()


# ---- what stands still ---------------------------------------------------------------------------


def beats(url: str) -> float:
    return values(url)["oneflow_daemon_heartbeats_total", "ok"]


def test_a_stuck_loop_ends_with_its_stacks(rig: Rig, start: Start, tmp_path: Path) -> None:
    daemon = start(stuck_s=2.0, metrics_addr="127.0.0.1:0")
    url = daemon.told(r"metrics on (http:\S+)")
    job, mark = clinging(rig, tmp_path)
    assert first_line(job) == "up"
    daemon.process.send_signal(signal.SIGSTOP)
    be_late(3.5)
    daemon.process.send_signal(signal.SIGCONT)  # stopped by somebody is not stuck
    before = beats(url)
    wait_until(lambda: beats(url) >= before + 3)
    daemon.process.send_signal(signal.SIGHUP)  # the program's handler blocks the loop
    assert daemon.process.wait(WAIT_S) == -signal.SIGKILL
    assert "has not moved for" in daemon.said()
    assert "block_the_loop" in daemon.said()
    wait_until(lambda: not alive(mark))


def test_a_stopped_rank_is_lost(rig: Rig, start: Start) -> None:
    daemon = start(suspect_s=0.6, act_s=4.0)
    job = rig.script("import time; mark = 'stopped'; print('up', flush=True); time.sleep(600)")
    assert first_line(job) == "up"
    (pid,) = alive("mark = 'stopped'")
    os.kill(pid, signal.SIGSTOP)
    record = when_lost(job)
    assert (record.exit_code, record.pid) == (137, pid)
    assert record.cause.startswith("frozen: it has been stopped (SIGSTOP) for ")
    assert float(daemon.told(r"it has been stopped \(SIGSTOP\) for (\S+) s")) < 3.8
    daemon.told(r"(ended: NODE_LOST frozen)")
    assert pid not in alive("mark = 'stopped'")


GIL = """
import ctypes
def hold():
    while True:
        ctypes.PyDLL(None).usleep(60_000_000)
hold()
"""


def test_a_stuck_interpreter_is_named_with_its_line(rig: Rig, start: Start, tmp_path: Path) -> None:
    start(suspect_s=1.0, stuck_s=4.0)
    program = tmp_path / "holds.py"
    program.write_text(GIL)
    job = rig.client().submit_script(["python", str(program)])
    code, reason, cause = end_of(job)
    assert (reason, code) == ("HANG", 80)
    assert cause.startswith("stuck: its interpreter has been stuck for ")
    assert cause.endswith(", at holds.py:5 in hold")
    assert "in hold" in "".join(line.text for line in job.logs(stream="stderr"))


def test_a_scheduler_that_is_silent_is_called_again(tmp_path: Path) -> None:
    alone = Rig(tmp_path, armed=False, devices=(), patience=Patience(1.0, 4.0, 14.0))
    try:
        with Proxy(alone.start().address) as line:
            daemon = Running(alone, "cpu:0", scheduler=line.address)
            before = wait_until(daemon.epoch)
            with line.silent(DOWN):
                daemon.told("the scheduler (has been silent) for 4 s")
            wait_until(lambda: daemon.epoch() > before)
    finally:
        alone.stop()


# ---- pages and probes ----------------------------------------------------------------------------


def values(url: str) -> dict[tuple[str, ...], float]:
    """Numbers of a page, by their name and the values of their labels."""
    text = urllib.request.urlopen(url, timeout=CALL_S).read().decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=CALL_S) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_probes_metrics_and_systemd_are_told(rig: Rig, start: Start, tmp_path: Path) -> None:
    """It lives all the time, and is ready while it may be given work."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(WAIT_S)
        health = f"unix:{tmp_path}/health"
        # It is told at once, and hardly again: the queue is short, and what finds it full is lost.
        more = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000000"}
        daemon = start(metrics_addr="127.0.0.1:0", health_addr=health, more_env=more)
        states = [""]
        while "WATCHDOG=1" not in states or not any(s.startswith("READY=1") for s in states):
            states.append(systemd.recv(100).decode())
        assert end_of(rig.script("print('a line')"))[0] == 0
        url = daemon.told(r"metrics on (http:\S+)")
        wait_until(lambda: beats(url) >= 1)
        found = values(url)
        assert found["oneflow_daemon_info", "cpu", "cpu:0", "rig"] == 1
        assert found["oneflow_daemon_worker_exits_total", "NONE"] == 1
        assert found["oneflow_log_bytes_total", "stdout"] == 7

        def probes() -> tuple[int, int, bool]:
            with grpc.insecure_channel(health) as channel:
                request = health_pb2.HealthCheckRequest(service="oneflow.Daemon")
                reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=CALL_S)
            codes = [status_of(url.replace("/metrics", p)) for p in ("/healthz", "/readyz")]
            return codes[0], codes[1], reply.status == health_pb2.HealthCheckResponse.SERVING

        def become(wanted: tuple[int, int, bool]) -> None:
            wait_until(lambda: probes() == wanted, lambda: f"they are {probes()}, not {wanted}")

        become((200, 200, True))
        rig.client().drain("rig")
        become((200, 503, False))
        rig.client().undrain("rig")
        become((200, 200, True))
        rig.kill("scheduler")
        become((200, 503, False))
        rig.repair()
        become((200, 200, True))
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(WAIT_S) == 0
        while systemd.recv(100) != b"STOPPING=1":
            continue


def test_the_line_is_encrypted_both_ways(tmp_path: Path) -> None:
    """Each end shows a certificate of the same authority."""
    secured = Rig(tmp_path, armed=False, devices=("cpu:0",), patience=PATIENT)
    secured.tls = tmp_path / "tls"
    init_tls(secured.tls)
    secured.given["cpu:0"] = {"metrics_addr": "127.0.0.1:0"}
    with secured:
        assert end_of(secured.script("print('x')"))[0] == 0
        (ends_at,) = [v for k, v in secured.metrics("cpu:0").items() if "certificate_expiry" in k]
        assert 364 < (ends_at - time.time()) / 86400 < 366
        secured.tls = None
        plain = Running(secured, "cpu:1")
        plain.told("(no line to the scheduler)")
        secured.tls = tmp_path / "tls"
        assert {d.device for d in secured.client().status().daemons} == {"cpu:0"}


# ---- limits --------------------------------------------------------------------------------------


def what_groups_bound() -> tuple[bool, bool]:
    """Whether control groups that this user may make bound (processes, memory)."""
    group = make_group(find_hierarchies(), 993, 100, 1 << 30)
    if group is None:
        return False, False
    found = group.bounds_pids, group.bounds_memory
    group.remove()
    return found


def may_spare() -> bool:
    """Whether this user may ask the kernel to spare a process."""
    words = ["sh", "-c", "echo -500 > /proc/self/oom_score_adj"]
    return subprocess.run(words, capture_output=True).returncode == 0


LIMITS = {"open_files": 100, "pids": 30, "memory_nbytes": 100 << 20}


def test_limits_hold(rig: Rig, start: Start) -> None:
    """Show that they do, and that a rank is not spared when memory runs out, unlike its daemon."""
    start(limits=LIMITS)
    text = (
        "from resource import *; print(getrlimit(RLIMIT_NOFILE), getrlimit(RLIMIT_CORE),"
        " open('/proc/self/oom_score_adj').read().strip())"
    )
    assert output(rig.script(text)) == "(100, 100) (0, 0) 0\n"


def test_more_processes_than_allowed_cannot_be_started(rig: Rig, start: Start) -> None:
    if not what_groups_bound()[0]:
        pytest.skip("needs a control group that bounds the number of processes")
    start(limits=LIMITS)
    text = """
import subprocess
started = []
try:
    for _ in range(60):
        started.append(subprocess.Popen(["sleep", "600"]))
except OSError as error:
    print(len(started) < 30, error.strerror)
"""
    job = rig.script(text)
    assert output(job) == "True Resource temporarily unavailable\n"
    assert end_of(job)[0] == 0


def test_a_rank_out_of_memory_says_so(rig: Rig, start: Start) -> None:
    if not what_groups_bound()[1]:
        pytest.skip("needs a control group that bounds memory")
    daemon = start(limits=LIMITS)
    code, reason, cause = end_of(rig.script("x = bytearray(b'x' * (300 << 20))"))
    assert (code, reason) == (137, "OOM_HOST")
    assert "ran out of memory" in cause and "100 MiB are allowed" in cause
    spared = Path(f"/proc/{daemon.process.pid}/oom_score_adj").read_text()
    assert int(spared) < 0 or not may_spare()


def test_many_ranks_in_a_row_leave_nothing_in_the_daemon(rig: Rig, start: Start) -> None:
    daemon = start()
    proc = Path(f"/proc/{daemon.process.pid}")

    def run(count: int) -> None:
        for job in [rig.script("print('x')") for _ in range(count)]:
            assert job.wait(WAIT_S).exit_code == 0

    def held() -> list[int]:
        return [len(list((proc / name).iterdir())) for name in ("fd", "task")]

    run(5)
    before = held()
    run(20)
    wait_until(
        lambda: all(now <= was + 1 for now, was in zip(held(), before, strict=True)),
        lambda: f"descriptors and threads: {before} -> {held()}",
    )


def test_a_job_is_forgotten_with_all_its_files(rig: Rig, start: Start) -> None:
    daemon, job = start(), rig.script("print('x')")
    job.wait(WAIT_S)
    folder = daemon.state / "jobs" / job.id
    assert folder.exists()
    job.remove()
    wait_until(lambda: not folder.exists())
    assert folder.parent.exists()


def test_a_flood_of_output_does_not_hold_up_the_daemon(
    rig: Rig, start: Start, tmp_path: Path
) -> None:
    daemon, flag = start(metrics_addr="127.0.0.1:0"), tmp_path / "flag"
    url = daemon.told(r"metrics on (http:\S+)")
    text = f"""
import os
data, count = b'x' * (1 << 20), 0
while count < 400 or not os.path.exists({str(flag)!r}):
    os.write(1, data)
    count += 1
"""
    job = rig.script(text)
    wait_until(lambda: values(url).get(("oneflow_log_bytes_total", "stdout"), 0) > 1 << 20)
    before = beats(url)
    wait_until(lambda: beats(url) >= before + 5)
    assert not job.status().state.is_final
    flag.touch()
    assert end_of(job)[0] == 0
    folder = daemon.state / "jobs" / job.id / "1" / "rank0"
    kept = sum(path.stat().st_size for path in folder.glob("stdout*"))
    assert 0 < kept <= 4 * (64 << 20)


def test_a_full_disk_costs_lines_and_not_the_job(rig: Rig, start: Start, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(tmp_path / "state")]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        start(state_dir=str(tmp_path / "state"))
        job = rig.script("for i in range(100_000): print('a line of thirty characters %7d' % i)")
        assert end_of(job)[0] == 0
        assert first_line(job).startswith("a line of thirty")
        source = tmp_path / "source"
        source.mkdir()
        (source / "data").write_bytes(os.urandom(4 << 20))
        large: Any = rig.client().submit_script(["true"], working_dir=source)
        assert end_of(large)[1] == "DISK_FULL"
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "state")], check=True)


def test_no_scheduler_can_make_a_daemon_run_scripts(rig: Rig, start: Start) -> None:
    """Refuses them unless its own operator allowed them."""
    start(allow_scripts=None)
    _, reason, cause = end_of(rig.script("print('no')"))
    assert reason == "UNSATISFIABLE"
    assert "`oneflow daemon run --allow-scripts`" in cause
