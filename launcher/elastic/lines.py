"""A connection between two launchers that carries lines of JSON and never blocks."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

MAX_LINE_NBYTES = 64 << 10
CHUNK_NBYTES = 16 << 10
IDLE_S, PROBES, PROBE_S = 5, 3, 5
"""A machine that is gone without a word is given up after IDLE_S + PROBES * PROBE_S seconds."""


class Lines:
    """One end of a connection. A line that is no JSON object, or too long, closes it."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            _keep_alive(connected)
        self._socket = connected
        self._in = self._out = b""
        self._unread: list[dict[str, Any]] = []
        self.is_open = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send as much as goes out now; `receive` sends the rest."""
        self._out += json.dumps(message).encode() + b"\n"
        self._flush()

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have come since the last call."""
        self._flush()
        while self.is_open:
            try:
                data = self._socket.recv(CHUNK_NBYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._in += data
            if not data or len(self._in.rpartition(b"\n")[2]) > MAX_LINE_NBYTES:
                self.close()
        *lines, self._in = self._in.split(b"\n")
        found, self._unread = [*self._unread, *self._parsed(lines)], []
        return found

    def put_back(self, messages: list[dict[str, Any]]) -> None:
        """Have the next call of `receive` return these, too."""
        self._unread = messages

    def _parsed(self, lines: list[bytes]) -> list[dict[str, Any]]:
        found = []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self.close()
                break
            found.append(message)
        return found

    def _flush(self) -> None:
        while self._out and self.is_open:
            try:
                sent = self._socket.send(self._out, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self.close()
            else:
                self._out = self._out[sent:]

    def close(self) -> None:
        self._socket.close()
        self.is_open = False


def _keep_alive(connected: socket.socket) -> None:
    """Have the kernel find a machine that is gone: a launcher that is busy need not beat."""
    limits = {"TCP_KEEPIDLE": IDLE_S, "TCP_KEEPINTVL": PROBE_S, "TCP_KEEPCNT": PROBES}
    limits["TCP_USER_TIMEOUT"] = 1000 * (IDLE_S + PROBES * PROBE_S)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in limits.items():
        connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
