"""Auto-parallel graphs on several ranks: see auto_parallel_program.py and
auto_parallel_full_program.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import check_done, launch


def test_graphs_lay_out_their_variables(tmp_path: Path) -> None:
    check_done(launch(2, "auto_parallel_program", tmp_path), 2)


@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_graphs_choose_how_they_run(num_ranks: int) -> None:
    check_done(launch(num_ranks, "auto_parallel_full_program"), num_ranks)
