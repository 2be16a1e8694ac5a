"""The scripts of deploy/slurm under a Slurm of two nodes, n1 and n2, which are both this machine
(needs slurmctld, slurmd, slurm-client and munge, and root, as slurmd does).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
KillWait=60
ReturnToService=2
SchedulerParameters=requeue_delay=1,sched_interval=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first_port} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second_port} CPUs=2 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:8
"""

ENDED = re.compile("JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)")

pytestmark = [
    pytest.mark.neighbour,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(name, path=SBIN) is None for name in NEEDED),
        reason="needs Slurm and munge, and root",
    ),
]


class Slurm:
    """A controller and two nodes, with files in `folder` (short: a socket is in it)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{SBIN}",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "ONEFLOW_DEVICES_PER_NODE": "1",
            "ONEFLOW_PROCESSES_PER_NODE": "1",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for name in ("state", "spool-n1", "spool-n2"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        values = {"host": socket.gethostname(), "folder": self.folder}
        ports = {name: free_port() for name in ("ctld_port", "first_port", "second_port")}
        (self.folder / "slurm.conf").write_text(CONF.format(**values, **ports))
        self._spawn(
            "munged", "-F", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
            f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munge.seed",
        )  # fmt: skip
        wait_until((self.folder / "munge.socket").exists, what=lambda: "no socket of munged")
        self._spawn("slurmctld", "-D")
        # Nodes are found by their names, as on a site: in namespaces that see our own /etc/hosts.
        hosts = self.folder / "hosts"
        hosts.write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 n1 n2\n")
        for node in ("n1", "n2"):
            mounted = f"mount --bind {hosts} /etc/hosts && exec slurmd -D -N {node}"
            self._spawn("unshare", "--mount", "sh", "-c", mounted)
        wait_until(
            lambda: self.run("sinfo", "-h", "-o", "%D", "-t", "idle").strip() == "2",
            what=lambda: "the nodes are not idle",
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
        with (self.folder / f"{len(self.processes)}.out").open("wb") as log:
            self.processes.append(subprocess.Popen(argv, env=self.env, stdout=log, stderr=log))

    def run(self, *argv: str, check: bool = True) -> str:
        done = subprocess.run(
            argv, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=WAIT_S
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def submit(self, script: str, *words: str, options: tuple[str, ...] = ()) -> str:
        asked = ("--parsable", "--nodes", "2", "--time", "60", *options)
        return self.run("sbatch", *asked, str(SCRIPTS / script), *words).strip()

    def told(self, job: str) -> str:
        path = self.folder / f"slurm-{job}.out"
        return path.read_text() if path.exists() else ""

    def shown(self, job: str) -> str:
        return self.run("scontrol", "show", "job", job)

    def wait_for(self, job: str, state: str) -> None:
        """Wait until a job has ended, which must be in this state."""
        wait_until(lambda: ENDED.search(self.shown(job)), what=lambda: self.told(job))
        assert f"JobState={state}" in self.shown(job), self.told(job)

    def preempt(self, job: str) -> None:
        """The signal that the scripts ask for, before its time; then the queue, with little delay:
        within the second of a cancelled step Slurm has revoked the job's credential for good."""
        self.run("scancel", "--signal=TERM", "--batch", job)
        wait_until(lambda: "JobState=PENDING" in self.shown(job), what=lambda: self.told(job))
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")


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
    write_job(slurm, "long.job", 6_000)
    job = slurm.submit("oneflow.sbatch", "long.job")
    wait_until(lambda: slurm.told(job).count("metrics on") == 2, what=lambda: slurm.told(job))
    wait_until(lambda: steps_done(slurm, job) > 0, what=lambda: slurm.told(job))
    slurm.preempt(job)
    saved = list((slurm.folder / ".oneflow" / job / "checkpoints").glob("*/step-*"))
    assert len(saved) == 1
    wait_until(lambda: "state=SUCCEEDED" in slurm.told(job), what=lambda: slurm.told(job))
    assert "attempt=2" in slurm.told(job)
    slurm.wait_for(job, "COMPLETED")
    assert "ExitCode=0:0" in slurm.shown(job) and "Restarts=1" in slurm.shown(job)


def test_a_cancelled_graph_job_saves_and_stays_cancelled(slurm: Slurm) -> None:
    write_job(slurm, "longer.job", 200_000)
    job = slurm.submit("oneflow.sbatch", "longer.job")
    wait_until(lambda: steps_done(slurm, job) > 0, what=lambda: slurm.told(job))
    slurm.run("scancel", job)
    slurm.wait_for(job, "CANCELLED")
    wait_until(lambda: not slurm.run("squeue", "-h"), what=lambda: slurm.run("squeue"))
    assert len(list((slurm.folder / ".oneflow" / job / "checkpoints").glob("*/step-*"))) == 1
    assert "Restarts=0" in slurm.shown(job)


def test_a_signal_before_the_job_is_submitted_queues_it_again(slurm: Slurm) -> None:
    write_job(slurm, "short.job", 50)
    job = slurm.submit("oneflow.sbatch", "short.job")
    begun = slurm.folder / ".oneflow" / job / "checkpoints"
    wait_until(begun.exists, what=lambda: slurm.told(job))
    slurm.preempt(job)
    slurm.wait_for(job, "COMPLETED")
    assert "Restarts=1" in slurm.shown(job)
    assert slurm.told(job).count("Slurm asks for the nodes (RUNNING)") == 1
    assert "unbound variable" not in slurm.told(job)


FAILS = "import oneflow as flow, sys; sys.exit(7 if flow.env.get_rank() == 1 else 0)"


def test_the_exit_code_is_that_of_the_program(slurm: Slurm) -> None:
    job = slurm.submit("oneflow.sbatch", "--", "python", "-c", FAILS)
    slurm.wait_for(job, "FAILED")
    assert "ExitCode=7:0" in slurm.shown(job)


def test_the_exit_code_is_that_of_the_launched_script(slurm: Slurm) -> None:
    (slurm.folder / "fail.py").write_text(FAILS)
    job = slurm.submit("launched.sbatch", "fail.py")
    slurm.wait_for(job, "FAILED")
    assert "ExitCode=7:0" in slurm.shown(job)
    assert "rank=1" in slurm.told(job)


LAST = re.compile(r"loss ([0-9.]+), test accuracy ([0-9.]+)")


def test_four_launched_ranks_train_as_one_process_does(slurm: Slurm) -> None:
    program = str(ROOT / "examples" / "digits.py")
    slurm.env["ONEFLOW_PROCESSES_PER_NODE"] = "2"
    try:
        job = slurm.submit("launched.sbatch", program)
    finally:
        slurm.env["ONEFLOW_PROCESSES_PER_NODE"] = "1"
    alone = slurm.run(sys.executable, program)
    slurm.wait_for(job, "COMPLETED")
    (wanted,), (found,) = (LAST.findall(text) for text in (alone, slurm.told(job)))
    assert [float(x) for x in found] == pytest.approx([float(x) for x in wanted], abs=2e-3)


def test_an_array_of_launched_scripts(slurm: Slurm) -> None:
    (slurm.folder / "part.py").write_text(
        "import os, oneflow as flow\n"
        "print('part', os.environ['SLURM_ARRAY_TASK_ID'], 'of', flow.env.get_world_size())"
    )
    job = slurm.submit("launched.sbatch", "part.py", options=("--array=1-3%2",))
    wait_until(lambda: not slurm.run("squeue", "-h"), what=lambda: slurm.run("squeue"))
    assert slurm.shown(job).count("JobState=COMPLETED") == 3
    told = "".join(path.read_text() for path in slurm.folder.glob(f"slurm-{job}_*.out"))
    assert sorted(re.findall("part . of .", told)) == [
        f"part {part} of 2" for part in (1, 1, 2, 2, 3, 3)
    ]


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
    slurm.wait_for(job, "COMPLETED")
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
    slurm.wait_for(cancelled, "CANCELLED")
    wait_until(lambda: not slurm.run("squeue", "-h"), what=lambda: slurm.run("squeue"))
    assert "Restarts=0" in slurm.shown(cancelled)


def test_nodes_of_slurm_join_a_scheduler_elsewhere(slurm: Slurm) -> None:
    """They leave with a checkpoint, and the job goes on when Slurm gives them again."""
    host, port, base = socket.gethostname(), free_port(), slurm.folder / "site"
    tls, state = str(base / "tls"), base / "scheduler"
    slurm.run("oneflow", "cluster", "init-tls", "--dir", tls, "--host", host)
    argv = ["oneflow", "scheduler", "run", f"--listen=0.0.0.0:{port}", f"--state-dir={state}"]
    with (slurm.folder / "scheduler.out").open("wb") as log:
        scheduler = subprocess.Popen(
            [*argv, f"--tls-dir={tls}", "--metrics-addr=127.0.0.1:0"], env=slurm.env, stderr=log
        )
    ours = {
        "ONEFLOW_SCHEDULER_ADDRESS": f"{host}:{port}",
        "ONEFLOW_CLIENT_TLS_DIR": tls,
        "ONEFLOW_AUTH_TOKEN_FILE": str(state / "token"),
        "ONEFLOW_DAEMON_TLS_DIR": tls,
        "ONEFLOW_DAEMON_TOKEN_FILE": str(state / "daemon.token"),
    }
    slurm.env |= ours
    try:
        wait_until((state / "daemon.token").exists)
        job = slurm.submit("daemons.sbatch", f"{host}:{port}")
        write_job(slurm, "site.job", 6_000)
        id_ = slurm.run("oneflow", "job", "submit", "--devices", "2", "site.job").strip()

        def shown() -> dict[str, Any]:
            text = slurm.run("oneflow", "job", "get", id_, "-o", "json", check=False)
            return dict(json.loads(text)) if text else {}

        wait_until(lambda: shown().get("last_step", 0) > 0, what=lambda: slurm.told(job))
        slurm.preempt(job)
        wait_until(lambda: shown().get("state") == "SUCCEEDED", what=lambda: str(shown()))
        assert shown()["attempt"] == 2
        slurm.run("scancel", job)
        slurm.wait_for(job, "CANCELLED")
    finally:
        scheduler.terminate()
        scheduler.wait(WAIT_S)
        for name in ours:
            del slurm.env[name]
