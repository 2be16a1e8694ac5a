"""A job table with a clock, daemons that can be told apart, and checks after each step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

from oneflow.core.control_channel import PROTOCOL
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.events import (
    Action,
    Event,
    RestartAsked,
    Save,
    SaveDrain,
    Submitted,
    Tell,
    TellPrepare,
    Ticked,
)
from oneflow.scheduler.jobs.messages import attempt_id, event_of, joined
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.table import Table
from tests.support.job_invariants import History, invariants

WALL = 1_790_000_000.0
A = TypeVar("A")


def running(
    phase: str, job_id: str = "j1", attempt: int = 1, rank: int = 0, last_step: int = 0
) -> pb.RunningAttempt:
    id_ = pb.AttemptId(job_id=job_id, attempt=attempt, rank=rank)
    return pb.RunningAttempt(id=id_, phase=phase, last_step=last_step)


def prepared(
    port: int = 0, rank: int = 0, error: str = "", reason: str = "", **more: int
) -> pb.Prepared:
    """The answer of a rank of the first attempt of j1."""
    id_ = pb.AttemptId(job_id="j1", attempt=1, rank=rank)
    return pb.Prepared(id=id_, master_port=port, error=error, reason=reason, **more)


class Rig:
    """`devices` daemons named n<node>/cpu:<index>, heard at every step unless they are `silent`."""

    def __init__(
        self, devices: int = 2, nodes: int = 1, settings: Settings | None = None, **options: Any
    ) -> None:
        self.settings = settings or Settings()
        self.table = Table(
            options.get("records", ()),
            options.get("epoch", 0),
            self.settings,
            options.get("removed", ()),
            options.get("drained", ()),
            options.get("wall", 0.0),
            options.get("journal"),
            options.get("uses", ()),
        )
        self.history = History()
        self.now = options.get("now", 1000.0)
        self.actions: list[Action] = []
        self.saved: dict[str, JobRecord] = {}
        self.drained: dict[str, int] = dict(options.get("drained", ()))
        self.silent: set[str] = set()
        for number in range(devices):
            self.join(f"n{number % nodes}/cpu:{number // nodes}")

    def do(self, event: Event, after_s: float = 0.0) -> list[Action]:
        self.now += after_s
        self.actions = self.table.step(event, self.now)
        restarted = event.job_id if isinstance(event, RestartAsked) else ""
        wrong = invariants(self.table) + self.history.look(self.table, restarted)
        assert not wrong, wrong
        for action in self.actions:
            if isinstance(action, Save):
                self.saved[action.record.id] = action.record
            if isinstance(action, SaveDrain):
                self.drained[action.daemon] = action.incarnation
        return self.actions

    def told(self, kind: type[A]) -> list[A]:
        return [action for action in self.actions if isinstance(action, kind)]

    def said(self, kind: str) -> list[Any]:
        """The messages of that kind that daemons were told."""
        told = (tell.message for tell in self.told(Tell))
        return [getattr(message, kind) for message in told if message.WhichOneof("kind") == kind]

    def drains(self) -> list[Tell]:
        return [t for t in self.told(Tell) if t.message.WhichOneof("kind") == "drain"]

    def kinds(self) -> list[str]:
        """The actions, as words; orders to daemons by the name of the message."""
        return [
            str(a.message.WhichOneof("kind")) if isinstance(a, Tell) else type(a).__name__
            for a in self.actions
        ]

    def hear(self, daemon: str, epoch: int = 0, after_s: float = 0.0, **said: Any) -> list[Action]:
        """A daemon says something, as it would come in; epoch: 0: the present one."""
        message = pb.DaemonMessage(epoch=epoch or self.epoch(daemon), **said)
        event = event_of(message, daemon, lambda: WALL)
        assert event is not None
        return self.do(event, after_s)

    def pass_time(self, seconds: float) -> list[Action]:
        """Lets time pass in steps of a second; returns all that was to be done."""
        found = []
        for _ in range(round(seconds)):
            for daemon in list(self.table.daemons):
                if daemon not in self.silent:
                    found += self.hear(daemon, beat=pb.DaemonBeat())
            found += self.do(Ticked(WALL + self.now), 1.0)
        self.actions = found
        return found

    def epoch(self, daemon: str) -> int:
        return self.table.daemons[daemon].epoch

    def join(
        self,
        name: str,
        incarnation: int = 0,
        running: Iterable[pb.RunningAttempt] = (),
        **said: Any,
    ) -> list[Action]:
        node, kind, index = re.split("[/:]", name)
        hello = pb.Hello(
            daemon=name,
            node=node,
            device_type=kind,
            device_index=int(index),
            address=f"{node}.local",
            incarnation=incarnation or 100 + len(self.table.daemons),
            protocol=PROTOCOL,
            pid=7,
            running=running,
            folder=f"/{node}/jobs",
            **said,
        )
        return self.do(joined(hello))

    def submit(self, job_id: str = "j1", **fields: Any) -> JobRecord:
        owner = fields.pop("owner", "me")
        spec = JobSpec(argv=("train",), **fields)
        self.do(Submitted(job_id, spec, owner, "secret", WALL))
        return self.table.jobs[job_id]

    def prepare(self, job_id: str = "j1") -> list[TellPrepare]:
        """All ranks answer that they are ready."""
        record = self.table.jobs[job_id]
        for a in record.assignments:
            port = 5000 if a.rank == 0 else 0
            prepared = pb.Prepared(id=attempt_id(record, a.rank), master_port=port)
            self.hear(a.daemon, prepared=prepared)
        return self.told(TellPrepare)

    def run(self, job_id: str = "j1", **fields: Any) -> JobRecord:
        """Submitted, prepared, started."""
        self.submit(job_id, **fields)
        self.prepare(job_id)
        assert self.table.jobs[job_id].state is JobState.RUNNING
        return self.table.jobs[job_id]

    def exit(
        self, rank: int, code: int, reason: str = "", job_id: str = "j1", **fields: Any
    ) -> list[Action]:
        record = self.table.jobs[job_id]
        daemon = record.assignments[rank].daemon
        attempt = fields.pop("attempt", record.attempt)
        epoch = fields.pop("epoch", 0)
        cause = fields.pop("cause", f"exit of rank {rank}" if code else "")
        said = reason or ("NONE" if code == 0 else "USER_ERROR")
        is_failing = fields.pop("is_failing", False)
        id_ = attempt_id(record, rank, attempt)
        end = pb.Exited(id=id_, exit_code=code, reason=said, cause=cause, pid=42, **fields)
        return self.hear(daemon, epoch, **{"failing" if is_failing else "exited": end})

    def progress(
        self,
        step: int,
        checkpoint: int = 0,
        job_id: str = "j1",
        rank: int = 0,
        warning: str = "",
    ) -> None:
        record = self.table.jobs[job_id]
        daemon = record.assignments[rank].daemon
        progress = pb.Progress(
            id=attempt_id(record, rank),
            step=step,
            total_steps=100,
            metrics={"loss": 1.0},
            checkpoint=f"step-{checkpoint}" if checkpoint else "",
            checkpoint_step=checkpoint,
            warning=warning,
        )
        self.hear(daemon, progress=progress)

    def job(self, job_id: str = "j1") -> JobRecord:
        return self.table.jobs[job_id]

    def after_a_crash(self) -> Rig:
        """A new scheduler that knows the saved records, and no daemon."""
        return Rig(
            0,
            settings=self.settings,
            records=list(self.saved.values()),
            epoch=self.table.epoch,
            drained=[drain for drain in self.drained.items() if drain[1]],
            now=5.0,
        )
