"""Runs in test_killed_stores.py: `row_store_program.py KIND FOLDER` trains rows and saves them
until it is killed. Its steps are functions of their number, so the test computes them as well."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import numpy as np

from oneflow.services.failpoints import arm
from tests.unit.one_embedding.store.stores import LINE, Expected, opened

STEPS_A_SNAPSHOT = 3
NAME = "last"
STEP_KEY = np.array([1 << 40], np.uint64)
"""Id of the row that holds the number of the step."""
FIRST_TABLE = np.zeros(1, np.int32)


def step_of(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys and tables of a step, and its sums for their rows."""
    rng = np.random.default_rng(number)
    ids = rng.choice(1200, rng.integers(50, 300), replace=False)
    added = rng.standard_normal((ids.size, LINE), np.float32)
    return (ids // 2).astype(np.uint64), (ids % 2).astype(np.int32), added


def rows_after(number: int) -> Expected:
    """The rows after the steps up to `number`."""
    expected = Expected()
    for i in range(number + 1):
        keys, tables, added = step_of(i)
        expected.put(keys, tables, expected.get(keys, tables) + added)
    expected.put(STEP_KEY, FIRST_TABLE, np.full((1, LINE), number, np.float32))
    return expected


def main(kind: str, folder: Path) -> None:
    store = opened(kind, folder)
    for number in itertools.count():
        keys, tables, added = step_of(number)
        rows = np.empty_like(added)
        store.get(keys, tables, rows)
        store.put(keys, tables, rows + added)
        store.put(STEP_KEY, FIRST_TABLE, np.full((1, LINE), number, np.float32))
        if number % STEPS_A_SNAPSHOT == STEPS_A_SNAPSHOT - 1:
            store.save_snapshot(NAME)
            print(number, flush=True)  # ends the program when nobody reads


if __name__ == "__main__":
    arm(os.environ)
    main(sys.argv[1], Path(sys.argv[2]))
