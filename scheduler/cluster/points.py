"""Reports of running jobs: metric points (kept in the store, followed by clients), the waits
of their ranks' actors, and the pace at which they run.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from oneflow.core.errors import StoreError
from oneflow.core.log import get_logger
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.driver import Driver, Listener, News
from oneflow.scheduler.jobs.events import Action, CurvePoint, Event, Heard, Rejected
from oneflow.scheduler.jobs.records import JobRecord, JobState
from oneflow.scheduler.jobs.store import Point

GOING_ON = (JobState.STARTING, JobState.RUNNING, JobState.CANCELLING)
FLUSH_S = 0.2
PAGE = 1000
LAST = 1 << 62  # the store's numbers have 63 bits
MAX_WAITING = 20_000  # points not written yet; beyond, the disk is not there for us

log = get_logger(__name__)

New = tuple[int, CurvePoint]  # attempt, what a step of it gave


class Points(Listener):
    """The points of running jobs, until they are written, and the readers that wait for more."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._new: dict[str, list[New]] = defaultdict(list)
        self._num_new = 0
        self._lost: dict[str, int] = {}  # points for which there was no room
        self._is_in_trouble = False  # the last write failed
        self._news = News()
        self.waits = ActorWaits()

    def stepped(self, event: Event, actions: Sequence[Action]) -> None:
        if not isinstance(event, Heard) or event.kind != "progress":
            return
        if any(isinstance(a, Rejected) and a.event is event for a in actions):
            return
        said, at = event.message.progress, event.at
        self.waits.note(said, at)
        points = [
            CurvePoint(p.step, at - p.age_s, dict(p.metrics), p.left_out) for p in said.points
        ]
        if said.metrics and not points:
            points = [CurvePoint(said.step, at, dict(said.metrics))]
        for point in points:
            self._add(said.id.job_id, said.id.attempt, point)

    def _add(self, job_id: str, attempt: int, point: CurvePoint) -> None:
        lost = self._lost.pop(job_id, 0)
        if self._num_new >= MAX_WAITING:
            self._lost[job_id] = lost + point.left_out + 1
            return
        self._new[job_id].append((attempt, replace(point, left_out=point.left_out + lost)))
        self._num_new += 1

    def changed(self, before: JobRecord | None, now: JobRecord | None) -> None:
        if before is not None and (now is None or now.state not in GOING_ON):
            self.waits.forget(before.id)
        if now is None and before is not None:
            self._num_new -= len(self._new.pop(before.id, []))
            self._lost.pop(before.id, None)
            self._news.tell(before.id)
        elif now is not None and now.state.is_final:
            self._news.tell(now.id)

    # -- writing -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write new points, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        for job_id in list(self._new):
            new = self._new.pop(job_id)
            self._num_new -= len(new)
            record = self._driver.jobs.get(job_id)
            if record is None:
                continue
            try:
                await self._write(record, new)
            except StoreError as error:
                self._keep(record, new)
                if not self._is_in_trouble:
                    log.warning("%s; metric points wait in memory until it can be", error)
                self._is_in_trouble = True
                return
            self._is_in_trouble = False
            self._news.tell(job_id)

    def _keep(self, record: JobRecord, new: list[New]) -> None:
        """Put points back that could not be written, unless their job was removed meanwhile."""
        if self._driver.jobs.get(record.id) is not None:
            self._new[record.id] = new + self._new.pop(record.id, [])
            self._num_new += len(new)

    async def _write(self, record: JobRecord, new: list[New]) -> None:
        store, life = self._driver.store, record.life
        await self._driver.in_store(lambda: store.add_points(record.id, new, life))

    # -- reading -----------------------------------------------------------------------------------

    async def read(self, job_id: str, start: int, follow: bool) -> AsyncIterator[pb.MetricPoint]:
        """Read points from index `start` on; with `follow` until the job is final and all
        was told.
        """
        start = min(start, LAST)
        with self._news.of(job_id) as news:
            while True:
                news.clear()
                record = self._driver.jobs.get(job_id)
                is_over = record is None or record.state.is_final
                if is_over and follow:
                    await self.flush()
                found = await self._page(job_id, start)
                for point in found:
                    yield _wire(point)
                    start = point.index + 1
                if len(found) == PAGE:
                    continue
                if is_over or not follow:
                    return
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(news.wait(), 5.0)

    async def _page(self, job_id: str, start: int) -> list[Point]:
        store = self._driver.store
        return await self._driver.in_store(lambda: store.points(job_id, start, PAGE))


def _wire(point: Point) -> pb.MetricPoint:
    return pb.MetricPoint(
        index=point.index,
        attempt=point.attempt,
        step=point.step,
        at=point.at,
        values=dict(point.values),
    )


# ---- the pace of jobs ----------------------------------------------------------------------------


WINDOW = 32  # looks at a job's step that are remembered
EVERY_S = 1.0  # at least between them
MAX_ETA_S = 10 * 366 * 86400.0


@dataclass
class _Pace:
    attempt: int
    begun_at: float
    looks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))


class Paces(Listener):
    """The pace of each job that runs, by the steps in its records."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._paces: dict[str, _Pace] = {}

    def changed(self, before: JobRecord | None, now: JobRecord | None) -> None:
        if now is None or now.state is not JobState.RUNNING:
            if before is not None:
                self._paces.pop(before.id, None)
            return
        pace, at = self._paces.get(now.id), self._now()
        if pace is None or pace.attempt != now.attempt:
            if now.last_step and (before is None or now.last_step == before.last_step):
                return  # as it was stored: nobody has told this scheduler yet where the job is
            pace = self._paces[now.id] = _Pace(now.attempt, at)
        if at - pace.begun_at < EVERY_S:
            pace.looks.clear()  # what was done unheard comes in one burst
        elif now.last_step <= pace.looks[-1][1] or at - pace.looks[-1][0] < EVERY_S:
            return
        pace.looks.append((at, now.last_step))

    def steps_per_s(self, record: JobRecord) -> float:
        """Steps a second of a job that runs, as fast as it went lately; 0.0: nobody knows."""
        pace = self._paces.get(record.id)
        if record.state is not JobState.RUNNING or pace is None or len(pace.looks) < 2:
            return 0.0
        (since, first), (until, last) = pace.looks[0], pace.looks[-1]
        return (last - first) / (until - since) if last > first and until > since else 0.0

    def eta_s(self, record: JobRecord) -> float:
        """Seconds until the last step of a job that runs, as fast as it went lately; 0.0: nobody
        knows.
        """
        left, rate = record.total_steps - record.last_step, self.steps_per_s(record)
        return min(left / rate, MAX_ETA_S) if left > 0 and rate > 0 else 0.0


# ---- waits of actors ----------------------------------------------------------------------------


MAX_SHARES = 8  # of a rank, the largest ones
MIN_SHARE = 0.005


@dataclass(frozen=True)
class RankWaits:
    """The last report of one rank on the waits of its actors.

    waiting: the actor that waits now, and for what. seconds: "<kind> <cause>" -> for how long in
    all. shares: the same, of the time since the report before in which the rank was idle because
    of it.
    """

    rank: int
    attempt: int
    at: float
    waiting: str
    seconds: Mapping[str, float] = field(repr=False)
    shares: Mapping[str, float]


class ActorWaits:
    """The last reports of all ranks on the waits of their actors, by job and rank.

    They come about once a second. Only the last moment is kept, and nothing of it is durable.
    """

    def __init__(self) -> None:
        self._told: dict[str, dict[int, RankWaits]] = {}

    def note(self, said: pb.Progress, at: float) -> None:
        """A report of a rank; one without actors says nothing of them."""
        if not said.actors and not said.waiting:
            return
        rank, attempt = said.id.rank, said.id.attempt
        ranks = self._told.setdefault(said.id.job_id, {})
        before = ranks.get(rank)
        seconds = {f"{a.kind} no_input": a.no_input_s for a in said.actors}
        seconds |= {f"{a.kind} no_free_register": a.no_free_register_s for a in said.actors}
        is_same = before is not None and before.attempt == attempt
        shares = _shares(before, seconds, at) if before is not None and is_same else {}
        ranks[rank] = RankWaits(rank, attempt, at, said.waiting, seconds, shares)

    def forget(self, job_id: str) -> None:
        """It does not run any more."""
        self._told.pop(job_id, None)

    def of(self, job_id: str) -> list[RankWaits]:
        """Return the reports of a job's ranks, in the order of the ranks."""
        return [waits for _, waits in sorted(self._told.get(job_id, {}).items())]


def _shares(before: RankWaits, seconds: Mapping[str, float], at: float) -> dict[str, float]:
    passed_s = at - before.at
    if passed_s <= 0:
        return dict(before.shares)
    found = {k: (s - before.seconds.get(k, 0.0)) / passed_s for k, s in seconds.items()}
    largest = sorted(found.items(), key=lambda item: -item[1])[:MAX_SHARES]
    return {k: min(share, 1.0) for k, share in largest if share >= MIN_SHARE}
