"""Logs of a job's ranks, read by byte offsets: a broken line or a new scheduler leaves no gap."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from oneflow.cluster.connection import Connection
from oneflow.core.errors import ClusterUnreachableError
from oneflow.protos import cluster_pb2 as pb

MAX_LINE_NBYTES = 64 << 10  # a longer line comes in pieces, so that memory stays bounded


@dataclass(frozen=True)
class LogLine:
    """A line of a rank, without its end; a part of one that is longer than 64 KiB. data: the bytes
    as they were written.
    """

    attempt: int
    rank: int
    stream: str
    host: str
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class LogBlock:
    """Lines of a rank that came together. data: the bytes as they were written, without the end of
    the last line.
    """

    attempt: int
    rank: int
    stream: str
    host: str
    data: bytes

    def lines(self) -> Iterator[LogLine]:
        for line in self.data.split(b"\n"):
            for at in range(0, max(len(line), 1), MAX_LINE_NBYTES):
                part = line[at : at + MAX_LINE_NBYTES]
                yield LogLine(self.attempt, self.rank, self.stream, self.host, part)


@dataclass
class _Stream:
    """The state of one stream of one rank. offset: of the next byte."""

    offset: int = 0
    held: bytearray = field(default_factory=bytearray)
    host: str = ""


def last_lines(blocks: Iterable[LogBlock], count: int) -> Iterator[LogBlock]:
    """Yield the last lines of each stream of each rank, `count` at most, in the order they came."""
    kept: dict[tuple[int, int, str], deque[tuple[int, LogBlock]]] = defaultdict(
        lambda: deque(maxlen=count)
    )
    number = 0
    for block in blocks:
        key = (block.attempt, block.rank, block.stream)
        lines = block.data.split(b"\n")
        for line in lines[-count:] if count else []:
            number += 1
            kept[key].append((number, LogBlock(*key, block.host, line)))
    numbered = (each for found in kept.values() for each in found)
    for _, block in sorted(numbered, key=lambda each: each[0]):
        yield block


class LogReader:
    """Reads the logs of one job. since: seconds since the epoch; 0: from the beginning."""

    def __init__(
        self,
        connection: Connection,
        job_id: str,
        ranks: tuple[int, ...],
        attempt: int,
        stream: str,
        since: float = 0.0,
    ) -> None:
        self._connection = connection
        self._job_id = job_id
        self._ranks = ranks
        self._attempt = attempt
        self._stream = stream
        self._since = since
        self._streams: dict[tuple[int, int, str], _Stream] = {}

    def blocks(self, follow: bool, is_over: Callable[[], bool]) -> Iterator[LogBlock]:
        """Yield the lines as they come, a block for each piece that ends a line.

        is_over: whether the job has ended; asked when a stream has.
        """
        retries = self._connection.retries()
        while True:
            try:
                request = self._request(follow)
                for piece in self._connection.stream("Jobs", "Logs", request, retries=retries):
                    yield from self._take(piece)
            except ClusterUnreachableError as error:
                retries.pause(error)
                continue
            if not follow or self._attempt:  # of one attempt no more will come
                break
            follow = not is_over()  # if it is, then once more: for what came last
        yield from self._rest()

    def _request(self, follow: bool) -> pb.LogsRequest:
        offsets = {f"{a}/{r}/{s}": found.offset for (a, r, s), found in self._streams.items()}
        return pb.LogsRequest(
            job_id=self._job_id,
            ranks=self._ranks,
            attempt=self._attempt,
            stream=self._stream,
            follow=follow,
            offsets=offsets,
            since=self._since,
        )

    def _take(self, piece: pb.LogPiece) -> Iterator[LogBlock]:
        key = (piece.attempt, piece.rank, piece.stream)
        found = self._streams.get(key)
        if found is None:  # by time it begins where it was then; else what is missing was dropped
            start = piece.offset if self._since else 0
            found = self._streams[key] = _Stream(start)
        found.host = piece.host or found.host
        data = piece.data
        if piece.offset > found.offset:
            yield from self._flush(key, found)
            lost = f"[oneflow: {piece.offset - found.offset} bytes were dropped here]".encode()
            yield LogBlock(*key, found.host, lost)
        elif piece.offset < found.offset:
            data = data[found.offset - piece.offset :]  # sent twice
        found.offset = max(piece.offset + len(piece.data), found.offset)
        end = data.rfind(b"\n")
        if end >= 0:
            whole, found.held = found.held + data[:end], bytearray(data[end + 1 :])
            yield LogBlock(*key, found.host, bytes(whole))
        else:
            found.held += data
        if len(found.held) >= MAX_LINE_NBYTES:
            yield from self._flush(key, found)

    def _flush(self, key: tuple[int, int, str], found: _Stream) -> Iterator[LogBlock]:
        if found.held:
            held, found.held = bytes(found.held), bytearray()
            yield LogBlock(*key, found.host, held)

    def _rest(self) -> Iterator[LogBlock]:
        """Last lines without an end."""
        for key, found in self._streams.items():
            yield from self._flush(key, found)
