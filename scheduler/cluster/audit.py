"""Who did what to the cluster: one JSON object a line, only ever appended, never a secret."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oneflow.core.errors import ConfigError
from oneflow.core.log import get_logger

AUDIT_FILE = "audit.log"
MAX_TEXT_CHARS = 2000
MAX_FAILURES_PER_S = 10  # of authentication: a flood of them must not fill the disk

log = get_logger(__name__)


class Audit:
    """Appends to <state>/audit.log (mode 0600). A disk that is full is logged, not raised: the
    cluster goes on. Raises ConfigError if there can be none.
    """

    def __init__(self, path: Path, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall = wall
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None
        self._failures_in = (0, 0)  # second, failures in it
        self._left_out = 0
        self.is_new = False  # something is not durable yet

    def note(self, event: str, token: str, peer: str, **details: Any) -> None:
        """event: submit, cancel, ...  token: name of the caller's, "" if it is not known."""
        found = {"ts": round(self._wall(), 6), "event": event, "token": token, "peer": peer}
        found |= {key: _short(value) for key, value in details.items()}
        self._append(found)

    def auth_failure(self, reason: str, method: str, peer: str, token: str = "") -> None:
        """token: the name of one that is known but not enough."""
        second = int(self._wall())
        begun, count = self._failures_in
        self._failures_in = (second, count + 1 if begun == second else 1)
        if self._failures_in[1] > MAX_FAILURES_PER_S:
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        more = {"left_out": left_out} if left_out else {}
        self.note("auth_failure", token, peer, reason=reason, method=method, **more)

    def sync(self) -> None:
        """Makes durable what was appended; slow, so not for the loop."""
        self.is_new = False
        try:
            os.fsync(self._fd)
        except OSError as error:
            log.error("cannot write %s: %s", self._path, error.strerror)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, found: dict[str, Any]) -> None:
        line = json.dumps(found, separators=(",", ":")).encode() + b"\n"
        try:
            os.write(self._fd, line)  # one write, so that lines never mix
            self.is_new = True
        except OSError as error:
            log.error("cannot write %s: %s", self._path, error.strerror)


def _short(value: Any) -> Any:
    return value[:MAX_TEXT_CHARS] if isinstance(value, str) else value
