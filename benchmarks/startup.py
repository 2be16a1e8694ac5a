"""Start-up: import, `--help`, compile of the digits graph, and from typing the command to the first
loss on 2 ranks and on 32.

    python benchmarks/startup.py [--rounds 5] [--json FILE]

Whole processes, so that everything a user waits for is counted; medians. Beside: importing PyTorch,
if it is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import arguments, report

DIGITS = Path(__file__).parent.parent / "examples" / "digits.py"


def seconds_of(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def first_loss_seconds(ranks: int) -> float:
    """Until rank 0 prints the first line with a loss."""
    command = [sys.executable, "-m", "oneflow.distributed.launch", "--standalone"]
    command += ["--nproc_per_node", str(ranks), str(DIGITS), "--epochs", "1"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "loss" in line:
                seconds = time.perf_counter() - start
                process.stdout.read()
                return seconds
    raise SystemExit("the launched example printed no loss")


def compile_seconds() -> float:
    """Trace, compile and bind of the digits graph, as the example reports it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        subprocess.run(
            [sys.executable, str(DIGITS), "--epochs", "1", "--json", str(path)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return float(json.loads(path.read_text())["compile_s"])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    python = sys.executable
    measured: dict[str, Any] = {
        "python itself": (lambda: seconds_of([python, "-c", "pass"]), None),
        "import oneflow": (lambda: seconds_of([python, "-c", "import oneflow"]), 0.4),
        "oneflow --help": (lambda: seconds_of([python, "-m", "oneflow", "--help"]), 0.2),
        "digits: trace, compile, bind": (compile_seconds, 0.3),
        "launch to first loss, 2 ranks": (lambda: first_loss_seconds(2), 5.0),
        "launch to first loss, 32 ranks": (lambda: first_loss_seconds(32), 12.0),
    }
    if importlib.util.find_spec("torch"):
        measured["import torch"] = (lambda: seconds_of([python, "-c", "import torch"]), None)
    times: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(args.rounds):
        for name, (run, _) in measured.items():
            times[name].append(run())
    rows = [
        {
            "what": name,
            "median_s": statistics.median(times[name]),
            "max_s": max(times[name]),
            "to_reach_s": goal if goal is not None else "-",
        }
        for name, (_, goal) in measured.items()
    ]
    report("start-up", rows, args.json)


if __name__ == "__main__":
    main()
