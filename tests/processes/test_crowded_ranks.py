"""Ranks of one host with fewer cores than ranks: they finish, with the right values, and leave
nothing."""

from __future__ import annotations

from tests.support.launching import check_done, launch
from tests.support.memory import check_no_memory_is_left, names_of_memory


def test_four_ranks_on_one_core_finish_with_the_right_values() -> None:
    check_done(launch(4, "crowded_program", "calls"), 4)


def test_a_rank_that_dies_in_a_large_call_is_named_and_nothing_stays() -> None:
    before = names_of_memory()
    result = launch(3, "crowded_program", "killed")
    said = result.stdout + result.stderr
    assert result.returncode != 0
    assert "reason=SIGNAL rank=1" in said, said[-3000:]  # by its end, not by the time-out
    check_no_memory_is_left(before)
