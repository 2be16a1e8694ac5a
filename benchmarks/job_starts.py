"""Starts of jobs on a cluster: jobs of one step a second, and from submitting to the first step.

    python benchmarks/job_starts.py [--jobs 20] [--rounds 5] [--json FILE]

Jobs of one step on two ranks, all submitted at once and run one after the other by two daemons:
jobs a second, and the processor time of each kind of process for one of them. Then a training of
20 steps on two ranks, from starting `oneflow job submit` and from `submit` of a client that is
connected, until its first step is done. On a busy machine only the processor times say something.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from measure import arguments, report
from own_cluster import OwnCluster, export_nothing, export_training, make_setup

DAEMONS, STEPS = 2, 20
END_S, QUIET_S = 300.0, 1.5
GOALS = {"jobs a second": 10.0, "oneflow job submit": 0.25, "a connected client": 0.08}
KINDS = ("oneflow scheduler", "oneflow daemon", "jobs.fork_server", "jobs.compiling")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

Row = dict[str, Any]


def processor_times(folder: Path) -> Counter[str]:
    """Seconds so far by kind of process, of the cluster in that folder. workers: those that have
    ended, which are a daemon's children.
    """
    found: Counter[str] = Counter()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        entry = Path("/proc", pid)
        try:
            if str(folder).encode() not in (entry / "environ").read_bytes():
                continue
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # not ours to see, or gone
            continue
        kind = next((kind for kind in KINDS if kind in words), "")
        own, children = (TICK_S * (int(fields[i]) + int(fields[i + 1])) for i in (11, 13))
        if kind == "oneflow daemon":
            found["workers"] += children
            children = 0.0
        if kind:
            found[kind] += own + children
    return found


def measure_jobs(own: OwnCluster, cluster: Any, jobs: int) -> list[Row]:
    path = own.folder / "nothing.job"
    export_nothing(path)
    for _ in range(2):  # the first one compiles
        ended(cluster.submit(path, devices=DAEMONS))
    own.wait_warm()
    before, begun = processor_times(own.folder), time.perf_counter()
    submitted = [cluster.submit(path, devices=DAEMONS) for _ in range(jobs)]
    submitted_s = time.perf_counter() - begun
    for job in submitted:
        ended(job)
    seconds = time.perf_counter() - begun
    time.sleep(QUIET_S)  # what is left of the last one, and the next workers
    used = processor_times(own.folder) - before
    rows: list[Row] = [
        {"what": "jobs a second", "found": jobs / seconds},
        {"what": "submitted a second", "found": jobs / submitted_s},
    ]
    for kind, value in [*used.items(), ("all processes", used.total())]:
        rows.append({"what": f"processor ms of a job: {kind}", "found": 1e3 * value / jobs})
    return rows


def measure_first_steps(own: OwnCluster, cluster: Any, rounds: int) -> list[Row]:
    path = own.folder / "train.job"
    export_training(make_setup(own.folder / "setup.npz"), path, STEPS)
    cold, connected = [], []
    for turn in range(rounds + 1):  # the first one compiles
        for times, submit in ((cold, _by_command), (connected, _by_client)):
            time.sleep(QUIET_S)
            begun = time.time()
            record = ended(submit(own, cluster, path))
            if turn:
                times.append(record.first_step_at - begun)
    rows = []
    for what, times in (("oneflow job submit", cold), ("a connected client", connected)):
        rows.append({"what": what, "found": statistics.median(times), "max": max(times)})
    return rows


def _by_command(own: OwnCluster, cluster: Any, path: Path) -> Any:
    job_id = own.run("job", "submit", str(path), "--devices", str(DAEMONS)).strip()
    return cluster.job(job_id)


def _by_client(own: OwnCluster, cluster: Any, path: Path) -> Any:
    return cluster.submit(path, devices=DAEMONS)


def ended(job: Any) -> Any:
    """The record of a job, which must have succeeded."""
    record = job.wait(END_S)
    if record.state != "SUCCEEDED":
        raise SystemExit(f"a job ended {record.state}: {record.reason} {record.cause}")
    return record


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with OwnCluster(DAEMONS) as own, own.connect() as cluster:
        rows = measure_jobs(own, cluster, args.jobs)
        rows += measure_first_steps(own, cluster, args.rounds)
    for row in rows:
        row["to_reach"] = GOALS.get(row["what"], "-")
        row.setdefault("max", "-")
    report("starts of jobs; seconds, unless said", rows, args.json)


if __name__ == "__main__":
    main()
