"""Programs that ranks of this machine run, and scenes that share one launch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROCESSES = "tests.processes"
LAUNCH_S = 560.0  # a net: a little less than a test may take
Done = subprocess.CompletedProcess[str]


def launch(num_ranks: int, program: str, *words: str | Path, **env: str) -> Done:
    """Run a program of tests/processes on so many ranks to its end. env: on top of the usual."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ONEFLOW_", "MASTER_"))}
    usual = {"ONEFLOW_TIMEOUT_SECONDS": "120", "PYTHONWARNINGS": "error"}
    flags = ["--standalone", "--nproc_per_node", str(num_ranks), "-m", f"{PROCESSES}.{program}"]
    return subprocess.run(
        [sys.executable, "-m", "oneflow.distributed.launch", *flags, *words],
        env=kept | usual | env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LAUNCH_S,
    )


@cache
def launch_once(num_ranks: int, program: str, *words: str) -> Done:
    """Run it at the first call: its scenes are told apart by the output of each rank."""
    return launch(num_ranks, program, *words)


def check_done(result: Done, num_ranks: int, scene: str = "") -> None:
    """Assert that all ranks came to the end, of the scene or of the program."""
    said = f"{scene} done" if scene else "done"
    is_right = bool(scene) or result.returncode == 0
    done = sum(line.endswith(said) for line in result.stdout.splitlines())
    assert is_right and done == num_ranks, result.stdout[-9000:] + result.stderr[-9000:]


def play(scenes: Sequence[Callable[[], Any]]) -> None:
    """Run the scenes of a program one after another; each rank prints which it has done."""
    for scene in scenes:
        scene()
        print(f"rank {os.environ.get('RANK', 0)}: {scene.__name__} done", flush=True)
