"""The page that shows the counters: /metrics, and /healthz and /readyz for those who watch.

/healthz: the process is alive. /readyz: it may take work. Read only but for routes that are handed
in, and in threads of its own, so that a slow reader holds up nothing. A browser page of another
origin is refused, and so is a Host that could be another's name for this address (DNS rebinding).
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.core.config import Config, join_address, split_address
from oneflow.core.errors import ConfigError
from oneflow.core.folders import write_private
from oneflow.core.metrics import METRICS, Metrics
from oneflow.services.http_server import PageHandler, PageServer, is_foreign, is_host_allowed
from oneflow.services.metrics_page import make_registry

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

LOOPBACK_HOSTS = frozenset(("127.0.0.1", "localhost", "::1"))
LOOPBACK_NAMES = frozenset(("localhost",))
PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    status: int
    body: bytes
    content_type: str = PLAIN_TEXT
    headers: Mapping[str, str] | None = None


FORBIDDEN = Answer(403, b"forbidden\n")
Route = Callable[[str, Mapping[str, str], str], "Answer | None"]
"""The answer to a path with its query, headers by names in lower case, and the address that asks;
None: there is no such page."""

_Whole = Callable[[str, Mapping[str, str], str], Answer]


class MetricsPage:
    """A running page at `address` (host:port), until `stop`.

    is_ready: whether work may be taken. names: Hosts that are taken besides addresses; None: all,
    where scrapers use names that we cannot know. more: further routes. post: those for POST.
    Raises ConfigError in the name of `setting` if it cannot listen there.
    """

    def __init__(
        self,
        where: tuple[str, int],
        registry: CollectorRegistry,
        is_ready: Callable[[], bool],
        names: frozenset[str] | None,
        more: Route = lambda path, headers, peer: None,
        setting: str = "ONEFLOW_METRICS_ADDR",
        post: Route = lambda path, headers, peer: None,
    ) -> None:
        self._registry, self._is_ready, self._names = registry, is_ready, names
        self._more, self._post = more, post
        try:
            self._server = PageServer(where, _handler(self.answer, self.take))
        except OSError as error:
            at = join_address(*where)
            raise ConfigError(f"{setting}: cannot listen on {at}: {error}") from None
        self.address = join_address(where[0], int(self._server.server_address[1]))
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, name="oneflow-http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    def answer(self, path: str, headers: Mapping[str, str], peer: str) -> Answer:
        """Answer a GET. Called in a thread for each request."""
        if self._is_forbidden(headers):
            return FORBIDDEN
        match path.partition("?")[0]:
            case "/metrics":
                from prometheus_client import generate_latest
                from prometheus_client.exposition import CONTENT_TYPE_LATEST

                return Answer(200, generate_latest(self._registry), CONTENT_TYPE_LATEST)
            case "/healthz":
                return Answer(200, b"ok\n")
            case "/readyz":
                is_ready = self._is_ready()
                return Answer(200, b"ready\n") if is_ready else Answer(503, b"not ready\n")
        found = self._more(path, headers, peer)
        return found or Answer(404, b"try /metrics, /healthz or /readyz\n")

    def take(self, path: str, headers: Mapping[str, str], peer: str) -> Answer:
        """Answer a POST. Called in a thread for each request."""
        if self._is_forbidden(headers):
            return FORBIDDEN
        return self._post(path, headers, peer) or Answer(405, b"", headers={"Allow": "GET"})

    def _is_forbidden(self, headers: Mapping[str, str]) -> bool:
        host = headers.get("host")
        is_ours = self._names is None or is_host_allowed(host, self._names)
        return is_foreign(headers) or not is_ours


class MetricsEndpoint(MetricsPage):
    """The page of a rank or a daemon, which `oneflow cluster metrics-targets` finds by a file."""

    def __init__(
        self,
        host: str,
        port: int,
        runtime_dir: Path,
        metrics: Metrics,
        component: str = "rank",
    ) -> None:
        names = LOOPBACK_NAMES if host in LOOPBACK_HOSTS else None
        registry = make_registry(metrics, component)
        super().__init__((host, port), registry, lambda: metrics.is_ready(), names)
        self._file = runtime_dir / f"metrics-{os.getpid()}.json"
        publish_target(runtime_dir, self.address, metrics.rank)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Closes the page and removes its file. Safe to call twice."""
        atexit.unregister(self.stop)
        self._file.unlink(missing_ok=True)
        super().stop()


def _handler(get: _Whole, post: _Whole) -> type[PageHandler]:
    class Handler(PageHandler):
        def do_GET(self) -> None:
            self._send(get)

        def do_POST(self) -> None:
            """Answer by the path alone: a body is not read."""
            self._send(post)

        def _send(self, answer: _Whole) -> None:
            headers = {key.lower(): value for key, value in self.headers.items()}
            found = answer(self.path, headers, join_address(*self.client_address[:2]))
            self.send_page(found.status, found.body, found.content_type, found.headers)

    return Handler


def publish_target(runtime_dir: Path, address: str, rank: int | None) -> None:
    """Writes the file by which `oneflow cluster metrics-targets` finds this process, and removes
    those of processes that ended without doing so themselves.
    """
    make_private(runtime_dir)
    for path in runtime_dir.glob("metrics-*.json"):
        pid = path.stem.removeprefix("metrics-")
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)
    entry = {"address": address, "pid": os.getpid(), "rank": rank}
    write_private(runtime_dir / f"metrics-{os.getpid()}.json", json.dumps(entry))


def metrics_targets(runtime_dir: Path) -> list[dict[str, Any]]:
    """Addresses of /metrics of this user's processes on this machine, as Prometheus's file_sd."""
    found = []
    for path in sorted(runtime_dir.glob("metrics-*.json")):
        try:
            entry = json.loads(path.read_text())
            target, pid, rank = str(entry["address"]), int(entry["pid"]), entry.get("rank")
        except (OSError, ValueError, KeyError, TypeError):
            continue  # being written, or of a process that has just ended
        if Path(f"/proc/{pid}").exists():
            labels = {"host": socket.gethostname()} | ({} if rank is None else {"rank": str(rank)})
            found.append({"targets": [target], "labels": labels})
    return found


def make_private(folder: Path) -> None:
    """Makes the folder for this user alone. Raises ConfigError if somebody else made it first."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(f"{folder} must be a folder that only this user can write to; remove it")


def start_endpoint(config: Config, metrics: Metrics = METRICS) -> MetricsEndpoint | None:
    """Serves the page if the configuration asks for it, by ONEFLOW_METRICS_ADDR.

    With a fixed port, the ranks of one machine take the ports from it on: port + local rank.
    Raises ConfigError if the address is malformed or taken.
    """
    if config.metrics_addr is None:
        return None
    host, port = split_address(config.metrics_addr)
    metrics.rank = config.rank
    return MetricsEndpoint(
        host, port + config.local_rank if port else 0, config.runtime_dir, metrics
    )
