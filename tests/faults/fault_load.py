"""Many jobs queued at once and many who follow logs: how long submit and status take.

python tests/faults/fault_load.py [--jobs 200] [--followers 100] [--seconds 10]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fault_rig import Rig, end_in_order, rig

from oneflow.core.errors import OneFlowError

TALKER = "import time\nfor i in range(10**6): print(i, 'x' * 60, flush=True); time.sleep(0.02)"
SUBMIT_S, STATUS_S = 0.100, 0.050


def percentile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def load(
    rig: Rig, jobs: int, followers: int, seconds: float
) -> tuple[list[float], list[float], int]:
    """Times of all submits and statuses, and bytes that the followers got."""
    cluster = rig.client()
    talker = cluster.submit_script([sys.executable, "-c", TALKER], devices=1)
    stop, got = threading.Event(), [0] * followers
    threads = [
        threading.Thread(target=_follow, args=(cluster, talker.id, got, i, stop), daemon=True)
        for i in range(followers)
    ]
    for thread in threads:
        thread.start()
    time.sleep(2.0)
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
    stop.set()
    for job in [talker, *queued]:
        job.cancel()
    for job in [talker, *queued]:
        job.wait(60.0)
    print(f"{jobs} jobs queued in {took:.1f} s, {followers} followers got {sum(got) >> 10} KB")
    return submits, statuses, sum(count > 0 for count in got)


def _follow(cluster: Any, job_id: str, got: list[int], index: int, stop: threading.Event) -> None:
    try:
        for line in cluster.job(job_id).logs(follow=True):
            got[index] += len(line.text)
            if stop.is_set():
                return
    except OneFlowError as error:
        print(f"follower {index}: {error}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--followers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    end_in_order()
    folder = tempfile.TemporaryDirectory(prefix="oneflow-rig-")
    with folder as name, rig(Path(name), armed=False) as cluster:
        submits, statuses, heard = load(cluster, args.jobs, args.followers, args.seconds)
    for what, times in (("submit", submits), ("status", statuses)):
        shown = [f"p{int(100 * p)} {1e3 * percentile(times, p):.1f} ms" for p in (0.5, 0.9, 0.99)]
        print(f"{what}: {', '.join(shown)}, max {1e3 * max(times):.1f} ms")
    print(f"{heard} of {args.followers} followers got lines")
    good = percentile(submits, 0.99) < SUBMIT_S and percentile(statuses, 0.99) < STATUS_S
    return 0 if good and heard == args.followers else 1


if __name__ == "__main__":
    sys.exit(main())
