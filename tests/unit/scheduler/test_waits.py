"""Long waits: a circle is found when it is proven, and never a rank that is merely slow."""

from __future__ import annotations

import random
from typing import Any

from oneflow.core.errors import DesyncError, ProtocolError
from oneflow.scheduler.rendezvous import Tick
from oneflow.scheduler.store import CallDropped, Fail, RankGone, Reply
from oneflow.scheduler.waits import HOLD_S, STALE_S, WaitAsked, Waits


def ask(
    call: int, rank: int, place: str, number: int, missing: tuple[int, ...], **reached: int
) -> WaitAsked:
    """A question of `rank`; reached: `on_01=3` is call 3 of place 01."""
    began = {name.removeprefix("on_"): n for name, n in reached.items()} | {place: number}
    return WaitAsked(call, rank, place, number, f"op{rank} at x.py:{rank}", missing, began)


def crossed(call: int, rank: int) -> WaitAsked:
    """Rank 0 is in call 1 of {0, 1}, rank 1 in call 1 of {0, 1, 2}."""
    if rank == 0:
        return ask(call, 0, "01", 1, (1,), on_012=0)
    return ask(call, 1, "012", 1, (0,), on_01=0)


def test_a_circle_is_proven_when_both_have_asked_twice() -> None:
    waits = Waits(3)
    assert waits.step(crossed(1, 0), 0.0) == []
    # What rank 1 says may be an old story by now: both are asked to say it again, at once.
    assert set(waits.step(crossed(2, 1), 0.5)) == {Reply(1), Reply(2)}
    first, second = waits.step(crossed(3, 0), 0.6), waits.step(crossed(4, 1), 0.7)
    assert first == []
    assert [type(a) for a in second] == [Fail, Fail]
    errors = {a.call: a.error for a in second if isinstance(a, Fail)}
    assert set(errors) == {3, 4}
    for error in errors.values():
        assert isinstance(error, DesyncError)
        assert "rank 0: op0 at x.py:0 (waits for rank 1)" in str(error)
        assert "rank 1: op1 at x.py:1 (waits for rank 0)" in str(error)
        assert "Maybe executing different code in different ranks" in str(error)


def test_a_rank_that_does_not_wait_is_never_accused() -> None:
    waits = Waits(2)
    for i in range(100):
        assert waits.step(ask(i, 0, "01", 1, (1,)), i * 1.0) == []
        assert waits.step(Tick(), i + 0.99) in ([], [Reply(i)])
        waits.step(CallDropped(i), i + 0.999)


def test_what_may_be_on_its_way_is_no_circle() -> None:
    """Rank 1 has begun the call that rank 0 is in: the data for rank 0 may come any moment."""
    waits = Waits(3)
    for i in range(20):
        actions = waits.step(ask(2 * i, 0, "01", 1, (1,), on_012=0), i * 1.0)
        actions += waits.step(ask(2 * i + 1, 1, "012", 1, (0,), on_01=1), i + 0.1)
        actions += waits.step(Tick(), i + 0.1 + HOLD_S)
        assert not any(isinstance(a, Fail) for a in actions)


def test_an_old_wait_proves_nothing() -> None:
    """Rank 0 asked twice and went on; rank 1 comes to wait for it later."""
    waits = Waits(3)
    waits.step(crossed(1, 0), 0.0)
    assert waits.step(Tick(), HOLD_S) == [Reply(1)]
    waits.step(crossed(2, 0), HOLD_S + 0.1)
    assert waits.step(Tick(), 2 * HOLD_S + 0.1) == [Reply(2)]
    now = 2 * HOLD_S + 0.2
    call = 3
    while now < 10:
        actions = waits.step(crossed(call, 1), now)
        actions += waits.step(Tick(), now + 0.01)
        assert not any(isinstance(a, Fail) for a in actions)
        call, now = call + 1, now + 0.1


def test_waits_that_never_overlapped_are_no_circle() -> None:
    waits = Waits(3)
    waits.step(crossed(1, 0), 0.0)
    waits.step(Tick(), HOLD_S)
    waits.step(CallDropped(99), HOLD_S)
    waits.step(crossed(2, 0), HOLD_S + 0.1)  # proven: from 0 to HOLD_S
    waits.step(CallDropped(2), HOLD_S + 0.2)  # and gone on
    waits.step(crossed(3, 1), HOLD_S + 0.3)
    actions = waits.step(Tick(), 2 * HOLD_S + 0.4) + waits.step(crossed(4, 1), 2 * HOLD_S + 0.5)
    assert not any(isinstance(a, Fail) for a in actions)


def test_who_waits_for_the_circle_hears_of_it_too() -> None:
    def behind(call: int, rank: int) -> WaitAsked:
        return ask(call, rank, "012", 1, (0,), on_02=0)

    failed = run(Waits(3), {2: behind, 0: crossed, 1: crossed})
    assert set(failed) == {0, 1, 2}


def test_a_circle_of_three_pairs() -> None:
    """Everyone sends to the next before it receives: sets {0,1}, {1,2} and {0,2}."""

    def wait(call: int, rank: int) -> WaitAsked:
        place = {0: "01", 1: "12", 2: "02"}[rank]
        others = {name: 0 for name in ("on_01", "on_12", "on_02") if str(rank) in name}
        others.pop(f"on_{place}")
        return ask(call, rank, place, 1, ((rank + 1) % 3,), **others)

    assert set(run(Waits(3), dict.fromkeys(range(3), wait))) == {0, 1, 2}


def test_a_gone_rank_closes_no_circle() -> None:
    waits = Waits(3)
    waits.step(crossed(1, 0), 0.0)
    waits.step(RankGone(0), 0.1)
    for i in range(5):
        actions = waits.step(crossed(2 + i, 1), 1.0 + i) + waits.step(Tick(), 2.0 + i)
        assert not any(isinstance(a, Fail) for a in actions)


def test_a_rank_that_does_not_exist_is_refused() -> None:
    (action,) = Waits(2).step(ask(1, 2, "01", 1, (1,)), 0.0)
    assert isinstance(action, Fail) and isinstance(action.error, ProtocolError)
    (action,) = Waits(2).step(ask(1, 0, "x" * 2000, 1, (1,)), 0.0)
    assert isinstance(action, Fail) and "at most 1024 characters" in str(action.error)


def test_many_that_wait_for_one_are_answered_seldom() -> None:
    waits = Waits(2000)
    waits.step(ask(1, 0, "all", 1, (7,)), 0.0)
    assert waits.step(Tick(), 3.9) == []
    assert waits.step(Tick(), 4.0) == [Reply(1)]
    assert waits.step(Tick(), 4.0 + STALE_S) == []


def run(waits: Waits, ranks: dict[int, Any]) -> dict[int, str]:
    """Ranks that ask again as soon as they are answered, for 5 s; returns rank -> its error."""
    calls = iter(range(100, 10**6))
    pending: dict[int, int] = {}
    failed: dict[int, str] = {}
    owner: dict[int, int] = {}
    now = 0.0
    while now < 5.0:
        for rank, wait in ranks.items():
            if rank not in pending and rank not in failed:
                call = next(calls)
                pending[rank] = call
                owner[call] = rank
                take(waits.step(wait(call, rank), now), owner, pending, failed)
        take(waits.step(Tick(), now), owner, pending, failed)
        now += 0.1
    return failed


def take(
    actions: list[Any], owner: dict[int, int], pending: dict[int, int], failed: dict[int, str]
) -> None:
    for action in actions:
        rank = owner[action.call]
        pending.pop(rank, None)
        if isinstance(action, Fail):
            failed[rank] = str(action.error)


def test_random_programs_without_mistakes_raise_no_alarm() -> None:
    """Four ranks walk through one random order of calls on random sets, with random pauses.

    Data come late by up to a second, so a rank may wait although all have begun its call.
    """
    for seed in range(30):
        assert simulate(seed, swapped=False) == {}


def test_random_programs_with_two_swapped_calls_are_found() -> None:
    for seed in range(30):
        assert len(simulate(seed, swapped=True)) >= 2


def simulate(seed: int, swapped: bool) -> dict[int, str]:
    rng = random.Random(seed)
    sets = [(0, 1), (1, 2), (0, 1, 2, 3), (2, 3), (0, 3), (0, 1, 2)]
    order = [rng.choice(sets) for _ in range(12)]
    programs = {r: [s for s in order if r in s] for r in range(4)}
    if swapped:
        programs[0] = [(0, 1), (0, 1, 2, 3), *programs[0]]
        programs[1] = [(0, 1, 2, 3), (0, 1), *programs[1]]
        for r in (2, 3):
            programs[r] = [(0, 1, 2, 3), *programs[r]]
    return _Simulation(programs, rng).run()


class _Simulation:
    """Ranks in steps of 0.1 s: computing, waiting in a call, asking while they wait."""

    def __init__(self, programs: dict[int, list[tuple[int, ...]]], rng: random.Random) -> None:
        self.programs, self.rng = programs, rng
        self.waits = Waits(4)
        self.at = dict.fromkeys(programs, 0)
        self.begun: dict[int, dict[str, int]] = {
            r: {str(s): 0 for s in set(p)} for r, p in programs.items()
        }
        self.arrived: dict[tuple[str, int, int], float] = {}  # place, number, rank -> when
        self.busy_until = dict.fromkeys(programs, 0.0)
        self.waiting: dict[int, float] = {}
        self.pending: dict[int, int] = {}
        self.owner: dict[int, int] = {}
        self.failed: dict[int, str] = {}

    def run(self) -> dict[int, str]:
        now = 0.0
        while now < 120 and not self.failed and any(map(self._has_more, self.programs)):
            for rank in self.programs:
                self._move(rank, now)
            take(self.waits.step(Tick(), now), self.owner, self.pending, self.failed)
            now += 0.1
        return self.failed

    def _has_more(self, rank: int) -> bool:
        return self.at[rank] < len(self.programs[rank])

    def _move(self, rank: int, now: float) -> None:
        if not self._has_more(rank) or now < self.busy_until[rank]:
            return
        members = self.programs[rank][self.at[rank]]
        place, begun = str(members), self.begun[rank]
        if rank not in self.waiting:
            begun[place] += 1
            self.waiting[rank] = now
            delay = self.rng.choice([0.0, 0.0, 0.3, 3.0])
            self.arrived[place, begun[place], rank] = now + delay
        number = begun[place]
        missing = tuple(r for r in members if self.arrived.get((place, number, r), 1e9) > now)
        missing = tuple(r for r in missing if r != rank)
        if not missing:
            del self.waiting[rank]
            self.at[rank] += 1
            self.busy_until[rank] = now + self.rng.choice([0.0, 0.2, 4.0])
        elif now - self.waiting[rank] > 1.0 and rank not in self.pending:
            call = len(self.owner) + 1
            self.owner[call], self.pending[rank] = rank, call
            asked = WaitAsked(call, rank, place, number, f"op{rank}", missing, dict(begun))
            take(self.waits.step(asked, now), self.owner, self.pending, self.failed)
