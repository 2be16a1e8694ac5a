"""nn.Graph on 2 and 4 ranks: one launch each, every scene within (graph_program.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import check_done, launch


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_graphs_compute_what_eager_code_does(num_ranks: int, tmp_path: Path) -> None:
    check_done(launch(num_ranks, "graph_program", tmp_path), num_ranks)
