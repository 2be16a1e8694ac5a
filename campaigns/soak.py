"""Two-rank jobs one after the other with faults among them: none stuck, none lost, nothing grows.

python -m campaigns.soak [--jobs 1000] [--faults 0.02] [--seed S] [--seconds S]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.cluster import DEVICES, Rig, end_in_order, export_jobs
from tests.support.processes import Usage
from tests.support.waiting import SceneError, wait_until

STEPS, END_S, SETTLE_S = 5, 60.0, 30.0
MORE_FDS, MORE_THREADS, MORE_NBYTES = 8, 4, 48 << 20
WARM_JOBS = 20
FAULTS = ("worker", "daemon", "scheduler", "stop worker")


def soak(rig: Rig, job_file: str, jobs: int, share: float, seed: int, seconds: float) -> list[str]:
    """Lists the faults. Prints the memory and descriptors of the services from time to time."""
    rng, bad, faults = random.Random(seed), [], 0
    end, first = time.monotonic() + seconds, {}
    started, number = time.monotonic(), 0
    for number in range(1, jobs + 1):
        fault = rng.choice(FAULTS) if rng.random() < share else ""
        faults += bool(fault)
        said = _one(rig, job_file, fault, rng)
        if said:
            bad.append(f"job {number} ({fault or 'no fault'}): {said}")
        if fault or number == WARM_JOBS:
            rig.repair()
            first = {n: v for n, v in rig.usage().items() if n not in first} | {
                n: v if v[0] == rig.pid(n) else rig.usage()[n] for n, v in first.items()
            }
        if number % 50 == 0:
            print(f"{number} jobs, {faults} faults, {len(bad)} bad, {_shown(rig)}", flush=True)
        if time.monotonic() > end:
            break
    with suppress(SceneError):  # a worker of the last job, and of the next, come and go
        wait_until(lambda: not _grown(first, rig.usage()), "what was opened is closed", SETTLE_S)
    bad += _grown(first, rig.usage())
    took = time.monotonic() - started
    print(f"{number} jobs, {faults} faults in {took:.0f} s: {len(bad)} defects; {_shown(rig)}")
    return bad


def _one(rig: Rig, job_file: str, fault: str, rng: random.Random) -> str:
    job = rig.client().submit(
        job_file, devices=2, steps=200 if fault else STEPS, checkpoint_every=5, max_restarts=3
    )
    if fault:
        time.sleep(rng.uniform(0.0, 1.5))
        _do(rig, fault, rng)
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        if fault:
            rig.repair()
        record = next((r for r in job.watch(2.0) if r.state.is_final), None)
        if record is not None:
            good = str(record.state) == "SUCCEEDED" and (fault or record.attempt == 1)
            return "" if good else f"{record.state} {record.reason}: {record.cause}"
    return f"stuck: {job.status().state} {job.status().pending}"


def _do(rig: Rig, fault: str, rng: random.Random) -> None:
    device = rng.choice(DEVICES)
    workers = rig.workers(device)
    if "worker" not in fault:
        os.kill(rig.pid("scheduler" if fault == "scheduler" else device), signal.SIGKILL)
        time.sleep(0.1)
    elif workers:
        os.kill(workers[0], signal.SIGSTOP if "stop" in fault else signal.SIGKILL)
        if "stop" in fault:
            time.sleep(1.0)
            try:
                os.kill(workers[0], signal.SIGCONT)
            except ProcessLookupError:
                return


def _grown(first: dict[str, tuple[int, Usage]], now: dict[str, tuple[int, Usage]]) -> list[str]:
    found = []
    for name, (pid, last) in now.items():
        old_pid, old = first.get(name, (0, last))
        if pid == old_pid and (
            last.fds > old.fds + MORE_FDS
            or last.threads > old.threads + MORE_THREADS
            or last.nbytes > old.nbytes + MORE_NBYTES
        ):
            found.append(f"{name} grew: {old} -> {last}")
    return found


def _shown(rig: Rig) -> str:
    return ", ".join(
        f"{name} {u.fds} fds {u.threads} threads {u.nbytes >> 20} MB"
        for name, (_, u) in rig.usage().items()
    )


def main(argv: Any = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--faults", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    args = parser.parse_args(argv)
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="oneflow-rig-") as name:
        folder = Path(name)
        export_jobs(folder)
        (folder / "rig").mkdir()
        with Rig(folder / "rig", armed=False) as cluster:
            job_file = str(folder / "stages.job")
            bad = soak(cluster, job_file, args.jobs, args.faults, args.seed, args.seconds)
    print("\n".join(bad))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
