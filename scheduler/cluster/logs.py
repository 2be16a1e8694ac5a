"""Logs of ranks, relayed from the disks of the daemons to clients that follow them.

A client that comes back says how far it got; nothing is skipped but lines that the daemon itself
dropped, which shows as a jump of the offset. Following goes on over restarts of the job and ends
when the job is final and all of it was delivered.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from oneflow.core.errors import ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.driver import Driver
from oneflow.scheduler.cluster.lines import Lines
from oneflow.scheduler.cluster.refusals import DeadlineError, RefusedError, UnavailableError
from oneflow.scheduler.jobs.limits import MAX_DEVICES
from oneflow.scheduler.jobs.messages import attempt_id
from oneflow.scheduler.jobs.records import Assignment, JobRecord, JobState

PIECE_NBYTES = 512 << 10  # a round trip to the daemon for each
WAIT_S = 5.0  # a daemon waits so long for new bytes
ANSWER_S = 15.0  # and has so long beyond that to answer
PAUSE_S = 0.25
GONE_S = 15.0  # a node that is away, or says nothing, for so long after the end is not waited for
MAX_AHEAD = 8  # pieces that wait for a slow client
MAX_SINCE = 1e12
STREAMS = ("stdout", "stderr")
_NUMBER = re.compile(r"[0-9]{1,10}")
_LIVE = (JobState.STARTING, JobState.RUNNING, JobState.CANCELLING)


@dataclass(frozen=True)
class Wanted:
    """A client's choice of a job's logs. offsets: (attempt, rank, stream) -> byte to begin with.

    attempt: 0 is the last.  since: of streams without an offset, only lines from then on
    (seconds since the epoch); 0: all.
    """

    ranks: tuple[int, ...]
    attempt: int
    streams: tuple[str, ...]
    follow: bool
    offsets: Mapping[tuple[int, int, str], int]
    since: float = 0.0

    @classmethod
    def parse(cls, request: pb.LogsRequest) -> Wanted:
        """Raises ProtocolError."""
        if request.stream not in ("", *STREAMS):
            raise ProtocolError(f"stream {request.stream[:40]!r}: must be stdout or stderr")
        if len(request.ranks) > MAX_DEVICES or len(request.offsets) > 4 * MAX_DEVICES:
            raise ProtocolError("too many ranks or offsets")
        offsets = {_key(name): offset for name, offset in request.offsets.items()}
        streams = (request.stream,) if request.stream else STREAMS
        ranks = tuple(sorted(set(request.ranks)))
        if not 0 <= request.since < MAX_SINCE:
            raise ProtocolError(f"since={request.since:g}: must be seconds since the epoch")
        return cls(ranks, request.attempt, streams, request.follow, offsets, request.since)

    def check(self, record: JobRecord) -> None:
        """Raises RefusedError for an attempt or a rank that the job does not have."""
        if self.attempt > record.attempt and record.state.is_final:
            had = f"had {record.attempt} attempt{'' if record.attempt == 1 else 's'}"
            raise RefusedError(f"job {record.id} has no attempt {self.attempt}: it {had}")
        unknown = [rank for rank in self.ranks if rank >= record.spec.most]
        if unknown:
            last = record.spec.most - 1
            raise RefusedError(f"job {record.id} has no rank {unknown[0]}: its last one is {last}")

    def first_attempt(self, record: JobRecord) -> int:
        """Return the attempt to begin with; 0: with the first, once there is one."""
        if self.attempt:
            return self.attempt
        if self.offsets and self.follow:
            return min(attempt for attempt, _, _ in self.offsets)
        return record.attempt


def _key(name: str) -> tuple[int, int, str]:
    attempt, _, rest = name.partition("/")
    rank, _, stream = rest.partition("/")
    are_numbers = _NUMBER.fullmatch(attempt) and _NUMBER.fullmatch(rank)
    if not are_numbers or stream not in STREAMS:
        raise ProtocolError(f"offset of {name[:80]!r}: must be of ATTEMPT/RANK/stdout or stderr")
    return int(attempt), int(rank), stream


class LogRelay:
    """Reads logs where they are."""

    def __init__(self, driver: Driver, lines: Lines) -> None:
        self._driver, self._lines = driver, lines

    async def read(self, job_id: str, wanted: Wanted) -> AsyncIterator[pb.LogPiece]:
        """Raises UnavailableError at the end if some could not be had."""
        record = self._driver.job(job_id)
        wanted.check(record)
        attempt = wanted.first_attempt(record)
        missing: list[str] = []
        while True:
            attempt = attempt or await self._first(job_id, wanted)
            if not attempt or not self._is_the_same(record):
                break
            async for piece in self._attempt(record, attempt, wanted, missing):
                yield piece
            following = await self._next(job_id, attempt, wanted)
            if not following:
                break
            attempt = following
        if missing:
            raise UnavailableError("; ".join(missing[:8]))

    async def _first(self, job_id: str, wanted: Wanted) -> int:
        """The first attempt, waited for if the client follows; 0: there is none."""
        async for record in self._driver.watch(job_id):
            if record.attempt or record.state.is_final or not wanted.follow:
                return record.attempt
        return 0

    async def _next(self, job_id: str, attempt: int, wanted: Wanted) -> int:
        """The attempt after this one, if the client wants it too; 0: none will come."""
        if wanted.attempt or not wanted.follow:
            return 0
        async for record in self._driver.watch(job_id):
            if record.attempt > attempt:
                return attempt + 1
            if record.state.is_final:
                return 0
        return 0

    # -- one attempt -------------------------------------------------------------------------------

    async def _attempt(
        self, job: JobRecord, attempt: int, wanted: Wanted, missing: list[str]
    ) -> AsyncIterator[pb.LogPiece]:
        record = self._driver.job(job.id)
        places = await self._driver.places(record, attempt)
        chosen = [p for p in places if not wanted.ranks or p.rank in wanted.ranks]
        pieces: asyncio.Queue[pb.LogPiece | None] = asyncio.Queue(MAX_AHEAD)
        readers = [
            asyncio.ensure_future(
                _then_none(self._stream(record, attempt, place, stream, wanted, pieces), pieces)
            )
            for place in chosen
            for stream in wanted.streams
        ]
        ended = 0
        try:
            while ended < len(readers):
                piece = await pieces.get()
                if piece is None:
                    ended += 1
                else:
                    yield piece
            for reader in readers:
                why = reader.result()
                if why and why not in missing:
                    missing.append(why)
        finally:
            for reader in readers:
                reader.cancel()

    async def _stream(
        self,
        job: JobRecord,
        attempt: int,
        place: Assignment,
        stream: str,
        wanted: Wanted,
        pieces: asyncio.Queue[pb.LogPiece | None],
    ) -> str:
        """One stream of one rank, to its end. Returns why it is not whole, or ""."""
        offset = wanted.offsets.get((attempt, place.rank, stream), 0)
        heard_at = news_at = time.monotonic()
        while True:
            is_live = self._is_live(job, attempt)  # before the look: nothing comes after it
            wait_s = WAIT_S if is_live and wanted.follow else 0.0
            try:
                data = await self.ask(
                    job, attempt, place, stream, offset, wait_s=wait_s, since=wanted.since
                )
            except (UnavailableError, DeadlineError) as error:
                is_late = time.monotonic() - heard_at > GONE_S
                if not wanted.follow or (not is_live and is_late):
                    return f"log of rank {place.rank} on node {place.node}: {error}"
                await asyncio.sleep(PAUSE_S)
                continue
            heard_at = time.monotonic()
            offset = max(offset, data.piece.offset + len(data.piece.data))
            if is_live or data.piece.data:
                news_at = heard_at
            is_over = not is_live and (data.is_closed or heard_at - news_at > GONE_S)
            if data.piece.data:
                await pieces.put(data.piece)
            elif not wanted.follow or is_over:
                return ""
            elif data.is_closed or not is_live:  # not begun here yet, or over before the others
                await asyncio.sleep(PAUSE_S)

    async def ask(
        self,
        job: JobRecord,
        attempt: int,
        place: Assignment,
        stream: str,
        offset: int,
        limit: int = PIECE_NBYTES,
        patience_s: float = ANSWER_S,
        wait_s: float = 0.0,
        since: float = 0.0,
    ) -> pb.LogData:
        """Ask for one part of a stream. Raises UnavailableError or DeadlineError."""
        line = self._lines.on_node(place.node, place.daemon)
        if line is None:
            raise UnavailableError(f"no daemon of node {place.node} is connected")
        request = pb.ReadLog(
            id=attempt_id(job, place.rank, attempt),
            stream=stream,
            offset=offset,
            limit=limit,
            wait_s=wait_s,
            since=since,
        )
        return await line.ask(request, pb.LogData, wait_s + patience_s)

    def _is_live(self, job: JobRecord, attempt: int) -> bool:
        """Whether more may come of that attempt."""
        record = self._driver.jobs.get(job.id)
        if record is None or not self._is_the_same(job):
            return False
        return record.attempt == attempt and record.state in _LIVE

    def _is_the_same(self, job: JobRecord) -> bool:
        """Whether the job of that id is still this one, not a later one."""
        record = self._driver.jobs.get(job.id)
        return record is not None and record.is_same_as(job)


async def _then_none(work: Coroutine[Any, Any, str], pieces: asyncio.Queue[Any]) -> str:
    """`work`, and None into the queue at its end; not if it is cancelled: nobody reads then."""
    try:
        result = await work
    except Exception:
        await pieces.put(None)
        raise
    await pieces.put(None)
    return result
