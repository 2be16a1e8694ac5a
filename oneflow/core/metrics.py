"""The counters of this process, and the page that shows them.

Counting is plain Python integers and floats in slotted objects: no lock, no label look-up on the
hot path, no prometheus import. A collector turns them into Prometheus families when somebody
scrapes; a scrape may therefore see one counter a moment older than another, which rates do not
mind. Names, units and labels follow the Prometheus conventions; every label's values are bounded.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from oneflow.core.host_memory import host_capacity

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

FAST_BUCKETS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)  # seconds
WIDE_BUCKETS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
MAX_LABEL_CHARS = 64
MAX_JOBS = 200  # label values of `job` kept at once; the oldest goes first
KEEP_ENDED_S = 900.0  # so long the series of a job outlive it
NONFINITE = ("loss", "grad", "param")
SAVE_PHASES = ("gather", "write", "commit")
CHECKPOINT_FAILURES = ("DISK_FULL", "IO", "CHECKPOINT_INVALID", "INTERNAL")
DEVICE_ERRORS = ("ecc", "xid", "launch")
LOOKUPS = (("device", "hit"), ("host", "hit"), ("host", "miss"), ("disk", "hit"))
"""Tiers of embeddings and what a look-up there finds: variables are on the device; rows of
OneEmbedding in memory or on a disk, or nowhere, and are created in memory then."""
ALL_PASSES = "all"  # of the compiler, as one
ROW_IDS = ("asked", "distinct")
"""Ids of the batches of OneEmbedding: all, and each once per batch."""
ROW_MOVES = tuple((tier, way) for tier in ("host", "disk") for way in ("read", "write"))


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


Key: TypeAlias = "str | tuple[str, ...]"


class Counts(Counter[Any]):
    """A family of a page whose numbers only grow, by labels: a Key, () where there are none.

    start: keys that are shown from zero on: a series that begins with its first 1 has not
    increased for an alert.
    """

    def __init__(self, name: str, text: str, *labels: str, start: Iterable[Key] = ()) -> None:
        super().__init__(dict.fromkeys(start, 0))
        self.name, self.text, self.labels = name, text, labels


class Gauges(dict[Any, float]):
    """The same of numbers that hold at this moment."""

    def __init__(self, name: str, text: str, *labels: str, start: Iterable[Key] = ()) -> None:
        super().__init__(dict.fromkeys(start, 0))
        self.name, self.text, self.labels = name, text, labels


class Times(dict[Any, Histogram]):
    """The same of durations; the histogram of a key begins when it is first asked for."""

    def __init__(
        self,
        name: str,
        text: str,
        *labels: str,
        bounds: tuple[float, ...] = FAST_BUCKETS,
        start: Iterable[Key] = (),
    ) -> None:
        super().__init__({key: Histogram(bounds) for key in start})
        self.name, self.text, self.labels, self.bounds = name, text, labels, bounds

    def __missing__(self, key: Key) -> Histogram:
        return self.setdefault(key, Histogram(self.bounds))


class ActorCounters:
    """Counters of all actors of one kind; the runtime increments the fields directly."""

    __slots__ = ("acts", "durations", "no_free_register_s", "no_input_s")

    def __init__(self) -> None:
        self.acts = 0
        self.no_input_s = 0.0
        self.no_free_register_s = 0.0
        self.durations = Histogram(FAST_BUCKETS)


@dataclass(frozen=True)
class ActorWaits:
    """Seconds for which actors of one kind of a process have waited since it began, by cause."""

    kind: str
    no_input_s: float = 0.0
    no_free_register_s: float = 0.0


class TransportCounters:
    """Counters of one way to send messages (local, shm, tcp).

    depth_max: most messages that were found waiting at once since the last scrape.
    message_nbytes: of each message, besides what nbytes_sent and nbytes_received count.
    latency: of messages of which it is known (docs/METRICS.md says of which).
    """

    __slots__ = (
        "depth_max",
        "latency",
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
        self.latency = Histogram(FAST_BUCKETS)

    def all_nbytes(self) -> tuple[int, int]:
        """Sent and received."""
        return (
            self.nbytes_sent + self.sent * self.message_nbytes,
            self.nbytes_received + self.received * self.message_nbytes,
        )

    def took(self, count: int) -> None:
        """`count` messages were found waiting and taken."""
        self.received += count
        if count > self.depth_max:
            self.depth_max = count

    def note_depth(self, count: int) -> None:
        if count > self.depth_max:
            self.depth_max = count


class CollectiveCounters:
    """Counters of one kind of collective (all_reduce, ...)."""

    __slots__ = ("durations", "nbytes")

    def __init__(self) -> None:
        self.nbytes = 0
        self.durations = Histogram(FAST_BUCKETS)


class JobCounters:
    """Counters of one training job."""

    __slots__ = (
        "checkpoint_at",
        "checkpoint_step",
        "ended_at",
        "last_step",
        "last_step_at",
        "loss",
        "nonfinite",
        "rank",
        "samples",
        "steps",
    )

    def __init__(self) -> None:
        self.rank: int | None = None  # None: that of the process
        self.loss: float | None = None  # None: not shown
        self.nonfinite: dict[str, int] = dict.fromkeys(NONFINITE, 0)
        self.ended_at = 0.0  # seconds of the monotonic clock, 0: goes on
        self.steps = 0
        self.samples = 0
        self.last_step = -1
        self.last_step_at = 0.0
        self.checkpoint_step = -1
        self.checkpoint_at = 0.0


class SchedulerCounters:
    """Counters of the scheduler that this process hosts, if any."""

    def __init__(self) -> None:
        self.heartbeats = Counts("oneflow_scheduler_heartbeats", "Heartbeats received.", start=[()])
        self.heartbeat_age_max = Gauges(
            "oneflow_scheduler_heartbeat_age_max_seconds",
            "Age of the oldest last heartbeat.",
            start=[()],
        )
        self.lost = Counts(
            "oneflow_scheduler_daemons_lost", "Ranks or daemons declared lost.", "reason"
        )
        self.rejected = Counts(
            "oneflow_scheduler_messages_rejected", "Messages refused.", "reason"
        )  # oversize, malformed, stale_epoch, duplicate, unknown or auth
        self.rpcs = Counts("oneflow_scheduler_rpc_requests", "Calls answered.", "method", "code")
        self.rpc_seconds = Times(
            "oneflow_scheduler_rpc_duration_seconds",
            "Time to answer a call, waiting included.",
            "method",
        )
        self.passes = Times(
            "oneflow_scheduler_compile_duration_seconds",
            "Time of compiles, by pass.",
            "pass",
            bounds=WIDE_BUCKETS,
            start=[ALL_PASSES],
        )

    def rpc_done(self, method: str, code: str, seconds: float) -> None:
        self.rpcs[method, code] += 1
        self.rpc_seconds[method].observe(seconds)


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
        self.heartbeats = Counts(
            "oneflow_daemon_heartbeats",
            "Heartbeats sent.",
            "result",
            start=("ok", "late", "failed"),
        )
        self.registers = Gauges("oneflow_registers", "Register slots.", "kind", "state")
        self.actor_states = Gauges(
            "oneflow_daemon_actors", "Actors of the jobs bound now.", "kind", "state"
        )
        self.device_memory: dict[str, int] = {}
        self.device_memory_peak = 0
        self.host_memory: dict[str, int] = {}  # of ranks in other processes, and pinned memory
        self.device_errors = Counts(
            "oneflow_device_errors", "Errors of the device.", "kind", start=DEVICE_ERRORS
        )
        self.lookups = Counts(
            "oneflow_embedding_lookups",
            "Rows of embeddings that were looked up.",
            "tier",
            "result",
            start=LOOKUPS,
        )
        self.row_ids = Counts(
            "oneflow_embedding_ids",
            "Ids that were looked up in OneEmbedding's tables.",
            "kind",
            start=ROW_IDS,
        )
        self.row_nbytes = Counts(
            "oneflow_embedding_bytes",
            "Bytes of OneEmbedding's rows that were moved.",
            "tier",
            "direction",
            start=ROW_MOVES,
        )
        self.rows_queued = 0
        self.row_stall_s = 0.0
        self.checkpoint_nbytes = Counts(
            "oneflow_checkpoint_bytes",
            "Bytes of checkpoints.",
            "direction",
            start=("read", "write"),
        )
        self.checkpoint_failures = Counts(
            "oneflow_checkpoint_failures",
            "Checkpoints that could not be written or read.",
            "reason",
            start=CHECKPOINT_FAILURES,
        )
        self.saves = Times(
            "oneflow_checkpoint_save_duration_seconds",
            "Time of a phase of a checkpoint.",
            "phase",
            bounds=WIDE_BUCKETS,
            start=SAVE_PHASES,
        )
        self.capacity: Callable[[], Mapping[str, int]] = host_capacity  # of the device
        self.rank: int | None = None
        self.gauges: list[Callable[[Metrics], None]] = []
        self.is_ready: Callable[[], bool] = lambda: True

    def actor(self, kind: str) -> ActorCounters:
        """Return the counters of a kind of actors.

        kind: compute, boxing, transfer, input, output, ...
        """
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

    def collective_of(self, op: str) -> CollectiveCounters:
        """Return the counters of a kind of collectives.

        op: all_reduce, ...
        """
        found = self.collectives.get(op)
        return found if found else self.collectives.setdefault(op, CollectiveCounters())

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
        """Set the memory in use of the device.

        kind: reserved, used. The peak of `reserved` is kept.
        """
        self.device_memory[kind] = nbytes
        if kind == "reserved":
            self.device_memory_peak = max(self.device_memory_peak, nbytes)

    def pinned(self, nbytes: int) -> None:
        """So much more host memory is pinned for a GPU; negative: less."""
        self.host_memory["pinned"] = self.host_memory.get("pinned", 0) + nbytes

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
        """A rank of `job`, in a process of its own, is at step `step`. loss: if it is shown.

        How many steps it has made it tells otherwise (metrics_told.py): it may go on from any.
        """
        counters = self._job(label_value(job))
        counters.rank, counters.ended_at = rank, 0.0
        counters.loss = counters.loss if loss is None else loss
        if step == counters.last_step or (counters.last_step > 0 and not step):
            return  # it only says that it lives
        counters.last_step = step
        counters.last_step_at = time.time()

    def job_ended(self, job: str) -> None:
        """Its series are removed after KEEP_ENDED_S, unless it goes on here."""
        counters = self.train.get(label_value(job))
        if counters is not None:
            counters.ended_at = time.monotonic()

    def forget_ended(self, now: float | None = None) -> None:
        """Removes the series of jobs that ended long ago. now: of the monotonic clock."""
        limit = (time.monotonic() if now is None else now) - KEEP_ENDED_S
        for job in [k for k, c in list(self.train.items()) if 0 < c.ended_at < limit]:
            self.train.pop(job, None)

    def checkpointed(self, job: str, step: int) -> None:
        """A checkpoint of `job` is complete, as its rank in another process says."""
        counters = self._job(label_value(job))
        counters.checkpoint_step, counters.checkpoint_at = step, time.time()

    def checkpoint(self, direction: str, nbytes: int) -> None:
        """direction: read or write."""
        self.checkpoint_nbytes[direction] += nbytes

    def saved(self, phase: str, seconds: float) -> None:
        """A phase of a checkpoint on this rank. phase: one of SAVE_PHASES."""
        self.saves[phase].observe(seconds)

    def checkpoint_failed(self, reason: str) -> None:
        """reason: one of CHECKPOINT_FAILURES."""
        self.checkpoint_failures[reason] += 1

    def nonfinite(self, job: str, where: str) -> None:
        """A number of a step was not finite. where: one of NONFINITE."""
        self._job(label_value(job)).nonfinite[where] += 1

    def looked_up(self, count: int) -> None:
        """So many rows of embeddings were looked up on the device."""
        self.lookups["device", "hit"] += count

    def device_failed(self, kind: str) -> None:
        """kind: one of DEVICE_ERRORS."""
        self.device_errors[kind] += 1

    def job(self, name: str) -> JobCounters:
        """Return the counters of a job, by the name that a program or a cluster gave it."""
        return self._job(label_value(name))

    def _job(self, job: str) -> JobCounters:
        found = self.train.get(job)
        if found is None:
            if len(self.train) >= MAX_JOBS:
                ended = (name for name, c in self.train.items() if c.ended_at)
                del self.train[next(ended, next(iter(self.train)))]
            found = self.train.setdefault(job, JobCounters())
        return found


METRICS = Metrics()


def label_value(name: str) -> str:
    """A name that a program chose, made fit for a label: word characters only, not too long."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:MAX_LABEL_CHARS]
