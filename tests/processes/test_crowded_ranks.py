"""Ranks of one host with fewer cores than ranks: they finish, with the right values, and leave
nothing."""

from __future__ import annotations

import os
import time

from tests.support.launching import check_done, launch


def memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "oneflow" in name}


def test_four_ranks_on_one_core_finish_with_the_right_values() -> None:
    check_done(launch(4, "crowded_program", "calls"), 4)


def test_a_rank_that_dies_in_a_large_call_is_named_and_nothing_stays() -> None:
    before, started = memory_files(), time.monotonic()
    result = launch(3, "crowded_program", "killed")
    said = result.stdout + result.stderr
    assert result.returncode != 0
    assert "rank=1" in said, said[-3000:]
    assert time.monotonic() - started < 50, "found by its end, not by the time-out"
    assert memory_files() - before == set()
