"""A cluster as an operator starts it, with the default times, and the signs of its faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oneflow.cluster.client import Cluster, connect
from oneflow.cluster.connection import Patience
from oneflow.core.errors import OneFlowError
from oneflow.scheduler.jobs.causes import cause_line
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.tokens import read_token_file
from tests.support.cluster import RANK_ENV, WORKER_NAME, Rig, Watcher
from tests.support.processes import children, cmdline, name_of
from tests.support.waiting import WAIT_S, SceneError, wait_until

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "detection_script.py"
LOOK_S = 0.02
STATUS_S = 0.1  # a token may ask twenty times a second
NEWS = re.compile(
    r"has been (stopped|stuck)|goes on|no heartbeat|is back after|ended: [A-Z_]+|the line to the"
    r" scheduler|has been silent|fenced|has not moved"
)
"""Messages of daemons and the scheduler about faults."""


class RealRig(Rig):
    """`oneflow scheduler run` and `oneflow daemon run`: none of their times is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name in RANK_ENV:
            self.env.pop(name, None)

    def _spawn(self, name: str) -> None:
        argv = [sys.executable, "-m", "oneflow"]
        if name == "scheduler":
            argv += ["scheduler", "run", "--listen", self.address, "--allow-scripts"]
            argv += ["--state-dir", str(self.folder / "scheduler")]
        else:
            token = self.folder / "scheduler" / "daemon.token"
            wait_until(token.exists, "the scheduler makes a token")
            argv += ["daemon", "run", "--device", name, "--scheduler", self.address]
            argv += ["--node", "rig", "--token-file", str(token), "--allow-scripts"]
            argv += ["--state-dir", str(self.folder / "node")]
        argv += ["--log-level", "info"]
        with open(self.log_of(name), "ab") as log:
            self.processes[name] = subprocess.Popen(
                argv, env=self.env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def log_of(self, name: str) -> Path:
        return self.folder / "logs" / f"{name.replace(':', '-')}.log"

    def impatient(self) -> Cluster:
        """A client that does not ask twice."""
        token = read_token_file(self.folder / "scheduler" / "token")
        return connect(self.address, token, patience=Patience(0.0, 0.0))


@dataclass
class Eyes:
    """Looks at logs and at the scheduler's status on threads of its own.

    news: time, place, event.
    """

    rig: RealRig
    news: list[tuple[float, str, str]] = field(default_factory=list)

    def open(self) -> None:
        """Begin to watch; returns once the status was read, so that a later change is one."""
        self._is_closed, self._has_looked = threading.Event(), threading.Event()
        names = ("scheduler", "cpu:0", "cpu:1")
        self._read = {n: self.rig.log_of(n).stat().st_size for n in names}
        works = (self._follow_logs, self._follow_status)
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in self._threads:
            thread.start()
        self._has_looked.wait(WAIT_S)

    def close(self) -> None:
        self._is_closed.set()
        for thread in self._threads:
            thread.join()

    def first(self, since: float, pattern: str) -> tuple[float, str] | None:
        """Seconds from `since` to the first news that matches, and where it was."""
        found = (n for n in list(self.news) if n[0] >= since and re.search(pattern, n[2]))
        at, where, _ = next(found, (0.0, "", ""))
        return (at - since, where) if where else None

    def _follow_logs(self) -> None:
        while not self._is_closed.wait(LOOK_S):
            for name, offset in list(self._read.items()):
                with open(self.rig.log_of(name), "rb") as file:
                    file.seek(offset)
                    data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                self._read[name] += len(whole)
                for line in whole.decode(errors="replace").splitlines():
                    if NEWS.search(line):
                        self.news.append((time.monotonic(), f"log of {name}", line))

    def _follow_status(self) -> None:
        """Only the changes."""
        said: dict[str, str] = {}
        cluster = self.rig.impatient()
        while not self._is_closed.wait(STATUS_S):
            now = {"scheduler": "answers"}
            try:
                status = cluster.status()
                now |= {d.id.partition("/")[2]: f"{d.state} pid={d.pid}" for d in status.daemons}
            except OneFlowError:
                now = {**said, "scheduler": "does not answer"}
            for name in said.keys() | now.keys():
                state = now.get(name, "gone")
                if said and said.get(name) != state:
                    self.news.append((time.monotonic(), "status", f"{name} {state}"))
            said = now
            self._has_looked.set()
        cluster.close()


@dataclass
class Struck:
    """A fault that was done. job: that it was done to; at: when."""

    job: Any
    watcher: Watcher
    eyes: Eyes
    attempt: int
    at: float

    def blamed(self) -> JobRecord | None:
        """The first record of this attempt that says why it fails."""
        for at, record in list(self.watcher.seen):
            is_it = record.attempt == self.attempt and record.reason not in ("NONE", "PEER_LOST")
            if at >= self.at and is_it:
                return record
        return None

    def seconds(self, holds: Callable[[JobRecord], bool]) -> float | None:
        return self.watcher.first_after(self.at, holds)

    def named_s(self) -> float | None:
        """Until the job's record names the rank that failed, and the cause."""
        record = self.blamed()
        return None if record is None else self.seconds(lambda r: r is record)

    def ended_s(self) -> float | None:
        """Until the attempt is over for the scheduler."""
        return self.seconds(lambda r: r.attempt > self.attempt or str(r.state) in _OVER)


_OVER = ("RESTARTING", "FAILED", "CANCELLED", "TIMED_OUT")


class Scene:
    """Jobs on that cluster, one after the other."""

    def __init__(self, rig: RealRig, job_file: Path) -> None:
        self.rig, self._job_file = rig, job_file
        self._number = 0

    # -- jobs --------------------------------------------------------------------------------------

    def graph_job(self) -> Any:
        """Two ranks that meet in each step, a step each 10 ms, for as long as it takes."""
        return self.rig.client().submit(
            str(self._job_file), devices=2, steps=1_000_000, checkpoint_every=500
        )

    def script_job(self) -> tuple[Any, Path]:
        """And the folder by which its ranks get their orders."""
        self._number += 1
        folder = self.rig.folder / f"script{self._number}"
        folder.mkdir()
        argv = ["python", str(SCRIPT), str(folder)]
        job = self.rig.client().submit_script(argv, devices=2)
        wait_until(lambda: len(list(folder.glob("*.runs"))) == 2, "both ranks run")
        return job, folder

    def steps(self, job: Any, more: int = 5) -> None:
        """Waits until it has made so many more steps."""
        goal = job.status().last_step + more
        wait_until(lambda: job.status().last_step >= goal or _pause(), "it makes steps", 60.0)

    def device(self, job: Any, rank: int) -> str:
        found = wait_until(lambda: job.status().assignments or _pause(), "it has devices")
        return str(found[rank].device)

    def worker(self, job: Any, rank: int) -> int:
        """The process of a rank."""
        parent = self.rig.pid(self.device(job, rank))
        is_graph, words = job.status().spec.graph, str(SCRIPT).encode()

        def running() -> list[int]:
            kids = children(parent)
            if is_graph:
                return [pid for pid in kids if name_of(pid) == WORKER_NAME]
            return [pid for pid in kids if words in cmdline(pid)]

        return int(wait_until(running, "it runs")[0])

    # -- looking -----------------------------------------------------------------------------------

    def watch(self, job: Any) -> tuple[Watcher, Eyes]:
        watcher, eyes = Watcher(self.rig.client(), job.id), Eyes(self.rig)
        wait_until(lambda: watcher.seen, "the record is watched")
        eyes.open()
        return watcher, eyes

    def strike(self, job: Any, do: Callable[[], None]) -> Struck:
        """Does it, once somebody watches."""
        watcher, eyes = self.watch(job)
        at = time.monotonic()
        do()
        return Struck(job, watcher, eyes, max(watcher.seen[-1][1].attempt, 1), at)

    def clear(self, job: Any) -> None:
        """After any fault: the cluster is whole, and idle."""
        self.rig.release()
        for name, process in self.rig.processes.items():
            if self.rig.is_alive(name):
                os.kill(process.pid, 18)
        self.rig.repair()
        with suppress(OneFlowError):
            job.cancel()
        job.wait(60.0)
        self.rig.wait_attached()
        wait_until(self._is_idle, "the devices are free")

    def _is_idle(self) -> bool:
        found = self.rig.client().status().daemons
        is_idle = sum(not d.job and d.state == "up" for d in found) == 2
        return is_idle or _pause()


def _pause() -> bool:
    """Between questions: a token may not ask too often."""
    time.sleep(STATUS_S)
    return False


def check_line(record: JobRecord, rank: int, reason: str, code: int, words: str) -> str:
    """The one line of a failed attempt. Raises SceneError if it does not say the expected words."""
    line = cause_line(record)
    wanted = [rf" attempt={record.attempt} ", rf" reason={reason} ", rf" exit={code} ", words]
    if rank >= 0:
        wanted.append(rf" rank={rank} host=rig pid=\d+ ")
    missing = [word for word in wanted if not re.search(word, line)]
    if missing or "\n" in line:
        raise SceneError(f"the line lacks {missing}: {line}")
    return line
