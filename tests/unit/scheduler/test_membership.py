"""Liveness: suspect ranks, lost ranks, the first failure. Events in, actions out, no clock."""

from __future__ import annotations

from oneflow.core.errors import PeerLostError
from oneflow.protos import control_pb2 as pb
from oneflow.scheduler.membership import (
    Abort,
    Admitted,
    BeatHeard,
    FailureReported,
    Membership,
    NotifyLeft,
    RankLeft,
    Recovered,
    StreamBroken,
    Suspect,
)
from oneflow.scheduler.rendezvous import Tick


def member(rank: int, host: str, pid: int, incarnation: int) -> pb.Member:
    return pb.Member(rank=rank, host=host, pid=pid, incarnation=incarnation)


def failure(rank: int, host: str, cause: str, exit_code: int, reason: str) -> pb.Failure:
    return pb.Failure(rank=rank, host=host, cause=cause, exit_code=exit_code, reason=reason)


MEMBERS = tuple(member(rank, f"host{rank}", 1000 + rank, 100 + rank) for rank in range(3))


def alive(num_ranks: int = 3) -> Membership:
    machine = Membership(suspect_s=3.0, act_s=10.0)
    machine.step(Admitted(MEMBERS[:num_ranks]), 0.0)
    return machine


def pass_time(machine: Membership, start: float, end: float, beating: tuple[int, ...]) -> list:
    """Half a second a step; the ranks `beating` are heard in each."""
    actions: list = []
    for half in range(int(start * 2) + 1, int(end * 2) + 1):
        for rank in beating:
            actions += machine.step(BeatHeard(rank, 100 + rank, half), half / 2)
        actions += machine.step(Tick(), half / 2)
    return actions


def test_a_silent_rank_is_suspect_then_lost() -> None:
    machine = alive()
    assert pass_time(machine, 0, 2.5, (0, 1)) == []
    assert pass_time(machine, 2.5, 9.5, (0, 1)) == [Suspect(2, 3.0)]
    (abort,) = pass_time(machine, 9.5, 30, (0, 1))
    assert isinstance(abort, Abort)
    assert (abort.failure.rank, abort.failure.reason) == (2, "NODE_LOST")
    assert "rank 2 (host host2, pid 1002) is gone: it sent no heartbeat" in abort.failure.cause


def test_a_rank_frozen_for_eight_seconds_recovers() -> None:
    machine = alive()
    pass_time(machine, 0, 8, (0, 1))
    assert pass_time(machine, 8, 20, (0, 1, 2)) == [Recovered(2, 8.5)]
    assert machine.failure is None


def test_a_broken_stream_counts_after_one_second() -> None:
    machine = alive()
    pass_time(machine, 0, 5, (0, 1, 2))
    machine.step(StreamBroken(1, 101), 5.2)
    assert pass_time(machine, 5, 6, (0, 2)) == []
    (abort,) = pass_time(machine, 6, 7, (0, 2))
    assert abort.failure.rank == 1 and "connection" in abort.failure.cause


def test_a_stream_that_comes_back_in_time_is_forgotten() -> None:
    machine = alive()
    pass_time(machine, 0, 5, (0, 1, 2))
    machine.step(StreamBroken(1, 101), 5.2)
    assert pass_time(machine, 5, 9, (0, 1, 2)) == []


def test_a_frozen_rank_whose_stream_then_breaks_keeps_its_full_time() -> None:
    machine = alive()
    pass_time(machine, 0, 1, (0, 1, 2))
    pass_time(machine, 1, 6, (0, 1))
    machine.step(StreamBroken(2, 102), 6.0)
    assert pass_time(machine, 6, 10.5, (0, 1)) == []
    assert pass_time(machine, 10.5, 11, (0, 1))[0].failure.rank == 2


def test_the_first_failure_wins() -> None:
    machine = alive()
    first = failure(1, "host1", "ValueError: boom", 1, "USER_ERROR")
    assert machine.step(FailureReported(first), 1.0) == [Abort(first)]
    second = failure(2, "host2", "another", 7, "USER_ERROR")
    assert machine.step(FailureReported(second), 1.1) == []
    assert machine.failure == first


def test_a_follower_waits_for_the_real_cause() -> None:
    machine = alive()
    follower = failure(0, "host0", "rank 1 is gone", PeerLostError.exit_code, "PEER_LOST")
    real = failure(1, "host1", "MemoryError", 1, "USER_ERROR")
    assert machine.step(FailureReported(follower), 1.0) == []
    assert machine.step(FailureReported(real), 1.5) == [Abort(real)]


def test_a_follower_alone_ends_the_job_too() -> None:
    machine = alive()
    follower = failure(0, "host0", "rank 1 is gone", PeerLostError.exit_code, "PEER_LOST")
    machine.step(FailureReported(follower), 1.0)
    assert pass_time(machine, 1, 3, (0, 1, 2)) == [Abort(follower)]


def test_an_orderly_leave_is_told_once_and_is_no_failure() -> None:
    machine = alive()
    assert machine.step(RankLeft(1, 101), 1.0) == [NotifyLeft(1)]
    assert machine.step(RankLeft(1, 101), 1.1) == []
    machine.step(StreamBroken(1, 101), 1.2)
    assert pass_time(machine, 1, 60, (0, 2)) == []


def test_our_own_stall_is_nobodys_silence() -> None:
    machine = alive()
    pass_time(machine, 0, 5, (0, 1, 2))
    assert machine.step(Tick(), 65.0) == []
    assert pass_time(machine, 65, 70, (0, 1, 2)) == []


def test_a_rank_that_others_wait_for_is_described() -> None:
    machine = alive()
    pass_time(machine, 0, 5, (0, 1))
    machine.step(BeatHeard(1, 101, 10), 6.0)
    machine.step(RankLeft(0, 100), 6.0)
    assert machine.describe(0, 9.0) == "rank 0 (host host0, pid 1000) has left"
    text = (
        "rank 1 (host host1, pid 1001): last heartbeat 3.0 s ago, progress 10 unchanged for 4.0 s"
    )
    assert machine.describe(1, 9.0) == text
    assert machine.describe(7, 9.0) == "rank 7 never joined"


def test_beats_of_an_earlier_process_do_not_count() -> None:
    machine = alive()
    for second in range(1, 12):
        machine.step(BeatHeard(2, 999, second), float(second))
    assert machine.oldest_heartbeat_s(2.0) >= 2.0
    assert machine.progress()[2] == 0


def test_rank_0_need_not_stay_once_a_rank_has_left_a_broken_job() -> None:
    machine = Membership(suspect_s=3.0, act_s=10.0)
    assert not machine.is_under_way  # nobody has joined
    members = tuple(member(rank, "n1", 100 + rank, rank) for rank in (0, 1))
    machine.step(Admitted(members), 0.0)
    machine.step(RankLeft(0, 0), 1.0)
    assert machine.is_under_way
    lost = failure(1, "n1", "rank 0 exited 0 while peers run", 85, "PEER_LOST")
    machine.step(FailureReported(lost), 1.1)
    assert not machine.is_under_way


def test_a_job_is_over_when_all_have_left() -> None:
    machine = Membership(suspect_s=3.0, act_s=10.0)
    machine.step(Admitted((member(0, "n1", 100, 7),)), 0.0)
    assert machine.is_under_way
    machine.step(RankLeft(0, 7), 1.0)
    assert not machine.is_under_way


def test_silence_after_a_failure_is_no_news() -> None:
    machine = Membership(suspect_s=3.0, act_s=10.0)
    machine.step(Admitted((member(0, "n1", 100, 7), member(1, "n1", 101, 8))), 0.0)
    machine.step(FailureReported(failure(1, "n1", "boom", 1, "USER_ERROR")), 0.5)
    for tenth in range(6, 200):
        assert machine.step(Tick(), tenth / 10) == []
