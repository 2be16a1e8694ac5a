"""Embeddings on several ranks; the scenes are in one_embedding_program.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import check_done, launch

SCENES = (
    "curves_are_one",
    "rows_may_travel_in_fewer_bytes",
    "rows_may_be_read_ahead",
    "batches_may_lie_otherwise",
    "rows_are_split",
    "snapshots_fit_other_numbers_of_ranks",
    "snapshots_go_from_many_ranks_to_one_and_back",
    "a_snapshot_is_complete_when_it_is_saved",
)


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_train_the_rows_of_one(num_ranks: int, tmp_path: Path) -> None:
    result = launch(num_ranks, "one_embedding_program", tmp_path)
    assert result.returncode == 0, result.stderr[-9000:]
    for scene in SCENES:
        check_done(result, num_ranks, scene)
