"""Keys and barriers: events in, answers out."""

from __future__ import annotations

import random

import pytest

from oneflow.core.control_channel import MAX_VALUE_NBYTES
from oneflow.core.errors import DesyncError, PeerLostError, ProtocolError, TransportError
from oneflow.scheduler.rendezvous import Tick
from oneflow.scheduler.store import (
    BarrierReached,
    CallDropped,
    Fail,
    GetAsked,
    PutAsked,
    RankGone,
    Reply,
    Store,
)


def error_of(actions: list) -> Exception:
    (action,) = actions
    assert isinstance(action, Fail)
    return action.error


def test_get_waits_for_put() -> None:
    store = Store(2)
    assert store.step(GetAsked(1, "k", 10.0), 0.0) == []
    assert store.step(GetAsked(2, "k", 10.0), 0.0) == []
    actions = store.step(PutAsked(3, "k", b"v"), 1.0)
    assert actions == [Reply(3), Reply(1, b"v"), Reply(2, b"v")]
    assert store.step(GetAsked(4, "k", 10.0), 2.0) == [Reply(4, b"v")]


def test_get_that_nobody_answers_names_the_key() -> None:
    store = Store(2)
    store.step(GetAsked(1, "address of rank 1", 10.0), 0.0)
    assert store.step(Tick(), 9.9) == []
    error = error_of(store.step(Tick(), 10.0))
    assert isinstance(error, TransportError) and "'address of rank 1'" in str(error)


def test_a_dropped_reader_is_forgotten() -> None:
    store = Store(2)
    store.step(GetAsked(1, "k", 10.0), 0.0)
    store.step(CallDropped(1), 0.5)
    assert store.step(PutAsked(2, "k", b""), 1.0) == [Reply(2)]


def test_too_large_a_value_is_refused() -> None:
    put = PutAsked(1, "k", bytes(MAX_VALUE_NBYTES + 1))
    assert isinstance(error_of(Store(1).step(put, 0.0)), ProtocolError)


def test_a_barrier_opens_for_all_and_can_be_used_again() -> None:
    store = Store(2)
    for round_ in (0, 10):
        assert store.step(BarrierReached(round_, 1, "b", 5.0), 0.0) == []
        opened = store.step(BarrierReached(round_ + 1, 0, "b", 5.0), 0.0)
        assert {a.call for a in opened if isinstance(a, Reply)} == {round_, round_ + 1}


def test_a_late_barrier_names_who_did_not_come() -> None:
    store = Store(4, describe_rank="state of {}".format)
    store.step(BarrierReached(1, 2, "b", 5.0), 0.0)
    error = error_of(store.step(Tick(), 5.0))
    assert isinstance(error, DesyncError)
    assert "barrier 'b': ranks 0-1, 3 did not come within 5 s, rank 2 did" in str(error)
    assert "Maybe executing different code in different ranks" in str(error)
    assert str(error).endswith("\n  state of 0\n  state of 1\n  state of 3")


def test_a_rank_that_left_fails_barriers_present_and_future() -> None:
    store = Store(2)
    store.step(BarrierReached(1, 0, "b", 5.0), 0.0)
    error = error_of(store.step(RankGone(1), 1.0))
    assert isinstance(error, PeerLostError)
    assert "rank 1 exited 0 while peers run" in str(error)
    assert isinstance(error_of(store.step(BarrierReached(2, 0, "c", 5.0), 2.0)), PeerLostError)


@pytest.mark.parametrize("seed", range(30))
def test_barriers_in_any_interleaving_open_as_often_as_reached(seed: int) -> None:
    random_ = random.Random(seed)
    store, num_ranks, rounds = Store(3), 3, 5
    done, waiting, call = [0] * num_ranks, dict[int, int](), 0
    while min(done) < rounds:
        free = [r for r in range(num_ranks) if r not in waiting.values() and done[r] < rounds]
        rank = random_.choice(free)
        call += 1
        waiting[call] = rank
        for action in store.step(BarrierReached(call, rank, "b", 5.0), 0.0):
            assert isinstance(action, Reply)
            done[waiting.pop(action.call)] += 1
    assert done == [rounds] * num_ranks and not waiting


def test_a_rank_outside_the_world_opens_nothing() -> None:
    store = Store(1)
    assert isinstance(error_of(store.step(BarrierReached(1, 7, "b", 5.0), 0.0)), ProtocolError)
