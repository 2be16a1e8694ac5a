"""The counters of an actor daemon: its worker processes, its line to the scheduler, their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from oneflow.core.metrics import METRICS, Metrics
from oneflow.core.metrics_families import Counts, Gauges, Histogram, Times
from oneflow.services.metrics_page import families_of, gauge

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

WORKER_STATES = ("warming", "warm", "running", "stopping", "unkillable")
STREAMS = ("stdout", "stderr")
REJECTIONS = ("malformed", "duplicate", "unknown")


class DaemonCounters:
    """Counters of this process, if it is a daemon.

    certificate: seconds since the epoch at which it expires; None: it has none.
    """

    def __init__(self) -> None:
        self.node = self.device = self.device_type = ""
        self.certificate: Callable[[], float | None] = lambda: None
        self.workers = Gauges(
            "oneflow_daemon_workers", "Worker processes.", "state", start=WORKER_STATES
        )
        self.worker_exits = Counts("oneflow_daemon_worker_exits", "Ends of ranks.", "reason")
        self.loop_lag_seconds = Times(
            "oneflow_daemon_loop_lag_seconds",
            "How much later than asked for the event loop ran.",
            start=[()],
        )
        self.messages_rejected = Counts(
            "oneflow_messages_rejected", "Messages refused.", "reason", start=REJECTIONS
        )
        self.expiry = Gauges(
            "oneflow_tls_certificate_expiry_timestamp_seconds",
            "When the certificate expires.",
            "component",
        )
        self.log_nbytes = Counts(
            "oneflow_log_bytes", "Bytes of ranks' output kept.", "stream", start=STREAMS
        )
        self.log_lines_dropped = Counts(
            "oneflow_log_lines_dropped",
            "Lines of ranks' output that could not be kept.",
            "stream",
            start=STREAMS,
        )

    @property
    def loop_lag(self) -> Histogram:
        found: Histogram = self.loop_lag_seconds[()]
        return found

    def worker_exited(self, reason: str) -> None:
        """reason: one of the reasons of ranks, NONE included."""
        self.worker_exits[reason] += 1

    def message_rejected(self, reason: str) -> None:
        """reason: one of REJECTIONS."""
        self.messages_rejected[reason] += 1


def daemon_families(counters: DaemonCounters) -> Iterator[Metric]:
    """Prometheus families; nothing if this process is no daemon."""
    if not counters.node:
        return
    c = counters
    who = {"node": c.node, "device": c.device, "device_type": c.device_type}
    yield gauge("oneflow_daemon_info", "Which device this daemon serves.", [(who, 1)])
    if (expiry := c.certificate()) is not None:
        c.expiry["daemon"] = expiry
    yield from families_of(c)


DAEMON = DaemonCounters()


def collect(metrics: Metrics) -> Iterator[Metric]:
    return daemon_families(DAEMON)


METRICS.collectors.append(collect)
