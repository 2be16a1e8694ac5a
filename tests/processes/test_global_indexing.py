"""Indexing, slicing and in-place writing of global tensors on split dims, on 2, 3 and 4 ranks and a
grid: values against NumPy, bytes moved, gradients. One launch of global_indexing_program.py."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch

NUM_RANKS = 4


@pytest.mark.parametrize("words", [(), pytest.param(("all",), marks=pytest.mark.slow)])
def test_split_dims_are_indexed_and_written_in_place(words: tuple[str, ...]) -> None:
    check_done(launch(NUM_RANKS, "global_indexing_program", *words), NUM_RANKS)
