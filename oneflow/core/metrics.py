"""What this process counts, and the page that shows it.

Counting is plain Python integers and floats in slotted objects: no lock, no label look-up on the
hot path, no prometheus import. A collector turns them into Prometheus families when somebody
scrapes; a scrape may therefore see one counter a moment older than another, which rates do not
mind. Names, units and labels follow the Prometheus conventions; every label's values are bounded.
"""

from __future__ import annotations

import platform
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

FAST_BUCKETS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)  # seconds
WIDE_BUCKETS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
MAX_LABEL_CHARS = 64
MAX_JOBS = 200  # label values of `job` kept at once; the oldest goes first
KEEP_ENDED_S = 900.0  # so long the series of a job outlive it


class Histogram:
    """Counts of durations in fixed buckets."""

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations at or below it), as Prometheus wants them."""
        rows, running = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            rows.append(("+Inf" if bound == float("inf") else repr(bound), float(running)))
        return rows


class ActorCounters:
    """Of all actors of one kind; the runtime increments the fields directly."""

    __slots__ = ("acts", "durations", "no_free_register_s", "no_input_s")

    def __init__(self) -> None:
        self.acts = 0
        self.no_input_s = 0.0
        self.no_free_register_s = 0.0
        self.durations = Histogram(FAST_BUCKETS)


@dataclass(frozen=True)
class ActorCounts:
    """ActorCounters at one moment, to be told to another process. durations: acts by buckets."""

    kind: str
    acts: int
    no_input_s: float
    no_free_register_s: float
    durations: tuple[int, ...] = ()
    act_s: float = 0.0

    @staticmethod
    def of(kind: str, c: ActorCounters) -> ActorCounts:
        d = c.durations
        return ActorCounts(
            kind, c.acts, c.no_input_s, c.no_free_register_s, tuple(d.counts), d.total_s
        )


class TransportCounters:
    """Of one way to send messages (local, shm, tcp).

    depth_max: most messages that were found waiting at once since the last scrape.
    message_nbytes: of each message, besides what nbytes_sent and nbytes_received count.
    """

    __slots__ = (
        "depth_max",
        "message_nbytes",
        "nbytes_received",
        "nbytes_sent",
        "received",
        "sent",
    )

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self.nbytes_sent = 0
        self.nbytes_received = 0
        self.depth_max = 0
        self.message_nbytes = 0

    def took(self, count: int) -> None:
        """`count` messages were found waiting and taken."""
        self.received += count
        if count > self.depth_max:
            self.depth_max = count

    def note_depth(self, count: int) -> None:
        if count > self.depth_max:
            self.depth_max = count


class CollectiveCounters:
    """Of one kind of collective (all_reduce, ...)."""

    __slots__ = ("durations", "nbytes")

    def __init__(self) -> None:
        self.nbytes = 0
        self.durations = Histogram(FAST_BUCKETS)


class JobCounters:
    """Of one training job."""

    __slots__ = (
        "checkpoint_at",
        "checkpoint_step",
        "ended_at",
        "last_step",
        "last_step_at",
        "loss",
        "rank",
        "samples",
        "steps",
    )

    def __init__(self) -> None:
        self.rank: int | None = None  # None: that of the process
        self.loss: float | None = None  # None: not shown
        self.ended_at = 0.0  # seconds of the monotonic clock, 0: goes on
        self.steps = 0
        self.samples = 0
        self.last_step = -1
        self.last_step_at = 0.0
        self.checkpoint_step = -1
        self.checkpoint_at = 0.0


class SchedulerCounters:
    """Of the scheduler that this process hosts, if any."""

    __slots__ = (
        "compiles",
        "heartbeat_age_max_s",
        "heartbeats",
        "lost",
        "passes",
        "rejected",
        "rpc_seconds",
        "rpcs",
    )

    def __init__(self) -> None:
        self.compiles = Histogram(WIDE_BUCKETS)
        self.passes: dict[str, Histogram] = {}
        self.heartbeats = 0
        self.heartbeat_age_max_s = 0.0
        self.lost: dict[str, int] = {}
        self.rejected: dict[str, int] = {}
        self.rpcs: dict[tuple[str, str], int] = {}  # by method and code
        self.rpc_seconds: dict[str, Histogram] = {}

    def compiled(self, seconds: float) -> None:
        self.compiles.observe(seconds)

    def pass_done(self, name: str, seconds: float) -> None:
        """One compiler pass; `name` is the pass's function name."""
        self.passes.setdefault(name, Histogram(WIDE_BUCKETS)).observe(seconds)

    def rank_lost(self, reason: str) -> None:
        self.lost[reason] = self.lost.get(reason, 0) + 1

    def message_rejected(self, reason: str) -> None:
        """reason: oversize, malformed, stale_epoch, duplicate, unknown or auth."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def rpc_done(self, method: str, code: str, seconds: float) -> None:
        self.rpcs[method, code] = self.rpcs.get((method, code), 0) + 1
        self.rpc_seconds.setdefault(method, Histogram(FAST_BUCKETS)).observe(seconds)


class Metrics:
    """Everything one process counts.

    Keep the object a method returns and increment its fields in loops.
    """

    def __init__(self) -> None:
        self.collectors: list[Callable[[Metrics], Iterator[Metric]]] = []  # of other modules
        self.reset()

    def reset(self) -> None:
        """Forgets all counts (tests)."""
        self.scheduler = SchedulerCounters()
        self.actors: dict[str, ActorCounters] = {}
        self.transports: dict[str, TransportCounters] = {}
        self.collectives: dict[str, CollectiveCounters] = {}
        self.train: dict[str, JobCounters] = {}
        self.step_durations = Histogram(WIDE_BUCKETS)
        self.heartbeats: dict[str, int] = {"ok": 0, "late": 0, "failed": 0}
        self.registers: dict[tuple[str, str], int] = {}
        self.actor_states: dict[tuple[str, str], int] = {}
        self.device_memory: dict[str, int] = {}
        self.device_memory_peak = 0
        self.checkpoint_nbytes: dict[str, int] = {}
        self.rank: int | None = None
        self.gauges: list[Callable[[Metrics], None]] = []
        self.is_ready: Callable[[], bool] = lambda: True

    def actor(self, kind: str) -> ActorCounters:
        """kind: compute, boxing, transfer, input, output, ..."""
        found = self.actors.get(kind)
        return found if found else self.actors.setdefault(kind, ActorCounters())

    def transport(self, name: str) -> TransportCounters:
        found = self.transports.get(name)
        return found if found else self.transports.setdefault(name, TransportCounters())

    def act(self, kind: str, n: int = 1) -> None:
        """`n` acts of actors of this kind."""
        self.actor(kind).acts += n

    def wait(self, kind: str, cause: str, seconds: float) -> None:
        """The rank was idle because actors of a kind waited. cause: no_input or
        no_free_register.
        """
        counters = self.actor(kind)
        if cause == "no_input":
            counters.no_input_s += seconds
        else:
            counters.no_free_register_s += seconds

    def message_sent(self, transport: str, nbytes: int = 0) -> None:
        counters = self.transport(transport)
        counters.sent += 1
        counters.nbytes_sent += nbytes

    def message_received(self, transport: str, nbytes: int = 0) -> None:
        counters = self.transport(transport)
        counters.received += 1
        counters.nbytes_received += nbytes

    def collective(self, op: str, nbytes: int, seconds: float) -> None:
        """One collective on this rank that moved `nbytes` through the transport."""
        found = self.collectives.get(op)
        if found is None:
            found = self.collectives.setdefault(op, CollectiveCounters())
        found.nbytes += nbytes
        found.durations.observe(seconds)

    def set_registers(self, kind: str, state: str, count: int) -> None:
        """kind: compute, transfer, io; state: free, filled, in_use."""
        self.registers[kind, state] = count

    def set_device_memory(self, kind: str, nbytes: int) -> None:
        """kind: reserved, used. The peak of `reserved` is kept."""
        self.device_memory[kind] = nbytes
        if kind == "reserved":
            self.device_memory_peak = max(self.device_memory_peak, nbytes)

    def step(self, job: str, seconds: float, samples: int = 0, index: int | None = None) -> None:
        """One optimizer step of `job`; at most MAX_JOBS are kept. index: of the step, if known."""
        counters = self._job(label_value(job))
        counters.steps += 1
        counters.samples += samples
        counters.last_step = counters.last_step + 1 if index is None else index
        counters.last_step_at = time.time()
        self.step_durations.observe(seconds)

    def progressed(
        self, job: str, step: int, rank: int | None = None, loss: float | None = None
    ) -> None:
        """A rank of `job`, in a process of its own, has done `step` steps. loss: if it is shown."""
        counters = self._job(label_value(job))
        counters.rank, counters.ended_at = rank, 0.0
        counters.loss = counters.loss if loss is None else loss
        if step == counters.last_step or (counters.last_step > 0 and not step):
            return  # it only says that it lives
        counters.steps += max(step - max(counters.last_step, 0), 0)
        counters.last_step = step
        counters.last_step_at = time.time()

    def job_ended(self, job: str) -> None:
        """Its series are removed after KEEP_ENDED_S, unless it goes on here."""
        counters = self.train.get(label_value(job))
        if counters is not None:
            counters.ended_at = time.monotonic()

    def forget_ended(self) -> None:
        """Removes the series of jobs that ended long ago."""
        limit = time.monotonic() - KEEP_ENDED_S
        for job in [k for k, c in list(self.train.items()) if 0 < c.ended_at < limit]:
            self.train.pop(job, None)

    def checkpointed(self, job: str, step: int) -> None:
        """A checkpoint of `job` is complete, as its rank in another process says."""
        counters = self._job(label_value(job))
        counters.checkpoint_step, counters.checkpoint_at = step, time.time()

    def checkpoint(self, direction: str, nbytes: int) -> None:
        """direction: read or write."""
        self.checkpoint_nbytes[direction] = self.checkpoint_nbytes.get(direction, 0) + nbytes

    def _job(self, job: str) -> JobCounters:
        found = self.train.get(job)
        if found is None:
            if len(self.train) >= MAX_JOBS:
                del self.train[next(iter(self.train))]
            found = self.train.setdefault(job, JobCounters())
        return found


METRICS = Metrics()


def label_value(name: str) -> str:
    """A name that a program chose, made fit for a label: word characters only, not too long."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:MAX_LABEL_CHARS]


def make_registry(metrics: Metrics = METRICS, component: str = "rank") -> CollectorRegistry:
    """A registry of our own (never the global one) that shows `metrics`."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(_Collector(metrics, component))
    return registry


class _Collector:
    """Builds the families from the counters at each scrape."""

    def __init__(self, metrics: Metrics, component: str) -> None:
        self._metrics = metrics
        self._component = component

    def describe(self) -> list[Metric]:
        return []  # registering must not scrape

    def collect(self) -> Iterator[Metric]:
        for refresh in self._metrics.gauges:
            refresh(self._metrics)
        yield self._build_info()
        yield from self._scheduler()
        yield from self._actors()
        yield from self._messages()
        yield from self._memory()
        yield from self._train()
        for families in self._metrics.collectors:
            yield from families(self._metrics)

    def _build_info(self) -> Metric:
        from oneflow import __version__
        from oneflow.core.control_channel import PROTOCOL

        labels = {
            "component": self._component,
            "version": __version__,
            "python": platform.python_version(),
            "protocol": str(PROTOCOL),
        }
        return gauge("oneflow_build_info", "What runs here.", [(labels, 1)])

    def _scheduler(self) -> Iterator[Metric]:
        s = self._metrics.scheduler
        yield counter("oneflow_scheduler_heartbeats", "Heartbeats received.", [({}, s.heartbeats)])
        yield gauge(
            "oneflow_scheduler_heartbeat_age_max_seconds",
            "Age of the oldest last heartbeat.",
            [({}, s.heartbeat_age_max_s)],
        )
        yield counter(
            "oneflow_scheduler_daemons_lost",
            "Ranks or daemons declared lost.",
            [({"reason": k}, v) for k, v in s.lost.items()],
        )
        yield counter(
            "oneflow_scheduler_messages_rejected",
            "Messages refused.",
            [({"reason": k}, v) for k, v in s.rejected.items()],
        )
        yield counter(
            "oneflow_scheduler_rpc_requests",
            "Calls answered.",
            [({"method": a, "code": b}, n) for (a, b), n in s.rpcs.items()],
        )
        yield histogram(
            "oneflow_scheduler_rpc_duration_seconds",
            "Time to answer a call, waiting included.",
            [({"method": k}, h) for k, h in s.rpc_seconds.items()],
        )
        passes = [({"pass": "all"}, s.compiles), *(({"pass": k}, h) for k, h in s.passes.items())]
        yield histogram(
            "oneflow_scheduler_compile_duration_seconds", "Time of compiles, by pass.", passes
        )

    def _actors(self) -> Iterator[Metric]:
        m = self._metrics
        kinds = list(m.actors.items())
        yield counter("oneflow_actor_acts", "Acts done.", [({"kind": k}, c.acts) for k, c in kinds])
        yield histogram(
            "oneflow_actor_act_duration_seconds",
            "Time of one act.",
            [({"kind": k}, c.durations) for k, c in kinds],
        )
        waits = [({"kind": k, "cause": "no_input"}, c.no_input_s) for k, c in kinds]
        waits += [
            ({"kind": k, "cause": "no_free_register"}, c.no_free_register_s) for k, c in kinds
        ]
        yield counter(
            "oneflow_actor_wait_seconds", "Time this rank was idle, by what an actor lacked.", waits
        )
        yield gauge(
            "oneflow_daemon_actors",
            "Actors of the jobs bound now.",
            [({"kind": a, "state": b}, n) for (a, b), n in m.actor_states.items()],
        )
        yield gauge(
            "oneflow_registers",
            "Register slots.",
            [({"kind": a, "state": b}, n) for (a, b), n in m.registers.items()],
        )
        yield counter(
            "oneflow_daemon_heartbeats",
            "Heartbeats sent.",
            [({"result": k}, v) for k, v in m.heartbeats.items()],
        )

    def _messages(self) -> Iterator[Metric]:
        transports = list(self._metrics.transports.items())
        yield counter(
            "oneflow_messages_sent",
            "Messages sent.",
            [({"transport": k}, c.sent) for k, c in transports],
        )
        yield counter(
            "oneflow_messages_received",
            "Messages received.",
            [({"transport": k}, c.received) for k, c in transports],
        )
        rows = [
            ({"transport": k, "direction": direction}, nbytes + messages * c.message_nbytes)
            for k, c in transports
            for direction, nbytes, messages in (
                ("sent", c.nbytes_sent, c.sent),
                ("received", c.nbytes_received, c.received),
            )
        ]
        yield counter("oneflow_message_bytes", "Bytes in messages.", rows)
        yield gauge(
            "oneflow_mailbox_depth_max",
            "Most messages found waiting at once since the last scrape.",
            [({}, max((c.depth_max for _, c in transports), default=0))],
        )
        for _, counters in transports:
            counters.depth_max = 0
        collectives = list(self._metrics.collectives.items())
        yield counter(
            "oneflow_collective_bytes",
            "Bytes this rank moved in collectives.",
            [({"op": k}, c.nbytes) for k, c in collectives],
        )
        yield histogram(
            "oneflow_collective_duration_seconds",
            "Time of one collective.",
            [({"op": k}, c.durations) for k, c in collectives],
        )

    def _memory(self) -> Iterator[Metric]:
        m = self._metrics
        yield gauge(
            "oneflow_device_memory_bytes",
            "Memory of this rank's device.",
            [({"kind": k}, v) for k, v in m.device_memory.items()],
        )
        yield gauge(
            "oneflow_device_memory_peak_bytes",
            "Most reserved at once.",
            [({}, m.device_memory_peak)],
        )
        yield gauge(
            "oneflow_host_memory_bytes", "Host memory.", [({"kind": "rss"}, _resident_nbytes())]
        )

    def _train(self) -> Iterator[Metric]:
        m = self._metrics
        m.forget_ended()
        jobs = list(m.train.items())
        labels = [({"job": k, "rank": _rank(c.rank, m.rank)}, c) for k, c in jobs]
        yield counter(
            "oneflow_train_steps", "Optimizer steps.", [({"job": k}, c.steps) for k, c in jobs]
        )
        yield counter(
            "oneflow_train_samples", "Samples seen.", [({"job": k}, c.samples) for k, c in jobs]
        )
        yield gauge(
            "oneflow_train_last_step",
            "Index of the last finished step.",
            [(who, c.last_step) for who, c in labels],
        )
        yield gauge(
            "oneflow_train_last_step_timestamp_seconds",
            "When the last step finished.",
            [(who, c.last_step_at) for who, c in labels],
        )
        yield histogram(
            "oneflow_train_step_duration_seconds", "Time of one step.", [({}, m.step_durations)]
        )
        losses = [({"job": k}, c.loss) for k, c in jobs if c.loss is not None]
        if losses:
            yield gauge("oneflow_train_loss", "The last loss that was reported.", losses)
        saved = [(k, c) for k, c in jobs if c.checkpoint_at]
        yield gauge(
            "oneflow_checkpoint_last_step",
            "Step of the last complete checkpoint.",
            [({"job": k}, c.checkpoint_step) for k, c in saved],
        )
        yield gauge(
            "oneflow_checkpoint_last_success_timestamp_seconds",
            "When the last checkpoint was complete.",
            [({"job": k}, c.checkpoint_at) for k, c in saved],
        )
        yield counter(
            "oneflow_checkpoint_bytes",
            "Bytes of checkpoints.",
            [({"direction": k}, v) for k, v in m.checkpoint_nbytes.items()],
        )


Labels = dict[str, str]


def gauge(name: str, text: str, rows: Sequence[tuple[Labels, float]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _fill(GaugeMetricFamily(name, text), name, rows)


def counter(name: str, text: str, rows: Sequence[tuple[Labels, float]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _fill(CounterMetricFamily(name, text), f"{name}_total", rows)


def _fill(family: Any, sample: str, rows: Sequence[tuple[Labels, float]]) -> Metric:
    for labels, value in rows:
        family.add_sample(sample, labels, value)
    return family  # type: ignore[no-any-return]


def histogram(name: str, text: str, rows: Sequence[tuple[Labels, Histogram]]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text)
    for labels, histogram in rows:
        buckets = histogram.cumulative()
        for bound, count in buckets:
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{name}_count", labels, buckets[-1][1])
        family.add_sample(f"{name}_sum", labels, histogram.total_s)
    return family


def _rank(own: int | None, of_process: int | None) -> str:
    rank = of_process if own is None else own
    return "" if rank is None else str(rank)


def _resident_nbytes() -> int:
    import resource

    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
