"""Ranks that exited 0: one empty file each."""

from __future__ import annotations

from pathlib import Path

from oneflow.core.exits import exited_ranks, note_exited


def test_noted_ranks_are_found_again(tmp_path: Path) -> None:
    assert exited_ranks(tmp_path) == frozenset()
    for rank in (3, 0, 3):
        note_exited(tmp_path, rank)
    (tmp_path / "other").touch()
    assert exited_ranks(tmp_path) == {0, 3}


def test_without_a_launcher_or_after_its_end_there_are_none(tmp_path: Path) -> None:
    assert exited_ranks(None) == exited_ranks(tmp_path / "gone") == frozenset()
