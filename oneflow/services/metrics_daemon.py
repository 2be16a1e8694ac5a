"""The counters of an actor daemon: its worker processes, its line to the scheduler, their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from oneflow.core.metrics import FAST_BUCKETS, METRICS, Histogram, Metrics
from oneflow.services.metrics_page import counter, gauge
from oneflow.services.metrics_page import histogram as family

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

WORKER_STATES = ("warming", "warm", "running", "stopping", "unkillable")

REJECTIONS = ("malformed", "duplicate", "unknown")


class DaemonCounters:
    """Counters of this process, if it is a daemon."""

    __slots__ = (
        "certificate",
        "device",
        "device_type",
        "log_lines_dropped",
        "log_nbytes",
        "loop_lag",
        "messages_rejected",
        "node",
        "worker_exits",
        "workers",
    )

    def __init__(self) -> None:
        self.node = self.device = self.device_type = ""
        self.certificate: Callable[[], float | None] = lambda: None  # when it expires
        self.workers = dict.fromkeys(WORKER_STATES, 0)
        self.worker_exits: dict[str, int] = {}
        self.loop_lag = Histogram(FAST_BUCKETS)
        self.log_nbytes = {"stdout": 0, "stderr": 0}
        self.log_lines_dropped = {"stdout": 0, "stderr": 0}
        self.messages_rejected: dict[str, int] = dict.fromkeys(REJECTIONS, 0)

    def worker_exited(self, reason: str) -> None:
        """reason: one of the reasons of ranks, NONE included."""
        self.worker_exits[reason] = self.worker_exits.get(reason, 0) + 1

    def message_rejected(self, reason: str) -> None:
        """reason: one of REJECTIONS."""
        self.messages_rejected[reason] = self.messages_rejected.get(reason, 0) + 1


def daemon_families(counters: DaemonCounters) -> Iterator[Metric]:
    """Prometheus families; nothing if this process is no daemon."""
    if not counters.node:
        return
    c = counters
    who = {"node": c.node, "device": c.device, "device_type": c.device_type}
    yield gauge("oneflow_daemon_info", "Which device this daemon serves.", [(who, 1)])
    yield gauge(
        "oneflow_daemon_workers",
        "Worker processes.",
        [({"state": k}, v) for k, v in c.workers.items()],
    )
    yield counter(
        "oneflow_daemon_worker_exits",
        "Ends of ranks.",
        [({"reason": k}, v) for k, v in c.worker_exits.items()],
    )
    yield family(
        "oneflow_daemon_loop_lag_seconds",
        "How much later than asked for the event loop ran.",
        [({}, c.loop_lag)],
    )
    yield counter(
        "oneflow_messages_rejected",
        "Messages refused.",
        [({"reason": k}, v) for k, v in c.messages_rejected.items()],
    )
    expiry = c.certificate()
    yield gauge(
        "oneflow_tls_certificate_expiry_timestamp_seconds",
        "When the certificate expires.",
        [({"component": "daemon"}, expiry)] if expiry is not None else [],
    )
    yield counter(
        "oneflow_log_bytes",
        "Bytes of ranks' output kept.",
        [({"stream": k}, v) for k, v in c.log_nbytes.items()],
    )
    yield counter(
        "oneflow_log_lines_dropped",
        "Lines of ranks' output that could not be kept.",
        [({"stream": k}, v) for k, v in c.log_lines_dropped.items()],
    )


DAEMON = DaemonCounters()


def collect(metrics: Metrics) -> Iterator[Metric]:
    return daemon_families(DAEMON)


METRICS.collectors.append(collect)
