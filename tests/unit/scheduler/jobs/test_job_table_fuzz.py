"""Any events in any order: no exception, and the invariants hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.events import (
    CancelAsked,
    ChangeAsked,
    DaemonGone,
    DaemonJoined,
    DrainAsked,
    Event,
    RemoveAsked,
    RestartAsked,
    Save,
    Submitted,
    Ticked,
    UndrainAsked,
)
from oneflow.scheduler.jobs.messages import event_of
from oneflow.scheduler.jobs.records import JobSpec
from oneflow.scheduler.jobs.store import decode_record, encode_record
from oneflow.scheduler.jobs.table import Table
from tests.support.job_invariants import History, invariants

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

    def heard(self, daemon: str, epoch: int, **said: Any) -> Event:
        event = event_of(pb.DaemonMessage(epoch=epoch, **said), daemon, lambda: 5.0)
        assert event is not None
        return event

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

    def whose(self) -> tuple[tuple[str, int], pb.AttemptId]:
        """Daemon and epoch, and the rank it speaks of: mostly of an assignment."""
        job_id, attempt = self.job()
        record = self.table.jobs.get(job_id)
        if record and record.assignments and self.rng.random() < 0.8:
            mine = self.rng.choice(record.assignments)
            known = self.table.daemons.get(mine.daemon)
            id_ = pb.AttemptId(job_id=job_id, attempt=attempt, rank=mine.rank)
            return (mine.daemon, known.epoch if known else 1), id_
        rank = self.rng.choice((0, 1, 7, 2**32 - 1))
        return self.daemon(), pb.AttemptId(job_id=job_id, attempt=attempt, rank=rank)

    def submitted(self) -> Event:
        devices = self.rng.choice((0, 1, 1, 2, 3))
        restarts = self.rng.choice((0, 3))
        limit = self.rng.choice((0.0, 20.0))
        spec = JobSpec(argv=("x",), devices=devices, max_restarts=restarts, time_limit_s=limit)
        return Submitted(self.rng.choice(JOBS), spec, "me", "key", 5.0)

    def joined(self) -> Event:
        name = self.rng.choice(DAEMONS[:3])
        node, index = name.split("/")[0], int(name[-1])
        hello = pb.Hello(
            daemon=name, node=node, device_type="cpu", device_index=index, address=node
        )
        if self.rng.random() < 0.4:
            phase = self.rng.choice(("preparing", "prepared", "running", "stopping", "dancing"))
            hello.running.add(id=self.whose()[1], phase=phase)
        hello.incarnation = self.rng.choice((1, 1, 2))
        return DaemonJoined(hello)

    def beat(self) -> Event:
        return self.heard(*self.daemon(), beat=pb.DaemonBeat())

    def gone(self) -> Event:
        return DaemonGone(*self.daemon(), self.rng.choice(("left", "lost", "lost", "died")))

    def prepared(self) -> Event:
        error = self.rng.choice(("", "", "", "", "broken"))
        reason = self.rng.choice(("USER_ERROR", "PREEMPTED", "NONSENSE"))
        who, id_ = self.whose()
        port = self.rng.choice((0, 5000))
        prepared = pb.Prepared(id=id_, master_port=port, error=error, reason=reason)
        return self.heard(*who, prepared=prepared)

    def exited(self) -> Event:
        code = self.rng.choice((0, 0, 0, 1, 85, 137, 143, -9, 10**9, -(10**9)))
        reasons = ("NONE", "PEER_LOST", "PREEMPTED", "OOM_HOST", "HANG", "NONSENSE", "")
        reason = self.rng.choice(reasons)
        who, id_ = self.whose()
        end = pb.Exited(id=id_, exit_code=code, reason=reason, cause="why\n\x00", last_step=2**62)
        return self.heard(*who, **{self.rng.choice(("exited", "failing")): end})

    def progressed(self) -> Event:
        step = self.rng.choice((0, 1, 50, 2**62))
        metrics = {f"m{self.rng.randrange(200)}": float("nan"), "x" * 1000: 1.0}
        who, id_ = self.whose()
        found = pb.Progress(id=id_, step=step, total_steps=step, metrics=metrics)
        found.checkpoint, found.checkpoint_step = "c" * 10, step
        return self.heard(*who, progress=found)

    def ticked(self) -> Event:
        return Ticked(self.rng.choice((5.0, 1e9, -1e9)))

    def asked(self) -> Event:
        job_id = self.rng.choice(JOBS)
        asked: tuple[Event, ...] = (
            CancelAsked(job_id, "me", 5.0),
            RestartAsked(job_id, "me", 5.0),
            RemoveAsked(job_id),
            ChangeAsked(job_id, self.rng.choice((None, True, False)), self.rng.choice((None, 7))),
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
