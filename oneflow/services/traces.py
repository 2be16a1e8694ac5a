"""Files of traces, in the Chrome trace format: gzip, JSON, one event a line.

    {"displayTimeUnit": "ns", "otherData": {...}, "traceEvents": [
    {"ph": "X", ...},
    ...
    ], "summary": {...}}

Every line between the first and the last is one event, so that a file is read and joined with
others line by line, however large it is. Times are microseconds since `otherData.monotonic_ns`, a
moment of the host's monotonic clock. A file has at most a number of bytes (before compression):
viewers open no larger ones. A last event tells how much did not fit.
"""

from __future__ import annotations

import fcntl
import gzip
import heapq
import io
import itertools
import json
import os
import socket
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneflow.core.errors import OneFlowError
from oneflow.core.whole_files import target_of

MAX_NBYTES = 200_000_000
MAX_LINE = 1 << 16
MAX_US = 1e16  # of an event: three hundred years
SPARE_NBYTES = 4096  # for the last event and the end of the file
RANK_NBYTES = 200  # of a merged file, for what is said of a rank at its end
MAX_CHARS = 256  # of a word of a header that a merged file repeats
LEVEL = 1  # of compression: the step shall not wait for a core
FORMAT = "oneflow-trace-1"
JOINED = "oneflow-trace-merged-1"
TRUNCATED = "truncated"
WORDS = ("format", "trace", "host", "boot_id", "job")
NUMBERS = (
    *("rank", "pid", "monotonic_ns", "wall_ns", "offset_ns", "offset_error_ns"),
    *("attempt", "world_size"),
)
END = ("steps", "acts", "dropped", "truncated")
"""Bytes that a merged file repeats of the headers and the ends of its files."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = "/proc/self/ns/time"


class TraceFileError(OneFlowError, ValueError):
    """A file that is not a whole trace of ours."""

    exit_code = 65


def clock_origin() -> dict[str, Any]:
    """Read the clocks of this host, with which files of other hosts are compared.

    monotonic_ns: processes with the same boot_id share this clock.
    """
    before = time.perf_counter_ns()
    wall = time.time_ns()
    after = time.perf_counter_ns()
    return {
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "monotonic_ns": (before + after) // 2,
        "wall_ns": wall,
    }


def boot_id() -> str:
    """Equal for processes that share a monotonic clock; where none is known, of one process.

    Containers may have clocks of their own (time namespaces).
    """
    try:
        return f"{_BOOT_ID.read_text().strip()} {os.readlink(_TIME_NAMESPACE)}"
    except OSError:
        return f"{socket.gethostname()}-{os.getpid()}"


# ---- writing -------------------------------------------------------------------------------------


class TraceWriter:
    """Writes a trace file beside its name, and gives it the name when it is whole; with gzip if the
    name ends so.

    header: of otherData.  max_nbytes: of JSON.  Raises OSError as the file system does.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], max_nbytes: int = MAX_NBYTES) -> None:
        self.path = path
        self.nbytes = 0
        self.is_full = False
        self._is_first = True
        self._limit = max_nbytes - SPARE_NBYTES
        path.parent.mkdir(parents=True, exist_ok=True)
        self._target = target_of(path)
        handle, self._beside = _locked_beside(self._target)
        self._raw = os.fdopen(handle, "wb")
        self._zip: gzip.GzipFile | None = None
        if path.suffix == ".gz":
            self._zip = gzip.GzipFile("", "wb", LEVEL, self._raw, mtime=0)
        head = {"displayTimeUnit": "ns", "otherData": dict(header)}
        self._put([json.dumps(head)[:-1] + ', "traceEvents": ['])

    @property
    def has_room(self) -> bool:
        """Tell whether there is room for more events."""
        return self.nbytes <= self._limit

    def add(self, events: Sequence[str]) -> int:
        """Writes as many of these events as fit, in order; returns how many. Each is JSON."""
        if self.is_full:
            return 0
        nbytes, fit = self.nbytes, 0
        for event in events:
            nbytes += len(event) + 2
            if nbytes > self._limit:
                self.is_full = True
                break
            fit += 1
        lines = list(events[:fit])
        if lines and self._is_first:
            self._is_first = False
            lines[0] = "\n" + lines[0]
        elif lines:
            lines[0] = ",\n" + lines[0]
        self._put([",\n".join(lines)])
        return fit

    def _put(self, texts: Sequence[str]) -> None:
        for text in texts:
            data = text.encode()
            self.nbytes += len(data)
            (self._zip or self._raw).write(data)

    def commit(self, summary: Mapping[str, Any], last: str = "") -> None:
        """The file is whole. last: an event for which there is room kept."""
        try:
            if last:
                self._put([("\n" if self._is_first else ",\n") + last])
            self._put(["\n], " + json.dumps({"summary": dict(summary)})[1:] + "\n"])
            if self._zip is not None:
                self._zip.close()
            self._raw.flush()
            os.fsync(self._raw.fileno())
            os.replace(self._beside, self._target)
            self._raw.close()  # and unlocked
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Leaves nothing."""
        with suppress(OSError):  # it may try to write the rest to a full disk
            self._raw.close()
        Path(self._beside).unlink(missing_ok=True)


def _locked_beside(path: Path) -> tuple[int, str]:
    """A file that nobody takes for a left-over as long as it is open."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody clears away at this moment
            pass
        except OSError:  # a file system without locks, where nobody clears away
            return handle, name
        if os.path.exists(name):
            return handle, name
        os.close(handle)


def remove_left_overs(path: Path) -> None:
    """Remove files of processes that were killed while they wrote a file of this name; not of those
    that write one now, for another job in the same folder.
    """
    path = Path(os.path.realpath(path))
    for beside in path.parent.glob(f".{path.name}.*"):
        with suppress(OSError):
            handle = os.open(beside, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                beside.unlink()
            finally:
                os.close(handle)


def truncated_event(pid: int, at_us: float, **args: object) -> str:
    """The last event of a file that does not hold everything."""
    event = {"ph": "i", "s": "g", "name": TRUNCATED, "pid": pid, "tid": 0, "ts": round(at_us, 3)}
    return json.dumps(event | {"args": args})


# ---- reading -------------------------------------------------------------------------------------


class TraceReader:
    """Reads a file of TraceWriter line by line. header: its otherData.  summary: known at the end.

    Raises TraceFileError for anything else, OSError if it cannot be opened.
    """

    def __init__(self, path: Path, max_nbytes: int = MAX_NBYTES) -> None:
        self.path = path
        self.summary: dict[str, Any] = {}
        self._left = max_nbytes + SPARE_NBYTES
        self._raw = open(path, "rb")  # noqa: SIM115  (closed by close)
        self._file: Any = io.BufferedReader(gzip.GzipFile(fileobj=self._raw))
        try:
            self.header = self._head()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._raw.close()

    def _head(self) -> dict[str, Any]:
        line = self._line()
        found = self._parse(line + b"]}" if line.endswith(b"[") else b"[]", "its first line")
        header = found.get("otherData") if isinstance(found, dict) else None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise self._error("it is no trace of a rank")
        for name, is_right in _HEADER.items():
            if not is_right(header.get(name)):
                raise self._error(f"{name} in its first line is missing or of another kind")
        return dict(header)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events as they are in the file; check that it is whole."""
        number = 1
        while True:
            number += 1
            line = self._line()
            if line.startswith(b"]"):
                break
            event = self._parse(line.rstrip(b","), f"line {number}")
            if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
                raise self._error(f"line {number} is no event")
            if event["ph"] != "M" and not _is_time(event.get("ts")):
                raise self._error(f"line {number} has no time")
            yield event
        found = self._parse(b'{"events": [' + line, "its last line")
        if not isinstance(found, dict) or not isinstance(found.get("summary"), dict):
            raise self._error("its last line has no summary")
        self.summary = found["summary"]
        if self._read():
            raise self._error("something follows its end")

    def _line(self) -> bytes:
        data = self._read()
        if not data.endswith(b"\n"):
            raise self._error("it ends in the middle, or has a line that is too long")
        return data.rstrip(b"\n")

    def _read(self) -> bytes:
        try:
            data: bytes = self._file.readline(MAX_LINE)
        except (OSError, EOFError, zlib.error) as error:
            raise self._error(f"it is no whole gzip file: {error}") from None
        self._left -= len(data)
        if self._left < 0:
            raise self._error("it is larger than a trace may be")
        return data

    def _parse(self, text: bytes, where: str) -> Any:
        import msgspec  # unlike json it refuses NaN, and numbers too large for a float

        try:
            return msgspec.json.decode(text)
        except (ValueError, RecursionError):
            raise self._error(f"{where} is no JSON") from None

    def _error(self, why: str) -> TraceFileError:
        return TraceFileError(f"{self.path}: {why}; write it again with `oneflow trace`")


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < 1 << 63


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < MAX_US


def _is_number_or_none(value: object) -> bool:
    return value is None or _is_whole(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_HEADER = {
    **dict.fromkeys(("rank", "monotonic_ns", "wall_ns"), _is_whole),
    **dict.fromkeys(("host", "boot_id", "trace"), _is_text),
    **dict.fromkeys(("offset_ns", "offset_error_ns"), _is_number_or_none),
}


# ---- merging -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Merged:
    """The result of `merge`. clocks: by rank, how its clock was brought to that of the first."""

    path: Path
    ranks: tuple[int, ...]
    events: int
    nbytes: int
    is_truncated: bool
    clocks: Mapping[int, str]


def merge(paths: Sequence[Path], out: Path, max_nbytes: int = MAX_NBYTES) -> Merged:
    """One file of several ranks' files, in order of time; holds one event of each at a time.

    Times become those of the first rank's clock: ranks of one host share theirs; between hosts it
    is the difference that was measured when the trace began, else that of the wall clocks.
    Raises TraceFileError, also for two files of a rank or of different traces, if `out` is one of
    the files, and if the facts of each rank take more than max_nbytes.
    """
    readers: list[TraceReader] = []
    try:
        for path in paths:
            readers.append(TraceReader(path))
        readers.sort(key=lambda r: int(r.header["rank"]))
        _check_together(readers)
        if any(out.exists() and out.samefile(path) for path in paths):
            raise TraceFileError(f"{out} is one of the files to merge; name another one to write")
        return _merge(readers, out, max_nbytes)
    finally:
        for reader in readers:
            reader.close()


def of_earlier_traces(paths: Sequence[Path]) -> list[Path]:
    """List, of files of several ranks, those that are of another trace than the newest one."""
    headers = {}
    for path in paths:
        reader = TraceReader(path)
        headers[path] = reader.header
        reader.close()
    newest = max((h["wall_ns"], h["trace"]) for h in headers.values())[1]
    return [path for path, header in headers.items() if header["trace"] != newest]


def _check_together(readers: Sequence[TraceReader]) -> None:
    if not readers:
        raise TraceFileError("there is no file to merge")
    for one, other in itertools.pairwise(readers):
        if one.header["rank"] == other.header["rank"]:
            raise TraceFileError(
                f"{one.path} and {other.path} are both of rank {one.header['rank']}"
            )
        if one.header["trace"] != other.header["trace"]:
            raise TraceFileError(f"{one.path} and {other.path} are of different traces")


def _merge(readers: Sequence[TraceReader], out: Path, max_nbytes: int) -> Merged:
    shifts, clocks = shifts_us([r.header for r in readers])
    ranks = tuple(int(r.header["rank"]) for r in readers)
    files = [_head_of(r.header) for r in readers]
    header = {"format": JOINED, "trace": files[0]["trace"], "clocks": clocks, "files": files}
    writer = TraceWriter(out, header, max_nbytes - RANK_NBYTES * len(ranks))
    count, at = 0, 0.0
    try:
        if not writer.has_room:
            raise TraceFileError(f"{max_nbytes} bytes have no room for {len(ranks)} ranks")
        shifted = [_shifted(r, shift) for r, shift in zip(readers, shifts, strict=True)]
        for at_us, _, event in heapq.merge(*shifted, key=lambda e: e[:2]):
            if writer.is_full:  # the rest is still read: a broken file is refused
                continue
            count, at = count + writer.add([_text(event)]), at_us
        last = ""
        if writer.is_full:
            last = truncated_event(ranks[0], max(at, 0.0), why=f"more than {max_nbytes} bytes")
        ends = [_numbers_of(r.summary, END) for r in readers]
        writer.commit({"events": count, "ranks": ends}, last)
    except BaseException:
        writer.abort()
        raise
    by_rank = dict(zip(ranks, clocks, strict=True))
    return Merged(out, ranks, count, writer.nbytes, writer.is_full, by_rank)


def _head_of(said: Mapping[str, Any]) -> dict[str, Any]:
    words = {name: said[name][:MAX_CHARS] for name in WORDS if isinstance(said.get(name), str)}
    return words | _numbers_of(said, NUMBERS)


def _numbers_of(said: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {n: said[n] for n in names if n in said and _is_brief(said[n])}


def _is_brief(value: object) -> bool:
    return isinstance(value, bool) or _is_number_or_none(value)


def _text(event: Mapping[str, Any]) -> str:
    try:
        return json.dumps(event)
    except RecursionError:  # what was just deep enough to be read
        raise TraceFileError("an event is nested too deep") from None


def _shifted(reader: TraceReader, shift_us: float) -> Iterator[tuple[float, int, dict[str, Any]]]:
    """Names first."""
    rank = int(reader.header["rank"])
    for event in reader.events():
        if event["ph"] == "M":
            yield -1.0, rank, event
        else:
            event["ts"] = round(event["ts"] + shift_us, 3)
            yield event["ts"], rank, event


def shifts_us(headers: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[str]]:
    """Return the number to add to each file's times so that all are since the earliest of their
    beginnings.
    """
    first = headers[0]
    begins, clocks = [], []
    for header in headers:
        offset, how = _clock_offset_ns(first, header)
        begins.append(header["monotonic_ns"] - offset)
        clocks.append(how)
    earliest = min(begins)
    return [(begin - earliest) / 1000 for begin in begins], clocks


def _clock_offset_ns(first: Mapping[str, Any], header: Mapping[str, Any]) -> tuple[int, str]:
    """So much the clock of a file is ahead of that of the first, and how that is known."""
    if header["boot_id"] == first["boot_id"]:
        return 0, "the same clock"
    ahead, base = header.get("offset_ns"), first.get("offset_ns")
    if ahead is not None and base is not None:
        error = (header.get("offset_error_ns") or 0) + (first.get("offset_error_ns") or 0)
        return ahead - base, f"measured, to {error / 1000:.1f} us"
    monotonic = header["monotonic_ns"] - first["monotonic_ns"]
    return monotonic - (header["wall_ns"] - first["wall_ns"]), "by the wall clocks"
