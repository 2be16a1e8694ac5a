"""The stop of a job, and whose fault it was: events in, signals and verdict out."""

from __future__ import annotations

import random
import signal

import pytest

from oneflow.core.blame import SETTLE_S
from oneflow.launcher.supervision import (
    DUMP_S,
    DUMP_SIGNAL,
    KILL_WAIT_S,
    TOLD_S,
    DumpStacks,
    Exited,
    Looked,
    Phase,
    SendSignal,
    Signalled,
    Supervision,
    ToldToEnd,
    Verdict,
)

TERM = SendSignal(signal.SIGTERM)
KILL = SendSignal(signal.SIGKILL)


def exited(rank: int, status: int) -> Exited:
    return Exited(rank, 1000 + rank, status)


def finish(machine: Supervision, now: float) -> Verdict:
    (verdict,) = machine.step(Looked(0), now)
    assert isinstance(verdict, Verdict) and machine.phase is Phase.DONE
    return verdict


def give_up_settling(machine: Supervision) -> None:
    """Nobody has a better cause than the follower at time 0; the stuck rank shows its stacks."""
    assert machine.step(Looked(1), SETTLE_S - 0.1) == []
    assert machine.step(Looked(1), SETTLE_S) == [DumpStacks()]
    assert machine.step(Looked(1), SETTLE_S + DUMP_S) == [TERM]


def test_a_rank_that_the_request_for_its_stacks_ends_is_not_the_cause() -> None:
    machine = Supervision(2, grace_s=5.0)
    machine.step(exited(0, 85), 0.0)
    assert machine.step(Looked(1), SETTLE_S) == [DumpStacks()]
    assert machine.step(exited(1, -DUMP_SIGNAL), SETTLE_S + 0.1) == [TERM]
    assert finish(machine, SETTLE_S + 0.2).exit_code == 85


@pytest.mark.parametrize("num_started", [0, 1])
def test_a_signal_before_all_have_started_waits_for_those_that_have(num_started: int) -> None:
    machine = Supervision(2, grace_s=5.0)
    machine.expect(num_started)
    assert machine.step(Signalled(signal.SIGTERM), 0.0) == [TERM]
    for rank in range(num_started):
        assert machine.step(Looked(0), 0.1) == []
        assert machine.step(exited(rank, -signal.SIGTERM), 0.2) == []
    assert finish(machine, 0.3) == Verdict(None, signal.SIGTERM, 0)


def test_all_zero_is_success_after_orphans_are_ended() -> None:
    machine = Supervision(2, grace_s=5.0)
    assert machine.step(exited(0, 0), 0.0) == []
    assert machine.step(exited(1, 0), 1.0) == [TERM]
    assert machine.step(Looked(1), 1.0) == []
    assert finish(machine, 2.0) == Verdict(None, None, 0)


def test_first_failure_ends_all_and_gives_the_code() -> None:
    machine = Supervision(2, grace_s=5.0)
    assert machine.step(exited(1, 7), 0.0) == [TERM]
    machine.step(exited(0, -signal.SIGTERM), 0.1)
    verdict = finish(machine, 0.2)
    assert (verdict.exit_code, verdict.cause) == (7, exited(1, 7))


@pytest.mark.parametrize(("status", "code"), [(3, 3), (-9, 137), (-11, 139), (-6, 134)])
def test_exit_code_of_a_signal_is_128_and_its_number(status: int, code: int) -> None:
    machine = Supervision(1, grace_s=5.0)
    machine.step(exited(0, status), 0.0)
    assert finish(machine, 0.0).exit_code == code


def test_kill_comes_after_the_grace_period_and_again_until_all_are_gone() -> None:
    machine = Supervision(2, grace_s=5.0)
    machine.step(exited(1, 7), 0.0)
    assert machine.step(Looked(1), 4.9) == []
    assert machine.step(Looked(1), 5.0) == [KILL]
    assert machine.step(Looked(2), 5.1) == [KILL]
    machine.step(exited(0, -9), 5.2)
    assert finish(machine, 5.3).exit_code == 7


def test_an_unkillable_process_is_reported_not_waited_for() -> None:
    machine = Supervision(2, grace_s=1.0)
    machine.step(exited(1, 7), 0.0)
    machine.step(Looked(1), 1.0)
    (verdict,) = machine.step(Looked(1), 1.0 + KILL_WAIT_S)
    assert verdict == Verdict(exited(1, 7), None, 1)


def test_a_follower_waits_for_the_real_cause() -> None:
    machine = Supervision(3, grace_s=5.0)
    assert machine.step(exited(0, 85), 0.0) == []
    assert machine.step(exited(2, 85), 0.1) == []
    assert machine.step(exited(1, 6), 0.5) == [TERM]
    assert finish(machine, 0.6).cause == exited(1, 6)


def test_a_real_cause_after_the_settling_time_still_wins_over_a_follower() -> None:
    machine = Supervision(2, grace_s=5.0)
    machine.step(exited(0, 85), 0.0)
    give_up_settling(machine)
    machine.step(exited(1, 6), 3.0)
    assert finish(machine, 3.1).cause == exited(1, 6)


def test_a_rank_that_has_told_its_error_has_longer_to_exit() -> None:
    machine = Supervision(2, grace_s=5.0)
    machine.step(exited(0, 85), 0.0)
    assert machine.step(Looked(1, has_told=True), SETTLE_S + TOLD_S - 0.1) == []
    assert machine.step(exited(1, 6), SETTLE_S + TOLD_S - 0.1) == [TERM]
    assert finish(machine, 20.0).cause == exited(1, 6)


def test_a_rank_that_has_told_its_error_and_never_exits_is_waited_for_only_so_long() -> None:
    machine = Supervision(2, grace_s=5.0)
    machine.step(exited(0, 85), 0.0)
    assert machine.step(Looked(1, has_told=True), SETTLE_S + TOLD_S) == [DumpStacks()]
    assert machine.step(Looked(1, has_told=True), SETTLE_S + TOLD_S + DUMP_S) == [TERM]


def test_what_our_own_signal_did_is_no_cause() -> None:
    for status in (-signal.SIGTERM, 143):
        machine = Supervision(2, grace_s=5.0)
        machine.step(exited(0, 85), 0.0)
        give_up_settling(machine)
        machine.step(exited(1, status), 3.0)
        assert finish(machine, 3.1).exit_code == 85


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher_is_passed_on(signum: int, code: int) -> None:
    machine = Supervision(2, grace_s=5.0)
    assert machine.step(Signalled(signum), 0.0) == [SendSignal(signum)]
    machine.step(exited(0, -signum), 0.1)
    machine.step(exited(1, 1), 0.1)
    assert finish(machine, 0.2).exit_code == code


def test_a_second_signal_kills_at_once() -> None:
    machine = Supervision(1, grace_s=50.0)
    machine.step(Signalled(signal.SIGINT), 0.0)
    assert machine.step(Signalled(signal.SIGINT), 0.5) == [KILL]


@pytest.mark.parametrize("seed", range(200))
def test_every_history_ends_within_its_bounds(seed: int) -> None:
    random_ = random.Random(seed)
    num_ranks, grace_s = random_.randint(1, 4), random_.choice([0.0, 1.0, 5.0])
    machine, now, running = Supervision(num_ranks, grace_s), 0.0, list(range(num_ranks))
    stop_at, verdict = None, None
    while verdict is None:
        now += random_.random()
        event: Exited | Signalled | Looked = Looked(len(running))
        if running and random_.random() < 0.3:
            rank = running.pop(random_.randrange(len(running)))
            event = exited(rank, random_.choice([0, 0, 1, 7, 85, -9]))
        elif random_.random() < 0.05:
            event = Signalled(signal.SIGTERM)
        actions = machine.step(event, now)
        if machine.phase not in (Phase.RUNNING, Phase.SETTLING, Phase.DUMPING) and stop_at is None:
            stop_at = now
        verdict = next((a for a in actions if isinstance(a, Verdict)), None)
        assert stop_at is None or now <= stop_at + grace_s + KILL_WAIT_S + 3.0
    assert verdict.num_unkillable == len(running)


def test_ranks_that_are_told_to_end_by_other_nodes_are_no_failure() -> None:
    machine = Supervision(2, grace_s=5.0)
    assert machine.step(ToldToEnd(), 1.0) == [TERM]
    assert machine.step(ToldToEnd(), 1.1) == []
    for rank in (0, 1):
        assert machine.step(Exited(rank, 10 + rank, -signal.SIGTERM), 1.2) == []
    (verdict,) = machine.step(Looked(0), 1.3)
    assert verdict == Verdict(None, None, 0, was_told=True)
