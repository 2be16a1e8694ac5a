"""Any events in any order: no exception, and what must always hold does."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from oneflow.scheduler.jobs.events import (
    CancelAsked,
    DaemonBeat,
    DaemonGone,
    DaemonJoined,
    DrainAsked,
    Event,
    RankExited,
    RankFailing,
    RankPrepared,
    RankProgressed,
    RemoveAsked,
    RestartAsked,
    Running,
    Save,
    Submitted,
    Ticked,
    UndrainAsked,
)
from oneflow.scheduler.jobs.invariants import History, invariants
from oneflow.scheduler.jobs.records import JobSpec
from oneflow.scheduler.jobs.store import decode_record, encode_record
from oneflow.scheduler.jobs.table import Table

DAEMONS = ("n0/cpu:0", "n0/cpu:1", "n1/cpu:0", "ghost")
JOBS = ("j1", "j2", "j3", "nobody")


class Dice:
    """Events of which most make some sense, and some none."""

    def __init__(self, seed: int, table: Table) -> None:
        self.rng = random.Random(seed)
        self.table = table

    def event(self) -> Event:
        makers: tuple[Callable[[], Event], ...] = (
            self.submitted, self.joined, self.joined, self.beat, self.gone, self.prepared,
            self.prepared, self.prepared, self.exited, self.exited, self.progressed, self.ticked,
            self.asked,
        )  # fmt: skip
        return self.rng.choice(makers)()

    def job(self) -> tuple[str, int]:
        """Events with an attempt that is mostly the present one."""
        job_id = self.rng.choice(JOBS)
        record = self.table.jobs.get(job_id)
        attempt = record.attempt if record else 1
        return job_id, max(attempt + self.rng.choice((0, 0, 0, 0, 1, -1)), 0)

    def daemon(self) -> tuple[str, int]:
        name = self.rng.choice(DAEMONS)
        known = self.table.daemons.get(name)
        epoch = known.epoch if known else 0
        return name, max(epoch + self.rng.choice((0, 0, 0, 0, 0, 1, -1)), 0)

    def whose(self) -> tuple[str, int, str, int, int]:
        """Daemon, epoch, job, attempt, rank: mostly of an assignment."""
        job_id, attempt = self.job()
        record = self.table.jobs.get(job_id)
        if record and record.assignments and self.rng.random() < 0.8:
            mine = self.rng.choice(record.assignments)
            known = self.table.daemons.get(mine.daemon)
            return mine.daemon, known.epoch if known else 1, job_id, attempt, mine.rank
        return (*self.daemon(), job_id, attempt, self.rng.choice((0, 1, 7, 2**32 - 1)))

    def submitted(self) -> Event:
        devices = self.rng.choice((0, 1, 1, 2, 3))
        restarts = self.rng.choice((0, 3))
        limit = self.rng.choice((0.0, 20.0))
        spec = JobSpec(argv=("x",), devices=devices, max_restarts=restarts, time_limit_s=limit)
        return Submitted(self.rng.choice(JOBS), spec, "me", "key", 5.0)

    def joined(self) -> Event:
        name = self.rng.choice(DAEMONS[:3])
        node, index = name.split("/")[0], int(name[-1])
        running: tuple[Running, ...] = ()
        if self.rng.random() < 0.4:
            phase = self.rng.choice(("preparing", "prepared", "running", "stopping", "dancing"))
            running = (Running(*self.whose()[2:], phase),)
        incarnation = self.rng.choice((1, 1, 2))
        return DaemonJoined(name, node, "cpu", index, node, incarnation, "1", 1, 0, running)

    def beat(self) -> Event:
        return DaemonBeat(*self.daemon())

    def gone(self) -> Event:
        return DaemonGone(*self.daemon(), self.rng.choice(("left", "lost", "lost", "died")))

    def prepared(self) -> Event:
        error = self.rng.choice(("", "", "", "", "broken"))
        reason = self.rng.choice(("USER_ERROR", "PREEMPTED", "NONSENSE"))
        return RankPrepared(*self.whose(), self.rng.choice((0, 5000)), error, reason)

    def exited(self) -> Event:
        code = self.rng.choice((0, 0, 0, 1, 85, 137, 143, -9, 10**9, -(10**9)))
        reasons = ("NONE", "PEER_LOST", "PREEMPTED", "OOM_HOST", "HANG", "NONSENSE", "")
        reason = self.rng.choice(reasons)
        end = RankExited(*self.whose(), code, reason, "why\n\udcff", 2**64 - 1, 5.0, 1)
        return self.rng.choice((end, RankFailing(end)))

    def progressed(self) -> Event:
        step = self.rng.choice((0, 1, 50, 2**64 - 1))
        metrics = {f"m{self.rng.randrange(200)}": float("nan"), "x" * 1000: 1.0}
        return RankProgressed(*self.whose(), step, step, metrics, "c" * 10, step, 5.0)

    def ticked(self) -> Event:
        return Ticked(self.rng.choice((5.0, 1e9, -1e9)))

    def asked(self) -> Event:
        job_id = self.rng.choice(JOBS)
        asked: tuple[Event, ...] = (
            CancelAsked(job_id, "me", 5.0),
            RestartAsked(job_id, "me", 5.0),
            RemoveAsked(job_id),
            DrainAsked(self.rng.choice(("n0", "", "n9")), self.rng.choice((0.0, 9.0, -1.0))),
            UndrainAsked(self.rng.choice(("n0", "", "n9"))),
        )
        return self.rng.choice(asked)


@pytest.mark.parametrize("seed", range(60))
def test_any_events_in_any_order(seed: int) -> None:
    table, history, now = Table([], 0), History(), 100.0
    dice = Dice(seed, table)
    for _ in range(300):
        event = dice.event()
        now += dice.rng.choice((0.0, 0.1, 1.0, 1.0, 2.9, 12.0))
        actions = table.step(event, now)
        restarted = event.job_id if isinstance(event, RestartAsked) else ""
        wrong = invariants(table) + history.look(table, restarted)
        assert not wrong, (event, wrong)
        for action in actions:
            if isinstance(action, Save):
                assert decode_record(encode_record(action.record)).id == action.record.id
                assert len(encode_record(action.record)) < 20_000
