"""A fixed slice of the random programs; `make fuzz` tries new ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oneflow import api

from .programs import FORMS, draw, unknown
from .running import EAGER, GRAPH, differences
from .shrinking import shrunk

SEEDS = range(1_000_000, 1_000_350)
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_programs_are_answered_as_by_pytorch(part: int) -> None:
    for seed in SEEDS[part::PARTS]:
        program = draw(seed)
        modes = (EAGER, GRAPH) if seed % 4 == 0 else (EAGER,)
        for difference in differences(program, modes):
            least, last = shrunk(program, difference)
            pytest.fail(f"seed {seed}: {last}\n{least.source()}")


def test_programs_on_two_ranks_are_answered_as_by_pytorch() -> None:
    words = "-m tests.fuzz --modes global --programs 40 --seed 2000000"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, *words.split()], cwd=root, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "40 programs" in done.stdout, done.stdout


def test_most_functions_of_tensors_are_drawn() -> None:
    """A function with a recipe is not among those without."""
    assert len(FORMS) > 500
    assert not set(FORMS) & set(unknown(list(api.ROWS)))
