"""Accounts of the use of jobs: device-seconds by user, day, name, queue; also of forgotten jobs."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from oneflow.core.errors import ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.auth import Caller
from oneflow.scheduler.cluster.driver import Driver
from oneflow.scheduler.jobs.records import DEFAULT_QUEUE, Use

KINDS = ("user", "day", "name", "queue")
MAX_ROWS = 10_000
DAY_S = 86_400.0


class Usage:
    """Accounts for attempts that are over, from the store, and for those that run now."""

    def __init__(self, driver: Driver, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver, self._clock = driver, clock

    async def of(self, who: Caller, request: pb.UsageRequest) -> pb.UsageReply:
        """The rows that this caller may see: its own, or an admin's all. Raises ProtocolError."""
        by, since = tuple(request.by) or KINDS[:1], request.since
        if len(by) > len(KINDS) or len(set(by)) < len(by) or not set(by) <= set(KINDS):
            raise ProtocolError(f"usage is shown by {', '.join(KINDS)}, each once")
        if not (math.isfinite(since) and since >= 0):
            raise ProtocolError("since: must be seconds since the epoch")
        owner, store = None if who.is_admin else who.name, self._driver.store
        running = {_key(use): use for use in self._running() if owner in (None, use.owner)}
        over = await self._driver.in_store(lambda: store.uses(since, owner))
        uses = list({**running, **{_key(use): use for use in over}}.values())
        return await asyncio.to_thread(account, uses, by, since)

    def _running(self) -> Iterator[Use]:
        now = self._clock()
        for job_id, attempt in self._driver.table.attempts.live.items():
            record = self._driver.jobs.get(job_id)
            if record is None or not attempt.is_started or record.attempt != attempt.number:
                continue
            if not record.attempt_started_at:
                continue
            spec, ran_s = record.spec, attempt.ran_until(now) - record.ran_s
            yield Use(
                record.id, record.life, record.attempt, record.owner, spec.name, spec.device_type,
                len(attempt.ranks), record.attempt_started_at, max(ran_s, 0.0), record.queue,
            )  # fmt: skip


@dataclass
class _Sum:
    jobs: set[tuple[str, int]] = field(default_factory=set)
    attempts: set[tuple[str, int, int]] = field(default_factory=set)
    device_s: float = 0.0


def account(uses: Iterable[Use], by: Sequence[str], since: float) -> pb.UsageReply:
    """Add up the seconds used from `since` on, in the order of the keys. Raises ProtocolError."""
    sums: dict[tuple[str, ...], _Sum] = {}
    for use in uses:
        for day, seconds in _days(use, since, "day" in by):
            facts = {"user": use.owner, "day": day, "name": use.name}
            facts["queue"] = use.queue or DEFAULT_QUEUE
            found = sums.setdefault((*(facts[kind] for kind in by), use.device_type), _Sum())
            found.jobs.add((use.job_id, use.life))
            found.attempts.add(_key(use))
            found.device_s += use.devices * seconds
        if len(sums) > MAX_ROWS:
            raise ProtocolError(f"usage has more than {MAX_ROWS} rows: ask for a shorter time")
    reply = pb.UsageReply()
    for (*keys, device_type), found in sorted(sums.items()):
        jobs, attempts = len(found.jobs), len(found.attempts)
        reply.rows.add(
            keys=keys,
            device_type=device_type,
            jobs=jobs,
            attempts=attempts,
            device_s=found.device_s,
        )
    return reply


def _days(use: Use, since: float, is_by_day: bool) -> Iterator[tuple[str, float]]:
    """Yield (day of UTC, seconds of it) of one attempt, without the time before `since`."""
    start, end = max(use.started_at, since), use.started_at + use.ran_s
    if not is_by_day:
        yield "", max(end - start, 0.0)
        return
    while True:
        next_day = (start // DAY_S + 1) * DAY_S
        yield time.strftime("%Y-%m-%d", time.gmtime(start)), max(min(end, next_day) - start, 0.0)
        if next_day >= end:
            return
        start = next_day


def _key(use: Use) -> tuple[str, int, int]:
    return use.job_id, use.life, use.attempt
