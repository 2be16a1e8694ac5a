"""Jobs of thousands of ranks: no report of one rank makes the table look at all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs import attempts, queue, table
from oneflow.scheduler.jobs.attempt import Attempt, Rank, RankPhase
from oneflow.scheduler.jobs.events import DaemonJoined, TellPrepare, Ticked
from oneflow.scheduler.jobs.records import Assignment
from oneflow.scheduler.jobs.settings import Settings

from .table_rig import WALL, Rig

MANY = 1000


class Counted(list[Rank]):
    """A list that counts how many of its items are looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Rank]:
        for rank in super().__iter__():
            self.looks += 1
            yield rank


def make_attempt() -> tuple[Attempt, Counted]:
    places = [Assignment(r, f"n{r}/cpu:0", f"n{r}", "cpu:0") for r in range(MANY)]
    ranks = Counted(Rank(place, 0, 1, RankPhase.PREPARING, 0.0) for place in places)
    attempt = Attempt("j1", 1, ranks, 0.0)
    ranks.looks = 0
    return attempt, ranks


@pytest.mark.parametrize(
    ("phase", "ask"),
    [
        (RankPhase.PREPARED, lambda attempt: attempt.is_prepared()),
        (RankPhase.ENDED, lambda attempt: attempt.is_over),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_ranks_are_counted_once_in_all(
    phase: RankPhase, ask: Callable[[Attempt], bool], order: int
) -> None:
    attempt, ranks = make_attempt()
    answers = []
    for rank in list.__getitem__(ranks, slice(None, None, order)):
        rank.phase = phase
        answers.append(ask(attempt))
    assert answers == [False] * (MANY - 1) + [True]
    assert ranks.looks <= 5 * MANY


def test_a_rank_that_must_prepare_again_is_waited_for() -> None:
    attempt, ranks = make_attempt()
    for rank in ranks:
        rank.phase = RankPhase.PREPARED
        attempt.is_prepared()
        ranks[0].phase = RankPhase.PREPARING
    assert not attempt.is_prepared()
    ranks[0].phase = RankPhase.PREPARED
    assert attempt.is_prepared()


def test_the_rank_of_a_daemon_is_found_without_a_search() -> None:
    attempt, ranks = make_attempt()
    found = [attempt.rank_on(f"n{number}/cpu:0") for number in range(MANY)]
    assert ranks.looks == 0
    assert found == list(ranks)
    assert attempt.rank_on("n1/cpu:1") is None


def test_the_devices_are_only_sorted_for_a_job_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("oneflow.scheduler.jobs.table.choose", lambda *given: calls.append(given))
    rig = Rig(4)
    rig.hear("n0/cpu:0", beat=pb.DaemonBeat())
    rig.do(Ticked(WALL), 1.0)
    assert not calls
    monkeypatch.setattr("oneflow.scheduler.jobs.table.choose", queue.choose)
    assert rig.submit(devices=2).assignments


@pytest.mark.parametrize(("num_devices", "most"), [(10, 20), (MANY, 5)])
def test_the_more_devices_there_are_the_less_often_all_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, num_devices: int, most: int
) -> None:
    rig, looks = Rig(num_devices, num_devices), []
    monkeypatch.setattr(table, "LOOK_EACH_S", 4e-4)
    monkeypatch.setattr(rig.table, "_look", lambda: looks.append(rig.now))
    for _ in range(200):
        rig.hear("n0/cpu:0", beat=pb.DaemonBeat(), after_s=0.01)
    assert most - 2 <= len(looks) <= most


def test_the_more_ranks_there_are_the_later_they_are_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "RETELL_EACH_S", 1.0)
    rig, told = Rig(8), []
    rig.submit(devices=8)
    for seconds in (rig.settings.retell_s + 2, 2):  # 8 s for 8 ranks
        rig.pass_time(seconds)
        told.append(len(rig.told(TellPrepare)))
    assert told == [0, 8]


def test_devices_that_join_one_after_the_other_are_not_all_shared_out_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, sizes = Rig(0, settings=Settings(fast_daemons=2)), []
    rig.submit(devices=MANY)

    def counted(waiting: Any, daemons: Any, *rest: Any) -> queue.Choice:
        known = list(daemons)
        sizes.append(len(known))
        return queue.choose(waiting, known, *rest)

    monkeypatch.setattr("oneflow.scheduler.jobs.table.choose", counted)
    for number in range(MANY):
        hello = pb.Hello(daemon=f"n{number}/cpu:0", node=f"n{number}", device_type="cpu")
        rig.table.step(DaemonJoined(hello), rig.now + 1e-5 * number)
    assert sum(sizes) <= 20 * MANY
    rig.do(Ticked(WALL), 1.0)
    assert len(rig.job().assignments) == MANY
