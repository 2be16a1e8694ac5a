"""Invariants of the job table that hold after every step. A violation is a defect of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from oneflow.scheduler.jobs.attempt import Attempt, Intent, RankPhase
from oneflow.scheduler.jobs.ledger import keys_of
from oneflow.scheduler.jobs.quotas import is_preemptible
from oneflow.scheduler.jobs.records import REASONS, DaemonState, JobRecord, JobState
from oneflow.scheduler.jobs.table import Table

_ATTEMPT_STATES = (JobState.STARTING, JobState.RUNNING, JobState.CANCELLING)
_STEPS = {
    JobState.QUEUED: {JobState.STARTING, JobState.CANCELLED},
    JobState.STARTING: {
        JobState.RUNNING,
        JobState.RESTARTING,
        JobState.CANCELLING,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.TIMED_OUT,
    },
    JobState.RUNNING: {
        JobState.RESTARTING,
        JobState.CANCELLING,
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.TIMED_OUT,
    },
    JobState.RESTARTING: {JobState.STARTING, JobState.CANCELLED},
    JobState.CANCELLING: {JobState.CANCELLED},
}
"""States that may follow each state. A final one ends the job, until a user asks for a restart."""


def invariants(table: Table) -> list[str]:
    """List the faults of the table as it stands; [] if nothing."""
    return [
        *(said for record in table.jobs.values() for said in _of_record(record, table)),
        *(said for attempt in table.attempts.live.values() for said in _of_attempt(attempt, table)),
        *_of_devices(table),
        *_of_queues(table),
    ]


def _of_record(record: JobRecord, table: Table) -> Iterator[str]:
    is_live = record.id in table.attempts.live
    if is_live and record.state not in _ATTEMPT_STATES:
        yield f"{record.id} is {record.state} but an attempt of it goes on"
    if not is_live and record.state in _ATTEMPT_STATES:
        yield f"{record.id} is {record.state} but no attempt of it goes on"
    if record.reason not in REASONS:
        yield f"{record.id} has the unknown reason {record.reason}"
    if record.state.is_final:
        yield from _of_final(record)
    elif record.finished_at:
        yield f"{record.id} is {record.state} but has finished"
    if record.last_checkpoint_step and not record.last_checkpoint:
        yield f"{record.id} has the step of a checkpoint but no checkpoint"
    if not 0 <= record.exit_code <= 255:
        yield f"{record.id} has exit code {record.exit_code}"


def _of_final(record: JobRecord) -> Iterator[str]:
    succeeded = record.state is JobState.SUCCEEDED
    if succeeded != (record.exit_code == 0) or succeeded != (record.reason == "NONE"):
        yield f"{record.id} is {record.state} with {record.reason} and exit {record.exit_code}"
    if not succeeded and not record.cause:
        yield f"{record.id} is {record.state} without a cause"
    if (record.state is JobState.TIMED_OUT) != (record.exit_code == 124) and (
        record.reason == "TIME_LIMIT"
    ):
        yield f"{record.id} timed out with exit {record.exit_code}"


def _of_attempt(attempt: Attempt, table: Table) -> Iterator[str]:
    record = table.jobs.get(attempt.job_id)
    if record is None:
        yield f"an attempt of {attempt.job_id}, which does not exist, goes on"
        return
    if attempt.number != record.attempt:
        yield f"attempt {attempt.number} of {record.id} goes on, but it is at {record.attempt}"
    if not record.spec.devices <= len(attempt.ranks) <= record.spec.most:
        yield f"{record.id} wants {record.spec.size} devices, but has {len(attempt.ranks)}"
    if attempt.is_over:
        yield f"attempt {attempt.number} of {record.id} is over but was not closed"
    daemons = [rank.daemon for rank in attempt.ranks]
    if len(set(daemons)) != len(daemons):
        yield f"two ranks of {record.id} share a device"
    for rank in attempt.ranks:
        known = table.daemons.get(rank.daemon)
        is_gone = known is None or known.state is DaemonState.LOST
        if is_gone and not rank.is_over and not attempt.is_recovered:
            yield f"rank {rank.number} of {record.id} waits for {rank.daemon}, which is lost"
        if not rank.is_over and known is not None and known.job not in ("", record.id):
            yield f"{rank.daemon} works for {record.id} and is held by {known.job}"
        if rank.phase is RankPhase.RUNNING and not attempt.is_started:
            yield f"rank {rank.number} of {record.id} runs before the attempt was started"


def _of_devices(table: Table) -> Iterator[str]:
    held = [rank.daemon for attempt in table.attempts.live.values() for rank in attempt.ranks]
    for daemon, count in Counter(held).items():
        if count > 1:
            yield f"{count} attempts hold {daemon}"
    for known in table.daemons.values():
        if known.job and known.job not in table.attempts.live:
            yield f"{known.id} is held by {known.job}, of which no attempt goes on"
        if known.epoch > table.epoch:
            yield f"{known.id} has epoch {known.epoch}, but only {table.epoch} were given"
    epochs = Counter(known.epoch for known in table.daemons.values())
    for epoch, count in epochs.items():
        if count > 1:
            yield f"{count} daemons share epoch {epoch}"


def _of_queues(table: Table) -> Iterator[str]:
    held: Counter[tuple[str, ...]] = Counter()
    queues = table.settings.queues
    for attempt in table.attempts.live.values():
        record = table.jobs.get(attempt.job_id)
        if record is None:
            continue
        held.update(dict.fromkeys(keys_of(record), len(attempt.ranks)))
        may_stop = is_preemptible(record, queues) or record.spec.most > record.spec.devices
        if attempt.intent is Intent.RESCHEDULE and not may_stop:
            yield f"{record.id} is stopped for another job, but is not preemptible"
    for key, devices in held.items():
        queue = queues.get(key[1])
        most = (queue.devices if len(key) == 2 else queue.user_devices) if queue else 0
        if most and devices > most:
            yield f"{key} holds {devices} devices of {most}"
        if devices != table.held(key):
            yield f"{key} holds {devices} devices, but {table.held(key)} are in the ledger"


@dataclass
class History:
    """Follows a table from step to step: numbers that may only grow, and which state may follow
    which.
    """

    epoch: int = 0
    states: dict[tuple[str, int], tuple[JobState, int]] = field(default_factory=dict)

    def look(self, table: Table, restarted: str = "") -> list[str]:
        """List the changes that may not happen. restarted: job that a user just asked to
        run again.
        """
        wrong = []
        if table.epoch < self.epoch:
            wrong.append(f"the epoch went back from {self.epoch} to {table.epoch}")
        self.epoch = table.epoch
        for record in table.jobs.values():
            before = self.states.get((record.id, record.life))
            now = (record.state, record.attempt)
            if before is not None and before != now:
                wrong += self._of_change(record, before, is_restart=record.id == restarted)
            self.states[record.id, record.life] = now
        for gone in set(self.states) - {(r.id, r.life) for r in table.jobs.values()}:
            del self.states[gone]
        return wrong

    def forget(self, job_id: str) -> None:
        """A job that was taken back, as if it had never been."""
        self.states = {key: now for key, now in self.states.items() if key[0] != job_id}

    def _of_change(
        self, record: JobRecord, before: tuple[JobState, int], is_restart: bool
    ) -> Iterator[str]:
        state, attempt = before
        if record.attempt < attempt:
            yield f"{record.id} went back from attempt {attempt} to {record.attempt}"
        if is_restart and state.is_final:
            return
        if state.is_final:
            yield f"{record.id} was {state} for good, and is {record.state}"
        elif not _reachable(state, record.state):
            yield f"{record.id} went from {state} to {record.state}"


def _reachable(state: JobState, other: JobState) -> bool:
    """Whether one state leads to the other, over any number of others: a step may make several."""
    seen, todo = {state}, [state]
    while todo:
        for following in _STEPS.get(todo.pop(), ()):
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return other in seen
