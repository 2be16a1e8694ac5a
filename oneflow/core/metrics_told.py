"""What a rank's process tells its daemon of what it counts, so that one page shows both.

A table, a row for each family: how the rank reads it, how the daemon adds it to its own. A rank
tells numbers since it began, the daemon adds what they have grown by: its own never go down when
one rank follows another. What is no count holds for as long as the rank lives.

Labels come from another process, so they are checked: each has few values, which are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from oneflow.core.host_memory import own_memory
from oneflow.core.metrics import (
    CHECKPOINT_FAILURES,
    DEVICE_ERRORS,
    NONFINITE,
    SAVE_PHASES,
    Histogram,
    Metrics,
)
from oneflow.core.plan import ActorKind

MAX_TOLD = 2000  # numbers in one message
MAX_VALUE = 1e18

Labels = tuple[str, ...]
Row = tuple[Labels, float, tuple[int, ...]]


@dataclass(frozen=True)
class Told:
    """One number. value: of a histogram the sum, whose observations by bucket are `buckets`."""

    name: str
    labels: Labels
    value: float
    buckets: tuple[int, ...] = ()


class How(Enum):
    """COUNT: only grows. NOW: of this moment, 0 once the rank has ended. MOST: of a time."""

    COUNT = "count"
    NOW = "now"
    MOST = "most"


@dataclass(frozen=True)
class Family:
    """labels: for each the values there are.

    add: (metrics, job, labels, growth or value, growth of the buckets).
    """

    name: str
    labels: tuple[frozenset[str], ...]
    read: Callable[[Metrics], Iterator[Row]]
    add: Callable[[Metrics, str, Labels, float, tuple[int, ...]], None]
    how: How = How.COUNT

    def knows(self, labels: Labels) -> bool:
        return len(labels) == len(self.labels) and all(
            label in known for label, known in zip(labels, self.labels, strict=True)
        )


# ---- the rows ------------------------------------------------------------------------------------

KINDS = frozenset(kind.name.lower() for kind in ActorKind)
TRANSPORTS = frozenset(("local", "shm", "tcp"))
COLLECTIVES = KINDS | {
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "transfer",
    "broadcast",
}
CAUSES = frozenset(("no_input", "no_free_register"))


def _row(labels: Labels, value: float) -> Row:
    return labels, value, ()


def _histogram_row(labels: Labels, histogram: Histogram) -> Row:
    return labels, histogram.total_s, tuple(histogram.counts)


def _add_to(histogram: Histogram, total_s: float, counts: tuple[int, ...]) -> None:
    histogram.total_s += total_s
    for index, count in enumerate(counts[: len(histogram.counts)]):
        histogram.counts[index] += count


def _waits(m: Metrics) -> Iterator[Row]:
    for kind, c in list(m.actors.items()):
        yield _row((kind, "no_input"), c.no_input_s)
        yield _row((kind, "no_free_register"), c.no_free_register_s)


def _add_acts(m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]) -> None:
    m.actor(labels[0]).acts += int(value)


def _add_messages(m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]) -> None:
    c, count = m.transport(labels[0]), int(value)
    if labels[1] == "sent":
        c.sent += count
    else:
        c.received += count


def _add_message_nbytes(
    m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]
) -> None:
    c, count = m.transport(labels[0]), int(value)
    if labels[1] == "sent":
        c.nbytes_sent += count
    else:
        c.nbytes_received += count


def _messages(m: Metrics) -> Iterator[Row]:
    for name, c in list(m.transports.items()):
        yield _row((name, "sent"), c.sent)
        yield _row((name, "received"), c.received)


def _message_nbytes(m: Metrics) -> Iterator[Row]:
    for name, c in list(m.transports.items()):
        for direction, nbytes in zip(("sent", "received"), c.all_nbytes(), strict=True):
            yield _row((name, direction), nbytes)


def _depths(m: Metrics) -> Iterator[Row]:
    """Since it was asked last."""
    for name, c in list(m.transports.items()):
        depth, c.depth_max = c.depth_max, 0
        yield _row((name,), depth)


def _add_collective(m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]) -> None:
    m.collective_of(labels[0]).nbytes += int(value)


def _add_steps(m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]) -> None:
    if value:
        m.job(job).steps += int(value)


def _add_samples(m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]) -> None:
    if value:
        m.job(job).samples += int(value)


def _add_nonfinite(m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]) -> None:
    if value:
        m.job(job).nonfinite[labels[0]] += int(value)


def _add_failures(m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]) -> None:
    m.checkpoint_failures[labels[0]] += int(value)


def _add_device_errors(
    m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]
) -> None:
    m.device_errors[labels[0]] += int(value)


def _add_lookups(m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]) -> None:
    m.lookups[labels[0], labels[1]] = m.lookups.get((labels[0], labels[1]), 0) + int(value)


def _set_pair(kept: str) -> Callable[[Metrics, str, Labels, float, tuple[int, ...]], None]:
    def put(m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]) -> None:
        getattr(m, kept)[labels[0], labels[1]] = int(value)

    return put


def _set_one(kept: str) -> Callable[[Metrics, str, Labels, float, tuple[int, ...]], None]:
    def put(m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]) -> None:
        getattr(m, kept)[labels[0]] = int(value)

    return put


def _set_peak(m: Metrics, job: str, labels: Labels, value: float, _: tuple[int, ...]) -> None:
    m.device_memory_peak = max(m.device_memory_peak, int(value))


def _host_memory(m: Metrics) -> Iterator[Row]:
    for kind, nbytes in own_memory().items():
        yield _row((kind,), nbytes)
    yield _row(("pinned",), m.host_memory.get("pinned", 0))


DIRECTIONS = frozenset(("sent", "received"))
FAMILIES = (
    Family(
        "acts",
        (KINDS,),
        lambda m: (_row((k,), c.acts) for k, c in list(m.actors.items())),
        _add_acts,
    ),
    Family(
        "act_seconds",
        (KINDS,),
        lambda m: (_histogram_row((k,), c.durations) for k, c in list(m.actors.items())),
        lambda m, job, labels, s, counts: _add_to(m.actor(labels[0]).durations, s, counts),
    ),
    Family(
        "wait_seconds",
        (KINDS, CAUSES),
        _waits,
        lambda m, job, labels, s, _: m.wait(labels[0], labels[1], s),
    ),
    Family(
        "actors",
        (KINDS, frozenset(("waiting_input", "waiting_output", "running", "idle"))),
        lambda m: (_row(key, n) for key, n in list(m.actor_states.items())),
        _set_pair("actor_states"),
        How.NOW,
    ),
    Family(
        "registers",
        (frozenset(("compute", "transfer", "io")), frozenset(("free", "filled", "in_use"))),
        lambda m: (_row(key, n) for key, n in list(m.registers.items())),
        _set_pair("registers"),
        How.NOW,
    ),
    Family("messages", (TRANSPORTS, DIRECTIONS), _messages, _add_messages),
    Family("message_bytes", (TRANSPORTS, DIRECTIONS), _message_nbytes, _add_message_nbytes),
    Family(
        "message_latency_seconds",
        (TRANSPORTS,),
        lambda m: (_histogram_row((k,), c.latency) for k, c in list(m.transports.items())),
        lambda m, job, labels, s, counts: _add_to(m.transport(labels[0]).latency, s, counts),
    ),
    Family(
        "mailbox_depth",
        (TRANSPORTS,),
        _depths,
        lambda m, job, labels, depth, _: m.transport(labels[0]).note_depth(int(depth)),
        How.MOST,
    ),
    Family(
        "collective_bytes",
        (COLLECTIVES,),
        lambda m: (_row((k,), c.nbytes) for k, c in list(m.collectives.items())),
        _add_collective,
    ),
    Family(
        "collective_seconds",
        (COLLECTIVES,),
        lambda m: (_histogram_row((k,), c.durations) for k, c in list(m.collectives.items())),
        lambda m, job, labels, s, counts: _add_to(m.collective_of(labels[0]).durations, s, counts),
    ),
    Family(
        "device_memory",
        (frozenset(("used", "reserved")),),
        lambda m: (_row((k,), n) for k, n in list(m.device_memory.items())),
        _set_one("device_memory"),
        How.NOW,
    ),
    Family(
        "device_memory_peak",
        (),
        lambda m: iter([_row((), m.device_memory_peak)]),
        _set_peak,
        How.MOST,
    ),
    Family(
        "host_memory",
        (frozenset(("rss", "pinned", "shared")),),
        _host_memory,
        _set_one("host_memory"),
        How.NOW,
    ),
    Family(
        "device_errors",
        (frozenset(DEVICE_ERRORS),),
        lambda m: (_row((k,), n) for k, n in list(m.device_errors.items())),
        _add_device_errors,
    ),
    Family(
        "lookups",
        (frozenset(("device", "host", "disk")), frozenset(("hit", "miss"))),
        lambda m: (_row(key, n) for key, n in list(m.lookups.items())),
        _add_lookups,
    ),
    Family(
        "steps",
        (),
        lambda m: iter([_row((), sum(c.steps for c in list(m.train.values())))]),
        _add_steps,
    ),
    Family(
        "samples",
        (),
        lambda m: iter([_row((), sum(c.samples for c in list(m.train.values())))]),
        _add_samples,
    ),
    Family(
        "step_seconds",
        (),
        lambda m: iter([_histogram_row((), m.step_durations)]),
        lambda m, job, labels, s, counts: _add_to(m.step_durations, s, counts),
    ),
    Family(
        "nonfinite",
        (frozenset(NONFINITE),),
        lambda m: (
            _row((where,), sum(c.nonfinite[where] for c in list(m.train.values())))
            for where in NONFINITE
        ),
        _add_nonfinite,
    ),
    Family(
        "save_seconds",
        (frozenset(SAVE_PHASES),),
        lambda m: (_histogram_row((phase,), h) for phase, h in m.saves.items()),
        lambda m, job, labels, s, counts: _add_to(m.saves[labels[0]], s, counts),
    ),
    Family(
        "checkpoint_bytes",
        (frozenset(("read", "write")),),
        lambda m: (_row((k,), n) for k, n in list(m.checkpoint_nbytes.items())),
        lambda m, job, labels, n, _: m.checkpoint(labels[0], int(n)),
    ),
    Family(
        "checkpoint_failures",
        (frozenset(CHECKPOINT_FAILURES),),
        lambda m: (_row((k,), n) for k, n in list(m.checkpoint_failures.items())),
        _add_failures,
    ),
)
BY_NAME = {family.name: family for family in FAMILIES}


# ---- both ends -----------------------------------------------------------------------------------


class Teller:
    """Of a rank: what has changed since it was asked last."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._said: dict[tuple[str, Labels], tuple[float, tuple[int, ...]]] = {}

    def news(self) -> list[Told]:
        """Brings gauges up to date first. Any thread but a busy one may call it, one at a time."""
        for refresh in self._metrics.gauges:
            refresh(self._metrics)
        return [told for family in FAMILIES for told in self._of(family)]

    def _of(self, family: Family) -> Iterator[Told]:
        for labels, value, buckets in family.read(self._metrics):
            key, now = (family.name, labels), (value, buckets)
            is_news = value > 0 if family.how is How.MOST else now != self._said.get(key)
            if is_news:
                self._said[key] = now
                yield Told(family.name, labels, value, buckets)


class Listener:
    """Of a daemon: adds what one rank of `job` tells to what this process shows."""

    def __init__(self, metrics: Metrics, job: str) -> None:
        self._metrics, self._job = metrics, job
        self._heard: dict[str, dict[Labels, tuple[float, tuple[int, ...]]]] = {}

    def take(self, told: Iterable[Told]) -> int:
        """Returns how many make no sense and were left out."""
        return sum(not self._take(number) for number in told)

    def ended(self) -> None:
        """What held only while the rank lived does so no more."""
        for name, heard in self._heard.items():
            family = BY_NAME[name]
            if family.how is How.NOW:
                for labels in heard:
                    family.add(self._metrics, self._job, labels, 0.0, ())
        self._heard.clear()

    def _take(self, told: Told) -> bool:
        family = BY_NAME.get(told.name)
        if family is None or not family.knows(told.labels):
            return False
        if not all(0 <= number < MAX_VALUE for number in (told.value, *told.buckets)):
            return False
        heard = self._heard.setdefault(told.name, {})
        value, buckets = told.value, told.buckets
        if family.how is How.COUNT:
            value, buckets = _growth(heard.get(told.labels, (0.0, ())), told)
            if value < 0 or any(n < 0 for n in buckets):
                return False  # counts do not shrink
        heard[told.labels] = told.value, told.buckets
        family.add(self._metrics, self._job, told.labels, value, buckets)
        return True


def _growth(before: tuple[float, tuple[int, ...]], now: Told) -> tuple[float, tuple[int, ...]]:
    value, old = before
    padded = old + (0,) * (len(now.buckets) - len(old))
    grown = tuple(n - b for n, b in zip(now.buckets, padded, strict=False))
    return now.value - value, grown
