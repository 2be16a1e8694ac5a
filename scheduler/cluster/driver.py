"""Drives the job table: events in, actions done in order, changes told to watchers.

Rules that the code cannot show:
* One task steps the table. Steps that wait for the store together are written in one transaction:
  all that a batch of events saves is durable before anything of that batch is said or shown.
* A write that fails is tried again before anything else is done; jobs submitted meanwhile are
  refused, running ones go on.
* `jobs` may be shown: it is never a state that a crash could still take back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from oneflow.core.errors import OneFlowError, StoreError
from oneflow.core.log import get_logger
from oneflow.scheduler.cluster.refusals import NotFoundError
from oneflow.scheduler.jobs.events import (
    Action,
    Event,
    Rejected,
    Remove,
    Save,
    SaveClock,
    SaveDrain,
    SaveEpoch,
    SaveJournal,
    SaveUse,
    Submitted,
    Tell,
    TellPrepare,
    Ticked,
)
from oneflow.scheduler.jobs.messages import id_in
from oneflow.scheduler.jobs.records import Assignment, JobRecord
from oneflow.scheduler.jobs.store import Change, SqliteStore
from oneflow.scheduler.jobs.table import Table
from oneflow.services.failpoints import failpoint

MAX_BATCH = 256
MAX_UNDONE = 10_000
MAX_QUEUE = 10_000
ROOM_LOOK_S = 0.005
MIN_TICK_S = 0.05
T = TypeVar("T")

log = get_logger(__name__)


class Listener:
    """An observer of the table's steps: metrics, points, logs. Called on the loop, in
    this order.
    """

    def stepped(self, event: Event, actions: Sequence[Action]) -> None:
        """Hear of a step before anything of it is durable."""

    def changed(self, before: JobRecord | None, now: JobRecord | None) -> None:
        """A record that may be shown, or None."""


@dataclass
class _Asked:
    event: Event
    answer: asyncio.Future[Rejected | None] | None


class News:
    """Those who wait for news of jobs."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def of(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever there is news of that job."""
        event = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[job_id].discard(event)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    def tell(self, *job_ids: str) -> None:
        """There is news of these jobs; none named: of all."""
        for job_id in job_ids or self._waiting:
            for event in self._waiting.get(job_id, ()):
                event.set()


class Driver:
    """Drives one table.

    perform: does an action that is not the store's. wrote: told the seconds of each write.
    """

    def __init__(
        self,
        table: Table,
        store: SqliteStore,
        perform: Callable[[Action], None],
        wrote: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.table = table
        self.store = store
        self.jobs: dict[str, JobRecord] = dict(table.jobs)
        self.listeners: list[Listener] = []
        self._perform, self._wrote = perform, wrote
        self._queue: asyncio.Queue[_Asked] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "oneflow-store")
        self._undone_changes: list[Change] = []
        self._undone: list[Action] = []
        self._unshown: set[str] = set()
        self.news = News()
        self._trouble = ""

    # -- asking ------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """It happened."""
        self._queue.put_nowait(_Asked(event, None))

    async def room(self) -> None:
        """Wait while more has happened than can be done: a peer that floods us is not read any
        more.
        """
        while self._queue.qsize() >= MAX_QUEUE:
            await asyncio.sleep(ROOM_LOOK_S)

    async def ask(self, event: Event) -> Rejected | None:
        """Returns when all it meant is durable; Rejected if it was refused.

        Raises StoreError if it could not be made durable.
        """
        answer: asyncio.Future[Rejected | None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Asked(event, answer))
        return await answer

    async def settle(self) -> None:
        """Wait until all events so far are durable and told, or could not be written."""
        with suppress(StoreError):
            await self.ask(Ticked(time.time()))

    async def in_store(self, call: Callable[[], T]) -> T:
        """Runs `call`, which uses the store, in the store's one thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def job(self, job_id: str) -> JobRecord:
        """Raises NotFoundError."""
        record = self.jobs.get(job_id)
        if record is None:
            raise NotFoundError(f"there is no job {job_id[:80]!r}")
        return record

    async def places(self, record: JobRecord, attempt: int) -> tuple[Assignment, ...]:
        """The devices of any attempt of a job; () if the attempt is not known any more."""
        if attempt == record.attempt and record.assignments:
            return record.assignments
        return await self.in_store(lambda: self.store.places(record.id, attempt))

    async def watch(self, job_id: str) -> AsyncIterator[JobRecord]:
        """The record now and after each change; ends when the job is removed. Changes while
        nobody looks are seen as one.
        """
        first = self.jobs.get(job_id)
        with self.news.of(job_id) as news:
            while (record := self.jobs.get(job_id)) is not None:
                if not (first and record.is_same_as(first)):
                    return
                news.clear()
                yield record
                await news.wait()

    @property
    def is_store_down(self) -> bool:
        return self.trouble != ""

    @property
    def trouble(self) -> str:
        """Say why the store cannot be written; "" if it can."""
        return self._trouble

    # -- the one task ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled; `close` finishes the step under way."""
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty() and len(batch) < MAX_BATCH:
                batch.append(self._queue.get_nowait())
            await self._do(batch)

    async def close(self) -> None:
        """Finish the steps asked for before `run` was cancelled, and close the store."""
        rest = []
        while not self._queue.empty():
            rest.append(self._queue.get_nowait())
        if rest:
            await self._do(rest)
        await self.in_store(self.store.close)
        self._thread.shutdown()

    async def _do(self, batch: list[_Asked]) -> None:
        actions: list[Action] = []
        refused: list[Rejected | None] = []
        submitted: set[str] = set()
        for asked in batch:
            done = self.table.step(asked.event, time.monotonic())
            actions += done
            refused.append(_refusal(asked.event, done))
            submitted |= _new_job(asked.event, done)
            for listener in self.listeners:
                listener.stepped(asked.event, done)
        self._unshown |= self.table.take_changed()
        self._undone += actions
        error = await self._write(submitted)
        if submitted:
            failpoint("scheduler.queued")
        if error is None:
            self._perform_all()
            self._show()
        for asked, refusal in zip(batch, refused, strict=True):
            _reply(asked.answer, refusal, error)

    async def _write(self, submitted: set[str]) -> StoreError | None:
        """Make pending changes durable; on failure keep them, but for the jobs just submitted."""
        new = [a for a in self._undone if isinstance(a, Change)]
        changes = _compacted([*self._undone_changes, *new])
        if not changes:
            return None
        started = time.perf_counter()
        try:
            await self.in_store(lambda: self.store.write(changes))
        except StoreError as error:
            self._failed(error, changes, submitted)
            return error
        if self._trouble:
            log.warning("the store can be written again")
            self._set_trouble("")
        self._undone_changes = []
        self._wrote(time.perf_counter() - started)
        return None

    def _failed(self, error: StoreError, changes: list[Change], submitted: set[str]) -> None:
        if not self._trouble:
            log.error("%s; what runs goes on, new jobs are refused", error)
        self._set_trouble(str(error) or "the store cannot be written")
        for job_id in submitted:
            self.table.withdraw(job_id)
            self._unshown.discard(job_id)
        self._undone_changes = [c for c in changes if _new_job_of(c) not in submitted]
        told: list[Action] = [a for a in self._undone if not isinstance(a, Change)]
        self._undone = [a for a in told if _new_job_of(a) not in submitted][-MAX_UNDONE:]

    def _set_trouble(self, why: str) -> None:
        """Tell those who wait for a job that nothing can be written, or can again."""
        if why != self._trouble:
            self._trouble = why
            self.news.tell()

    def _perform_all(self) -> None:
        undone, self._undone = self._undone, []
        for action in undone:
            if not isinstance(action, Change):
                self._perform(action)

    def _show(self) -> None:
        changed, self._unshown = self._unshown, set()
        for job_id in changed:
            before, now = self.jobs.pop(job_id, None), self.table.jobs.get(job_id)
            if before is not None and now is not None and not now.is_same_as(before):
                self._tell(before, None)
                before = None
            if now is not None:
                self.jobs[job_id] = now
            self._tell(before, now)
            self.news.tell(job_id)

    def _tell(self, before: JobRecord | None, now: JobRecord | None) -> None:
        for listener in self.listeners:
            listener.changed(before, now)


async def tick(
    driver: Driver,
    tick_s: float,
    also: Callable[[], Awaitable[None]],
    is_crowded: Callable[[], bool] = lambda: False,
) -> None:
    """Let time pass for the table, until cancelled, so that a silent daemon is given up in time.

    is_crowded: whether daemons that want to join have been put off.
    """
    while True:
        driver.tell(Ticked(time.time(), is_crowded()))
        await also()
        due_s = driver.table.due_at - time.monotonic()
        await asyncio.sleep(min(tick_s, max(due_s, MIN_TICK_S)))


def _refusal(event: Event, actions: Sequence[Action]) -> Rejected | None:
    return next((a for a in actions if isinstance(a, Rejected) and a.event is event), None)


def _new_job(event: Event, actions: Sequence[Action]) -> set[str]:
    """The id, if the event submitted a job that was not there before."""
    if not isinstance(event, Submitted):
        return set()
    return {a.record.id for a in actions if isinstance(a, Save) and a.record.id == event.job_id}


def _new_job_of(action: Action) -> str:
    """The job, unless the action is about an earlier one of its id."""
    match action:
        case Save(record=record) | TellPrepare(record=record):
            return record.id
        case Tell(message=message):
            found = id_in(message)
            return found.job_id if found is not None else ""
    return ""


def _compacted(changes: Sequence[Change]) -> list[Change]:
    """The same in the end, with one Save for each job and one epoch."""
    last: dict[object, int] = {}
    removed: dict[str, int] = {}
    for number, change in enumerate(changes):
        match change:
            case Remove(job_id=job_id):
                removed[job_id] = number
            case Save(record=record):
                last[record.id] = number
            case SaveEpoch() | SaveClock():
                last[type(change)] = number
            case SaveDrain(daemon=daemon):
                last[SaveDrain, daemon] = number
            case SaveJournal(start=start):
                last[SaveJournal, start] = number
            case SaveUse(use=use):
                last[SaveUse, use.job_id, use.life, use.attempt] = number
    keep = set(removed.values()) | {
        n for key, n in last.items() if n > removed.get(key if isinstance(key, str) else "", -1)
    }
    return [change for number, change in enumerate(changes) if number in keep]


def _reply(
    answer: asyncio.Future[Rejected | None] | None,
    refusal: Rejected | None,
    error: OneFlowError | None,
) -> None:
    if answer is None or answer.done():
        return
    if error is not None and refusal is None:
        answer.set_exception(error)
    else:
        answer.set_result(refusal)


def by_id(jobs: Mapping[str, JobRecord]) -> list[JobRecord]:
    """The newest first."""
    return sorted(jobs.values(), key=lambda job: (job.submitted_at, job.id), reverse=True)
