"""The two numbers of each link that routes are chosen by: seconds per dependent exchange, and bytes
per second into a rank.

    python benchmarks/links.py [--rounds 30] [--json FILE]

Two ranks gather arrays of many sizes, through shared memory and, told that they are on different
hosts, over TCP on the loopback device. Each link's `seconds = latency + bytes / bandwidth` is
fitted to the medians by least squares of the relative error, and shown beside the values that
`boxing/link.py` has. A real network between hosts is slower than loopback: measure it where it is.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import arguments, report

from oneflow.boxing.link import SHARED_MEMORY, TCP
from oneflow.distributed.world import world

SIZES = [8, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
LINKS = {"shared memory": SHARED_MEMORY, "TCP": TCP}


def measure(nbytes: int, rounds: int) -> float:
    """Median seconds of one exchange that brings `nbytes` into each rank; the slower rank's."""
    here = world().everyone
    x = np.ones(nbytes, np.uint8)
    out = np.empty(2 * nbytes, np.uint8)
    repeat = max(1, min(50, (1 << 20) // nbytes))
    found = []
    for _ in range(rounds):
        here.barrier()
        start = time.perf_counter()
        for _ in range(repeat):
            here.all_gather(x, out=out)
        found.append((time.perf_counter() - start) / repeat)
    return float(here.all_reduce(np.array([statistics.median(found)]), "max")[0])


def fitted(seconds: list[float]) -> tuple[float, float]:
    """(latency, bytes per second) of least relative error."""
    y = np.array(seconds)
    rows = np.stack([np.ones(len(SIZES)), np.array(SIZES, float)], 1) / y[:, None]
    latency, slope = np.linalg.lstsq(rows, np.ones(len(SIZES)), rcond=None)[0]
    return float(latency), float(1 / slope)


def run_rank(rounds: int, path: Path | None) -> None:
    name = os.environ["BENCHMARK_LINK"]
    seconds = [measure(nbytes, rounds) for nbytes in SIZES]
    if world().rank:
        return
    latency, bandwidth = fitted(seconds)
    rows: list[dict[str, Any]] = [
        {"link": name, "bytes": n, "seconds": s, "GB/s": n / s / 1e9}
        for n, s in zip(SIZES, seconds, strict=True)
    ]
    known = LINKS[name]
    title = (
        f"{name}: latency {latency * 1e6:.3g} us, {bandwidth / 1e9:.3g} GB/s "
        f"(boxing/link.py: {known.latency_s * 1e6:.3g} us, {known.bytes_per_s / 1e9:.3g} GB/s)"
    )
    report(title, rows, path)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    if "RANK" in os.environ:
        if os.environ["BENCHMARK_LINK"] == "TCP":  # before the world reads where this rank runs
            os.environ["ONEFLOW_HOST_IDENTITY"] = os.environ["RANK"]
        run_rank(options.rounds, options.json)
        return
    for name in LINKS:
        script = [str(Path(__file__).resolve()), "--rounds", str(options.rounds)]
        if options.json:
            tag = name.replace(" ", "_")
            script += ["--json", str(options.json.with_stem(f"{options.json.stem}_{tag}"))]
        launch = ["-m", "oneflow.distributed.launch", "--standalone", "--nproc_per_node", "2"]
        env = {**os.environ, "BENCHMARK_LINK": name, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *launch, *script], env=env, check=True)


if __name__ == "__main__":
    main()
