"""Whole clusters under seeds: nothing is lost, nothing runs twice, everything comes to rest."""

from __future__ import annotations

import os

import pytest

from .simulation import replay_command, run_seed, run_seeds

FIRST, SEEDS = 30, 40  # so few in which each kind of end is there


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_clusters_come_to_rest_whatever_happens(seeds: int) -> None:
    outcomes = run_seeds(FIRST, seeds, min(os.cpu_count() or 1, 2))
    failed = [outcome for outcome in outcomes if outcome.error]
    said = [f"{outcome.error}\n  again: {replay_command(outcome.seed)}" for outcome in failed]
    assert not failed, "\n".join(said)
    assert len(outcomes) == seeds
    # The faults must have been there: a simulation in which nothing happens proves nothing.
    assert sum(outcome.crashes for outcome in outcomes) > seeds
    assert sum(outcome.restarts for outcome in outcomes) > seeds
    assert sum(outcome.preempted for outcome in outcomes) > seeds / 10
    assert sum(outcome.restores for outcome in outcomes) > seeds / 10
    assert sum(outcome.later_lives for outcome in outcomes) > seeds / 20
    reasons = {state for outcome in outcomes for state in outcome.states}
    assert {"SUCCEEDED NONE", "FAILED NODE_LOST", "FAILED PEER_LOST"} <= reasons
    assert {"CANCELLED CANCELLED", "TIMED_OUT TIME_LIMIT", "FAILED RENDEZVOUS_TIMEOUT"} <= reasons


def test_a_seed_is_always_the_same_run() -> None:
    first, second = run_seed(11), run_seed(11)
    assert first == second and first.steps > 100
