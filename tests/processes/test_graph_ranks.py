"""nn.Graph on 2 and 4 ranks: one launch each, every scene within (graph_program.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import check_done, launch


@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_graphs_compute_what_eager_code_does(num_ranks: int, tmp_path: Path) -> None:
    check_done(launch(num_ranks, "graph_program", tmp_path), num_ranks)


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_plans_are_loaded_by_other_processes(num_ranks: int, tmp_path: Path) -> None:
    for what in ("save", "load"):
        check_done(launch(num_ranks, "runtime_state_program", what, tmp_path), num_ranks)
