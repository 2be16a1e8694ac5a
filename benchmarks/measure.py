"""Common parts of the benchmarks: sides timed in turns, paired ratios, a table and a JSON file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

REST_S = 0.002  # between turns: idle threads of the other side spin for a while after their work


def arguments(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser


def in_turns(
    sides: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 2, repeat: int = 1
) -> dict[str, list[float]]:
    """Seconds of each side, A B A B ...; a turn runs a side `repeat` times and counts their
    mean.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(warm_up + rounds):
        for name, run in sides.items():
            time.sleep(REST_S)
            start = time.perf_counter()
            for _ in range(repeat):
                run()
            if turn >= warm_up:
                times[name].append((time.perf_counter() - start) / repeat)
    return times


def paired(times: Mapping[str, list[float]], ours: str, theirs: str) -> dict[str, float]:
    """Their time over ours, pair by pair: median, 10th and 90th percentile. Above 1 we are
    faster.
    """
    ratios = sorted(b / a for a, b in zip(times[ours], times[theirs], strict=True))
    return {
        "ours_s": statistics.median(times[ours]),
        "theirs_s": statistics.median(times[theirs]),
        "ratio": statistics.median(ratios),
        "ratio_p10": ratios[len(ratios) // 10],
        "ratio_p90": ratios[-1 - len(ratios) // 10],
    }


def launch_ranks(file: str, ranks: int, argv: list[str]) -> int:
    """Run a benchmark with both sides in the same processes; returns the exit code. PyTorch's store
    is to be on TORCH_PORT, a port of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "TORCH_PORT": str(port)}
    command = [sys.executable, "-m", "oneflow.distributed.launch", "--standalone"]
    command += ["--nproc_per_node", str(ranks), file, *argv]
    return subprocess.run(command, env=env).returncode


def report(title: str, rows: list[dict[str, Any]], path: Path | None) -> None:
    """Prints rows as a table; writes them with the machine's description."""
    print(f"{title} ({processor()}, {os.cpu_count()} cores)")
    if rows:
        names = list(rows[0])
        cells = [[_cell(row.get(name)) for name in names] for row in rows]
        widths = [max(len(n), *(len(c[i]) for c in cells)) for i, n in enumerate(names)]
        print("  ".join(n.rjust(w) for n, w in zip(names, widths, strict=True)))
        for row in cells:
            print("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)))
    if path is not None:
        path.write_text(json.dumps({"title": title, "machine": machine(), "rows": rows}, indent=1))


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "processor": processor(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        # A name here makes NumPy's BLAS take the code of another processor: on one with AVX-512,
        # "Haswell" halves its speed (110 instead of 215 GF/s on one core), and only our side's.
        "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE", ""),
    }


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
