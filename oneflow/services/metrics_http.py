"""The page that shows the counters: /metrics, and /healthz and /readyz for those who watch.

/healthz: the process is alive. /readyz: it may take work.
Off unless asked for with ONEFLOW_METRICS_ADDR. Read only; a browser page of another origin is
refused, and on a loopback address only loopback names are accepted as Host, so that no web page
can read it by DNS rebinding.
"""

from __future__ import annotations

import atexit
import json
import os
import stat
import threading
from pathlib import Path

from oneflow.core.config import Config, join_address, split_address
from oneflow.core.errors import ConfigError
from oneflow.core.folders import write_private
from oneflow.core.metrics import METRICS, Metrics
from oneflow.services import http_server
from oneflow.services.metrics_page import make_registry

LOOPBACK_HOSTS = frozenset(("127.0.0.1", "localhost", "::1"))
LOOPBACK_NAMES = frozenset(("localhost",))
PLAIN_TEXT = "text/plain; charset=utf-8"


class MetricsEndpoint:
    """A running page at `address` (host:port), until `stop`."""

    def __init__(
        self,
        host: str,
        port: int,
        runtime_dir: Path,
        metrics: Metrics,
        component: str = "rank",
    ) -> None:
        try:
            self._server = http_server.PageServer((host, port), _handler(metrics, host, component))
        except OSError as error:
            where = join_address(host, port)
            raise ConfigError(f"ONEFLOW_METRICS_ADDR: cannot listen on {where}: {error}") from None
        self._rank = metrics.rank
        self.address = join_address(host, int(self._server.server_address[1]))
        self._file = runtime_dir / f"metrics-{os.getpid()}.json"
        publish_target(runtime_dir, self.address, self._rank)
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, name="oneflow-metrics", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Closes the page and removes its file. Safe to call twice."""
        atexit.unregister(self.stop)
        self._file.unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


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


def make_private(folder: Path) -> None:
    """Makes the folder for this user alone. Raises ConfigError if somebody else made it first."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(f"{folder} must be a folder that only this user can write to; remove it")


def start_endpoint(config: Config, metrics: Metrics = METRICS) -> MetricsEndpoint | None:
    """Serves the page if the configuration asks for it.

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


def _handler(metrics: Metrics, host: str, component: str) -> type[http_server.PageHandler]:
    registry = make_registry(metrics, component)

    names = LOOPBACK_NAMES if host in LOOPBACK_HOSTS else None

    class Handler(http_server.PageHandler):
        def do_GET(self) -> None:
            headers = {key.lower(): value for key, value in self.headers.items()}
            if http_server.is_foreign(headers) or not _is_ours(headers.get("host"), names):
                self.send_page(403, b"forbidden\n", PLAIN_TEXT)
                return
            self._route(self.path.partition("?")[0])

        def _route(self, path: str) -> None:
            match path:
                case "/metrics":
                    from prometheus_client import generate_latest
                    from prometheus_client.exposition import CONTENT_TYPE_LATEST

                    self.send_page(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                case "/healthz":
                    self.send_page(200, b"ok\n", PLAIN_TEXT)
                case "/readyz":
                    ready = metrics.is_ready()
                    body = b"ready\n" if ready else b"not ready\n"
                    self.send_page(200 if ready else 503, body, PLAIN_TEXT)
                case _:
                    self.send_page(404, b"try /metrics, /healthz or /readyz\n", PLAIN_TEXT)

    return Handler


def _is_ours(header: str | None, names: frozenset[str] | None) -> bool:
    """names: None beyond loopback, where scrapers use names that we cannot know."""
    return names is None or http_server.is_host_allowed(header, names)
