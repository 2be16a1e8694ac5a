"""The ends of a job's logs for the page: bounded in bytes, and without waiting for more.

The page asks again and again, each time from where it was. It gets the last lines of a stream at
first, and of a stream that is written faster than it reads a part at a time.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oneflow.core.errors import ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.logs import LogRelay, Wanted
from oneflow.scheduler.cluster.refusals import DeadlineError, UnavailableError
from oneflow.scheduler.jobs.causes import log_path
from oneflow.scheduler.jobs.records import Assignment, JobRecord

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.state import State

MAX_NBYTES = 256 << 10  # of one answer, all streams together
MAX_STREAMS = 64  # of one answer
MAX_RANKS = 4096  # that one request names
ASK_S = 5.0  # a daemon has so long to answer
END = 1 << 62  # beyond every stream
WORDS_NBYTES = 32 << 10  # in which the traceback of a failure is looked for
MAX_WORDS = 24  # lines of a failure
TRACEBACK = "Traceback (most recent call last):"


class LogTails:
    """Reads the ends of logs where they are."""

    def __init__(self, state: State) -> None:
        self._driver = state.driver
        self._relay = LogRelay(state.driver, state.lines)

    async def read(self, job_id: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a part of each stream that is asked for, and where it goes on.

        query: as `wanted` reads it. Raises ProtocolError or RefusedError.
        """
        record, asked = self._driver.job(job_id), wanted(query)
        asked.check(record)
        attempt = asked.attempt or record.attempt
        places = await self._driver.places(record, attempt) if attempt else ()
        chosen = [place for place in places if not asked.ranks or place.rank in asked.ranks]
        shown = chosen[: MAX_STREAMS // len(asked.streams)]
        keys = [(place, stream) for place in shown for stream in asked.streams]
        limit = MAX_NBYTES // max(len(keys), 1)
        parts = await asyncio.gather(
            *(
                self._part(record, attempt, place, stream, asked.offsets.get(key), limit)
                for place, stream in keys
                for key in [(attempt, place.rank, stream)]
            )
        )
        return {"attempt": attempt, "streams": parts, "ranks_left_out": len(chosen) - len(shown)}

    async def _part(
        self,
        record: JobRecord,
        attempt: int,
        place: Assignment,
        stream: str,
        offset: int | None,
        limit: int,
    ) -> dict[str, Any]:
        """A part of one stream; with an error in place of the text if its daemon has none."""
        part: dict[str, Any] = {"rank": place.rank, "stream": stream, "text": "", "next": offset}
        try:
            begin = offset
            if begin is None:
                end = await self._ask(record, attempt, place, stream, END, 1)
                begin = max(0, end.size - limit)
            found = await self._ask(record, attempt, place, stream, begin, limit)
        except (UnavailableError, DeadlineError) as error:
            return part | {"error": str(error)}
        text, following = decoded(found.piece, is_cut=offset is None and begin > 0)
        dropped = found.piece.offset - begin if offset is not None else 0
        return part | {
            "text": text,
            "next": following,
            "size": found.size,
            "dropped": max(0, dropped),
            "is_closed": found.is_closed,
        }

    async def _ask(
        self,
        record: JobRecord,
        attempt: int,
        place: Assignment,
        stream: str,
        offset: int,
        limit: int,
    ) -> pb.LogData:
        return await self._relay.ask(record, attempt, place, stream, offset, limit, ASK_S)

    async def failure(self, job_id: str) -> dict[str, Any]:
        """Return the last words of the rank that failed first, and where its log is."""
        record = self._driver.job(job_id)
        rank = record.first_failed_rank
        place = next((a for a in record.assignments if a.rank == rank), None)
        if place is None:
            return {"rank": -1, "lines": [], "log": ""}
        part = await self._part(record, record.attempt, place, "stderr", None, WORDS_NBYTES)
        found = {"rank": rank, "lines": last_words(part["text"]), "log": log_path(record)}
        return found | {"error": part.get("error", "")}


def wanted(query: Mapping[str, str]) -> Wanted:
    """Read the query of the page: `attempt`, 0 the last one; `ranks`, numbers with commas, none
    for all; `stream`, none for both; `from`, ATTEMPT/RANK/STREAM:OFFSET with commas.

    Raises ProtocolError.
    """
    ranks = [_whole(text) for text in query.get("ranks", "").split(",") if text]
    if len(ranks) > MAX_RANKS:
        raise ProtocolError("too many ranks")
    request = pb.LogsRequest(
        ranks=ranks, attempt=_whole(query.get("attempt") or "0"), stream=query.get("stream", "")
    )
    for part in query.get("from", "").split(","):
        name, colon, offset = part.partition(":")
        if colon:
            request.offsets[name] = _whole(offset, END)
    return Wanted.parse(request)


def _whole(text: str, most: int = (1 << 32) - 1) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > most:
        raise ProtocolError(f"{text[:40]!r} is no number of a rank, an attempt or a byte")
    return int(text)


def decoded(piece: pb.LogPiece, is_cut: bool) -> tuple[str, int]:
    """Return the text of a piece, and the offset of the next one, for which the bytes of an
    incomplete character are left. is_cut: it may begin within a line, which is left out.
    """
    data = piece.data
    if is_cut and (end := data.find(b"\n")) >= 0:
        data = data[end + 1 :]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, piece.offset + len(piece.data) - len(decoder.getstate()[0])


def last_words(text: str) -> Sequence[str]:
    """Return the end of the last traceback and the lines behind it, or the last lines if there is
    none: most often they tell why a program failed.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    starts = [i for i, line in enumerate(lines) if TRACEBACK in line]
    told = lines[starts[-1] :] if starts else lines[-MAX_WORDS // 3 :]
    return told if len(told) <= MAX_WORDS else ["...", *told[1 - MAX_WORDS :]]
