"""HTTP for pages that are only read: few threads, bounded requests, nobody may be slow for long.

It also keeps web pages away that a browser on this machine shows: requests from another
origin, or for a name that may be another's for this address (DNS rebinding), are refused.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_THREADS = 32
ROOM_S = 1.0  # for a thread whose silent caller was hung up on to end
REQUEST_S = 5.0  # for a whole request, however often something of it comes
ANSWER_S = 10.0  # for a reader to take a whole answer
MAX_REQUEST_NBYTES = 64 << 10


class PageServer(ThreadingHTTPServer):
    """Answers with `handler`. A client that comes when all threads are busy takes the place of the
    one that has been silent for longest; while all of them are being answered, it is hung up on.
    """

    daemon_threads = True
    request_queue_size = 64  # of 5, as is usual, the sixth waits a second to be asked again
    block_on_close = False  # a reader that never reads would hold up the end

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(MAX_THREADS)
        self._silent: dict[socket.socket, None] = {}  # no whole request yet; the oldest first
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._hang_up_on_oldest()
            if not self._free.acquire(timeout=ROOM_S):
                self.shutdown_request(request)
                return
        with self._lock:
            self._silent[request] = None
        super().process_request(request, client_address)

    def _hang_up_on_oldest(self) -> None:
        """End the connection that has been waited for longest; its thread ends by itself."""
        with self._lock:
            oldest = next(iter(self._silent), None)
            if oldest is not None:
                del self._silent[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def heard(self, request: socket.socket) -> None:
        """Note that a whole request came: it is answered, however many others come."""
        with self._lock:
            self._silent.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.heard(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that hangs up is no news."""


class PageHandler(BaseHTTPRequestHandler):
    """One request, one answer."""

    server_version = "oneflow"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection))

    def parse_request(self) -> bool:
        """Two Hosts are refused: which of them is meant nobody can know."""
        if not super().parse_request():
            return False
        if isinstance(self.server, PageServer):
            self.server.heard(self.connection)
        if len(self.headers.get_all("host", ())) > 1:
            self.send_error(400, "more than one Host")
            return False
        return True

    def send_page(
        self, status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Sends the answer, which no cache keeps."""
        self.connection.settimeout(ANSWER_S)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are no news."""


class _Request(io.RawIOBase):
    """One request over a socket, bounded in time and size."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = MAX_REQUEST_NBYTES
        self._end = time.monotonic() + REQUEST_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._end - time.monotonic()
        if left_s <= 0 or self._left <= 0:
            raise TimeoutError("the request is too long")  # which http.server knows to end it
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a page of another origin asks. headers: by names in lower case.

    A page of ours names the Host that it asks as its Origin, as browsers do for modules and POST;
    whether that Host is ours is_host_allowed says.
    """
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
    is_from_elsewhere = site not in ("none", "same-origin") and mode != "navigate"
    return is_from_elsewhere or _has_other_origin(headers)


def _has_other_origin(headers: Mapping[str, str]) -> bool:
    origin = headers.get("origin")
    if origin is None:
        return False
    scheme, _, host = origin.lower().partition("://")
    return scheme not in ("http", "https") or host != headers.get("host", "").lower()


def is_host_allowed(header: str | None, names: frozenset[str]) -> bool:
    """Whether a Host header names an address, or a name that is known to be ours."""
    if not header:
        return False
    host = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    host = host.strip("[]").lower()
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host in names
    return True
