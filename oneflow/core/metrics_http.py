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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from oneflow.core.config import Config, join_address, split_address
from oneflow.core.errors import ConfigError
from oneflow.core.metrics import METRICS, Metrics, make_registry

LOOPBACK_HOSTS = frozenset(("127.0.0.1", "localhost", "::1"))
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
            self._server = ThreadingHTTPServer((host, port), _handler(metrics, host, component))
        except OSError as error:
            where = join_address(host, port)
            raise ConfigError(f"ONEFLOW_METRICS_ADDR: cannot listen on {where}: {error}") from None
        self._server.daemon_threads = True
        self._rank = metrics.rank
        self.address = join_address(host, int(self._server.server_address[1]))
        self._file = runtime_dir / f"metrics-{os.getpid()}.json"
        self._publish(runtime_dir)
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

    def _publish(self, runtime_dir: Path) -> None:
        make_private(runtime_dir)
        entry = {"address": self.address, "pid": os.getpid(), "rank": self._rank}
        partial = self._file.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps(entry))
        partial.replace(self._file)


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


def _handler(metrics: Metrics, host: str, component: str) -> type[BaseHTTPRequestHandler]:
    registry = make_registry(metrics, component)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Origin") or not _is_host_allowed(self.headers.get("Host"), host):
                self._answer(403, b"forbidden\n", PLAIN_TEXT)
                return
            self._route(self.path.partition("?")[0])

        def _route(self, path: str) -> None:
            match path:
                case "/metrics":
                    from prometheus_client import generate_latest
                    from prometheus_client.exposition import CONTENT_TYPE_LATEST

                    self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                case "/healthz":
                    self._answer(200, b"ok\n", PLAIN_TEXT)
                case "/readyz":
                    ready = metrics.is_ready()
                    body = b"ready\n" if ready else b"not ready\n"
                    self._answer(200 if ready else 503, body, PLAIN_TEXT)
                case _:
                    self._answer(404, b"try /metrics, /healthz or /readyz\n", PLAIN_TEXT)

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are no news."""

    return Handler


def _is_host_allowed(header: str | None, bound: str) -> bool:
    if bound not in LOOPBACK_HOSTS:
        return True
    if header is None:
        return False
    name = header.rpartition(":")[0] if not header.endswith("]") and ":" in header else header
    return name.strip("[]") in LOOPBACK_HOSTS
