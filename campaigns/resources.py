"""Disks that are full or read-only, descriptors that run out, leftovers of dead processes,
damaged journals, logs meant to harm, clocks that jump.

    python -m campaigns.resources [--only TEXT] [--json FILE]

Each scene has a cluster of its own, on disks of its own (tmpfs, in a mount namespace that goes with
this program). Needs root.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from oneflow.core.errors import OneFlowError
from tests.support.cluster import conclude, end_in_order, export_jobs, own_program
from tests.support.waiting import SceneError

from . import disks
from .clocks import clock_jumps, other_monotonic_clock
from .ground import END_S, Ground, expect, make_rig, missing_right, train
from .leftovers import damaged_journals, leftovers
from .limits import descriptors
from .log_attacks import log_attacks
from .resume import Bits, bits_of

INSIDE = "RIG_MOUNTS"


@dataclass
class Outcome:
    name: str
    error: str = ""
    said: str = ""
    seconds: float = 0.0


# ---- running -------------------------------------------------------------------------------------

Scene = Callable[[Ground], str]

SCENES: dict[str, Scene] = {
    "disk full: checkpoints": disks.full_checkpoints,
    "disk full: journal": disks.full_journal,
    "disk full: blobs": disks.full_blobs,
    "read-only: node": disks.read_only_node,
    "descriptors": descriptors,
    "leftovers": leftovers,
    "journal": damaged_journals,
    "log attacks": log_attacks,
    "clock jumps": clock_jumps,
    "other monotonic clock": other_monotonic_clock,
}


def run_scenes(folder: Path, names: Sequence[str]) -> list[Outcome]:
    ground = make_ground(folder)
    outcomes = []
    for name in names:
        started, outcome = time.monotonic(), Outcome(name)
        try:
            outcome.said = SCENES[name](ground)
        except (SceneError, OneFlowError, OSError) as error:
            outcome.error = f"{type(error).__name__}: {error}"
            if not isinstance(error, SceneError):
                outcome.error += traceback.format_exc()[-500:]
        outcome.seconds = time.monotonic() - started
        outcomes.append(outcome)
        print(
            f"{outcome.name:28} {outcome.seconds:5.1f} s  {outcome.error or outcome.said}",
            flush=True,
        )
    return outcomes


def make_ground(folder: Path) -> Ground:
    jobs = export_jobs(folder / "jobs")
    rig = make_rig(folder)
    with rig:
        calm = Ground(folder, jobs, Bits((), ""))
        job = train(rig, calm)
        expect(str(job.wait(END_S).state) == "SUCCEEDED", "the undisturbed run did not succeed")
        return Ground(folder, jobs, bits_of(job))


def table(outcomes: Sequence[Outcome]) -> str:
    lines = ["| scene | what was seen |", "|---|---|"]
    lines += [f"| {o.name} | {'FAILED: ' + o.error if o.error else o.said} |" for o in outcomes]
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
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "-m", *own_program("resources"), *sys.argv[1:]])
    with tempfile.TemporaryDirectory(prefix="oneflow-rig-") as folder:
        outcomes = run_scenes(Path(folder), [name for name in SCENES if args.only in name])
    return conclude(outcomes, table(outcomes), lambda o: f"--only {o.name!r}", args.json)


if __name__ == "__main__":
    sys.exit(main())
