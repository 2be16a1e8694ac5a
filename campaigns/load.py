"""Many jobs queued at once and many clients that follow logs: how long submit and status take.

python -m campaigns.load [--jobs 200] [--followers 100] [--seconds 10]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oneflow.cluster.client import connect
from oneflow.cluster.connection import Patience
from oneflow.scheduler.jobs.tokens import read_token_file
from tests.support.cluster import ROOT, Rig, end_in_order, own_program
from tests.support.waiting import SceneError, wait_until

TALKER = "import time\nfor i in range(10**6): print(i, 'x' * 60, flush=True); time.sleep(0.02)"
SUBMIT_S, STATUS_S = 0.100, 0.050


def percentile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class Followers:
    """Clients in a process of their own: their threads would keep our clock waiting, not the
    scheduler.
    """

    def __init__(self, rig: Rig, job_id: str, count: int) -> None:
        words = [rig.address, str(rig.folder / "scheduler" / "token"), job_id, str(count)]
        argv = [*own_program("load"), "--follow", *words]
        pipe = subprocess.PIPE
        pipes = {"stdin": pipe, "stdout": pipe}
        self._process = subprocess.Popen(argv, env=rig.env, cwd=ROOT, text=True, **pipes)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise SceneError("the followers did not start")

    def end(self) -> list[int]:
        """Bytes that each of them got."""
        said, _ = self._process.communicate("end\n", timeout=60)
        return [int(word) for word in said.split()]


def follow_main(words: Sequence[str]) -> None:
    """Follows until a line comes in."""
    address, token, job_id, count = words
    cluster = connect(address, read_token_file(Path(token)), patience=Patience(30.0, 60.0))
    got = [0] * int(count)
    for index in range(len(got)):
        args = (cluster, job_id, got, index)
        threading.Thread(target=_follow, args=args, daemon=True).start()
    wait_until(lambda: all(got), "every follower gets lines")
    print("ready", flush=True)
    sys.stdin.readline()
    print(*got, flush=True)
    os._exit(0)  # in the middle of their streams, as followers end


def _follow(cluster: Any, job_id: str, got: list[int], index: int) -> None:
    for line in cluster.job(job_id).logs(follow=True):
        got[index] += len(line.text)


def load(
    rig: Rig, jobs: int, followers: int, seconds: float
) -> tuple[list[float], list[float], list[int]]:
    """Times of all submits and statuses, and bytes that each follower got."""
    cluster = rig.client()
    talker = cluster.submit_script([sys.executable, "-c", TALKER], devices=1)
    following = Followers(rig, talker.id, followers)
    submits, statuses, queued = [], [], []
    begun = time.monotonic()
    for number in range(jobs):
        wait_s = begun + number * seconds / jobs - time.monotonic()
        time.sleep(max(wait_s, 0.0))
        start = time.monotonic()
        queued.append(cluster.submit_script([sys.executable, "-c", "pass"], devices=2))
        submits.append(time.monotonic() - start)
        start = time.monotonic()
        queued[-1].status()
        statuses.append(time.monotonic() - start)
    took = time.monotonic() - begun
    got = following.end()
    for job in [talker, *queued]:
        job.cancel()
    for job in [talker, *queued]:
        job.wait(60.0)
    print(f"{jobs} jobs queued in {took:.1f} s, {followers} followers got {sum(got) >> 10} KB")
    return submits, statuses, got


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--followers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--follow", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.follow:
        follow_main(args.follow)
    end_in_order()
    folder = tempfile.TemporaryDirectory(prefix="oneflow-rig-")
    with folder as name, Rig(Path(name), armed=False) as cluster:
        submits, statuses, got = load(cluster, args.jobs, args.followers, args.seconds)
    for what, times in (("submit", submits), ("status", statuses)):
        shown = [f"p{int(100 * p)} {1e3 * percentile(times, p):.1f} ms" for p in (0.5, 0.9, 0.99)]
        print(f"{what}: {', '.join(shown)}, max {1e3 * max(times):.1f} ms")
    heard = sum(nbytes > 0 for nbytes in got)
    print(f"{heard} of {args.followers} followers got lines")
    good = percentile(submits, 0.99) < SUBMIT_S and percentile(statuses, 0.99) < STATUS_S
    return 0 if good and heard == args.followers else 1


if __name__ == "__main__":
    sys.exit(main())
