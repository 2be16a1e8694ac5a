"""The audit log: one JSON object a line, only ever appended, never a secret; and the note in it of
each job that was kept long enough.

Rules that the code cannot show:
* `audit.log` is the newest file; full ones before it are `audit.log.<number>`, with numbers that
  grow, so that one renaming puts a file away and a crash between two steps loses nothing.
* A line is in one file, whole. Lines that the disk does not take wait here, in order, and are
written when there is room; those too many to wait are counted, and the log says so where it is
missing.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from oneflow.core.errors import ConfigError
from oneflow.core.folders import sync_folder
from oneflow.core.log import get_logger
from oneflow.scheduler.cluster.driver import Listener
from oneflow.scheduler.jobs.events import Action, Event, Remove
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.retention import may_go_on

AUDIT_FILE = "audit.log"
MAX_NBYTES = 64 << 20  # of one file
MAX_FILES = 8  # besides the newest
MAX_TEXT_CHARS = 2000
MAX_WAITING_NBYTES = 1 << 20  # of lines for which there is no room
MAX_FAILURES_PER_S = 10  # of authentication: a flood of them must not fill the disk
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")

Detail: TypeAlias = str | float | list[str] | None
log = get_logger(__name__)


class Audit:
    """Appends to <state>/audit.log (mode 0600). A disk that is full is logged, not raised: the
    cluster goes on. max_nbytes: of a file.  max_files: so many older ones are kept. Raises
    ConfigError if there can be none.
    """

    def __init__(
        self,
        path: Path,
        wall: Callable[[], float] = time.time,
        max_nbytes: int = MAX_NBYTES,
        max_files: int = MAX_FILES,
    ) -> None:
        self._path, self._wall = path, wall
        self._max_nbytes, self._max_files = max_nbytes, max_files
        try:
            self._fd, self._size = _opened(path)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None
        self._limit = max_nbytes  # beyond it a new file begins
        self._full: list[int] = []  # files that were put away and are not durable yet
        self._lock = threading.Lock()  # `sync` is called in another thread
        self._waiting: deque[bytes] = deque()
        self._num_lost = 0
        self._is_failing = False
        self._failures_in = (0, 0)  # second, failures in it
        self._left_out = 0
        self.is_new = False  # something is not durable yet

    def note(self, event: str, token: str, peer: str, **details: Detail) -> None:
        """Note one event of the cluster.

        event: submit, cancel, ... token: name of the caller's, "" if it is not known.
        """
        line = self._line(event, token=token, peer=peer, **details)
        with self._lock:
            self._write()
            if sum(map(len, self._waiting)) + len(line) > MAX_WAITING_NBYTES:
                self._num_lost += 1
                return
            self._waiting.append(line)
            self._write()

    def auth_failure(
        self, reason: str, method: str, peer: str, token: str = "", why: str = ""
    ) -> None:
        """Note a call that was refused.

        token: the name of one that is known but not enough. why: more than the reason says.
        """
        second = int(self._wall())
        begun, count = self._failures_in
        self._failures_in = (second, count + 1 if begun == second else 1)
        if self._failures_in[1] > MAX_FAILURES_PER_S:
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        more: dict[str, Any] = {"left_out": left_out} if left_out else {}
        more |= {"why": why} if why else {}
        self.note("auth_failure", token, peer, reason=reason, method=method, **more)

    def sync(self) -> None:
        """Make appended lines durable, try failed ones again; slow, so not for the loop."""
        with self._lock:
            self.is_new = False
            self._write()
            (full, self._full), newest = (self._full, []), os.dup(self._fd)
        try:
            for fd in (*full, newest):
                os.fsync(fd)
            if full:
                sync_folder(self._path.parent)
        except OSError as error:
            log.error("cannot write %s: %s", self._path, error.strerror)
        finally:
            for fd in (*full, newest):
                os.close(fd)

    def close(self) -> None:
        """Once more is no harm."""
        with self._lock:
            if self._fd < 0:
                return
            self._write()
            if lost := self._num_lost + len(self._waiting):
                log.error("%s lacks its last %d lines", self._path, lost)
            for fd in (*self._full, self._fd):
                os.close(fd)
            self._fd, self._full = -1, []

    # -- writing, under the lock -------------------------------------------------------------------

    def _line(self, event: str, **details: Detail) -> bytes:
        found = {"ts": round(self._wall(), 6), "event": event}
        found |= {key: _short(value) for key, value in details.items()}
        return json.dumps(found, separators=(",", ":")).encode() + b"\n"

    def _write(self) -> None:
        """Write the waiting lines, as far as the disk has room."""
        while self._waiting or self._num_lost:
            if not self._waiting:
                self._waiting.append(self._line("lost", token="", peer="", lines=self._num_lost))
                self._num_lost = 0
            try:
                self._append(self._waiting[0])
            except OSError as error:
                self._failed(error)
                return
            self._waiting.popleft()
        if self._is_failing:
            self._is_failing = False
            log.warning("%s can be written again", self._path)

    def _append(self, line: bytes) -> None:
        """Whole or not at all. Raises OSError."""
        if self._size and self._size + len(line) > self._limit:
            self._begin_file()
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += written
        self.is_new = True

    def _failed(self, error: OSError) -> None:
        self.is_new = True  # so that `sync` tries again
        if not self._is_failing:
            self._is_failing = True
            log.error("cannot write %s: %s; its lines wait", self._path, error.strerror)

    # -- files -------------------------------------------------------------------------------------

    def _begin_file(self) -> None:
        """Puts the full one away; if that fails, it is tried again when it has grown a little."""
        try:
            number = self._put_away()
        except OSError as error:
            self._limit = self._size + self._max_nbytes // 8
            log.error("%s cannot be put away: %s; it grows", self._path, error.strerror)
            return
        self._limit = self._max_nbytes
        kept = range(number - self._max_files + 1, number + 1)
        for old in _numbers(self._path):
            if old not in kept:
                with suppress(OSError):
                    _numbered(self._path, old).unlink()

    def _put_away(self) -> int:
        """Returns its number. The next file is there before, so that there always is one."""
        number = max(_numbers(self._path), default=0) + 1
        new = self._path.with_name(f"{self._path.name}.new")
        fd = os.open(new, _FLAGS | os.O_TRUNC, 0o600)
        try:
            with suppress(FileNotFoundError):  # somebody else has moved it
                self._path.rename(_numbered(self._path, number))
            new.rename(self._path)
        except OSError:
            os.close(fd)
            raise
        self._full.append(self._fd)
        self._fd, self._size = fd, 0
        return number


def _opened(path: Path) -> tuple[int, int]:
    """Its descriptor and size. A line that a crash has cut off is ended."""
    fd = os.open(path, _FLAGS, 0o600)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            size += os.write(fd, b"\n")
    except OSError:
        os.close(fd)
        raise
    return fd, size


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _numbers(path: Path) -> list[int]:
    """List the numbers of the rotated files, oldest last."""
    ends = (name.removeprefix(path.name + ".") for name in os.listdir(path.parent))
    return [int(end) for end in ends if _NUMBER.fullmatch(end)]


def _short(value: Detail) -> Detail:
    return value[:MAX_TEXT_CHARS] if isinstance(value, str) else value


# ---- jobs that are forgotten ---------------------------------------------------------------------


class Retired(Listener):
    """Names, for each job that was kept long enough, the files that go with it:
    nothing is lost silently.
    """

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._why: dict[str, str] = {}

    def stepped(self, event: Event, actions: Sequence[Action]) -> None:
        self._why |= {a.job_id: a.why for a in actions if isinstance(a, Remove) and a.why}

    def changed(self, before: JobRecord | None, now: JobRecord | None) -> None:
        if before is None or now is not None or (why := self._why.pop(before.id, "")) == "":
            return
        checkpoint = before.last_checkpoint if may_go_on(before) else ""
        self._audit.note("retire", "", "", job=before.id, why=why, checkpoint=checkpoint)
        if checkpoint:
            step = before.last_checkpoint_step
            log.warning(
                "job %s (%s) is removed: %s; its checkpoint of step %d (%s) goes with it",
                before.id, before.state, why, step, checkpoint,
            )  # fmt: skip
        else:
            log.info("job %s (%s) is removed: %s", before.id, before.state, why)
