"""Processes that are killed while they write rows: the last snapshot is there, whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oneflow.core.errors import RowStoreError
from tests.support.waiting import WAIT_S, be_late
from tests.unit.one_embedding.store.stores import opened

from .row_store_program import FIRST_TABLE, LINE, NAME, STEP_KEY, STEPS_A_SNAPSHOT, rows_after

PROGRAM = Path(__file__).with_name("row_store_program.py")
ROOT = PROGRAM.parents[2]
LONG_AFTER = 300


def started(kind: str, folder: Path, failpoints: str = "") -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    if failpoints:
        env |= {"ONEFLOW_TESTING": "1", "ONEFLOW_FAILPOINTS": failpoints}
    command = [sys.executable, str(PROGRAM), kind, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)


def told(program: subprocess.Popen[str]) -> list[int]:
    """Steps of the snapshots that a program, which has ended, said it had saved."""
    output, _ = program.communicate(timeout=WAIT_S)
    assert program.returncode == -signal.SIGKILL
    return [int(line) for line in output.split()]


def check(kind: str, folder: Path, steps: list[int]) -> None:
    """The last snapshot holds the rows of the last step that was told, or of the one that was being
    saved when the program was killed."""
    with opened(kind, folder) as store:
        if not steps:
            with pytest.raises(RowStoreError, match="no snapshot"):
                store.load_snapshot(NAME)
            return
        store.load_snapshot(NAME)
        rows = np.empty((1, LINE), np.float32)
        store.get(STEP_KEY, FIRST_TABLE, rows)
        step = int(rows[0, 0])
        assert step - steps[-1] in (0, STEPS_A_SNAPSHOT)
        rows_after(step).check(store)


@pytest.mark.parametrize(
    ("kind", "failpoints"),
    [
        ("disk", "rows.write=kill@hit=40"),
        ("disk", "rows.snapshot=kill@hit=4"),
        ("memory", "rows.snapshot=kill@hit=5"),
    ],
)
def test_a_process_killed_in_the_middle_leaves_the_last_snapshot(
    kind: str, failpoints: str, tmp_path: Path
) -> None:
    steps = told(started(kind, tmp_path, failpoints))
    assert len(steps) >= 3
    check(kind, tmp_path, steps)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(50))
def test_a_process_killed_at_any_moment_leaves_the_last_snapshot(turn: int, tmp_path: Path) -> None:
    kind = ("memory", "disk")[turn % 2]
    program = started(kind, tmp_path)
    assert program.stdout is not None
    first = int(program.stdout.readline())
    be_late(np.random.default_rng(turn).uniform(0, 0.5))
    program.kill()
    check(kind, tmp_path, [first, *told(program)])
