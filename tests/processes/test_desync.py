"""Ranks that make different calls are told both, whichever calls these are."""

from __future__ import annotations

from pathlib import Path

from tests.support.launching import check_done, launch


def test_ranks_that_make_different_calls(tmp_path: Path) -> None:
    check_done(launch(2, "desync_program", tmp_path), 2)
