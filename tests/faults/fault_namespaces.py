"""Jobs on hosts whose cables are cut: for good, for a while, in one direction, between two of them;
and on a line of 1 Mbit/s. Network namespaces, TLS, tokens. Needs root.

    python -m tests.faults.fault_namespaces [--only TEXT] [--json FILE]

Times are those of a real cluster: heartbeats each second, 10 s of silence are a loss.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneflow.core.errors import OneFlowError
from tests.support.cluster import DEVICES, Watcher, conclude, end_in_order, export_jobs
from tests.support.waiting import SceneError, wait_until

from .fault_always import rig_shm
from .fault_hosts import HostsRig, hosts_rig, missing_right
from .fault_network import DECLARED, always, causes_of
from .fault_resume import Bits, bits_of

TIMES = {"heartbeat_s": 1.0, "suspect_s": 3.0, "act_s": 10.0}
STEPS, EVERY, END_S = 1200, 50, 200.0
SHORT_S, LONG_S = 4.5, 20.0
SCHEDULER, FIRST, SECOND = 0, 1, 2

Cut = Callable[[HostsRig], AbstractContextManager[None]]


@dataclass(frozen=True)
class Scene:
    """seconds: 0: until the job runs without the host.  ranks: of the job.

    attempts: the most it may take.  given_up: its daemon must have joined anew.
    """

    name: str
    cut: Cut
    seconds: float
    ranks: int = 2
    attempts: int = 1
    given_up: bool = False
    fenced: bool = False


@dataclass
class Outcome:
    """stale: messages of a given-up incarnation that were refused."""

    name: str
    error: str = ""
    result: str = ""
    attempts: int = 0
    noticed_s: float | None = None
    fenced: bool = False
    stale: int = 0
    seconds: float = 0.0


def _unplugged(rig: HostsRig) -> AbstractContextManager[None]:
    return rig.hosts.unplugged(SECOND)


def _from_daemon(rig: HostsRig) -> AbstractContextManager[None]:
    return rig.hosts.no_way((SECOND, SCHEDULER))


def _to_daemon(rig: HostsRig) -> AbstractContextManager[None]:
    return rig.hosts.no_way((SCHEDULER, SECOND))


def _between_ranks(rig: HostsRig) -> AbstractContextManager[None]:
    return rig.hosts.no_way((FIRST, SECOND), (SECOND, FIRST))


def _slow(rig: HostsRig) -> AbstractContextManager[None]:
    return rig.hosts.slow(SECOND, "1mbit")


SCENES = (
    Scene("unplugged 4.5 s", _unplugged, SHORT_S),
    Scene("unplugged 20 s", _unplugged, LONG_S, attempts=4, given_up=True),
    Scene(
        "unplugged until it runs elsewhere",
        _unplugged,
        0,
        ranks=1,
        attempts=3,
        given_up=True,
        fenced=True,
    ),
    Scene("daemon cannot send 4.5 s", _from_daemon, SHORT_S),
    Scene("daemon cannot send 20 s", _from_daemon, LONG_S, attempts=4, given_up=True),
    Scene("daemon cannot hear 4.5 s", _to_daemon, SHORT_S),
    Scene("daemon cannot hear 20 s", _to_daemon, LONG_S, attempts=4, given_up=True),
    Scene("ranks apart 4.5 s", _between_ranks, SHORT_S),
    Scene("ranks apart 20 s", _between_ranks, LONG_S, attempts=4),
    Scene("1 Mbit/s", _slow, END_S),
)


def play(rig: HostsRig, scene: Scene, jobs: Path, wanted: Bits, number: int) -> Outcome:
    started = time.monotonic()
    outcome = Outcome(scene.name)
    before, shm = rig.usage(), rig_shm(rig)
    stale, epochs = _stale(rig), _epochs(rig)
    said = {d: len(rig.log(d)) for d in DEVICES}
    try:
        job = submit(rig, jobs, scene.ranks, f"h{number}")
        watcher = Watcher(rig.client(), job.id)
        wait_until(lambda: job.status().last_step >= EVERY, "it runs")
        with _where(rig, scene):
            at = time.monotonic()
            _during(job, scene)
        record = job.wait(END_S)
        outcome.attempts = record.attempt
        outcome.noticed_s = watcher.first_after(
            at, lambda r: r.attempt > 1 or str(r.state) in ("RESTARTING", "FAILED")
        )
        outcome.result = _judged(scene, record, bits_of(job), wanted, causes_of(watcher))
        rig.repair()
        outcome.fenced = any("fenced:" in rig.log(d)[said[d] :] for d in DEVICES)
        outcome.stale = _stale(rig) - stale
        if scene.fenced and not outcome.fenced:
            raise SceneError("who was given up has not been fenced")
        joined = [d for d, epoch in _epochs(rig).items() if epoch > epochs[d]]
        if scene.given_up and not joined:
            raise SceneError("who was given up is still the one it was")
        job_file = str(jobs / "stages.job")
        always(rig, watcher, record, before, shm, job_file, (f"n{FIRST}", f"n{SECOND}"))
    except (SceneError, OneFlowError, OSError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.seconds = time.monotonic() - started
    return outcome


def submit(rig: HostsRig, jobs: Path, ranks: int, job_id: str) -> Any:
    """Gives the hosts disks of their own; they share only where checkpoints go."""
    program = "stages" if ranks == 2 else "dense"
    return rig.client().submit(
        str(jobs / f"{program}.job"),
        job_id=job_id,
        devices=ranks,
        steps=STEPS if ranks == 2 else 2 * STEPS,  # cut off, it has to go on for a while
        checkpoint_every=EVERY,
        checkpoint_dir=str(rig.folder / "shared" / job_id),
        max_restarts=5,
    )


def _where(rig: HostsRig, scene: Scene) -> AbstractContextManager[None]:
    """A job of one rank must be where the cut is."""
    if scene.ranks == 1:
        record = next(iter(rig.client().jobs(limit=1)))
        if record.assignments[0].node != f"n{SECOND}":
            return rig.hosts.unplugged(FIRST)
    return scene.cut(rig)


def _during(job: Any, scene: Scene) -> None:
    end = time.monotonic() + (scene.seconds or END_S)
    while time.monotonic() < end:
        record = job.status()
        is_elsewhere = record.attempt > 1 and str(record.state) == "RUNNING"
        if record.state.is_final or (not scene.seconds and is_elsewhere):
            return
        time.sleep(0.1)
    if not scene.seconds:
        raise SceneError(f"without that host it is {job.status().state} {job.status().pending}")


def _judged(scene: Scene, record: Any, bits: Bits, wanted: Bits, causes: list[str]) -> str:
    if str(record.state) != "SUCCEEDED":
        raise SceneError(f"it is {record.state} {record.reason}: {record.cause}")
    if record.attempt > scene.attempts:
        raise SceneError(f"it took {record.attempt} attempts: {causes}")
    # Of a job that went elsewhere, its new host has what came from there on.
    since = len(wanted.losses) - len(bits.losses) if scene.ranks == 1 else 0
    if (bits.losses, bits.variables) != (wanted.losses[since:], wanted.variables):
        odd = [s for (s, a), (_, b) in zip(wanted.losses, bits.losses, strict=False) if a != b]
        raise SceneError(f"losses differ from step {odd[0] if odd else len(bits.losses)} on")
    reasons = sorted({c.split()[2].rstrip(":") for c in causes} & DECLARED)
    return "identical" + (f" after {', '.join(reasons)}" if reasons else "")


def _epochs(rig: HostsRig) -> dict[str, int]:
    rig.wait_attached()
    return {daemon.id: daemon.epoch for daemon in rig.client().status().daemons}


def _stale(rig: HostsRig) -> int:
    found = rig.metrics("scheduler")
    return int(found.get('oneflow_scheduler_messages_rejected_total{reason="stale_epoch"}', 0))


def run_scenes(folder: Path, chosen: Sequence[Scene]) -> list[Outcome]:
    """A scene that fails gets the next ones a new cluster."""
    jobs = folder / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)
    export_jobs(jobs)
    outcomes: list[Outcome] = []
    bits: dict[int, Bits] = {}
    left = list(chosen)
    while left:
        with hosts_rig(folder / f"hosts{len(outcomes)}", TIMES) as rig:
            for ranks in sorted({scene.ranks for scene in left}):
                job = submit(rig, jobs, ranks, f"calm{ranks}")
                record = job.wait(END_S)
                if str(record.state) != "SUCCEEDED":
                    raise SceneError(f"undisturbed, and {record.state}: {record.cause}")
                bits.setdefault(ranks, bits_of(job))
            _warm(rig)
            while left:
                scene = left.pop(0)
                outcome = play(rig, scene, jobs, bits[scene.ranks], len(outcomes))
                outcomes.append(outcome)
                say(outcome)
                if outcome.error:
                    break
    return outcomes


def _warm(rig: HostsRig) -> None:
    """A service that makes its connection anew needs a little more memory, once."""
    for number in (FIRST, SECOND):
        for _ in range(2):
            with rig.hosts.unplugged(number):
                time.sleep(3.0)
            wait_until(lambda: _is_up(rig), "all are up again")


def _is_up(rig: HostsRig) -> bool:
    return all(daemon.state == "up" for daemon in rig.client().status().daemons)


def say(outcome: Outcome) -> None:
    noticed = "" if outcome.noticed_s is None else f"noticed {outcome.noticed_s:.1f} s"
    print(
        f"{outcome.name:26} {outcome.attempts} attempts {outcome.seconds:5.1f} s  "
        f"{outcome.error or outcome.result} {noticed} {'fenced' * outcome.fenced} "
        f"{outcome.stale} stale",
        flush=True,
    )


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [
        "| cut | result | attempts | noticed | fenced | stale messages |",
        "|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        noticed = "-" if o.noticed_s is None else f"{o.noticed_s:.1f} s"
        result = f"FAILED: {o.error}" if o.error else o.result
        fenced = "yes" if o.fenced else "-"
        lines.append(f"| {o.name} | {result} | {o.attempts} | {noticed} | {fenced} | {o.stale} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="scenes whose name has this in it")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    end_in_order()
    if why := missing_right():
        print(f"skipped: {why}")
        return 0
    chosen = [scene for scene in SCENES if args.only in scene.name]
    with tempfile.TemporaryDirectory(prefix="oneflow-rig-") as folder:
        outcomes = run_scenes(Path(folder), chosen)
    return conclude(outcomes, table(outcomes), lambda o: f"--only {o.name!r}", args.json)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
