"""Measures how long it takes until a fault is noticed, named and acted on, with the times that are
the default.

    python -m campaigns.detection [--faults TEXT] [--turns N] [--json FILE]

noticed: until a log, the status or the job's record shows it first; named: until the job's record
says which rank failed and why; over: until the attempt has ended, the grace of the others included.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oneflow.core.errors import OneFlowError
from oneflow.scheduler.jobs.records import JobRecord
from tests.support.cluster import end_in_order, export_jobs
from tests.support.processes import state_of
from tests.support.waiting import SceneError, wait_until

from .detection_scene import RealRig, Scene, Struck, check_line

DIES_S, FROZEN_S, STUCK_S = 1.0, 10.0, 15.0
SHORT_S, SUSPECT_S, LONG_S = 2.0, 8.0, 14.0
KILLED = "killed by SIGKILL"


@dataclass
class Seen:
    """Seconds since the fault; None: it was not to be seen, or there is none."""

    fault: str
    goal_s: float | None
    noticed_s: float | None = None
    by: str = ""
    named_s: float | None = None
    over_s: float | None = None
    line: str = ""
    error: str = ""


@dataclass(frozen=True)
class Blame:
    """Words that the record must have. words: a pattern of the cause."""

    rank: int
    reason: str
    code: int
    words: str


Do = Callable[[Scene, Seen], Any]


def see(scene: Scene, seen: Seen, struck: Struck, news: str, blame: Blame, wait_s: float) -> None:
    """Waits until the record blames the right one, and notes when that was."""

    def is_right(record: JobRecord) -> bool:
        said = record.reason, record.first_failed_rank
        return record.attempt == struck.attempt and said == (blame.reason, blame.rank)

    wait_until(lambda: struck.seconds(is_right) is not None, "the record says why", wait_s)
    wait_until(lambda: struck.ended_s() is not None, "the attempt is over", 120.0)
    seen.named_s, seen.over_s = struck.seconds(is_right), struck.ended_s()
    note(seen, struck, news)
    said = [record for at, record in struck.watcher.seen if at >= struck.at and is_right(record)]
    seen.line = check_line(said[-1], blame.rank, blame.reason, blame.code, blame.words)


def note(seen: Seen, struck: Struck, news: str) -> None:
    """The first to know."""
    time.sleep(0.2)  # for what has been written to be read
    found = [(seen.named_s, "record")] if seen.named_s is not None else []
    first = struck.eyes.first(struck.at, news)
    found += [first] if first is not None else []
    seen.noticed_s, seen.by = min(found, default=(None, ""))  # type: ignore[type-var]
    struck.eyes.close()


def goes_on(scene: Scene, seen: Seen, struck: Struck, news: str) -> None:
    """The attempt was not disturbed."""
    scene.steps(struck.job)
    note(seen, struck, news)
    now = struck.job.status()
    if (now.attempt, str(now.state), now.reason) != (struck.attempt, "RUNNING", "NONE"):
        raise SceneError(f"it was disturbed: attempt {now.attempt} {now.state} {now.cause}")


# ---- something dies ------------------------------------------------------------------------------


def worker_dies(phase: str, rank: int) -> Do:
    def do(scene: Scene, seen: Seen) -> Any:
        if phase != "steady":
            scene.rig.arm(phase)
        job = scene.graph_job()
        if phase == "steady":
            scene.steps(job)
        else:
            scene.rig.held(phase)
        pid = scene.worker(job, rank)
        struck = scene.strike(job, lambda: os.kill(pid, signal.SIGKILL))
        scene.rig.release()
        see(scene, seen, struck, "ended: SIGNAL", Blame(rank, "SIGNAL", 137, KILLED), 10.0)
        return job

    return do


def daemon_dies(rank: int) -> Do:
    def do(scene: Scene, seen: Seen) -> Any:
        job = scene.graph_job()
        scene.steps(job)
        device = scene.device(job, rank)
        pid = scene.rig.pid(device)
        struck = scene.strike(job, lambda: os.kill(pid, signal.SIGKILL))
        blame = Blame(rank, "NODE_LOST", 137, f"daemon rig/{device} ended: its process is gone")
        see(scene, seen, struck, f"^{device} (suspect|lost|gone)", blame, 15.0)
        return job

    return do


def scheduler_dies(news: str) -> Do:
    """The job goes on, and is found again."""

    def do(scene: Scene, seen: Seen) -> Any:
        job = scene.graph_job()
        scene.steps(job)
        struck = scene.strike(job, lambda: os.kill(scene.rig.pid("scheduler"), signal.SIGKILL))
        wait_until(lambda: struck.eyes.first(struck.at, news), "somebody notices", 15.0)
        scene.rig.repair()
        goes_on(scene, seen, struck, news)
        return job

    return do


def rank_leaves(scene: Scene, seen: Seen) -> Any:
    """It exits 0 while the other still needs it."""
    job, folder = scene.script_job()
    struck = scene.strike(job, (folder / "1.leave").touch)
    blame = Blame(1, "PEER_LOST", 85, "rank 1 exited 0 while its peers ran")
    see(scene, seen, struck, "ended: ", blame, 20.0)
    return job


# ---- something is frozen -------------------------------------------------------------------------


def worker_freezes(phase: str, rank: int) -> Do:
    def do(scene: Scene, seen: Seen) -> Any:
        if phase != "steady":
            scene.rig.arm(phase)
        job = scene.graph_job()
        if phase == "steady":
            scene.steps(job)
        else:
            scene.rig.held(phase)
        pid = scene.worker(job, rank)
        struck = scene.strike(job, lambda: os.kill(pid, signal.SIGSTOP))
        scene.rig.release()
        blame = Blame(rank, "NODE_LOST", 137, "frozen: it has been stopped")
        see(scene, seen, struck, "has been stopped", blame, 25.0)
        if state_of(pid) not in "ZX":
            raise SceneError(f"process {pid} is still there")
        return job

    return do


def daemon_freezes(rank: int) -> Do:
    """Until after it was given up; awake again it is fenced, with its worker."""

    def do(scene: Scene, seen: Seen) -> Any:
        job = scene.graph_job()
        scene.steps(job)
        device, worker = scene.device(job, rank), scene.worker(job, rank)
        pid = scene.rig.pid(device)
        struck = scene.strike(job, lambda: os.kill(pid, signal.SIGSTOP))
        blame = Blame(rank, "NODE_LOST", 137, f"daemon rig/{device} was not heard for 9.2 s")
        see(scene, seen, struck, f"^{device} (suspect|lost)", blame, 25.0)
        time.sleep(max(struck.at + LONG_S - time.monotonic(), 0.0))
        os.kill(pid, signal.SIGCONT)
        log = scene.rig.log_of(device)
        wait_until(lambda: "fenced: " in log.read_text(), "the old incarnation is fenced", 15.0)
        wait_until(lambda: state_of(worker) in "ZX", "its worker is gone", 15.0)
        scene.steps(job)
        if job.status().attempt != struck.attempt + 1:
            raise SceneError(f"attempt {job.status().attempt} goes on")
        return job

    return do


def awakes(who: str, seconds: float) -> Do:
    """Stopped for a while that is no reason to act; stopped: worker, daemon or scheduler."""
    news = {
        "worker": r"has been stopped|sent no heartbeat",
        "daemon": "^cpu:. (suspect|lost)",
        "scheduler": "the line to the scheduler",
    }[who]

    def do(scene: Scene, seen: Seen) -> Any:
        job = scene.graph_job()
        scene.steps(job)
        pid = scene.worker(job, 1)
        if who != "worker":
            pid = scene.rig.pid(scene.device(job, 1) if who == "daemon" else who)
        struck = scene.strike(job, lambda: os.kill(pid, signal.SIGSTOP))
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        goes_on(scene, seen, struck, news)
        return job

    return do


# ---- something is stuck --------------------------------------------------------------------------


def graph_worker_is_stuck(scene: Scene, seen: Seen) -> Any:
    """Whichever rank comes first keeps its interpreter to itself."""
    job = scene.graph_job()
    scene.steps(job)
    workers = [scene.worker(job, rank) for rank in (0, 1)]
    name = "worker.step_done"

    def do() -> None:
        scene.rig.arm(name, "gil:60")
        scene.rig.held(name)

    struck = scene.strike(job, do)
    rank = workers.index(scene.rig.held(name))
    words = r"stuck: its interpreter .* at failpoints.py:\d+ in _gil"
    see(scene, seen, struck, "has been stuck", Blame(rank, "HANG", 80, words), 30.0)
    return job


def script_is_stuck(scene: Scene, seen: Seen) -> Any:
    job, folder = scene.script_job()
    struck = scene.strike(job, (folder / "1.gil").touch)
    words = r"stuck: its interpreter .* at detection_script.py:\d+ in be_stuck"
    see(scene, seen, struck, "has been stuck", Blame(1, "HANG", 80, words), 30.0)
    return job


def daemon_is_stuck(scene: Scene, seen: Seen) -> Any:
    """Its loop; its guard asks it for its stacks and kills it."""
    job = scene.graph_job()
    scene.steps(job)
    name = "daemon.read_log"

    def do() -> None:
        scene.rig.arm(name, "sleep:60")
        threading.Thread(target=lambda: list(job.logs()), daemon=True).start()
        scene.rig.held(name)

    struck = scene.strike(job, do)
    pid = scene.rig.held(name)
    devices = [scene.device(job, rank) for rank in (0, 1)]
    rank = next(r for r, device in enumerate(devices) if scene.rig.pid(device) == pid)
    blame = Blame(rank, "NODE_LOST", 137, f"daemon rig/{devices[rank]} was not heard for 9.2 s")
    see(scene, seen, struck, f"^{devices[rank]} (suspect|lost)", blame, 25.0)
    wait_until(lambda: not scene.rig.is_alive(devices[rank]), "its guard kills it", 15.0)
    seen.over_s = time.monotonic() - struck.at
    if " in _sleep" not in scene.rig.log_of(devices[rank]).read_text():
        raise SceneError("its stacks are not in its log")
    return job


FAULTS: dict[str, tuple[float | None, Do]] = {
    **{
        f"rank {rank} killed, {words}": (DIES_S, worker_dies(phase, rank))
        for phase, words in (
            ("worker.rendezvous", "before it has met the others"),
            ("steady", "in its steps"),
            ("collective.entered", "in a collective"),
        )
        for rank in (0, 1)
    },
    **{f"daemon of rank {rank} killed": (DIES_S, daemon_dies(rank)) for rank in (0, 1)},
    "scheduler killed, seen by daemons": (DIES_S, scheduler_dies("the line to the scheduler")),
    "scheduler killed, seen by a client": (DIES_S, scheduler_dies("scheduler does not answer")),
    "rank 1 exits 0 early": (FROZEN_S, rank_leaves),
    **{
        f"rank {rank} stopped, {words}": (FROZEN_S, worker_freezes(phase, rank))
        for phase, words in (
            ("worker.rendezvous", "before it has met the others"),
            ("steady", "in its steps"),
        )
        for rank in (0, 1)
    },
    **{f"daemon of rank {rank} stopped": (FROZEN_S, daemon_freezes(rank)) for rank in (0, 1)},
    "scheduler stopped for 14 s": (FROZEN_S, awakes("scheduler", LONG_S)),
    **{
        f"{who} stopped for {seconds:g} s": (goal_s, awakes(who, seconds))
        for seconds in (SHORT_S, SUSPECT_S)
        for who in ("worker", "daemon", "scheduler")
        for goal_s in (SUSPECT_S if seconds == SUSPECT_S and who != "scheduler" else None,)
    },
    "graph job's interpreter stuck": (STUCK_S, graph_worker_is_stuck),
    "script's interpreter stuck": (STUCK_S, script_is_stuck),
    "daemon's loop stuck": (STUCK_S, daemon_is_stuck),
}
"""goal_s: within which it is to be noticed and named; None: it is nothing that anybody should
notice. Who is stopped for 8 s is suspected and recovers, but a scheduler, whom nobody judges so
soon."""


# ---- running them --------------------------------------------------------------------------------


def run_fault(scene: Scene, name: str) -> Seen:
    """Once; leaves the cluster whole and idle, unless there is an error."""
    goal_s, do = FAULTS[name]
    seen = Seen(name, goal_s)
    try:
        job = do(scene, seen)
        check(seen)
        scene.clear(job)
    except (SceneError, OneFlowError, OSError) as error:  # then the next fault gets a new cluster
        seen.error = f"{type(error).__name__}: {error}"
    return seen


def check(seen: Seen) -> None:
    """Against the goal."""
    if seen.goal_s is None:
        if seen.noticed_s is not None:
            raise SceneError(f"{seen.by} noticed it after {seen.noticed_s:.1f} s")
        return
    if seen.noticed_s is None:
        raise SceneError("nobody noticed it")
    latest_s = max(seen.noticed_s, seen.named_s or 0.0)
    if latest_s > seen.goal_s:
        raise SceneError(f"noticed or named after {latest_s:.1f} s, not {seen.goal_s:g}")


def run_faults(
    folder: Path,
    names: Sequence[str],
    turns: int,
    keep: Callable[[Sequence[Seen]], None] = lambda found: None,
) -> list[Seen]:
    """All of them, so many times, on one cluster; a new one after an error.

    keep: takes the numbers after each.
    """
    jobs = export_jobs(folder / "jobs")
    left, found, number = [name for _ in range(turns) for name in names], [], 0
    while left:
        number += 1
        place = folder / f"rig{number}"
        place.mkdir()
        rig = RealRig(place)
        with rig:
            scene = Scene(rig, jobs / "stages.job")
            while left:
                found.append(run_fault(scene, left.pop(0)))
                say(found[-1])
                keep(found)
                if found[-1].error:
                    break
    return found


def say(seen: Seen) -> None:
    times = [f"{word} {_s(getattr(seen, word + '_s'))}" for word in ("noticed", "named", "over")]
    print(f"{seen.fault:52} {', '.join(times)} by {seen.by or 'nobody'}  {seen.error}", flush=True)


def table(found: Sequence[Seen]) -> str:
    """Median and most of each fault, in the order in which they were done first."""
    lines = [
        "| fault | goal | turns | failed | noticed | max | named | max | over, max |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(seen.fault for seen in found):
        mine = [seen for seen in found if seen.fault == name]
        goal = _s(mine[0].goal_s) if mine[0].goal_s is not None else "unnoticed"
        cells = [name, goal, str(len(mine)), str(sum(bool(s.error) for s in mine))]
        for word in ("noticed_s", "named_s"):
            times = sorted(t for s in mine if (t := getattr(s, word)) is not None)
            cells += [_s(times[len(times) // 2]), _s(times[-1])] if times else ["-", "-"]
        over = [s.over_s for s in mine if s.over_s is not None]
        lines.append(f"| {' | '.join([*cells, _s(max(over, default=None))])} |")
    return "\n".join(lines)


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", default="", help="only those whose name has this in it")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    end_in_order()
    names = [name for name in FAULTS if args.faults in name]

    def keep(found: Sequence[Seen]) -> None:
        if args.json:
            args.json.write_text(json.dumps([asdict(seen) for seen in found], indent=1))

    with tempfile.TemporaryDirectory(prefix="oneflow-rig-") as folder:
        found = run_faults(Path(folder), names, args.turns, keep)
    print(table(found))
    failed = [seen for seen in found if seen.error]
    print(f"{len(found)} faults, {len(failed)} not as they should be")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
