"""Verdict on a client: both sides run, their values compared task by task."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .client import Client
from .environment import Environment
from .worker import unpacked

SIDES = ("torch", "oneflow")


@dataclass(frozen=True)
class Outcome:
    """Result of one task.

    num_values: values compared. trouble: "" where both sides agree. refused: rows that were not
    run, or stop on purpose.
    """

    task: str
    num_values: int = 0
    trouble: str = ""
    refused: str = ""

    @property
    def name(self) -> str:
        return self.task.removeprefix("task_").replace("_", " ")


def judge(client: Client, environment: Environment, folder: Path) -> list[Outcome]:
    """Run a client on both sides, and compare.

    Args:
        client: The client, whose environment is installed.
        environment: Its environment.
        folder: Gets the sides' output: `SIDE.jsonl` and `SIDE.log`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    theirs, ours = (run_side(side, client, environment, folder) for side in SIDES)
    return [outcome_of(task, client, theirs[task], ours[task]) for task in client.tasks]


def run_side(
    side: str, client: Client, environment: Environment, folder: Path
) -> dict[str, dict[str, Any]]:
    """Report of each task on one side, or how the process ended before it."""
    out, log = folder / f"{side}.jsonl", folder / f"{side}.log"
    out.unlink(missing_ok=True)
    program = [str(environment.python), "-m", "tests.clients.worker", side, client.file.stem]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*program, str(out)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment.variables(),
            cwd=folder,
            start_new_session=True,  # its workers end with it
        )
        try:
            ended = f"ended with status {process.wait(client.time_limit_s)}"
        except subprocess.TimeoutExpired:
            ended = f"did not end within {client.time_limit_s:g} s"
        finally:
            kill_group(process)
    lines = out.read_text().splitlines() if out.exists() else []
    reports = {report["task"]: report for report in map(json.loads, lines)}
    last = (log.read_text().strip().splitlines() or [""])[-1]
    lost = {"error": f"the process {ended}: {last}"}
    return {task: reports.get(task, lost) for task in client.tasks}


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def outcome_of(task: str, client: Client, theirs: dict[str, Any], ours: dict[str, Any]) -> Outcome:
    """Compare the reports of both sides on a task."""
    if "error" in theirs:
        return Outcome(task, trouble=f"stops on PyTorch as well: {theirs['error']}")
    feature = dict(client.refused).get(task)
    if feature is not None:
        trouble = "" if "error" in ours else f"{feature} is said to be refused, but the task ended"
        return Outcome(task, trouble=trouble, refused=f"refused ({feature})")
    if "error" in ours:
        return Outcome(task, trouble=ours["error"])
    wanted, found = unpacked(theirs["values"]), unpacked(ours["values"])
    if not wanted:
        return Outcome(task, trouble="the task returned nothing to compare")
    return Outcome(task, len(wanted), difference(wanted, found, client.tolerance))


def difference(
    wanted: dict[str, np.ndarray], found: dict[str, np.ndarray], tolerance: float
) -> str:
    """Name the first value that differs, and by how much; "" if all agree.

    Texts, booleans and integers must be equal. Numbers may differ by `tolerance` times the largest
    finite one; numbers that are not finite must be the same at the same places.
    """
    if wanted.keys() != found.keys():
        return f"only one side has {', '.join(sorted(wanted.keys() ^ found.keys())[:3])}"
    for name, theirs in wanted.items():
        ours = found[name]
        if theirs.shape != ours.shape:
            return f"{name} has shape {ours.shape}, on PyTorch {theirs.shape}"
        if theirs.dtype.kind != ours.dtype.kind:
            return f"{name} is of {ours.dtype}, on PyTorch of {theirs.dtype}"
        if theirs.dtype.kind not in "fc":
            if theirs.size == 1 and theirs != ours:
                return f"{name} is {ours.item()!r}, on PyTorch {theirs.item()!r}"
            if not np.array_equal(theirs, ours):
                return f"{name} differs in {np.mean(theirs != ours):.0%} of its elements"
            continue
        finite = np.isfinite(theirs)
        if not np.array_equal(theirs[~finite], ours[~finite], equal_nan=True):
            return f"{name} has infinite or undefined elements at other places"
        largest = np.abs(theirs[finite]).max(initial=0.0)
        apart = np.abs(theirs[finite] - ours[finite]).max(initial=0.0)
        if not apart <= tolerance * largest:
            return f"{name} is {apart / (largest or 1.0):.2g} of the largest value apart"
    return ""
