"""Real clusters: a scheduler and daemons in processes of their own, with times scaled down; whole,
or with a test in the place of one side (tests/support/simulated).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oneflow.cluster.client import Cluster, connect
from oneflow.cluster.connection import Connection
from oneflow.cluster.connection import Patience as ClientPatience
from oneflow.cluster.job import Job
from oneflow.core.errors import OneFlowError
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.tokens import read_token_file
from oneflow.scheduler.ports import free_port
from oneflow.services.failpoints import FAILPOINTS
from tests.support.processes import (
    Usage,
    children,
    cmdline,
    environ,
    is_alive,
    name_of,
    pids,
    usage,
)
from tests.support.waiting import CALL_S, WAIT_S, SceneError, wait_until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]  # from which programs of tests are run, as modules
CAMPAIGNS = "campaigns"
DEVICES = ("cpu:0", "cpu:1")
MARK = "ONEFLOW_TEST_RIG"
RANK_ENV = {
    "ONEFLOW_HEARTBEAT_SECONDS": "0.2",
    "ONEFLOW_SUSPECT_SECONDS": "0.8",
    "ONEFLOW_PEER_TIMEOUT_SECONDS": "2.5",
    "ONEFLOW_TIMEOUT_SECONDS": "20",
    "ONEFLOW_RDZV_TIMEOUT_SECONDS": "20",
}
SLOW = "worker.step=sleep:0.01"
HEARTBEAT_S, GRACE_S = 0.2, 2.0
FORK_SERVER_WORDS = b"oneflow.jobs.fork_server"
WORKER_NAME = "oneflow-worker"
COMPILER_WORDS = b"oneflow.jobs.compiling"


@dataclass(frozen=True)
class Patience:
    """Seconds after which a daemon or the scheduler is suspect, given up, and a loop is stuck."""

    suspect_s: float = 0.8
    act_s: float = 2.5
    stuck_s: float = 4.0


HASTY = Patience()  # for scenes about losses
PATIENT = Patience(10.0, 30.0, 14.0)  # for all others: a busy machine is late


def program(kind: str, given: Mapping[str, Any]) -> list[str]:
    """Words that run a scheduler or a daemon. given: fields of its settings (cluster_program)."""
    return [sys.executable, str(HERE / "cluster_program.py"), kind, json.dumps(given)]


def table(patience: Patience) -> dict[str, Any]:
    """Times of a scheduler's table, scaled down."""
    return {
        "suspect_s": patience.suspect_s,
        "act_s": patience.act_s,
        "prepare_s": 30.0 + patience.act_s,
        "grace_s": GRACE_S,
        "unkillable_s": 5.0,
        "settle_s": 0.5,
        "retell_s": 1.0,
        "save_progress_s": 0.2,
        "max_queued_per_owner": 10_000,
    }


# ---- one side of a cluster -----------------------------------------------------------------------


class SchedulerProcess:
    """`start` returns when it serves."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        places = {"state_dir": str(folder / "state"), "runtime_dir": str(folder / "runtime")}
        self._given = {"compiler": "", **places, **options}
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> SchedulerProcess:
        argv = program("scheduler", self._given)
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", self.process.communicate()
        return self

    def run_to_end(self) -> tuple[int, str]:
        """Exit code and output of a scheduler that cannot start."""
        argv = program("scheduler", self._given)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
        return done.returncode, done.stderr

    def kill(self) -> None:
        """Kills it as if the power had gone."""
        assert self.process is not None
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self.process is not None
        self.process.communicate(timeout=WAIT_S)
        return self.process.returncode

    def stop(self) -> int:
        """Stops it as systemd does."""
        assert self.process is not None
        self.process.terminate()
        return self.wait()

    @property
    def known(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "runtime" / "cluster.json").read_text())
        return found

    def token(self, name: str = "token") -> str:
        return (self.folder / "state" / name).read_text().strip()

    @property
    def audit(self) -> list[dict[str, Any]]:
        lines = (self.folder / "state" / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines]


# ---- a whole cluster -----------------------------------------------------------------------------


class Rig:
    """A real cluster. folder: all that it keeps. armed: each failpoint holds whom a test tells it
    to. devices: of its daemons, all on one node.

    given: of each process ("scheduler" or a device), the arguments of its program beyond the usual
    (see cluster_program; None: as it is by default); more_env and prefix likewise, the words that
    start it.
    """

    def __init__(
        self,
        folder: Path,
        armed: bool = True,
        devices: Sequence[str] = DEVICES,
        patience: Patience = HASTY,
    ) -> None:
        self.folder, self.devices, self.patience = folder, devices, patience
        self.given: dict[str, dict[str, Any]] = {}
        self.more_env: dict[str, dict[str, str]] = {}
        self.prefix: dict[str, list[str]] = {}
        self.tls: Path | None = None
        self.hold = folder / "hold"
        self.mark = secrets.token_hex(8)
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("hold", "run", "tmp", "logs"):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        own = {k: v for k, v in os.environ.items() if not k.startswith(("ONEFLOW_", "MASTER_"))}
        # Threads that come and go leave memory in arenas, more or less of it each time; what leaks
        # is seen in one arena, too.
        self.env = own | {"MALLOC_ARENA_MAX": "1"} | (RANK_ENV if patience == HASTY else {})
        self.env |= {
            MARK: self.mark,
            "ONEFLOW_CONFIG_DIR": str(folder / "config"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "TMPDIR": str(folder / "tmp"),
        }
        if armed:
            held = ";".join(f"{n}=hold:{self.hold}" for n in FAILPOINTS if n != "worker.step")
            held += f";{SLOW}"
            self.env |= {"ONEFLOW_TESTING": "1", "ONEFLOW_FAILPOINTS": held}
        self.cluster: Cluster | None = None

    # -- processes ---------------------------------------------------------------------------------

    def start(self) -> Rig:
        self.repair()
        return self

    def __enter__(self) -> Rig:
        """Starts it; afterwards nothing of it is left."""
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def repair(self) -> list[str]:
        """Starts processes that do not run, as systemd would; returns when all is attached. The
        names.
        """
        dead = [name for name in ("scheduler", *self.devices) if not self.is_alive(name)]
        for name in dead:
            self._spawn(name)
        self.wait_attached()
        return dead

    def revive(self, name: str) -> list[str]:
        """Starts one that does not run, and waits for nothing. Its name."""
        self._spawn(name)
        return [name]

    def kill(self, name: str) -> None:
        """Kills one of its processes as if the power had gone."""
        self.processes[name].kill()
        self.processes[name].wait(WAIT_S)

    def is_alive(self, name: str) -> bool:
        process = self.processes.get(name)
        return process is not None and process.poll() is None

    def _spawn(self, name: str) -> None:
        """Its options: the usual ones, and those of `given`."""
        kind = "scheduler" if name == "scheduler" else "daemon"
        given = self._scheduler() if kind == "scheduler" else self._daemon(name)
        if kind == "daemon":
            self._wait_for_token("daemon.token")
        given |= self.given.get(name, {})
        given = {key: value for key, value in given.items() if value is not None}
        if self.tls is not None:
            given["tls"] = str(self.tls)
        argv = [*self.prefix.get(name, []), *program(kind, given)]
        env = self.env | self.more_env.get(name, {})
        log_path = self.folder / "logs" / f"{name.replace(':', '-')}.log"
        with open(log_path, "ab") as log:
            self.processes[name] = subprocess.Popen(
                argv, env=env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def _scheduler(self) -> dict[str, Any]:
        return {
            "state_dir": str(self.folder / "scheduler"),
            "listen": self.address,
            "allow_scripts": True,
            "ui": True,
            "heartbeat_s": HEARTBEAT_S,
            "tick_s": 0.1,
            "stop_s": 1.0,
            "table": table(self.patience),
            "limits": {"requests_per_s": 5000.0, "burst": 5000, "streams": 1024},
            "has_env": True,
        }

    def _daemon(self, device: str) -> dict[str, Any]:
        return {
            "device": device,
            "scheduler": self.address,
            "state_dir": str(self.folder / "node"),
            "node": "rig",
            "token_file": str(self.folder / "scheduler" / "daemon.token"),
            "allow_scripts": True,
            "heartbeat_s": HEARTBEAT_S,
            **asdict(self.patience),
            "times": {
                "shutdown_grace_s": GRACE_S,
                "leftover_grace_s": 0.5,
                "noted_s": 2.0,
                "rejoin_s": 0.5,
            },
        }

    def wait_attached(self) -> None:
        """Until both daemons are up and workers can be forked on each."""
        wait_until(self._is_attached, "the scheduler answers and both daemons are up")
        wait_until(lambda: all(self.workers(d) for d in self.devices), "each daemon has a worker")

    def _is_attached(self) -> bool:
        with suppress(OneFlowError):
            status = self.client().status()
            pids = {self.pid(d) for d in self.devices}
            return {d.pid for d in status.daemons if d.state == "up"} >= pids
        return False

    def client(self) -> Cluster:
        """One for this process; it outlives restarts of the scheduler."""
        if self.cluster is None:
            token = self._wait_for_token("token")
            patience = ClientPatience(30.0, 60.0)
            secret = read_token_file(token)
            if self.tls is None:
                self.cluster = connect(self.address, secret, patience=patience)
            else:
                found = Connection(self.address, lambda: secret, self.tls, patience)
                self.cluster = Cluster(found)
        return self.cluster

    def script(self, text: str, **options: Any) -> Job:
        """Submits a job that runs Python text, on one device if not asked otherwise."""
        return self.client().submit_script(["python", "-c", text], **options)

    def clear(self) -> None:
        """Ends and removes all jobs."""
        for record in self.client().jobs():
            job = self.client().job(record.id)
            if not record.state.is_final:
                job.cancel()
                job.wait(WAIT_S)
            job.remove()

    def _wait_for_token(self, name: str) -> Path:
        """Path of a token that the scheduler makes when it starts."""
        path = self.folder / "scheduler" / name

        def is_made() -> bool:
            assert self.is_alive("scheduler"), self.log("scheduler")
            return path.exists()

        wait_until(is_made, "the scheduler makes a token")
        return path

    def pid(self, name: str) -> int:
        return self.processes[name].pid

    def log(self, name: str) -> str:
        """Output of one of its processes so far."""
        path = self.folder / "logs" / f"{name.replace(':', '-')}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def metrics(self, name: str) -> dict[str, float]:
        """Samples of one of its processes, `name{label="value"}` -> value; {} without a page."""
        for path in (self.folder / "run" / "oneflow").glob("metrics-*.json"):
            found = json.loads(path.read_text())
            if found["pid"] == self.pid(name):
                text = self._page(name, f"http://{found['address']}/metrics")
                samples = [line for line in text.splitlines() if line[:1] not in ("", "#")]
                return {key: float(v) for key, _, v in (s.rpartition(" ") for s in samples)}
        return {}

    def _page(self, name: str, url: str) -> str:
        with urllib.request.urlopen(url, timeout=CALL_S) as page:
            return str(page.read().decode())

    def workers(self, device: str) -> list[int]:
        """Pids of a daemon's workers, and last that of the process which they are forked from."""
        found = [p for p in children(self.pid(device)) if FORK_SERVER_WORDS in cmdline(p)]
        return sorted(found, key=lambda pid: name_of(pid) != WORKER_NAME)

    def compilers(self) -> list[int]:
        """Pids of the scheduler's compilers: one stays for a while when it has nothing to do."""
        return [p for p in children(self.pid("scheduler")) if COMPILER_WORDS in cmdline(p)]

    def stop(self) -> None:
        """Lets go held processes and kills all of it, in any state."""
        self.release()
        if self.cluster is not None:
            self.cluster.close()
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait(WAIT_S)
        for pid in self.marked():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def marked(self) -> set[int]:
        """All processes that come from this rig, wherever they hide; not zombies."""
        wanted = f"{MARK}={self.mark}".encode()
        return {pid for pid in pids() if wanted in environ(pid) and is_alive(pid)}

    # -- holding -----------------------------------------------------------------------------------

    def arm(self, name: str, action: str = "") -> None:
        """The next process that comes to that place is held there, or does as told."""
        whole = self.hold / f".{name}"
        whole.write_text(action)
        whole.rename(self.hold / name)

    def held(self, name: str, timeout_s: float = WAIT_S) -> int:
        """The pid of the process that is held."""

        def look() -> int:
            found = [p for p in os.listdir(self.hold) if p.startswith(f"{name}.")]
            return int(found[0].rpartition(".")[2]) if found else 0

        return int(wait_until(look, f"{name} is reached", timeout_s))

    def release(self) -> None:
        """Lets go held processes, and holds nobody."""
        for path in self.hold.iterdir():
            path.unlink(missing_ok=True)

    # -- what it uses ------------------------------------------------------------------------------

    def usage(self) -> dict[str, tuple[int, Usage]]:
        """Name of each service -> its pid, and its resources."""
        return {n: (p.pid, usage(p.pid)) for n, p in self.processes.items() if self.is_alive(n)}

    def temp_names(self) -> set[str]:
        """Files in its temporary folder and its runtime folder."""
        found = {f"tmp/{name}" for name in os.listdir(self.folder / "tmp")}
        for path in (self.folder / "run").rglob("*"):
            found.add(str(path.relative_to(self.folder)))
        return found


class Running:
    """A daemon of a rig. settings: see Rig.given."""

    def __init__(
        self, rig: Rig, device: str, more_env: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        self.rig, self.device, self.settings = rig, device, (more_env, settings)
        self.temp, self.state = rig.folder / "tmp", rig.folder / "node"
        rig.given[device] = {"warm": False, "times": QUICK} | settings
        rig.more_env[device] = {"ONEFLOW_LOG_LEVEL": "INFO"} | dict(more_env or {})
        self._said_before = len(rig.log(device))
        rig.revive(device)
        self.process = rig.processes[device]

    def lives_as(self, more_env: Mapping[str, str] | None, settings: dict[str, Any]) -> bool:
        """Whether it runs, with these settings."""
        return self.rig.is_alive(self.device) and self.settings == (more_env, settings)

    def is_up(self) -> bool:
        """Whether it runs, and the scheduler gives it work."""
        assert self.process.poll() is None, self.said()
        return any(d.state == "up" and d.pid == self.process.pid for d in self._known())

    def epoch(self) -> int:
        """Number of its joining."""
        return max((int(d.epoch) for d in self._known()), default=0)

    def _known(self) -> list[Any]:
        found = self.rig.client().status().daemons
        return [daemon for daemon in found if daemon.device == self.device]

    def said(self) -> str:
        return self.rig.log(self.device)[self._said_before :]

    def told(self, pattern: str) -> str:
        """The group of the pattern, once the output has it."""
        found = wait_until(lambda: re.findall(pattern, self.said()), self.said)
        return str(found[0])

    def has_group_with(self, name: str) -> bool:
        """Whether a rank's control group has this limit."""
        return any(Path("/sys/fs/cgroup").rglob(f"oneflow-{self.process.pid}-*/{name}"))

    def end(self) -> None:
        """Kills it; returns when the scheduler knows."""
        self.rig.kill(self.device)

        wait_until(lambda: all(d.state == "lost" for d in self._known()), "it is known to be gone")


QUICK = {"shutdown_grace_s": 2.0, "noted_s": 0.5, "leftover_grace_s": 0.3, "rejoin_s": 0.2}


class Watcher:
    """Follows a job's record on a thread: every change with its time."""

    def __init__(self, cluster: Cluster, job_id: str) -> None:
        self.seen: list[tuple[float, JobRecord]] = []
        self.error: Exception | None = None
        self.attempt = 1  # that was struck
        self._job = cluster.job(job_id)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for record in self._job.watch(120.0):
                self.seen.append((time.monotonic(), record))
        except OneFlowError as error:
            self.error = error

    @property
    def last(self) -> JobRecord | None:
        return self.seen[-1][1] if self.seen else None

    def states(self) -> list[str]:
        found: list[str] = []
        for _, record in list(self.seen):
            if not found or found[-1] != str(record.state):
                found.append(str(record.state))
        return found

    def first_after(self, since: float, holds: Callable[[JobRecord], bool]) -> float | None:
        """Seconds from `since` to the first record for which it holds."""
        found = (at for at, record in list(self.seen) if at >= since and holds(record))
        first = next(found, None)
        return None if first is None else first - since


def end_in_order() -> None:
    """Makes SIGTERM unwind a program, so that no cluster is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def own_program(name: str) -> list[str]:
    """Words that run a campaign; in ROOT."""
    return [sys.executable, "-m", f"{CAMPAIGNS}.{name}"]


def conclude(
    outcomes: Sequence[Any], table: str, again: Callable[[Any], str], path: Path | None
) -> int:
    """Ends a program of faults: observations, failures and how to see them again. Returns its
    exit code.

    outcomes: dataclasses with `error`.  again: the flags for one of them.  path: of a JSON file.
    """
    print(table)
    failed = [outcome for outcome in outcomes if outcome.error]
    name = f"{CAMPAIGNS}.{Path(sys.argv[0]).stem}"
    for outcome in failed:
        print(f"{outcome.error}\n  again: python -m {name} {again(outcome)}")
    print(f"{len(outcomes)} tried, {len(failed)} failed")
    if path is not None:
        path.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return int(bool(failed))


def export_jobs(folder: Path) -> Path:
    """Makes a folder with the files of campaigns.models, by two ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    launch = ["-m", "oneflow.distributed.launch", "--nproc_per_node", "2", "--master_port", "0"]
    argv = [
        sys.executable,
        *launch,
        str(ROOT / "campaigns" / "models.py"),
        str(folder),
    ]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ONEFLOW_", "MASTER_"))}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=WAIT_S)
    if done.returncode:
        raise SceneError(f"export ended with {done.returncode}: {done.stderr[-2000:]}")
    return folder
