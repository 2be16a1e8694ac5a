"""The guard of a daemon: a loop that is stuck, and loops that look like one."""

from __future__ import annotations

from oneflow.launcher.daemon.watchdog import LOOK_S, Loop


def seconds_still(looks: list[tuple[int, str, int]], every_s: float = LOOK_S) -> float:
    """Return the verdict of the last look. looks: (beats, state, ticks of processor time)."""
    loop, found = Loop(0.0), 0.0
    for number, look in enumerate(looks, 1):
        found = loop.look(number * every_s, *look)
    return found


def test_a_loop_that_beats_is_not_stuck() -> None:
    assert seconds_still([(n, "S", n) for n in range(40)]) == 0.0


def test_a_loop_that_waits_or_computes_without_end_is_stuck() -> None:
    assert seconds_still([(7, "S", 3)] * 41) == 40 * LOOK_S
    assert seconds_still([(7, "R", n) for n in range(41)]) == 40 * LOOK_S


def test_one_that_somebody_stopped_is_not_stuck() -> None:
    assert seconds_still([(7, "T", 3)] * 41) == 0.0
    assert seconds_still([(7, "T", 3)] * 41 + [(7, "S", 3)] * 4) == 4 * LOOK_S


def test_one_that_gets_no_processor_is_not_stuck() -> None:
    assert seconds_still([(7, "R", 3)] * 41) == 0.0


def test_what_the_guard_itself_slept_through_is_not_counted() -> None:
    assert seconds_still([(7, "S", 3)] * 3, every_s=100.0) == 4 * LOOK_S
