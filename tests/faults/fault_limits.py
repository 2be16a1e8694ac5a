"""Memory, processes and descriptors that run out."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oneflow.launcher.daemon.cgroups import find_hierarchies
from tests.support.cluster import DEVICES, Rig
from tests.support.waiting import SceneError, wait_until

from .fault_ground import (
    END_S,
    MIB,
    Ground,
    ends_well,
    expect,
    expect_next,
    train,
)

LIMIT_NBYTES = 256 * MIB


def memory(ground: Ground) -> str:
    """A rank wants more memory than its group has: it is killed, and why is said with figures."""
    if find_hierarchies().memory is None and find_hierarchies().unified is None:
        raise SceneError("no control group bounds memory here")
    with ground.cluster(daemon={"limits": {"memory_nbytes": LIMIT_NBYTES}}) as rig:
        text = "x = []\nwhile True: x.append(bytearray(8 << 20))"
        job = rig.client().submit_script([sys.executable, "-c", text], devices=1)
        record = job.wait(END_S)
        expect(record.reason == "OOM_HOST", f"{record.reason}: {record.cause}")
        expect(record.exit_code == 137 and record.first_failed_rank == 0, f"{record}")
        expect(f"{LIMIT_NBYTES // MIB} MiB are allowed" in record.cause, record.cause)
        for device in DEVICES:
            expect(rig.is_alive(device), f"the daemon of {device} died with it")
        protected = Path(f"/proc/{rig.pid(DEVICES[0])}/oom_score_adj").read_text().strip()
        expect(int(protected) < 0 or not _may_protect(), f"the daemon is not: {protected}")
        return f"{record.cause}; oom_score_adj of the daemon {protected}"


def _may_protect() -> bool:
    """Whether this user may ask the kernel to spare a process."""
    words = ["sh", "-c", "echo -500 > /proc/self/oom_score_adj"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def processes(ground: Ground) -> str:
    """A rank makes processes without end: it gets so many; its daemon and the next job go on."""
    with ground.cluster(daemon={"limits": {"pids": 48}}) as rig:
        text = (
            "import os, time\nn = 0\ntry:\n"
            "    while True:\n"
            "        if os.fork() == 0: time.sleep(60)\n"
            "        n += 1\n"
            "except OSError as error: print(n, error.strerror); os._exit(3)"
        )
        job = rig.client().submit_script([sys.executable, "-c", text], devices=1)
        record = job.wait(END_S)
        said = [line.text for line in job.logs()]
        expect(record.exit_code == 3 and int(said[0].split()[0]) < 48, f"{record.cause} {said}")
        wait_until(lambda: not _sleepers(rig), "what it left is cleared away")
        return f"after {said[0]}; the daemon goes on"


def _sleepers(rig: Rig) -> list[int]:
    known = {rig.pid(name) for name in ("scheduler", *DEVICES)}
    return [pid for pid in rig.marked() - known if b"os.fork" in _cmdline(pid)]


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descriptors(ground: Ground) -> str:
    """A service has no descriptor left: who is connected is served, others wait."""
    with ground.cluster() as rig:
        job = train(rig, ground)
        wait_until(lambda: job.status().last_step >= 5, "it runs")
        with _no_descriptors(rig.pid("scheduler")):
            code, said = _stranger(rig)
            expect(code == 69, f"a connection without a descriptor: {code} {said}")
            wait_until(lambda: job.status().state.is_final, "who is connected is served", END_S)
        ends_well(job, ground)
        wait_until(lambda: _stranger(rig)[0] == 0, "strangers are served again", 30.0)
        with _no_descriptors(rig.pid(DEVICES[0])):
            record = train(rig, ground, max_restarts=0).wait(END_S)
            expect(str(record.state) == "FAILED", f"it is {record.state}")
            expect("open files" in record.cause, f"unclear: {record.reason} {record.cause}")
        for name in ("scheduler", *DEVICES):
            expect(rig.is_alive(name), f"{name} died")
        expect_next(rig, ground)
        return f"{said[:50]}...; {record.reason}: {record.cause[:80]}"


def _stranger(rig: Rig) -> tuple[int, str]:
    """Another process that asks: it has no connection yet."""
    words = [sys.executable, "-m", "oneflow", "cluster", "status"]
    more = {
        "ONEFLOW_SCHEDULER_ADDRESS": rig.address,
        "ONEFLOW_AUTH_TOKEN_FILE": str(rig.folder / "scheduler" / "token"),
    }
    done = subprocess.run(
        words, env=rig.env | more, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, (done.stdout + done.stderr).strip()


@contextmanager
def _no_descriptors(pid: int) -> Iterator[None]:
    """No new one, whichever of its own it closes."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
