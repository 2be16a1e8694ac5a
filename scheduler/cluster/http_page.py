"""HTTP of the scheduler: /metrics for scrapers, /healthz and /readyz for probes. Read only.

In threads of its own, so that a slow reader holds up nothing. A page of another origin is refused,
and so is a Host that could be another's name for this address (DNS rebinding): addresses, loopback
names and names that the settings list are taken.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from oneflow.core.config import join_address, split_address
from oneflow.core.errors import ConfigError
from oneflow.scheduler.cluster.metrics import ClusterMetrics, make_registry
from oneflow.services.http_server import PageHandler, PageServer, is_foreign, is_host_allowed

PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    status: int
    body: bytes
    content_type: str = PLAIN_TEXT
    headers: Mapping[str, str] | None = None


Route = Callable[[str, Mapping[str, str], str], "Answer | None"]
"""The answer to a path, headers by names in lower case, and the address that asks; None: there is
no such page."""
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
        more: Route = lambda path, headers, peer: None,
    ) -> None:
        host, port = split_address(address)
        names = frozenset(("localhost", host.lower(), socket.gethostname().lower(), *hosts))
        self._routes = _Routes(metrics, is_ready, more)
        try:
            self._server = PageServer((host, port), _handler(self._routes, names))
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


class _Routes:
    def __init__(self, metrics: ClusterMetrics, is_ready: Callable[[], bool], more: Route) -> None:
        self._registry = make_registry(metrics)
        self._is_ready, self._more = is_ready, more

    def answer(self, path: str, headers: Mapping[str, str], peer: str) -> Answer:
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
        found = self._more(path, headers, peer)
        return found or Answer(404, b"try /metrics, /healthz or /readyz\n")


def _handler(routes: _Routes, names: frozenset[str]) -> type[PageHandler]:
    class Handler(PageHandler):
        def do_GET(self) -> None:
            headers = {key.lower(): value for key, value in self.headers.items()}
            if is_foreign(headers) or not is_host_allowed(headers.get("host"), names):
                self.send_page(403, b"forbidden\n", PLAIN_TEXT)
                return
            answer = routes.answer(self.path, headers, join_address(*self.client_address[:2]))
            self.send_page(answer.status, answer.body, answer.content_type, answer.headers)

    return Handler
