"""The families of a rank's counters, a row for each: its name on a page, how it is read here, and
how the daemon of a rank in another process adds what that rank tells of it (metrics_told.py).

Pages show the rows that have a name for it; what the others hold they show in ways of their own
(metrics_page.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from oneflow.core.actor_kinds import ActorKind
from oneflow.core.host_memory import own_memory
from oneflow.core.metrics import (
    CHECKPOINT_FAILURES,
    DEVICE_ERRORS,
    NONFINITE,
    ROW_IDS,
    SAVE_PHASES,
    Gauges,
    Histogram,
    Metrics,
    Times,
)

Labels = tuple[str, ...]
Row = tuple[Labels, "float | Histogram"]
Buckets = tuple[int, ...]
Add = Callable[[Metrics, str, Labels, float, Buckets], None]


class How(Enum):
    """COUNT: only grows. TIMES: a histogram. NOW: of this moment, 0 once the rank has ended. MOST:
    of a time.
    """

    COUNT = "count"
    TIMES = "times"
    NOW = "now"
    MOST = "most"


@dataclass(frozen=True)
class Family:
    """A family of metrics.

    add: (metrics, job, labels, growth or value, growth of the buckets). labels: for each the values
    there are. shown, text: on a page; "": not as a row of it.
    """

    name: str
    read: Callable[[Metrics], Iterator[Row]]
    add: Add
    how: How = How.COUNT
    labels: Mapping[str, frozenset[str]] = field(default_factory=dict)
    shown: str = ""
    text: str = ""

    def knows(self, labels: Labels) -> bool:
        return len(labels) == len(self.labels) and all(
            label in known for label, known in zip(labels, self.labels.values(), strict=True)
        )


# ---- reading and adding --------------------------------------------------------------------------


def _items(kept: str, attribute: str = "") -> Callable[[Metrics], Iterator[Row]]:
    """Return a reader of one attribute of each value of the dict `kept`, whose keys are labels or
    pairs of them.
    """

    def read(m: Metrics) -> Iterator[Row]:
        for key, value in list(getattr(m, kept).items()):
            labels = key if isinstance(key, tuple) else (key,)
            yield labels, getattr(value, attribute) if attribute else value

    return read


def _into(kept: str, is_now: bool = False) -> Add:
    """Adds to that dict, or sets what is there now."""

    def add(m: Metrics, job: str, labels: Labels, value: float, _: Buckets) -> None:
        counts, key = getattr(m, kept), labels if len(labels) > 1 else labels[0]
        counts[key] = int(value) + (0 if is_now else counts.get(key, 0))

    return add


def _count(of: Callable[[Metrics, str, Labels], object], attribute: str) -> Add:
    """Adds to an attribute, if there is something to add: nobody is shown who did nothing."""

    def add(m: Metrics, job: str, labels: Labels, value: float, _: Buckets) -> None:
        if value:
            found = of(m, job, labels)
            setattr(found, attribute, getattr(found, attribute) + int(value))

    return add


def _time(of: Callable[[Metrics, Labels], Histogram]) -> Add:
    def add(m: Metrics, job: str, labels: Labels, total_s: float, counts: Buckets) -> None:
        histogram = of(m, labels)
        histogram.total_s += total_s
        for index, count in enumerate(counts[: len(histogram.counts)]):
            histogram.counts[index] += count

    return add


def _of_all_jobs(attribute: str) -> Callable[[Metrics], Iterator[Row]]:
    return lambda m: iter([((), sum(getattr(c, attribute) for c in list(m.train.values())))])


def _waits(m: Metrics) -> Iterator[Row]:
    for kind, c in list(m.actors.items()):
        yield (kind, "no_input"), c.no_input_s
        yield (kind, "no_free_register"), c.no_free_register_s


def _messages(m: Metrics) -> Iterator[Row]:
    for name, c in list(m.transports.items()):
        yield (name, "sent"), c.sent
        yield (name, "received"), c.received


def _message_nbytes(m: Metrics) -> Iterator[Row]:
    for name, c in list(m.transports.items()):
        for direction, nbytes in zip(("sent", "received"), c.all_nbytes(), strict=True):
            yield (name, direction), nbytes


def _add_messages(m: Metrics, job: str, labels: Labels, value: float, _: Buckets) -> None:
    _count(lambda m, job, labels: m.transport(labels[0]), labels[1])(m, job, labels, value, ())


def _add_message_nbytes(m: Metrics, job: str, labels: Labels, value: float, _: Buckets) -> None:
    kept = f"nbytes_{labels[1]}"
    _count(lambda m, job, labels: m.transport(labels[0]), kept)(m, job, labels, value, ())


def _depths(m: Metrics) -> Iterator[Row]:
    """Since it was asked last."""
    for name, c in list(m.transports.items()):
        depth, c.depth_max = c.depth_max, 0
        yield (name,), depth


def _nonfinite(m: Metrics) -> Iterator[Row]:
    for where in NONFINITE:
        yield (where,), sum(c.nonfinite[where] for c in list(m.train.values()))


def _add_nonfinite(m: Metrics, job: str, labels: Labels, value: float, _: Buckets) -> None:
    if value:
        m.job(job).nonfinite[labels[0]] += int(value)


def _set_peak(m: Metrics, job: str, labels: Labels, value: float, _: Buckets) -> None:
    m.device_memory_peak = max(m.device_memory_peak, int(value))


def _set_queued(m: Metrics, job: str, labels: Labels, value: float, _: Buckets) -> None:
    m.rows_queued = int(value)


def _add_stall(m: Metrics, job: str, labels: Labels, value: float, _: Buckets) -> None:
    m.row_stall_s += value


def _host_memory(m: Metrics) -> Iterator[Row]:
    for kind, nbytes in own_memory().items():
        yield (kind,), nbytes
    yield ("pinned",), m.host_memory.get("pinned", 0)


# ---- the rows ------------------------------------------------------------------------------------

KIND = {"kind": frozenset(kind.name.lower() for kind in ActorKind)}
TRANSPORT = {"transport": frozenset(("local", "shm", "tcp"))}
COLLECTIVE = {
    "op": KIND["kind"]
    | {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "transfer", "broadcast"}
}
CAUSE = {"cause": frozenset(("no_input", "no_free_register"))}
DIRECTION = {"direction": frozenset(("sent", "received"))}
ACTOR_STATES = ("waiting_input", "waiting_output", "running", "idle")
SLOT_KINDS = ("compute", "transfer", "io")
SLOT_STATES = ("free", "filled", "in_use")
TIERS = ("device", "host", "disk")
READ_WRITE = ("read", "write")


def _kept(name: str, kept: str, *known: Iterable[str]) -> Family:
    """The row of a family that `Metrics` declares under `kept`. known: the values of each label."""
    declared = getattr(_DECLARED, kept)
    how, add = How.COUNT, _into(kept)
    if isinstance(declared, Gauges):
        how, add = How.NOW, _into(kept, is_now=True)
    elif isinstance(declared, Times):
        how, add = How.TIMES, _time(lambda m, labels: getattr(m, kept)[labels[0]])
    labels = dict(zip(declared.labels, map(frozenset, known), strict=True))
    return Family(name, _items(kept), add, how, labels, declared.name, declared.text)


_DECLARED = Metrics()
FAMILIES = (
    Family(
        "acts",
        _items("actors", "acts"),
        _count(lambda m, job, labels: m.actor(labels[0]), "acts"),
        labels=KIND,
        shown="oneflow_actor_acts",
        text="Acts done.",
    ),
    Family(
        "act_seconds",
        _items("actors", "durations"),
        _time(lambda m, labels: m.actor(labels[0]).durations),
        How.TIMES,
        KIND,
        "oneflow_actor_act_duration_seconds",
        "Time of one act.",
    ),
    Family(
        "wait_seconds",
        _waits,
        lambda m, job, labels, s, _: m.wait(labels[0], labels[1], s),
        How.COUNT,
        KIND | CAUSE,
        "oneflow_actor_wait_seconds",
        "Time this rank was idle, by what an actor lacked.",
    ),
    _kept("actors", "actor_states", KIND["kind"], ACTOR_STATES),
    _kept("registers", "registers", SLOT_KINDS, SLOT_STATES),
    Family("messages", _messages, _add_messages, How.COUNT, TRANSPORT | DIRECTION),
    Family(
        "message_bytes",
        _message_nbytes,
        _add_message_nbytes,
        How.COUNT,
        TRANSPORT | DIRECTION,
        "oneflow_message_bytes",
        "Bytes in messages.",
    ),
    Family(
        "message_latency_seconds",
        _items("transports", "latency"),
        _time(lambda m, labels: m.transport(labels[0]).latency),
        How.TIMES,
        TRANSPORT,
        "oneflow_message_latency_seconds",
        "From the post of a message until its receiver may take it, of some messages.",
    ),
    Family(
        "mailbox_depth",
        _depths,
        lambda m, job, labels, depth, _: m.transport(labels[0]).note_depth(int(depth)),
        How.MOST,
        TRANSPORT,
    ),
    Family(
        "collective_bytes",
        _items("collectives", "nbytes"),
        _count(lambda m, job, labels: m.collective_of(labels[0]), "nbytes"),
        How.COUNT,
        COLLECTIVE,
        "oneflow_collective_bytes",
        "Bytes this rank moved in collectives.",
    ),
    Family(
        "collective_seconds",
        _items("collectives", "durations"),
        _time(lambda m, labels: m.collective_of(labels[0]).durations),
        How.TIMES,
        COLLECTIVE,
        "oneflow_collective_duration_seconds",
        "Time of one collective.",
    ),
    Family(
        "device_memory",
        _items("device_memory"),
        _into("device_memory", is_now=True),
        How.NOW,
        {"kind": frozenset(("used", "reserved"))},
    ),
    Family(
        "device_memory_peak",
        lambda m: iter([((), m.device_memory_peak)]),
        _set_peak,
        How.MOST,
        {},
        "oneflow_device_memory_peak_bytes",
        "Most reserved at once.",
    ),
    Family(
        "host_memory",
        _host_memory,
        _into("host_memory", is_now=True),
        How.NOW,
        {"kind": frozenset(("rss", "pinned", "shared"))},
    ),
    _kept("device_errors", "device_errors", DEVICE_ERRORS),
    _kept("lookups", "lookups", TIERS, ("hit", "miss")),
    _kept("row_ids", "row_ids", ROW_IDS),
    _kept("row_bytes", "row_nbytes", TIERS[1:], READ_WRITE),
    Family(
        "rows_queued",
        lambda m: iter([((), m.rows_queued)]),
        _set_queued,
        How.NOW,
        {},
        "oneflow_embedding_queued_rows",
        "Changed rows of OneEmbedding that wait to be written to the disk.",
    ),
    Family(
        "row_stall_seconds",
        lambda m: iter([((), m.row_stall_s)]),
        _add_stall,
        How.COUNT,
        {},
        "oneflow_embedding_stall_seconds",
        "Time for which look-ups waited for the disk.",
    ),
    Family("steps", _of_all_jobs("steps"), _count(lambda m, job, _: m.job(job), "steps")),
    Family("samples", _of_all_jobs("samples"), _count(lambda m, job, _: m.job(job), "samples")),
    Family(
        "step_seconds",
        lambda m: iter([((), m.step_durations)]),
        _time(lambda m, _: m.step_durations),
        How.TIMES,
        {},
        "oneflow_train_step_duration_seconds",
        "Time of one step.",
    ),
    Family(
        "nonfinite",
        _nonfinite,
        _add_nonfinite,
        How.COUNT,
        {"where": frozenset(NONFINITE)},
    ),
    _kept("save_seconds", "saves", SAVE_PHASES),
    _kept("checkpoint_bytes", "checkpoint_nbytes", READ_WRITE),
    _kept("checkpoint_failures", "checkpoint_failures", CHECKPOINT_FAILURES),
)
BY_NAME = {family.name: family for family in FAMILIES}
