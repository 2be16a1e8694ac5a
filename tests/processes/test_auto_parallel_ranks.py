"""Auto-parallel graphs on 2 ranks: see auto_parallel_program.py."""

from __future__ import annotations

from pathlib import Path

from tests.support.launching import check_done, launch


def test_graphs_lay_out_their_variables(tmp_path: Path) -> None:
    check_done(launch(2, "auto_parallel_program", tmp_path), 2)
