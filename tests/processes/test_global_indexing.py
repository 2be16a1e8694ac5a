"""Indexing, slicing and in-place writing of global tensors on split dims, on 2, 3 and 4 ranks and a
grid: values against NumPy, bytes moved, gradients. One launch of global_indexing_program.py."""

from __future__ import annotations

from tests.support.launching import check_done, launch

NUM_RANKS = 4


def test_split_dims_are_indexed_and_written_in_place() -> None:
    check_done(launch(NUM_RANKS, "global_indexing_program"), NUM_RANKS)
