"""Waits of ranks' actors: shares of the time between two reports, of the last moment."""

from __future__ import annotations

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.points import MAX_SHARES, ActorWaits

Waits = tuple[tuple[str, float, float], ...]


def report(
    rank: int, at: float, waits: Waits, attempt: int = 1, waiting: str = ""
) -> tuple[pb.Progress, float]:
    id_ = pb.AttemptId(job_id="j1", attempt=attempt, rank=rank)
    names = ("kind", "no_input_s", "no_free_register_s")
    actors = [pb.ActorCounts(**dict(zip(names, wait, strict=True))) for wait in waits]
    return pb.Progress(id=id_, step=5, waiting=waiting, actors=actors), at


def test_shares_are_of_the_time_since_the_report_before() -> None:
    waits = ActorWaits()
    waits.note(*report(0, 100.0, (("boxing", 3.0, 1.0),)))
    assert [w.shares for w in waits.of("j1")] == [{}]
    waits.note(*report(1, 101.0, (("segment", 0.0, 0.0),), waiting="segment.2: no_input"))
    waits.note(*report(0, 102.0, (("boxing", 3.5, 1.0), ("segment", 0.0, 1.0))))
    first, second = waits.of("j1")
    assert first.shares == {"segment no_free_register": 0.5, "boxing no_input": 0.25}
    assert (second.rank, second.waiting) == (1, "segment.2: no_input")
    waits.note(*report(0, 102.5, ()))  # says nothing of actors
    assert waits.of("j1")[0] == first


def test_another_attempt_begins_anew_and_the_end_forgets() -> None:
    waits = ActorWaits()
    waits.note(*report(0, 1.0, (("boxing", 9.0, 0.0),)))
    waits.note(*report(0, 2.0, (("boxing", 0.5, 0.0),), attempt=2))
    assert waits.of("j1")[0].shares == {}
    waits.forget("j1")
    assert waits.of("j1") == []


def test_what_a_daemon_makes_up_stays_small() -> None:
    waits = ActorWaits()
    odd = float("nan"), float("inf")
    kinds = [f"kind{n}" for n in range(30)]
    waits.note(*report(0, 1.0, tuple((kind, 0.0, 0.0) for kind in kinds)))
    waits.note(*report(0, 2.0, tuple((kind, *odd) for kind in kinds)))
    shares = waits.of("j1")[0].shares
    assert len(shares) <= MAX_SHARES
    assert all(0 <= share <= 1 for share in shares.values())
