"""The file by which the rank of a script tells its daemon its counts and its reports: the rank
replaces it now and then with all its numbers since it began, and its last points of the job's
curve. (A worker of a graph job has a line of its own for that.)

The daemon looks at the file about once a second, so a flood of writes costs it nothing; any other
file is refused. Only the process that the daemon has started is believed; those that it starts once
it writes are not told the path, so they do not overwrite its numbers.
"""

from __future__ import annotations

import atexit
import os
import stat
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from oneflow.core.errors import ProtocolError
from oneflow.core.log import get_logger
from oneflow.core.metrics import Metrics
from oneflow.core.metrics_samples import MAX_TOLD, Exporter, Sample
from oneflow.services.curve import REPORTS, Report, Reports

VARIABLE = "ONEFLOW_COUNTS_FILE"
EVERY_S = 1.0
MAX_SHARE = 0.005  # of the time of a rank
MAX_NBYTES = 256 << 10

log = get_logger(__name__)


class CountsWriter:
    """The writer of a rank: a thread that writes while there is news, and once more when the
    process ends.
    """

    def __init__(self, path: Path, metrics: Metrics, reports: Reports = REPORTS) -> None:
        self._path, self._metrics, self._reports = path, metrics, reports
        self._pid = os.getpid()
        self._last = b""
        self._is_failing = False
        self._writing = threading.Lock()

    def start(self) -> None:
        os.environ.pop(VARIABLE, None)  # of this process alone
        threading.Thread(target=self._run, name="oneflow-counts", daemon=True).start()
        atexit.register(self.write)

    def _run(self) -> None:
        while True:
            started = time.monotonic()
            self.write()
            took_s = time.monotonic() - started
            time.sleep(max(EVERY_S, took_s / MAX_SHARE))

    def write(self) -> None:
        """Whole or not at all. A disk that is full disturbs nobody; it is logged once."""
        if os.getpid() != self._pid:  # a fork's end is none of ours
            return
        with self._writing:
            data = _encoded(Exporter(self._metrics).news(), self._reports.last(), self._pid)
            if data == self._last or len(data) > MAX_NBYTES:
                return
            try:
                whole = self._path.with_name(f"{self._path.name}.{self._pid}.tmp")
                whole.write_bytes(data)
                whole.replace(self._path)
            except OSError as error:
                if not self._is_failing:
                    log.info("cannot tell what is counted: %s", error)
                self._is_failing = True
                return
            self._last, self._is_failing = data, False


class CountsReader:
    """The reader of a daemon. pid: whose numbers are believed."""

    def __init__(self, path: Path, pid: int) -> None:
        self._path, self._pid = path, pid
        self._seen: tuple[int, ...] = ()
        self._next_report = 0

    def news(self) -> tuple[list[Sample], list[Report]]:
        """Return the numbers that the file has now, none if it was read before, and the reports
        that are new. Raises ProtocolError for another kind of file, once for each.
        """
        try:
            data = self._read()
        except FileNotFoundError:
            return [], []
        except OSError as error:
            raise ProtocolError(f"{self._path}: {error.strerror}") from None
        if data is None:
            return [], []
        try:
            told, reports = _decoded(data, self._pid)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{self._path} tells no numbers: {str(error)[:200]}") from None
        fresh = [report for report in reports if report.number >= self._next_report]
        if fresh:
            missed = fresh[0].number - self._next_report
            fresh[0] = replace(fresh[0], left_out=fresh[0].left_out + missed)
            self._next_report = fresh[-1].number + 1
        return told, fresh

    def _read(self) -> bytes | None:
        """Read the file without waiting, even if a script has put something else there."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._path, flags)
        try:
            found = os.fstat(fd)
            now = found.st_ino, found.st_mtime_ns, found.st_size
            if now == self._seen:
                return None
            self._seen = now
            if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_NBYTES:
                raise ProtocolError(f"{self._path} is no file of at most {MAX_NBYTES} bytes")
            return os.read(fd, MAX_NBYTES)
        finally:
            os.close(fd)


@dataclass(frozen=True)
class _File:
    """The content of a file: whose numbers, and name, labels, value and buckets of each; and the
    last reports.

    Which names, labels and values there may be, metrics_samples.py says.
    """

    pid: int
    counts: list[tuple[str, tuple[str, ...], float, tuple[int, ...]]]
    reports: list[Report] = field(default_factory=list)


def _encoded(told: list[Sample], reports: list[Report], pid: int) -> bytes:
    import msgspec

    rows = [(t.name, t.labels, t.value, t.buckets) for t in told[:MAX_TOLD]]
    return msgspec.json.encode(_File(pid, rows, reports))


def _decoded(data: bytes, pid: int) -> tuple[list[Sample], list[Report]]:
    import msgspec

    found = msgspec.json.decode(data, type=_File)
    if len(found.counts) > MAX_TOLD:
        raise ValueError(f"{len(found.counts)} numbers at once")
    if found.pid != pid:
        return [], []
    return [Sample(*row) for row in found.counts], found.reports
