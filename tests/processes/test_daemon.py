"""A daemon in a process of its own, told what to do by a scheduler that is a part of the test."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oneflow.launcher.daemon.cgroups import find_hierarchies, make_group
from oneflow.protos import cluster_pb2 as pb
from tests.support.cluster import QUICK, Running, alive
from tests.support.simulated.scheduler_peer import FakeScheduler, attempt, daemons, script, stop
from tests.support.waiting import CALL_S, WAIT_S, be_late, wait_until

PATIENT = QUICK | {"shutdown_grace_s": 60.0}


@pytest.mark.parametrize(
    ("text", "code", "reason", "cause"),
    [
        ("print('hello')", 0, "NONE", ""),
        ("import sys; sys.exit(7)", 7, "USER_ERROR", "exited with code 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "SIGNAL", "killed by SIGKILL"),
        ("import os; os.abort()", 134, "SIGNAL", "killed by SIGABRT"),
        (
            "import os, shutil; shutil.rmtree(os.path.dirname(os.getcwd()))",
            *(1, "USER_ERROR", "work was deleted while the job ran"),
        ),
    ],
)
def test_the_end_of_a_script_is_told(
    scheduler: FakeScheduler,
    start: Callable[..., Running],
    text: str,
    code: int,
    reason: str,
    cause: str,
) -> None:
    daemon = start()
    scheduler.begin(attempt(), script(text))
    found = scheduler.exited(attempt())
    told = re.sub(r"/\S*/", "", found.cause)  # paths are told whole
    assert (found.exit_code, found.reason, told) == (code, reason, cause)
    assert found.pid > 0
    assert scheduler.whole_log(attempt(), "stdout") == (b"hello\n" if code == 0 else b"")
    assert list(daemon.temp.iterdir()) == []


CLINGING = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code, "MARK"], start_new_session=True)
open(os.path.join(os.environ["TMPDIR"], "left"), "w").close()
print("up", flush=True)
"""


def clinging(tmp_path: Path, ending: str) -> tuple[pb.JobSpec, str]:
    """A script with a grandchild in a session of its own; neither heeds SIGTERM."""
    mark = f"mark-of-{tmp_path.name}"
    return script(CLINGING.replace("MARK", mark) + ending), mark


@pytest.mark.parametrize("use_groups", [False, True])
def test_a_stop_leaves_nothing_whatever_heeds_no_signal(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path, use_groups: bool
) -> None:
    daemon = start(use_groups=use_groups)
    spec, mark = clinging(tmp_path, "time.sleep(600)")
    scheduler.begin(attempt(), spec)
    wait_until(lambda: scheduler.read_log(attempt(), "stdout").piece.data == b"up\n")
    assert len(alive(mark)) == 2
    scheduler.say(stop(attempt(), 0.3))
    found = scheduler.exited(attempt())
    assert (found.exit_code, found.reason) == (137, "PREEMPTED")
    assert found.cause == "cancelled by ada (killed by SIGKILL)"
    assert alive(mark) == []
    assert list(daemon.temp.iterdir()) == []


@pytest.mark.parametrize("use_groups", [False, True])
def test_what_outlives_the_rank_is_ended_before_its_end_is_told(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path, use_groups: bool
) -> None:
    start(use_groups=use_groups)
    spec, mark = clinging(tmp_path, "sys.exit(3)")
    scheduler.begin(attempt(), spec)
    assert scheduler.exited(attempt()).exit_code == 3
    assert alive(mark) == []


def test_with_the_daemon_all_of_its_rank_dies(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    daemon = start()
    spec, mark = clinging(tmp_path, "time.sleep(600)")
    scheduler.begin(attempt(), spec)
    pid = scheduler.wait("progress") and alive(mark)
    wait_until(lambda: len(alive(mark)) == 2)
    pid = next(p for p in alive(mark) if b"start_new_session" in _words(p))
    daemon.process.kill()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}") or pid not in alive(mark))
    wait_until(lambda: not alive(mark))
    wait_until(lambda: list(daemon.temp.iterdir()) == [])
    wait_until(lambda: not daemon.has_group_with("cgroup.procs"))
    start()
    scheduler.begin(attempt("j2"), script("print('next')"))
    assert scheduler.exited(attempt("j2")).exit_code == 0


def _words(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_without_a_scheduler_the_job_goes_on(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    start(more_env={"ONEFLOW_DATA_ROOTS": str(tmp_path / "link")})
    flag = tmp_path / "flag"
    wait = f"while not os.path.exists({str(flag)!r}): time.sleep(0.02)"
    text = f"import os, time\n{wait}\nprint('through')"
    scheduler.begin(attempt(), script(text))
    scheduler.stop()
    be_late(1.0)
    after = len(scheduler.heard)
    scheduler.start()
    hello = scheduler.wait("hello", after=after)
    (running,) = hello.running
    assert (running.id, running.phase, hello.epoch) == (attempt(), "running", 1)
    assert hello.data_roots.folders == [str(tmp_path / "link"), os.path.realpath(tmp_path)]
    assert running.pid > 0
    scheduler.wait("progress", lambda p: p.id == attempt(), after=after)
    flag.touch()
    assert scheduler.exited(attempt()).exit_code == 0
    assert scheduler.whole_log(attempt(), "stdout") == b"through\n"


def test_an_end_that_nobody_heard_is_told_after_every_welcome_until_it_is_noted(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    daemon, flag = start(), tmp_path / "flag"
    wait = f"while not os.path.exists({str(flag)!r}): time.sleep(0.02)"
    scheduler.begin(attempt(), script(f"import os, time\n{wait}\nraise SystemExit(5)"))
    scheduler.stop()
    flag.touch()
    daemon.told("(ended: USER_ERROR)")
    for _ in range(2):
        after = len(scheduler.heard)
        scheduler.start()
        assert not scheduler.wait("hello", after=after).running
        assert scheduler.wait("exited", after=after).exit_code == 5
        if _ == 0:
            scheduler.stop()
    scheduler.say(pb.SchedulerMessage(noted=attempt()))
    scheduler.read_log(attempt(), "stdout")  # the daemon has heard what was said before that
    scheduler.stop()
    after = len(scheduler.heard)
    scheduler.start()
    scheduler.wait("beat", after=after)
    kinds = [message.WhichOneof("kind") for _, message in scheduler.heard[after:]]
    assert "exited" not in kinds


def test_a_fenced_daemon_kills_what_it_runs_and_joins_anew(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    start()
    spec, mark = clinging(tmp_path, "time.sleep(600)")
    scheduler.begin(attempt(), spec)
    wait_until(lambda: len(alive(mark)) == 2)
    after = len(scheduler.heard)
    scheduler.say(pb.SchedulerMessage(fenced="it was given up"))
    hello = scheduler.wait("hello", after=after)
    assert not hello.running
    assert alive(mark) == []
    wait_until(lambda: [m.epoch for _, m in scheduler.heard if m.HasField("beat")][-1] == 2)
    kinds = [message.WhichOneof("kind") for _, message in scheduler.heard[after:]]
    assert "exited" not in kinds


def test_everything_may_be_told_twice(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    start()
    count = tmp_path / "count"
    text = f"import time; open({str(count)!r}, 'a').write('x'); time.sleep(600)"
    first = scheduler.prepare(attempt(), script(text))
    after = len(scheduler.heard)
    scheduler.say(_prepare(attempt(), script(text)))
    again = scheduler.wait("prepared", after=after)
    assert first.master_port == again.master_port != 0
    for _ in range(2):
        scheduler.start_rank(attempt(), first.master_port)
    wait_until(lambda: count.exists() and count.read_text() == "x")
    scheduler.say(stop(attempt(), 60.0))
    assert scheduler.exited(attempt()).exit_code == 143
    after = len(scheduler.heard)
    for message in (stop(attempt(), 60.0), _prepare(attempt(), script(text))):
        scheduler.say(message)
    scheduler.say(stop(attempt("j9"), 1.0))
    scheduler.wait("exited", lambda e: e.id == attempt("j9"), after=after)
    told = [m.exited.id.job_id for _, m in scheduler.heard[after:] if m.HasField("exited")]
    assert told == ["j1", "j1", "j9"]
    after = len(scheduler.heard)
    scheduler.say(_prepare(attempt("j9"), script(text)))
    assert scheduler.wait("exited", after=after).id == attempt("j9")
    assert count.read_text() == "x"


def _prepare(id: pb.AttemptId, spec: pb.JobSpec) -> pb.SchedulerMessage:
    return pb.SchedulerMessage(prepare=pb.Prepare(id=id, spec=spec, world_size=1))


def test_logs_are_followed_without_gaps_while_they_grow(
    scheduler: FakeScheduler, start: Callable[..., Running]
) -> None:
    start(logs={"file_nbytes": 1 << 20, "num_files": 16})
    text = "for i in range(100_000): print(f'line {i} \\x1b[31m\\xff')"
    scheduler.begin(attempt(), script(text))
    found = scheduler.whole_log(attempt(), "stdout")
    wanted = "".join(f"line {i} \x1b[31m\xff\n" for i in range(100_000)).encode()
    assert found == wanted
    assert scheduler.exited(attempt()).exit_code == 0
    late = scheduler.read_log(attempt(), "stdout", len(wanted) - 5)
    assert late.piece.data == wanted[-5:]
    assert late.is_closed
    assert late.size == len(wanted)


def test_a_rank_is_given_what_the_launcher_gives(
    scheduler: FakeScheduler, start: Callable[..., Running]
) -> None:
    start()
    text = "import json, os; print(json.dumps(dict(os.environ)))"
    spec = script(text, env={"MINE": "1", "RANK": "77", "ONEFLOW_TIMEOUT_SECONDS": "60"})
    scheduler.begin(attempt(rank=3), spec, world_size=4, local_rank=1)
    env = json.loads(scheduler.whole_log(attempt(rank=3), "stdout"))
    wanted = {
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": "4",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "ONEFLOW_JOB_ID": "j1",
        "ONEFLOW_ATTEMPT": "1",
        "ONEFLOW_JOB_TOKEN": "k" * 64,
        "OMP_NUM_THREADS": "1",
        "MINE": "1",
        "ONEFLOW_TIMEOUT_SECONDS": "60",
    }
    assert {k: env.get(k) for k in wanted} == wanted
    assert "secret" not in env.values()


def test_a_script_that_raises_says_where(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    from oneflow.launcher.daemon.archive import pack

    start()
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("import helper\nhelper.go()\n")
    (source / "helper.py").write_text("def go():\n    raise ValueError('no such data')\n")
    digest = pack(source, tmp_path / "archive")
    scheduler.blobs[digest] = (tmp_path / "archive").read_bytes()
    spec = pb.JobSpec(argv=["python", "train.py", "--lr", "0.1"], archive=digest)
    scheduler.begin(attempt(), spec)
    found = scheduler.exited(attempt())
    assert found.exit_code == 1
    assert found.cause == "ValueError: no such data (train.py:2)"
    scheduler.begin(attempt(number=2), spec)
    assert scheduler.exited(attempt(number=2)).exit_code == 1
    assert scheduler.fetches == 1


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (pb.JobSpec(argv=["no-such-program"]), "UNSATISFIABLE", "no such program"),
        (pb.JobSpec(argv=["true"], archive="../../etc/passwd"), "INTERNAL", "not a digest"),
        (pb.JobSpec(argv=["true"], archive="0" * 64), "INTERNAL", "other content"),
    ],
)
def test_what_cannot_be_prepared_says_why(
    scheduler: FakeScheduler,
    start: Callable[..., Running],
    spec: pb.JobSpec,
    reason: str,
    words: str,
) -> None:
    start()
    scheduler.blobs["0" * 64] = b"not this"
    found = scheduler.prepare(attempt(), spec)
    assert found.reason == reason
    assert words in found.error
    assert scheduler.read_log(attempt(), "stdout", 0).is_closed


def test_a_signal_drains_the_daemon(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    daemon = start(times=PATIENT)
    text = "import signal, sys, time\nsignal.signal(15, lambda *a: sys.exit(0))\n"
    scheduler.begin(attempt(), script(text + "print('up', flush=True)\ntime.sleep(600)"))
    wait_until(lambda: scheduler.read_log(attempt(), "stdout").piece.data == b"up\n")
    daemon.process.send_signal(signal.SIGTERM)
    found = scheduler.exited(attempt())
    assert (found.exit_code, found.reason) == (0, "PREEMPTED")
    scheduler.wait("leaving")
    assert daemon.process.wait(WAIT_S) == 0


def test_a_second_signal_does_not_wait(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    daemon = start(times=PATIENT)
    spec, mark = clinging(tmp_path, "time.sleep(600)")
    scheduler.begin(attempt(), spec)
    wait_until(lambda: len(alive(mark)) == 2)

    def is_leaving() -> bool:
        other, after = attempt("j2"), len(scheduler.heard)
        scheduler.say(_prepare(other, script("pass")))
        said = scheduler.wait("prepared", lambda p: p.id == other, after=after)
        return "the daemon is leaving" in said.error

    daemon.process.send_signal(signal.SIGTERM)
    wait_until(is_leaving)  # two signals that come as one are one
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(WAIT_S) == 143
    assert alive(mark) == []


def test_a_wrong_token_ends_the_daemon(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    daemon = Running(scheduler, tmp_path, token="guess")
    assert daemon.process.wait(WAIT_S) == 77
    assert "refuses this daemon: wrong token" in daemon.said()
    assert "guess" not in daemon.said()


def test_named_shared_memory_goes_with_the_rank(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
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
        scheduler.begin(attempt(), script(text))
        wait_until(lambda: scheduler.read_log(attempt(), "stdout").piece.data == b"up\n")
        scheduler.say(stop(attempt(), 1.0))
        scheduler.exited(attempt())
        assert not (Path("/dev/shm") / name).exists()
        assert theirs.exists()
    finally:
        theirs.unlink()


def test_a_stuck_loop_ends_with_its_stacks(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    daemon = start(stuck_s=2.0)
    spec, mark = clinging(tmp_path, "time.sleep(600)")
    scheduler.begin(attempt(), spec)
    wait_until(lambda: len(alive(mark)) == 2)
    daemon.process.send_signal(signal.SIGSTOP)
    be_late(3.5)
    after = len(scheduler.heard)
    daemon.process.send_signal(signal.SIGCONT)  # stopped by somebody is not stuck
    for _ in range(3):
        scheduler.wait("beat", after=after)
        after = len(scheduler.heard)
    assert daemon.process.poll() is None
    daemon.process.send_signal(signal.SIGHUP)  # the program's handler blocks the loop
    assert daemon.process.wait(WAIT_S) == -signal.SIGKILL
    assert "has not moved for" in daemon.said()
    assert "block_the_loop" in daemon.said()
    wait_until(lambda: not alive(mark))


def test_probes_metrics_and_systemd_are_told(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    import socket
    import urllib.request

    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from prometheus_client.parser import text_string_to_metric_families

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
        with grpc.insecure_channel(health) as channel:
            request = health_pb2.HealthCheckRequest(service="oneflow.Daemon")
            reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=CALL_S)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        scheduler.begin(attempt(), script("print('a line')"))
        scheduler.exited(attempt())
        url = daemon.told(r"metrics on (http:\S+)")
        text = urllib.request.urlopen(url, timeout=CALL_S).read().decode()
        values = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert values["oneflow_daemon_info", "cpu", "cpu:0", "n1"] == 1
        assert values["oneflow_daemon_worker_exits_total", "NONE"] == 1
        assert values["oneflow_log_bytes_total", "stdout"] == 7
        assert values["oneflow_daemon_heartbeats_total", "ok"] >= 1
        ready = url.replace("/metrics", "/readyz")
        assert urllib.request.urlopen(ready, timeout=CALL_S).read() == b"ready\n"
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(WAIT_S) == 0
        while systemd.recv(100) != b"STOPPING=1":
            continue


def test_limits_hold(scheduler: FakeScheduler, start: Callable[..., Running]) -> None:
    start(limits={"open_files": 100, "pids": 50})
    text = """
import os, resource, subprocess, sys
print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE))
"""
    scheduler.begin(attempt(), script(text))
    assert scheduler.whole_log(attempt(), "stdout") == b"(100, 100) (0, 0)\n"


def test_two_daemons_run_the_ranks_of_one_job(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    """Ranks that meet, add up and share a folder; prints how long each part took."""
    from oneflow.launcher.daemon.archive import pack

    names = ("n1/cpu:0", "n1/cpu:1")
    for name in names:
        start(device=name.partition("/")[2])
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text(
        "import os; print('first', flush=True)\n"
        "import oneflow as flow\n"
        "x = flow.ones(2).to_global(flow.placement('cpu', [0, 1]), flow.sbp.partial_sum)\n"
        "print(x.to_global(sbp=flow.sbp.broadcast).to_local().numpy().tolist(), os.getcwd())\n"
    )
    digest = pack(source, tmp_path / "archive")
    scheduler.blobs[digest] = (tmp_path / "archive").read_bytes()
    spec = pb.JobSpec(argv=["python", "train.py"], devices=2, archive=digest)
    ranks = [attempt(rank=rank) for rank in range(2)]
    before = time.monotonic()
    ports = [
        scheduler.prepare(id, spec, name, world_size=2, local_rank=id.rank).master_port
        for id, name in zip(ranks, names, strict=True)
    ]
    assert ports[0] and not ports[1]
    started = time.monotonic()
    for id, name in zip(ranks, names, strict=True):
        scheduler.start_rank(id, ports[0], name)
    wait_until(
        lambda: scheduler.read_log(ranks[0], "stdout", wait_s=5.0).piece.data[:5] == b"first"
    )
    print(f"prepared in {started - before:.3f} s; first line {time.monotonic() - started:.3f} s")
    for id in ranks:
        end = scheduler.exited(id)
        assert (end.exit_code, end.reason) == (0, "NONE"), end.cause
    where = tmp_path / "state" / "jobs" / "j1"
    outputs = [(where / "1" / f"rank{n}" / "stdout").read_text() for n in range(2)]
    assert outputs == [f"first\n[2.0, 2.0] {where / 'work'}\n"] * 2
    assert scheduler.fetches == 1


def test_an_end_is_noticed_at_once(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    start()
    times = []
    for number in range(1, 6):
        at = tmp_path / f"at{number}"
        text = f"import time; open({str(at)!r}, 'w').write(str(time.monotonic()))"
        scheduler.begin(attempt(number=number), script(f"{text}; import os; os._exit(3)"))
        scheduler.exited(attempt(number=number))
        times.append(scheduler.when("exited") - float(at.read_text()))
    print(f"told after {[round(t, 4) for t in times]} s")


def test_a_scheduler_that_is_silent_is_called_again(
    scheduler: FakeScheduler, start: Callable[..., Running]
) -> None:
    start(suspect_s=0.5, act_s=1.0)
    scheduler.begin(attempt(), script("import time; time.sleep(600)"))
    after = len(scheduler.heard)
    scheduler.acks = False
    assert scheduler.wait("hello", after=after).running[0].phase == "running"


def what_groups_bound() -> tuple[bool, bool]:
    """Whether control groups that this user may make bound (processes, memory)."""
    group = make_group(find_hierarchies(), 993, 100, 1 << 30)
    if group is None:
        return False, False
    found = group.bounds_pids, group.bounds_memory
    group.remove()
    return found


def test_more_processes_than_allowed_cannot_be_started(
    scheduler: FakeScheduler, start: Callable[..., Running]
) -> None:
    if not what_groups_bound()[0]:
        pytest.skip("no control group bounds the number of processes here")
    start(limits={"pids": 30})
    text = """
import subprocess
started = []
try:
    for _ in range(60):
        started.append(subprocess.Popen(["sleep", "600"]))
except OSError as error:
    print(len(started) < 30, error.strerror)
"""
    scheduler.begin(attempt(), script(text))
    assert scheduler.whole_log(attempt(), "stdout") == b"True Resource temporarily unavailable\n"
    assert scheduler.exited(attempt()).exit_code == 0


def test_a_rank_out_of_memory_says_so(
    scheduler: FakeScheduler, start: Callable[..., Running]
) -> None:
    if not what_groups_bound()[1]:
        pytest.skip("no control group bounds memory here")
    start(limits={"memory_nbytes": 100 << 20})
    scheduler.begin(attempt(), script("x = bytearray(b'x' * (300 << 20))"))
    end = scheduler.exited(attempt())
    assert (end.exit_code, end.reason) == (137, "OOM_HOST")
    assert "ran out of memory" in end.cause


def test_many_ranks_in_a_row_leave_nothing_in_the_daemon(
    scheduler: FakeScheduler, start: Callable[..., Running]
) -> None:
    daemon = start()
    proc = Path(f"/proc/{daemon.process.pid}")

    def run(first: int, count: int) -> None:
        for number in range(first, first + count):
            scheduler.begin(attempt(number=number), script("print('x')"))
            scheduler.exited(attempt(number=number))
            scheduler.say(pb.SchedulerMessage(noted=attempt(number=number)))

    def held() -> list[int]:
        return [len(list((proc / name).iterdir())) for name in ("fd", "task")]

    run(1, 5)
    before = held()
    run(6, 20)
    wait_until(
        lambda: all(now <= was + 1 for now, was in zip(held(), before, strict=True)),
        lambda: f"descriptors and threads: {before} -> {held()}",
    )


def test_a_job_is_forgotten_with_all_its_files(
    scheduler: FakeScheduler, start: Callable[..., Running]
) -> None:
    daemon = start()
    scheduler.begin(attempt(), script("print('x')"))
    scheduler.exited(attempt())
    folder = daemon.state / "jobs" / "j1"
    assert folder.exists()
    scheduler.say(pb.SchedulerMessage(forget="../../jobs"))
    scheduler.say(pb.SchedulerMessage(forget="j1"))
    wait_until(lambda: not folder.exists())
    assert folder.parent.exists()


def test_a_flood_of_output_does_not_hold_up_the_daemon(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    daemon, flag = start(metrics_addr="127.0.0.1:0"), tmp_path / "flag"
    text = f"""
import os
data, count = b'x' * (1 << 20), 0
while count < 400 or not os.path.exists({str(flag)!r}):
    os.write(1, data)
    count += 1
os.write(2, b'%d' % count)
"""
    scheduler.begin(attempt(), script(text))
    for _ in range(5):  # it beats and answers meanwhile
        scheduler.wait("beat", after=len(scheduler.heard))
        assert not scheduler.read_log(attempt(), "stdout").is_closed
    flag.touch()
    assert scheduler.exited(attempt()).exit_code == 0
    folder = daemon.state / "jobs" / "j1" / "1" / "rank0"
    kept = sum(path.stat().st_size for path in folder.glob("stdout*"))
    assert kept <= 4 * (64 << 20)
    size = int(scheduler.whole_log(attempt(), "stderr")) << 20
    found = scheduler.read_log(attempt(), "stdout")
    assert (found.piece.offset, found.size) == (size - kept, size)


def test_the_line_is_encrypted_both_ways(tmp_path: Path) -> None:
    """Each end shows a certificate of the same authority."""
    import re
    import urllib.request

    from oneflow.scheduler.cluster.settings import TlsFiles
    from oneflow.scheduler.cluster.tls import ServerTls, init_tls

    init_tls(tmp_path / "tls")
    found = FakeScheduler(token="secret")
    found.credentials = ServerTls(TlsFiles.in_folder(tmp_path / "tls")).credentials()
    found.start()
    try:
        with daemons(found, tmp_path) as start:
            daemon = start(tls=str(tmp_path / "tls"), metrics_addr="127.0.0.1:0")
            found.begin(attempt(), script("print('x')"))
            assert found.exited(attempt()).exit_code == 0
            page = urllib.request.urlopen(daemon.told(r"metrics on (http:\S+)"), timeout=CALL_S)
            shown = re.search(rb'expiry_timestamp_seconds{component="daemon"} (\S+)', page.read())
            assert shown is not None
            assert 364 < (float(shown[1]) - time.time()) / 86400 < 366
            plain = Running(found, tmp_path, device="cpu:1", token="secret")
            plain.told("(no line to the scheduler)")
            names = {m.hello.daemon for _, m in found.heard if m.HasField("hello")}
            assert names == {"n1/cpu:0"}
            plain.end()
    finally:
        found.stop()


def test_a_full_disk_costs_lines_and_not_the_job(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path / "state")]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        start()
        text = "for i in range(100_000): print('a line of thirty characters %7d' % i)"
        scheduler.begin(attempt(), script(text))
        assert scheduler.exited(attempt()).exit_code == 0
        assert scheduler.read_log(attempt(), "stdout").piece.data.startswith(b"a line of thirty")
        scheduler.blobs["0" * 64] = b"x" * (4 << 20)
        found = scheduler.prepare(attempt("j2"), pb.JobSpec(argv=["true"], archive="0" * 64))
        assert found.reason == "DISK_FULL"
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "state")], check=True)


def test_a_rank_is_not_spared_when_memory_runs_out(
    scheduler: FakeScheduler, start: Callable[..., Running]
) -> None:
    start()
    scheduler.begin(attempt(), script("print(open('/proc/self/oom_score_adj').read().strip())"))
    assert scheduler.whole_log(attempt(), "stdout") == b"0\n"


def test_no_scheduler_can_make_a_daemon_run_scripts(
    scheduler: FakeScheduler, tmp_path: Path
) -> None:
    """Unless its own operator allowed them."""
    with daemons(scheduler, tmp_path) as start_one:
        start_one(allow_scripts=None)
        found = scheduler.prepare(attempt(), script("print('no')"))
        assert (found.reason, found.master_port) == ("UNSATISFIABLE", 0)
        assert "`oneflow daemon run --allow-scripts`" in found.error
