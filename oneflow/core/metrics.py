"""The counters of this process. Every family that ranks and daemons show is declared here, once:
its name, text and labels, and the values of labels that may be told from process to process.

Counting is plain Python integers and floats in dicts: no lock, no prometheus import. A collector
turns them into Prometheus families when somebody scrapes (services/metrics_page.py); a scrape may
therefore see one counter a moment older than another, which rates do not mind. Names, units and
labels follow the Prometheus conventions; every label's values are bounded.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from oneflow.core.actor_kinds import ActorKind
from oneflow.core.host_memory import host_capacity, own_memory
from oneflow.core.metrics_families import (
    WIDE_BUCKETS,
    Buckets,
    Counts,
    Family,
    Gauges,
    Histogram,
    Labels,
    Peaks,
    Times,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MAX_LABEL_CHARS = 64
MAX_JOBS = 200  # label values of `job` kept at once; the oldest goes first
KEEP_ENDED_S = 900.0  # so long the series of a job outlive it
NONFINITE = ("loss", "grad", "param")
SAVE_PHASES = ("gather", "write", "commit")
CHECKPOINT_FAILURES = ("DISK_FULL", "IO", "CHECKPOINT_INVALID", "INTERNAL")
DEVICE_ERRORS = ("ecc", "xid", "launch")
KINDS = tuple(kind.name.lower() for kind in ActorKind)
CAUSES = ("no_input", "no_free_register")
ACTOR_STATES = ("waiting_input", "waiting_output", "running", "idle")
SLOT_KINDS = ("compute", "transfer", "io")
SLOT_STATES = ("free", "filled", "in_use")
TRANSPORTS = ("local", "shm", "tcp")
COLLECTIVES = (
    *KINDS,
    *("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "transfer", "broadcast"),
)
READ_WRITE = ("read", "write")
TIERS = ("device", "host", "disk")
LOOKUPS = (("device", "hit"), ("host", "hit"), ("host", "miss"), ("disk", "hit"))
"""Tiers of embeddings and what a look-up there finds: variables are on the device; rows of
OneEmbedding in memory or on a disk, or nowhere, and are created in memory then."""
ALL_PASSES = "all"  # of the compiler, as one
ROW_IDS = ("asked", "distinct")
"""Ids of the batches of OneEmbedding: all, and each once per batch."""
ROW_MOVES = tuple((tier, way) for tier in TIERS[1:] for way in READ_WRITE)


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


class OfJobs(Counts):
    """The sum of a number over all jobs of this process, which is told and not shown: pages show it
    job by job.
    """

    def __init__(self, metrics: Metrics, attribute: str) -> None:
        super().__init__("", "")
        self._metrics, self._attribute = metrics, attribute

    def rows(self) -> Iterator[tuple[Labels, Any]]:
        jobs = list(self._metrics.train.values())
        yield (), sum(getattr(job, self._attribute) for job in jobs)

    def take(self, job: str, labels: Labels, value: float, buckets: Buckets) -> None:
        if value:
            found = self._metrics.job(job)
            setattr(found, self._attribute, getattr(found, self._attribute) + int(value))


class NonfiniteOfJobs(OfJobs):
    """The same of the numbers that were not finite, by where they were."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics, "nonfinite")
        self.labels, self.known = ("where",), {"where": frozenset(NONFINITE)}

    def rows(self) -> Iterator[tuple[Labels, Any]]:
        jobs = list(self._metrics.train.values())
        for where in NONFINITE:
            yield (where,), sum(job.nonfinite[where] for job in jobs)

    def take(self, job: str, labels: Labels, value: float, buckets: Buckets) -> None:
        if value:
            self._metrics.job(job).nonfinite[labels[0]] += int(value)


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
    """Everything one process counts: a family for each attribute, which is its name on the way from
    a rank to its daemon, and the further metrics of jobs.

    Increment the families in loops: a look-up in a dict is all that it takes.
    """

    def __init__(self) -> None:
        self.collectors: list[Callable[[Metrics], Iterator[Metric]]] = []  # of other modules
        self.reset()

    def reset(self) -> None:
        """Forgets all counts (tests)."""
        self.scheduler = SchedulerCounters()
        self.train: dict[str, JobCounters] = {}
        self.capacity: Callable[[], Mapping[str, int]] = host_capacity  # of the device
        self.rank: int | None = None
        self.gauges: list[Callable[[Metrics], None]] = []
        self.is_ready: Callable[[], bool] = lambda: True
        self._add_actors()
        self._add_messages()
        self._add_memory()
        self._add_embeddings()
        self._add_training()

    def _add_actors(self) -> None:
        self.acts = Counts("oneflow_actor_acts", "Acts done.", kind=KINDS)
        self.act_seconds = Times(
            "oneflow_actor_act_duration_seconds", "Time of one act.", kind=KINDS
        )
        self.wait_seconds = Counts(
            "oneflow_actor_wait_seconds",
            "Time this rank was idle, by what an actor lacked.",
            kind=KINDS,
            cause=CAUSES,
        )
        self.actor_states = Gauges(
            "oneflow_daemon_actors", "Actors of the jobs bound now.", kind=KINDS, state=ACTOR_STATES
        )
        self.registers = Gauges(
            "oneflow_registers", "Register slots.", kind=SLOT_KINDS, state=SLOT_STATES
        )

    def _add_messages(self) -> None:
        self.heartbeats = Counts(
            "oneflow_daemon_heartbeats",
            "Heartbeats sent.",
            "result",
            start=("ok", "late", "failed"),
        )
        self.messages_sent = Counts("oneflow_messages_sent", "Messages sent.", transport=TRANSPORTS)
        self.messages_received = Counts(
            "oneflow_messages_received", "Messages received.", transport=TRANSPORTS
        )
        self.message_bytes = Counts(
            "oneflow_message_bytes",
            "Bytes in messages.",
            transport=TRANSPORTS,
            direction=("sent", "received"),
        )
        self.message_latency_seconds = Times(
            "oneflow_message_latency_seconds",
            "From the post of a message until its receiver may take it, of some messages.",
            transport=TRANSPORTS,
        )
        self.mailbox_depth = Peaks(
            "oneflow_mailbox_depth_max",
            "Most messages found waiting at once since the last scrape.",
            start=[()],
        )
        self.mailbox_depth.forgets = True
        self.collective_bytes = Counts(
            "oneflow_collective_bytes", "Bytes this rank moved in collectives.", op=COLLECTIVES
        )
        self.collective_seconds = Times(
            "oneflow_collective_duration_seconds", "Time of one collective.", op=COLLECTIVES
        )

    def _add_memory(self) -> None:
        self.device_memory = Gauges(
            "oneflow_device_memory_bytes",
            "Memory of this rank's device.",
            kind=("used", "reserved"),
        )
        self.device_memory.own = lambda: self.capacity()
        self.device_memory_peak = Peaks(
            "oneflow_device_memory_peak_bytes", "Most reserved at once.", start=[()]
        )
        self.host_memory = Gauges(
            "oneflow_host_memory_bytes",
            "Host memory of this process and of the rank that it runs.",
            kind=("rss", "pinned", "shared"),
            start=["pinned"],
        )
        self.host_memory.own = own_memory
        self.device_errors = Counts(
            "oneflow_device_errors",
            "Errors of the device.",
            kind=DEVICE_ERRORS,
            start=DEVICE_ERRORS,
        )

    def _add_embeddings(self) -> None:
        self.lookups = Counts(
            "oneflow_embedding_lookups",
            "Rows of embeddings that were looked up.",
            tier=TIERS,
            result=("hit", "miss"),
            start=LOOKUPS,
        )
        self.row_ids = Counts(
            "oneflow_embedding_ids",
            "Ids that were looked up in OneEmbedding's tables.",
            kind=ROW_IDS,
            start=ROW_IDS,
        )
        self.row_nbytes = Counts(
            "oneflow_embedding_bytes",
            "Bytes of OneEmbedding's rows that were moved.",
            tier=TIERS[1:],
            direction=READ_WRITE,
            start=ROW_MOVES,
        )
        self.rows_queued = Gauges(
            "oneflow_embedding_queued_rows",
            "Changed rows of OneEmbedding that wait to be written to the disk.",
            start=[()],
        )
        self.row_stall_seconds = Counts(
            "oneflow_embedding_stall_seconds",
            "Time for which look-ups waited for the disk.",
            start=[()],
        )

    def _add_training(self) -> None:
        self.steps = OfJobs(self, "steps")
        self.samples = OfJobs(self, "samples")
        self.nonfinite_numbers = NonfiniteOfJobs(self)
        self.step_seconds = Times(
            "oneflow_train_step_duration_seconds",
            "Time of one step.",
            bounds=WIDE_BUCKETS,
            start=[()],
        )
        self.saves = Times(
            "oneflow_checkpoint_save_duration_seconds",
            "Time of a phase of a checkpoint.",
            bounds=WIDE_BUCKETS,
            phase=SAVE_PHASES,
            start=SAVE_PHASES,
        )
        self.checkpoint_nbytes = Counts(
            "oneflow_checkpoint_bytes",
            "Bytes of checkpoints.",
            direction=READ_WRITE,
            start=READ_WRITE,
        )
        self.checkpoint_failures = Counts(
            "oneflow_checkpoint_failures",
            "Checkpoints that could not be written or read.",
            reason=CHECKPOINT_FAILURES,
            start=CHECKPOINT_FAILURES,
        )

    def told(self) -> dict[str, Family]:
        """Families that a rank tells its daemon, by name: all whose labels have known values."""
        families = [(name, f) for name, f in vars(self).items() if isinstance(f, Family)]
        return {name: found for name, found in families if len(found.known) == len(found.labels)}

    def actor_times(self, kind: str) -> Histogram:
        """Begin the series of a kind of actors, from zero on; return the times of its acts."""
        self.acts[kind] += 0
        for cause in CAUSES:
            self.wait_seconds[kind, cause] += 0.0
        found: Histogram = self.act_seconds[kind]
        return found

    def message_sent(self, transport: str, nbytes: int) -> None:
        self.messages_sent[transport] += 1
        self.message_bytes[transport, "sent"] += nbytes

    def messages_taken(self, transport: str, count: int, nbytes: int) -> None:
        """`count` messages of `nbytes` in all were found waiting and taken."""
        self.messages_received[transport] += count
        self.message_bytes[transport, "received"] += nbytes
        self.mailbox_depth.note(count)

    def collective(self, op: str, nbytes: int, seconds: float) -> None:
        """One collective on this rank that moved `nbytes` through the transport."""
        self.collective_bytes[op] += nbytes
        self.collective_seconds[op].observe(seconds)

    def set_device_memory(self, kind: str, nbytes: int) -> None:
        """Set the memory in use of the device.

        kind: reserved, used. The peak of `reserved` is kept.
        """
        self.device_memory[kind] = nbytes
        if kind == "reserved":
            self.device_memory_peak.note(nbytes)

    def pinned(self, nbytes: int) -> None:
        """So much more host memory is pinned for a GPU; negative: less."""
        self.host_memory["pinned"] += nbytes

    def step(self, job: str, seconds: float, samples: int = 0, index: int | None = None) -> None:
        """One optimizer step of `job`; at most MAX_JOBS are kept. index: of the step, if known."""
        counters = self.job(job)
        counters.steps += 1
        counters.samples += samples
        counters.last_step = counters.last_step + 1 if index is None else index
        counters.last_step_at = time.time()
        self.step_seconds[()].observe(seconds)

    def progressed(
        self, job: str, step: int, rank: int | None = None, loss: float | None = None
    ) -> None:
        """A rank of `job`, in a process of its own, is at step `step`. loss: if it is shown.

        How many steps it has made it tells otherwise (metrics_samples.py): it may go on from any.
        """
        counters = self.job(job)
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
        for job in [k for k, c in self.train.copy().items() if 0 < c.ended_at < limit]:
            self.train.pop(job, None)

    def checkpointed(self, job: str, step: int) -> None:
        """A checkpoint of `job` is complete, as its rank in another process says."""
        counters = self.job(job)
        counters.checkpoint_step, counters.checkpoint_at = step, time.time()

    def nonfinite(self, job: str, where: str) -> None:
        """A number of a step was not finite. where: one of NONFINITE."""
        self.job(job).nonfinite[where] += 1

    def looked_up(self, count: int) -> None:
        """So many rows of embeddings were looked up on the device."""
        self.lookups["device", "hit"] += count

    def job(self, name: str) -> JobCounters:
        """Return the counters of a job, by the name that a program or a cluster gave it."""
        job = label_value(name)
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
