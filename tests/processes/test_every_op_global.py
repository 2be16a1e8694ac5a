"""Every op of the registry on global tensors, on 2, 3 and 4 ranks and a grid: values, gradients,
graphs. One launch; the work of the ranks is in every_op_program.py."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch

NUM_RANKS = 4


def test_ops_mean_the_same_in_every_layout() -> None:
    check_done(launch(NUM_RANKS, "every_op_program"), NUM_RANKS)


@pytest.mark.slow
def test_ops_mean_the_same_in_every_layout_on_every_placement() -> None:
    check_done(launch(NUM_RANKS, "every_op_program", "all"), NUM_RANKS)
