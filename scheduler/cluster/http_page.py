"""HTTP of the scheduler: /metrics for scrapers, /healthz and /readyz for probes. Read only.

In threads of its own, so that a slow reader holds up nothing. A page of another origin is refused,
and so is a Host that could be another's name for this address (DNS rebinding): addresses, loopback
names and names that the settings list are taken.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from oneflow.core.config import join_address, split_address
from oneflow.core.errors import ConfigError
from oneflow.scheduler.cluster.metrics import ClusterMetrics, make_registry

PLAIN_TEXT = "text/plain; charset=utf-8"
MAX_THREADS = 32
IDLE_S = 5.0


@dataclass(frozen=True)
class Answer:
    """What a request gets."""

    status: int
    body: bytes
    content_type: str = PLAIN_TEXT
    headers: Mapping[str, str] | None = None


Route = Callable[[str, Mapping[str, str]], "Answer | None"]
"""(path with query, headers in lower case) -> the answer, or None if it is not its business."""


class HttpPage:
    """Serves `address` (host:port; port 0: any). is_ready: whether work may be taken; more: further
    routes. Raises ConfigError if it cannot listen there.
    """

    def __init__(
        self,
        address: str,
        metrics: ClusterMetrics,
        is_ready: Callable[[], bool],
        hosts: tuple[str, ...] = (),
        more: Route = lambda path, headers: None,
    ) -> None:
        host, port = split_address(address)
        names = frozenset(("localhost", host.lower(), socket.gethostname().lower(), *hosts))
        self._routes = _Routes(metrics, is_ready, more)
        try:
            self._server = _Server((host, port), _handler(self._routes, names))
        except OSError as error:
            raise ConfigError(f"--metrics-addr: cannot listen on {address}: {error}") from None
        self.address = join_address(host, int(self._server.server_address[1]))
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, name="oneflow-http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a reader that never reads would hold up the end

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(MAX_THREADS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that hangs up is no news."""


class _Routes:
    def __init__(self, metrics: ClusterMetrics, is_ready: Callable[[], bool], more: Route) -> None:
        self._registry = make_registry(metrics)
        self._is_ready, self._more = is_ready, more

    def answer(self, path: str, headers: Mapping[str, str]) -> Answer:
        match path.partition("?")[0]:
            case "/metrics":
                from prometheus_client import generate_latest
                from prometheus_client.exposition import CONTENT_TYPE_LATEST

                return Answer(200, generate_latest(self._registry), CONTENT_TYPE_LATEST)
            case "/healthz":
                return Answer(200, b"ok\n")
            case "/readyz":
                is_ready = self._is_ready()
                body = b"ready\n" if is_ready else b"not ready\n"
                return Answer(200 if is_ready else 503, body)
        found = self._more(path, headers)
        return found or Answer(404, b"try /metrics, /healthz or /readyz\n")


def _handler(routes: _Routes, names: frozenset[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_S
        server_version = "oneflow"
        sys_version = ""

        def do_GET(self) -> None:
            headers = {key.lower(): value for key, value in self.headers.items()}
            if "origin" in headers or not is_host_allowed(headers.get("host"), names):
                self._send(Answer(403, b"forbidden\n"))
            else:
                self._send(routes.answer(self.path, headers))

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cache-Control", "no-store")
            for name, value in (answer.headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are no news."""

    return Handler


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
