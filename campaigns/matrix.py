"""Phases x targets x signals on a real cluster, each cell followed by the checks A1 to A7.

    python -m campaigns.matrix [--cells TEXT] [--limit N] [--seconds S] [--json FILE]

A cell: a failpoint holds the process that reaches the phase, the target gets the signal, the held
one is let go, dead services are started again as systemd would, and the job comes to its end.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneflow.core.errors import OneFlowError
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.tokens import read_token_file
from tests.support.cluster import (
    DEVICES,
    ROOT,
    Rig,
    Watcher,
    conclude,
    end_in_order,
    export_jobs,
    own_program,
)
from tests.support.processes import state_of
from tests.support.waiting import SceneError, wait_until

from .always import a5_next_job, always, ended_attempts, rig_shm

PHASES = {
    "queued": "scheduler.queued",
    "start": "daemon.start",
    "rendezvous": "worker.rendezvous",
    "plan": "scheduler.plan",
    "allocation": "worker.allocate",
    "first_step": "worker.first_step",
    "steady_step": "worker.step_done",
    "transfer": "transfer.half",
    "collective": "collective.entered",
    "ckpt_write": "ckpt.write",
    "ckpt_commit": "ckpt.before_rename",
    "logs": "daemon.read_log",
    "cancel": "daemon.stop",
    "drain": "scheduler.drain",
    "journal": "journal.write",
    "shutdown": "worker.outputs",
}
TARGETS = ("worker", "daemon", "scheduler", "client", "other")
SIGNALS = ("KILL", "STOP", "TERM")
ACTED_ON = ("logs", "cancel", "drain", "journal")  # of a job that runs already
STEPS, LONG_STEPS, EVERY, NEXT_STEPS = 40, 250, 10, 4
NOTICED_S = {"KILL": 1.0, "STOP": 2.5}
NOTICED_SLACK_S = 1.0  # this machine may be busy, and it is no test of speed
HURT = ("start", "rendezvous", "allocation", "first_step", "steady_step", "transfer", "collective",
        "ckpt_write", "ckpt_commit")  # fmt: skip
"""Phases in which each rank is needed."""
STOPPED_S = {"worker": 6.0, "other": 6.0, "daemon": 3.5, "scheduler": 1.0, "client": 1.0}
END_S = 120.0


@dataclass(frozen=True)
class Cell:
    phase: str
    target: str
    signal: str

    def __str__(self) -> str:
        return f"{self.phase}/{self.target}/{self.signal}"


CELLS = tuple(Cell(*words) for words in itertools.product(PHASES, TARGETS, SIGNALS))


@dataclass
class Outcome:
    """detected_s: until the job's record changed; None: it did not have to.  blamed: reasons of the
    attempts that were followed by another.
    """

    cell: str
    error: str = ""
    state: str = ""
    reason: str = ""
    attempts: int = 0
    blamed: tuple[str, ...] = ()
    detected_s: float | None = None
    repaired: tuple[str, ...] = ()
    seconds: float = 0.0


def sample(count: int) -> list[Cell]:
    """Cells that are spread over phases, targets and signals alike."""
    chosen = []
    for number in range(count):
        phase = list(PHASES)[number % len(PHASES)]
        turn = number // len(PHASES)
        target = TARGETS[(number + turn) % len(TARGETS)]
        chosen.append(Cell(phase, target, SIGNALS[(number + turn) % len(SIGNALS)]))
    return chosen


def submit(cluster: Any, job_id: str, job_file: str, is_long: bool) -> Any:
    return cluster.submit(
        job_file,
        job_id=job_id,
        devices=2,
        steps=LONG_STEPS if is_long else STEPS,
        checkpoint_every=EVERY,
        max_restarts=3,
    )


class Client:
    """Does the work of a client in a phase: on a thread, or as a process that can be killed."""

    def __init__(self, rig: Rig, cell: Cell, job_id: str, job_file: str) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.has_acted = threading.Event()
        words = [rig.address, str(rig.folder / "scheduler" / "token"), job_file, job_id, cell.phase]
        if cell.target == "client":
            argv = [*own_program("matrix"), "--client", *words]
            env = rig.env | {"ONEFLOW_TEST_RIG": "client"}
            self.process = subprocess.Popen(argv, env=env, cwd=ROOT)
        else:
            cluster = rig.client()
            threading.Thread(
                target=self._act, args=(cluster, job_file, job_id, cell.phase), daemon=True
            ).start()
        self.errors: list[str] = []

    def _act(self, cluster: Any, *words: str) -> None:
        try:
            act(cluster, *words, self.has_acted.set)
        except Exception as error:  # told at the end of the cell
            self.errors.append(repr(error))

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait(10)


def act(
    cluster: Any, job_file: str, job_id: str, phase: str, acted: Callable[[], None] = bool
) -> None:
    """Acts as the client does in a phase. acted: called when the cluster has heard it."""
    if phase not in ACTED_ON:
        submit(cluster, job_id, job_file, is_long=False).wait(END_S)
        return
    job = cluster.job(job_id)
    if phase == "logs":
        for _ in job.logs(follow=True):
            pass
    elif phase == "cancel":
        job.cancel()
    elif phase == "drain":
        cluster.drain("rig", 0.5)  # of the whole cluster it would last until a new scheduler
    acted()
    job.wait(END_S)


def run_cell(
    rig: Rig, cell: Cell, job_file: str, number: int, slack_s: float, has_next: bool = True
) -> Outcome:
    """One cell on a cluster that is whole; leaves it whole, or says so in the outcome. has_next: is
    another job run after it (A5)? It always is where services are new: their threads and caches
    have to be there before the next cell counts them.
    """
    started = time.monotonic()
    outcome = Outcome(str(cell))
    before, shm = rig.usage(), rig_shm(rig)
    job_id = f"c{number}-{cell.phase.replace('_', '-')}"
    client: Client | None = None
    try:
        client = _reach(rig, cell, job_id, job_file)
        at, watcher = _strike(rig, cell, client, job_id)
        record = _to_the_end(rig, cell, client, job_id, job_file, watcher, outcome)
        outcome.detected_s = watcher.first_after(at, _notices(watcher.attempt))
        outcome.state, outcome.reason = str(record.state), record.reason
        outcome.attempts = record.attempt
        outcome.blamed = tuple(r.reason for r in ended_attempts(watcher, record))
        _expect(cell, record)
        _expect_noticed(cell, outcome, slack_s)
        if has_next or outcome.repaired:
            a5_next_job(rig, job_file, END_S)
        always(rig, watcher, job_id, before, shm)
        if client.errors:
            raise SceneError(f"the client failed: {client.errors}")
    except (SceneError, OneFlowError, OSError, subprocess.SubprocessError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
        if not isinstance(error, SceneError):
            outcome.error += traceback.format_exc()[-600:]
    finally:
        if client is not None:
            client.end()
    outcome.seconds = time.monotonic() - started
    return outcome


def _reach(rig: Rig, cell: Cell, job_id: str, job_file: str) -> Client:
    """Until somebody is held in the phase."""
    name = PHASES[cell.phase]
    if cell.phase in ACTED_ON:
        job = submit(rig.client(), job_id, job_file, is_long=True)
        wait_until(lambda: job.status().last_step >= 5, "the job runs")
        rig.arm(name)
        client = Client(rig, cell, job_id, job_file)
    else:
        rig.arm(name)
        client = Client(rig, cell, job_id, job_file)
    rig.held(name)
    return client


def _strike(rig: Rig, cell: Cell, client: Client, job_id: str) -> tuple[float, Watcher]:
    """The signal; then the held process is let go. Returns the time, and the watcher."""
    name = PHASES[cell.phase]
    held = rig.held(name)
    pid = _target(rig, cell, client, held)
    watcher: Watcher | None = None
    if cell.phase not in ("queued",) and "scheduler" not in _owner(rig, held):
        watcher = Watcher(rig.client(), job_id)
        wait_until(lambda: watcher.seen, "the record is watched")  # type: ignore[union-attr]
    attempt = watcher.seen[-1][1].attempt if watcher is not None else 1
    at = time.monotonic()
    os.kill(pid, getattr(signal, f"SIG{cell.signal}"))
    rig.release()
    if watcher is None:
        watcher = Watcher(rig.client(), job_id)
    watcher.attempt = max(attempt, 1)
    if cell.signal == "STOP":
        _wake(cell, pid, at, watcher)
    elif (name := _service(rig, pid)) != "":
        wait_until(lambda: not rig.is_alive(name), f"{name} ends")
    return at, watcher


def _wake(cell: Cell, pid: int, at: float, watcher: Watcher) -> None:
    """Goes on after it was noticed, or as long as nobody has to."""
    must_be_noticed = cell.phase in HURT and cell.target in ("worker", "other")
    end = at + (END_S if must_be_noticed else STOPPED_S[cell.target])
    while time.monotonic() < end and state_of(pid) not in "ZX":
        if watcher.first_after(at, _notices(watcher.attempt)) is not None:
            break
        if watcher.last is not None and watcher.last.state.is_final:
            break
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _notices(attempt: int) -> Callable[[JobRecord], bool]:
    """Whether a record shows that this attempt fails; RESTARTING may be too short to see.

    A later attempt begins with the reason of the one before.
    """
    ends = ("RESTARTING", "FAILED", "CANCELLED", "TIMED_OUT")

    def notices(record: JobRecord) -> bool:
        is_blamed = attempt == 1 and record.reason not in ("NONE", "CANCELLED")
        return record.attempt > attempt or str(record.state) in ends or is_blamed

    return notices


def _owner(rig: Rig, pid: int) -> str:
    for name in ("scheduler", *DEVICES):
        if rig.pid(name) == pid:
            return name
    for device in DEVICES:
        if pid in rig.workers(device):
            return f"worker of {device}"
    return ""


def _service(rig: Rig, pid: int) -> str:
    return next((n for n in ("scheduler", *DEVICES) if rig.pid(n) == pid), "")


def _target(rig: Rig, cell: Cell, client: Client, held: int) -> int:
    """The process that gets the signal: of the held one's own side, if it has one."""
    owner = _owner(rig, held)
    device = next((d for d in DEVICES if d in owner), DEVICES[0])
    match cell.target:
        case "scheduler":
            return rig.pid("scheduler")
        case "client":
            assert client.process is not None
            return client.process.pid
        case "daemon":
            return rig.pid(device)
        case "worker":
            return held if "worker" in owner else _worker(rig, device)
    return _worker(rig, next(d for d in DEVICES if d != device))


def _worker(rig: Rig, device: str) -> int:
    """Running, else where the next is forked from, which may just be started."""
    return int(wait_until(lambda: rig.workers(device), f"{device} has a worker")[0])


def _to_the_end(
    rig: Rig,
    cell: Cell,
    client: Client,
    job_id: str,
    job_file: str,
    watcher: Watcher,
    outcome: Outcome,
) -> JobRecord:
    """Dead services are started until the job has ended."""
    repaired: list[str] = []
    end = time.monotonic() + END_S
    if cell.phase == "drain":  # who drains takes no work until it is started anew
        if not rig.is_alive("scheduler"):
            repaired += rig.revive("scheduler")
        if client.process is None:  # or it would ask the new daemons to drain
            client.has_acted.wait(20.0)
        time.sleep(1.0)
        for device in DEVICES:
            if rig.is_alive(device):
                os.kill(rig.pid(device), signal.SIGTERM)
        wait_until(lambda: not any(rig.is_alive(d) for d in DEVICES), "drained daemons leave")
    while True:
        repaired += _repair_dead(rig)
        if cell.target == "client" and cell.phase not in ACTED_ON:
            submit(rig.client(), job_id, job_file, is_long=False)  # the same id is the same job
        record = rig.client().job(job_id).status()
        if record.state.is_final:
            break
        if time.monotonic() > end:
            raise SceneError(f"{job_id} is {record.state} after {END_S:g} s: {record.pending}")
        time.sleep(0.05)
    repaired += rig.repair()
    outcome.repaired = tuple(repaired)
    wait_until(lambda: watcher.last and watcher.last.state.is_final, "the watcher sees the end")
    return record


def _repair_dead(rig: Rig) -> list[str]:
    dead = [n for n in ("scheduler", *DEVICES) if not rig.is_alive(n)]
    return rig.repair() if dead else []


def _expect(cell: Cell, record: JobRecord) -> None:
    """The end that the job has to come to."""
    wanted = {"SUCCEEDED"}
    if cell.phase == "cancel":
        # A client killed before its call arrived asked for nothing.
        wanted = {"CANCELLED", "SUCCEEDED"} if cell.target == "client" else {"CANCELLED"}
    if str(record.state) not in wanted:
        raise SceneError(f"it is {record.state} {record.reason} {record.exit_code}: {record.cause}")
    if record.state == "SUCCEEDED" and record.last_step != record.total_steps:
        raise SceneError(f"succeeded at step {record.last_step} of {record.total_steps}")


def _expect_noticed(cell: Cell, outcome: Outcome, slack_s: float) -> None:
    """A rank that dies or freezes is in the record in time, for any grace of the others."""
    if cell.target not in ("worker", "other") or cell.phase not in HURT:
        return
    limit_s = NOTICED_S.get(cell.signal)
    if limit_s is None:
        return
    found_s = outcome.detected_s
    if found_s is None or found_s > limit_s + slack_s:
        raise SceneError(f"noticed after {found_s} s, not {limit_s:g} s")


# ---- running many --------------------------------------------------------------------------------


def run_cells(
    folder: Path,
    cells: Sequence[Cell],
    seconds: float = 1e9,
    slack_s: float = NOTICED_SLACK_S,
    is_short: bool = False,
) -> list[Outcome]:
    """Play cells on one cluster until the time is over; after a cell that fails a new one follows.
    is_short: where no service is new, the job of the next cell is the next job of A5.
    """
    jobs = export_jobs(folder / "jobs")
    end, left, outcomes, turn = time.monotonic() + seconds, list(cells), [], 0
    while left and time.monotonic() < end:
        turn += 1
        place = folder / f"rig{turn}"
        place.mkdir()
        with Rig(place) as found:
            _warm_up(found, str(jobs / "stages.job"))
            while left and time.monotonic() < end:
                cell = left.pop(0)
                job = str(jobs / "stages.job")
                has_next = not (is_short and left)
                outcome = run_cell(found, cell, job, len(outcomes), slack_s, has_next)
                outcomes.append(outcome)
                say(outcome)
                if outcome.error:
                    break
    return outcomes


def _warm_up(rig: Rig, job_file: str) -> None:
    """Threads, caches and the imports of a first fault are there before anything is counted."""
    for _ in range(2):
        rig.client().submit(job_file, devices=2, steps=NEXT_STEPS).wait(END_S)
    job = submit(rig.client(), "warm-up", job_file, is_long=True)
    wait_until(lambda: job.status().last_step >= 5, "the first job runs")
    os.kill(_worker(rig, DEVICES[0]), signal.SIGKILL)
    wait_until(lambda: job.status().attempt == 2, "it is restarted")
    job.cancel()
    job.wait(END_S)
    rig.wait_attached()


def say(outcome: Outcome) -> None:
    noticed = "-" if outcome.detected_s is None else f"{outcome.detected_s:.2f} s"
    print(
        f"{outcome.cell:32} {outcome.state:10} {outcome.attempts} attempts, noticed {noticed:8} "
        f"{outcome.seconds:5.1f} s  {' '.join(outcome.blamed)} {outcome.error}",
        flush=True,
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Detection times by target and signal."""
    lines = [
        "| target | signal | cells | failed | noticed in | median | max |",
        "|---|---|---|---|---|---|---|",
    ]
    for target, sig in itertools.product(TARGETS, SIGNALS):
        mine = [o for o in outcomes if o.cell.split("/")[1:] == [target, sig]]
        times = sorted(o.detected_s for o in mine if o.detected_s is not None)
        shown = (f"{times[len(times) // 2]:.2f} s", f"{times[-1]:.2f} s") if times else ("-", "-")
        bad = sum(bool(o.error) for o in mine)
        lines.append(
            f"| {target} | {sig} | {len(mine)} | {bad} | {len(times)} | {shown[0]} | {shown[1]} |"
        )
    return "\n".join(lines)


def client_main(words: Sequence[str]) -> None:
    from oneflow.cluster.client import connect
    from oneflow.cluster.connection import Patience

    address, token, *rest = words
    cluster = connect(address, read_token_file(Path(token)), patience=Patience(30.0, 60.0))
    act(cluster, *rest)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", nargs=5)
    parser.add_argument("--cells", default="", help="only those whose name has this in it")
    parser.add_argument("--limit", type=int, default=0, help="a sample of so many")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--shuffle", type=int, help="another order, from this seed")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    end_in_order()
    if args.client:
        client_main(args.client)
        return 0
    cells = [c for c in (sample(args.limit) if args.limit else CELLS) if args.cells in str(c)]
    if args.shuffle is not None:
        random.Random(args.shuffle).shuffle(cells)
    with tempfile.TemporaryDirectory(prefix="oneflow-rig-") as folder:
        outcomes = run_cells(Path(folder), cells[args.skip :], args.seconds)
    return conclude(outcomes, table(outcomes), lambda o: f"--cells {o.cell}", args.json)


if __name__ == "__main__":
    sys.exit(main())
