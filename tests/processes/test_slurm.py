"""The scripts of deploy/slurm under a real Slurm of one node on this machine (slow; needs
slurmctld, slurmd, slurm-client and munge, and root, as slurmd does).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oneflow.scheduler.ports import free_port
from tests.support.waiting import WAIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "deploy" / "slurm"
NEEDED = ("slurmctld", "slurmd", "munged", "sbatch")
SBIN = f"{os.environ['PATH']}:/usr/sbin:/sbin"
CONF = """
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
KillWait=60
ReturnToService=2
SchedulerParameters=requeue_delay=1,sched_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:8
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(name, path=SBIN) is None for name in NEEDED),
        reason="needs Slurm and munge, and root",
    ),
]


class Slurm:
    """A controller and one node, with files in `folder` (short: a socket is in it)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{SBIN}",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "ONEFLOW_DEVICES_PER_NODE": "2",
            "ONEFLOW_PROCESSES_PER_NODE": "2",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        values = {"host": socket.gethostname(), "folder": self.folder}
        ports = {"ctld_port": free_port(), "slurmd_port": free_port()}
        (self.folder / "slurm.conf").write_text(CONF.format(**values, **ports))
        self._spawn(
            "munged", "-F", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
            f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munge.seed",
        )  # fmt: skip
        wait_until((self.folder / "munge.socket").exists, what=lambda: "no socket of munged")
        self._spawn("slurmctld", "-D")
        self._spawn("slurmd", "-D")
        wait_until(
            lambda: "idle" in self.run("sinfo", "-h", check=False),
            what=lambda: "the node is not idle",
        )

    def stop(self) -> None:
        """Leaves jobs after a failure: they end first, and are not queued again."""
        self.run("scancel", "--user", "root", check=False)
        deadline = time.monotonic() + WAIT_S
        while self.run("squeue", "-h", check=False) and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in reversed(self.processes):
            process.terminate()
            process.wait(WAIT_S)

    def _spawn(self, *argv: str) -> None:
        with (self.folder / f"{argv[0]}.out").open("wb") as log:
            self.processes.append(subprocess.Popen(argv, env=self.env, stdout=log, stderr=log))

    def run(self, *argv: str, check: bool = True) -> str:
        done = subprocess.run(
            argv, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=WAIT_S
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def submit(self, script: str, *words: str) -> str:
        options = ("--parsable", "--nodes", "1", "--time", "60")
        return self.run("sbatch", *options, str(SCRIPTS / script), *words).strip()

    def told(self, job: str) -> str:
        path = self.folder / f"slurm-{job}.out"
        return path.read_text() if path.exists() else ""

    def shown(self, job: str) -> str:
        return self.run("scontrol", "show", "job", job)

    def preempt(self, job: str) -> None:
        """The signal that the scripts ask for, before its time; then the queue without delay."""
        self.run("scancel", "--signal=TERM", "--batch", job)
        wait_until(lambda: "JobState=PENDING" in self.shown(job), what=lambda: self.told(job))
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    found = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


def write_job(slurm: Slurm, name: str, steps: int) -> None:
    program = ROOT / "examples" / "jobs" / "digits_job.py"
    slurm.run(sys.executable, str(program), name, "--steps", str(steps), "--checkpoint-every", "0")


def steps_done(slurm: Slurm, job: str) -> int:
    """Asked of the scheduler that the script has started."""
    base = slurm.folder / ".oneflow" / job
    env = {
        **slurm.env,
        "ONEFLOW_SCHEDULER_ADDRESS": f"{socket.gethostname()}:{20000 + int(job) % 20000}",
        "ONEFLOW_CLIENT_TLS_DIR": str(base / "tls"),
        "ONEFLOW_AUTH_TOKEN_FILE": str(base / "scheduler" / "token"),
    }
    argv = (sys.executable, "-m", "oneflow", "job", "get", f"slurm-{job}", "-o", "json")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=WAIT_S)
    return int(json.loads(done.stdout).get("last_step", 0)) if done.returncode == 0 else 0


def test_a_graph_job_goes_on_after_its_nodes_were_taken(slurm: Slurm) -> None:
    write_job(slurm, "long.job", 20_000)
    job = slurm.submit("oneflow.sbatch", "long.job")
    wait_until(lambda: slurm.told(job).count("metrics on") == 2, what=lambda: slurm.told(job))
    wait_until(lambda: steps_done(slurm, job) > 0, what=lambda: slurm.told(job))
    slurm.preempt(job)
    saved = list((slurm.folder / ".oneflow" / job / "checkpoints").glob("*/step-*"))
    assert len(saved) == 1
    wait_until(lambda: "state=SUCCEEDED" in slurm.told(job), what=lambda: slurm.told(job))
    assert "attempt=2" in slurm.told(job)
    wait_until(lambda: "JobState=COMPLETED" in slurm.shown(job), what=lambda: slurm.shown(job))
    assert "ExitCode=0:0" in slurm.shown(job)


def test_the_exit_code_is_that_of_the_program(slurm: Slurm) -> None:
    program = "import oneflow as flow, sys; sys.exit(7 if flow.env.get_rank() == 1 else 0)"
    job = slurm.submit("oneflow.sbatch", "--", "python", "-c", program)
    wait_until(lambda: "JobState=FAILED" in slurm.shown(job), what=lambda: slurm.told(job))
    assert "ExitCode=7:0" in slurm.shown(job)


SAVES = """
import os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
path = "step-" + os.environ["RANK"]
first = int(open(path).read()) if os.path.exists(path) else 0
print("begins at", first, flush=True)
for step in range(first, 100 if first else 10_000):
    if stop:
        open(path, "w").write(str(step + 1))
        sys.exit(143)
    time.sleep(0.01)
"""


def test_a_launched_script_saves_and_is_queued_again_but_not_if_cancelled(slurm: Slurm) -> None:
    (slurm.folder / "train.py").write_text(SAVES)
    job = slurm.submit("launched.sbatch", "train.py")
    wait_until(lambda: slurm.told(job).count("begins at 0") == 2, what=lambda: slurm.told(job))
    slurm.preempt(job)
    wait_until(lambda: "JobState=COMPLETED" in slurm.shown(job), what=lambda: slurm.told(job))
    assert slurm.told(job).count("begins at") == 4
    for rank in (0, 1):
        (slurm.folder / f"step-{rank}").unlink()
    cancelled = slurm.submit("launched.sbatch", "train.py")
    wait_until(
        lambda: slurm.told(cancelled).count("begins at 0") == 2,
        what=lambda: slurm.told(cancelled),
    )
    slurm.run("scancel", cancelled)
    wait_until(lambda: (slurm.folder / "step-1").exists(), what=lambda: slurm.told(cancelled))
    wait_until(
        lambda: "JobState=CANCELLED" in slurm.shown(cancelled),
        what=lambda: slurm.shown(cancelled),
    )
    wait_until(lambda: not slurm.run("squeue", "-h"), what=lambda: slurm.run("squeue"))
    assert "Restarts=0" in slurm.shown(cancelled)
