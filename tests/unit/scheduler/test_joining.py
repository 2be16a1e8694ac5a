"""Rendezvous: all are admitted together, or told the exact fault. Events in, actions out."""

from __future__ import annotations

import random

import pytest

from oneflow.core.control_channel import PROTOCOL
from oneflow.core.errors import ConfigError, PeerLostError, RendezvousError
from oneflow.protos import control_pb2 as pb
from oneflow.scheduler.rendezvous import (
    Admit,
    JoinAsked,
    JoinDropped,
    Late,
    RanksExited,
    Refuse,
    Rendezvous,
    Tick,
    name_ranks,
)


def asked(rank: int, call: int | None = None, **more: object) -> JoinAsked:
    incarnation = int(str(more.pop("incarnation", 100 + rank)))
    member = pb.Member(rank=rank, host=f"host{rank}", pid=1000 + rank, incarnation=incarnation)
    values = {"world_size": 3, "epoch": 1, "protocol": PROTOCOL, "timeout_s": 30.0} | more
    return JoinAsked(rank if call is None else call, member, **values)  # type: ignore[arg-type]


def refusal(actions: list[object]) -> Exception:
    (action,) = actions
    assert isinstance(action, Refuse)
    return action.error


def test_all_are_admitted_when_the_last_one_comes() -> None:
    machine = Rendezvous(3, epoch=1)
    assert machine.step(asked(2), 0.0) == []
    assert machine.step(asked(0), 1.0) == []
    actions = machine.step(asked(1), 2.0)
    assert [a.call for a in actions if isinstance(a, Admit)] == [0, 1, 2]
    assert [m.rank for m in machine.members] == [0, 1, 2]


def test_deadline_names_the_missing_ranks_to_everybody_who_waits() -> None:
    machine = Rendezvous(3, epoch=1)
    machine.step(asked(1, timeout_s=20.0), 0.0)
    machine.step(asked(0, timeout_s=30.0), 0.0)
    assert machine.step(Tick(), 19.9) != []  # the late notice
    actions = machine.step(Tick(), 20.0)
    assert sorted(a.call for a in actions if isinstance(a, Refuse)) == [0, 1]
    error = actions[0].error  # type: ignore[union-attr]
    # the deadline of the first rank to give up ends it for all: nobody can succeed any more
    assert isinstance(error, RendezvousError)
    assert "1 of 3 ranks did not join within 20 s: rank 2" in str(error)


def test_missing_ranks_are_named_once_before_the_deadline() -> None:
    machine = Rendezvous(3, epoch=1)
    machine.step(asked(1), 0.0)
    assert machine.step(Tick(), 9.0) == []
    (late,) = machine.step(Tick(), 10.0)
    assert isinstance(late, Late) and "ranks 0, 2" in late.text
    assert machine.step(Tick(), 11.0) == []


def test_a_rank_that_exited_before_it_joined_ends_the_wait() -> None:
    machine = Rendezvous(3, epoch=1)
    machine.step(asked(2), 0.0)
    assert machine.step(RanksExited(frozenset()), 0.1) == []
    error = refusal(list(machine.step(RanksExited(frozenset({1})), 0.2)))
    assert isinstance(error, PeerLostError)
    assert str(error) == "rank 1 exited 0 before it joined: rank 2 needs it"
    machine.step(asked(0), 0.3)  # one that comes later need not wait either
    assert "rank 0 needs it" in str(refusal(list(machine.step(RanksExited(frozenset({1})), 0.4))))


def test_a_rank_that_exits_after_all_have_joined_is_no_matter_of_the_rendezvous() -> None:
    machine = Rendezvous(3, epoch=1)
    for rank in range(3):
        machine.step(asked(rank), 0.0)
    assert machine.step(RanksExited(frozenset({1})), 0.1) == []


def test_a_rank_whose_request_broke_is_missing_again() -> None:
    machine = Rendezvous(3, epoch=1)
    machine.step(asked(1), 0.0)
    machine.step(JoinDropped(1), 1.0)
    assert machine.missing() == [0, 1, 2]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"world_size": 4}, "WORLD_SIZE=4, but rank 0 has 3"),
        ({"epoch": 2}, "attempt 2 of the job, but this is attempt 1"),
        ({"protocol": PROTOCOL + 1}, f"speaks protocol {PROTOCOL + 1}"),
    ],
)
def test_a_rank_that_does_not_fit_is_refused(wrong: dict[str, object], words: str) -> None:
    error = refusal(list(Rendezvous(3, epoch=1).step(asked(1, **wrong), 0.0)))
    assert isinstance(error, ConfigError) and words in str(error)


def test_a_rank_outside_the_world_is_refused() -> None:
    assert "outside a world of 3" in str(refusal(list(Rendezvous(3, 1).step(asked(3), 0.0))))


def test_a_second_process_with_the_same_rank_is_refused_and_the_first_stays() -> None:
    machine = Rendezvous(3, epoch=1)
    machine.step(asked(1), 0.0)
    error = refusal(list(machine.step(asked(1, call=9, incarnation=7), 0.1)))
    assert "rank 1 (host host1, pid 1001) already has" in str(error)
    machine.step(asked(0), 0.2)
    assert len(machine.step(asked(2), 0.3)) == 3


def test_a_retry_of_the_same_process_is_admitted_again() -> None:
    machine = Rendezvous(3, epoch=1)
    for rank in range(3):
        machine.step(asked(rank), 0.0)
    (action,) = machine.step(asked(1, call=50), 1.0)
    assert isinstance(action, Admit) and action.call == 50


@pytest.mark.parametrize("seed", range(50))
def test_any_order_of_joins_and_breaks_ends_with_all_admitted(seed: int) -> None:
    random_ = random.Random(seed)
    machine, waiting, call = Rendezvous(3, epoch=1), dict[int, int](), 0
    while not machine.members:
        rank = random_.randrange(3)
        if rank in waiting and random_.random() < 0.5:
            machine.step(JoinDropped(waiting.pop(rank)), 0.0)
        elif rank not in waiting:
            call += 1
            waiting[rank] = call
            actions = machine.step(asked(rank, call=call), 0.0)
    assert {a.call for a in actions if isinstance(a, Admit)} == set(waiting.values())


def test_rank_names_are_runs() -> None:
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([4, 1, 5, 6]) == "ranks 1, 4-6"
    assert name_ranks(range(0, 100, 2)).endswith("and 34 more runs")
