"""Random kills and stops of a two-rank job's processes, as an operator would see them.

    python -m campaigns.outside [--trials 30] [--seed S]

Nothing of the package but its command line is used: a cluster of its own, a graph job with
checkpoints, then the same job again and again, each time with a worker, a daemon or the scheduler
killed or stopped for a while at a random moment. Dead processes are started again by `cluster up`.
Every file that the job leaves must be that of the undisturbed one, to the byte.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.processes import children, name_of

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "jobs" / "digits_job.py"
TARGETS = ("worker", "daemon", "scheduler")
STOPS_S = (0.5, 12.0)
"""Seconds that a stopped process stays so: shorter, and longer, than is taken for a loss."""

END_S = 300.0


class Cluster:
    """A cluster whose state lies in `folder`, through `oneflow`'s verbs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ("XDG_STATE_HOME", "XDG_CONFIG_HOME")
        self.env = {**os.environ, **{name: str(folder / name) for name in names}}

    def run(self, *words: str) -> str:
        """A verb's standard output; its complaints are shown where it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "oneflow", *words],
            env=self.env, capture_output=True, text=True, timeout=END_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"oneflow {' '.join(words)}: {done.returncode}\n{done.stderr}")
        return done.stdout

    def up(self) -> None:
        self.run("cluster", "up", "--daemons", "2")

    def pids(self, target: str) -> list[int]:
        status: dict[str, Any] = json.loads(self.run("cluster", "status", "-o", "json"))
        if target == "scheduler":
            return [status["pid"]]
        daemons = [daemon["pid"] for daemon in status["daemons"]]
        return daemons if target == "daemon" else [pid for d in daemons for pid in workers(d)]

    def record(self, job: str) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.run("job", "get", job, "-o", "json"))
        return record

    def outputs(self, job: str) -> dict[str, bytes]:
        """The files that the job left, by name."""
        folder = self.folder / "outputs" / job
        self.run("job", "outputs", job, "--to", str(folder))
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def workers(daemon: int) -> list[int]:
    """Processes of ranks: a daemon's children of that name."""
    return [pid for pid in children(daemon) if name_of(pid) == "oneflow-worker"]


def disturb(cluster: Cluster, job: str, rng: random.Random) -> str:
    """Kill or stop one process of the job; says which, and "" if it was over before."""
    target = rng.choice(TARGETS)
    pids = cluster.pids(target)
    if not pids or cluster.record(job)["state"] != "RUNNING":
        return ""
    pid = rng.choice(pids)
    if rng.random() < 0.5:
        os.kill(pid, signal.SIGKILL)
        return f"kill {target}"
    seconds = rng.choice(STOPS_S)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return f"stop {target}, which did not outlive it"
    return f"stop {target} for {seconds:g} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        cluster = Cluster(Path(name))
        file = str(Path(name) / "digits.job")
        export = [
            sys.executable,
            str(EXAMPLE),
            file,
            "--steps",
            "4000",
            "--checkpoint-every",
            "200",
        ]
        subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
        cluster.up()
        try:
            raise SystemExit(trials(cluster, file, rng, args.trials))
        finally:
            cluster.run("cluster", "down")


def trials(cluster: Cluster, file: str, rng: random.Random, count: int) -> int:
    """Run the job undisturbed and `count` times disturbed; 0 if all left the same files."""
    submit = ("job", "submit", file, "--devices", "2", "--max-restarts", "3", "--job-id")
    cluster.run(*submit, "whole", "--wait")
    whole, usual_s = cluster.outputs("whole"), cluster.record("whole")["ran_s"]
    tally: Counter[str] = Counter()
    k = 0
    while tally.total() < count:
        k += 1
        job = f"trial{k}"
        cluster.run(*submit, job)
        time.sleep(rng.uniform(0.1, usual_s))
        what = disturb(cluster, job, rng)
        cluster.up()
        cluster.run("job", "wait", job, "--timeout", f"{END_S / 2:g}s")
        if not what:
            continue
        left = cluster.outputs(job)
        others = sorted(n for n in whole.keys() | left.keys() if whole.get(n) != left.get(n))
        verdict = f"differs in {', '.join(others)}" if others else "equal"
        tally[verdict] += 1
        attempts = cluster.record(job)["attempt"]
        print(f"{k:3d} {what:40} attempts {attempts}  {verdict}", flush=True)
    print(f"{tally['equal']} of {count} left the files of an undisturbed job")
    return int(tally["equal"] < count)


if __name__ == "__main__":
    main()
