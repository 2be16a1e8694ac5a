"""Traces: every act of some steps of this rank, written as a Chrome trace by a thread.

The executor fills rings (acts.py) as it always does, only larger ones; after a step that leaves no
room for another one the ring goes to the writer's thread and an empty one takes its place. If there
is none, because the disk is slow, the step goes on and its acts are counted as dropped. Writing
an act takes the interpreter ten microseconds, so the acts of a trace that fits into one ring are
not disturbed by it at all, and those of a longer one the less the longer they take.

An act of a segment on a CPU has a slice for each kernel inside of its own. Their times are marks in
a list beside the ring (acts.py): one look at the clock a kernel. The description of a kernel does
not change, so it is written once, when the first ring is written.

Arrows follow registers from the act that filled a slot to the act that read it first. Nothing about
them is recorded: the n-th item that is made of a register is the n-th that each reader takes, on
any rank, so both ranks give the arrow the same name.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import queue
import threading
import time
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.actors.acts import Acts, continued
from oneflow.actors.kernel_facts import describe_kernels
from oneflow.core.config import current_config
from oneflow.core.log import get_logger
from oneflow.core.side_work import side_work_since
from oneflow.services.kernel_sums import KERNEL
from oneflow.services.traces import (
    FORMAT,
    MAX_NBYTES,
    TraceWriter,
    clock_origin,
    remove_left_overs,
    truncated_event,
)

if TYPE_CHECKING:
    from oneflow.actors.bind import BoundActor, BoundPlan
    from oneflow.actors.executor import Executor
    from oneflow.actors.segment import Segment

RINGS = 4
MIN_SLOTS, MAX_SLOTS = 1 << 14, 1 << 16
"""A step of more acts than MAX_SLOTS loses its first ones."""
BATCH = 100
PAUSE_S = 0.0002
"""The writer leaves the interpreter to the actors after each batch of acts, if no ring waits."""
GRAPHS_APART = 1_000_000  # between the thread ids of two graphs of one process
WAITS = GRAPHS_APART - 1  # the row that says what was waited for, behind those of the actors
SIDE_WORK = 1000 * GRAPHS_APART
"""The rows of what other threads did begin here."""
MAX_MARKS = 1 << 18
"""Marks of kernels from which a ring is handed over at the end of a step: two megabytes."""
WAITED_US = 20.0
"""A rest between two acts from which it is an event of that row."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Chunk:
    """A filled ring. first_step: of the job, whose first act is in it.  recorder: whose it is."""

    ring: Acts
    first_step: int
    steps: int
    recorder: Recorder


class Trace:
    """One file: `trace-rank<N>.json.gz` in `folder`.

    ranks: that write one too, so that arrows lead to them; None: all.  steps: recorded of each
    graph, 0: until `stop`.  header: further entries of the file, with `trace`, its name.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        *,
        steps: int = 0,
        ranks: Collection[int] | None = None,
        header: Mapping[str, Any] | None = None,
        max_nbytes: int = MAX_NBYTES,
    ) -> None:
        self.path = folder / file_name(rank)
        self.rank, self.max_steps, self.ranks = rank, steps, ranks
        self.state = "recording"  # then writing, then done or failed
        self.error = ""
        self.steps = self.acts = self.nbytes = 0
        self._lost = 0  # acts that the writer found no longer in a ring, or no room for
        self.is_truncated = False
        self._max_nbytes = max_nbytes
        self._recorders: list[Recorder] = []
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._is_hurried = False
        self._last_us = 0.0
        origin = clock_origin()
        self.origin_s = origin["monotonic_ns"] * 1e-9
        self._begin_s = time.perf_counter()
        self._header = {"format": FORMAT, "rank": rank, "pid": os.getpid(), **origin}
        self._header |= {"offset_ns": None, "offset_error_ns": None, **(header or {})}
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    # ---- on the thread that runs the actors ------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether steps are recorded."""
        return self.state == "recording"

    @property
    def dropped(self) -> int:
        """Acts that were recorded, or should have been, and are not in the file."""
        return self._lost + sum(r.dropped for r in self._recorders)

    def record(self, executor: Executor) -> None:
        """Record from the executor's next step on; not in the middle of one."""
        if self.is_open and executor.recorder is None:
            self._recorders.append(Recorder(self, executor, len(self._recorders)))

    def note_step(self, steps: int) -> None:
        """A graph has recorded so many."""
        self.steps = max(self.steps, steps)

    def note_end(self) -> None:
        """A recorder is done; the last one ends the trace."""
        if self.is_open and not any(r.is_active for r in self._recorders):
            self.stop()

    def put(self, chunk: Chunk) -> None:
        self._chunks.put(chunk)

    def stop(self) -> None:
        """Record no more steps and write the recorded ones. Between steps only."""
        if not self.is_open:
            return
        self.state = "writing"
        for recorder in self._recorders:
            recorder.end()
        self._chunks.put(None)

    def close(self, timeout_s: float = 30.0) -> None:
        """`stop`, and waits until the file is there."""
        self.stop()
        self._is_hurried = True
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("trace %s was not written within %g s", self.path, timeout_s)

    # ---- on the writer's thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._write()
            self.state = "done"
        except OSError as error:  # the job goes on without it
            self.error = f"{self.path}: {error.strerror or error}"
            self.state = "failed"
            log.warning("the trace cannot be written: %s", self.error)
        except BaseException as error:
            self.error, self.state = repr(error), "failed"
            raise

    def _write(self) -> None:
        remove_left_overs(self.path)
        writer = TraceWriter(self.path, self._header, self._max_nbytes)
        try:
            writer.add(
                [self._name("process_name", 0, f"rank {self.rank} ({self._header['host']})")]
            )
            named: set[int] = set()
            while (chunk := self._chunks.get()) is not None:
                if chunk.recorder.index not in named:
                    named.add(chunk.recorder.index)
                    writer.add([self._name("thread_name", *pair) for pair in chunk.recorder.names])
                self._write_chunk(writer, chunk)
                self.nbytes = writer.nbytes
                chunk.recorder.empty.put(chunk.ring)
            writer.add(self._side_work())
            writer.commit(self._summary(), self._last_event())
        except BaseException:
            writer.abort()
            raise

    def _write_chunk(self, writer: TraceWriter, chunk: Chunk) -> None:
        acts = 0
        batch: list[str] = []  # an act with its arrows and its wait is written whole, or not
        for events in chunk.recorder.events(chunk):
            batch.append(",\n".join(events))
            if len(batch) == BATCH:
                acts += writer.add(batch)
                batch.clear()
                if not self._is_hurried and self._chunks.empty():
                    time.sleep(PAUSE_S)
        acts += writer.add(batch)
        self.acts += acts
        self._lost += chunk.ring.count - acts
        self.is_truncated = writer.is_full

    def _side_work(self) -> list[str]:
        """Events of the work that other threads did beside the actors, a row for each name."""
        done = side_work_since(self._begin_s)
        rows = {name: SIDE_WORK + i for i, name in enumerate(dict.fromkeys(d[0] for d in done))}
        events = [self._name("thread_name", row, name) for name, row in rows.items()]
        for name, begin, end in done:
            at, length = (begin - self.origin_s) * 1e6, (end - begin) * 1e6
            where = {"pid": self.rank, "tid": rows[name], "ts": round(at, 3)}
            event = {"ph": "X", "cat": "beside", "name": name, **where, "dur": round(length, 3)}
            events.append(json.dumps(event))
        return events

    def _name(self, kind: str, tid: int, name: str) -> str:
        event = {"ph": "M", "name": kind, "pid": self.rank, "tid": tid, "args": {"name": name}}
        return json.dumps(event)

    def _last_event(self) -> str:
        if not (self.is_truncated or self.dropped):
            return ""
        why = f"more than {self._max_nbytes} bytes" if self.is_truncated else "acts were dropped"
        return truncated_event(self.rank, self._last_us, why=why, dropped=self.dropped)

    def _summary(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "acts": self.acts,
            "dropped": self.dropped,
            "truncated": self.is_truncated,
        }

    def at_us(self, seconds: float) -> float:
        """A moment of the monotonic clock as the file says it."""
        self._last_us = (seconds - self.origin_s) * 1e6
        return self._last_us


class Recorder:
    """The recorder of one graph: it hands rings over. names: (thread id, name) of its actors.
    empty: rings.
    """

    def __init__(self, trace: Trace, executor: Executor, index: int) -> None:
        bound, actors = executor.bound, executor.bound.actors
        self.index = index
        self._trace, self._executor, self._clock = trace, executor, bound.clock
        self._total = sum(b.spec.acts for b in actors.values())
        self._left = trace.max_steps
        base = index * GRAPHS_APART
        self.names = [(base + key, b.actor.name) for key, b in actors.items()]
        self.names.append((base + WAITS, "waits"))
        self._waits = f'"pid": {trace.rank}, "tid": {base + WAITS}'
        self._last_end_us, self._last_step = math.inf, -1
        arrows = _Arrows(bound, trace.ranks, index)
        self._lines = {key: _Lines(trace.rank, base + key, b, arrows) for key, b in actors.items()}
        self._timed = [b.calls for b in actors.values() if b.calls is not None and _can_time(b)]
        self._kernels = {
            key: _Kernels(trace.rank, base + key, bound.memory.segments[key])
            for key, b in actors.items()
            if b.calls in self._timed
        }
        self.empty: queue.SimpleQueue[Acts] = queue.SimpleQueue()
        self._slots = _slots(self._total)
        for _ in range(RINGS - 1):
            self.empty.put(Acts(self._slots))
        self.previous = executor.acts  # what was done before it: who asks for the last acts sees it
        self.is_active = True
        self.dropped = 0  # acts for which there was no ring
        self._steps = 0
        self._begin()
        self._fill(Acts(self._slots))
        self._executor.recorder = self

    def _fill(self, ring: Acts) -> None:
        """Let the executor's acts, and their kernels, be noted in a ring."""
        self._executor.acts = ring
        for calls in self._timed:
            calls.marks = ring.marks

    def _begin(self) -> None:
        self._first, self._in_ring = self._clock.step, 0

    def step_done(self) -> None:
        """Note the end of a step, on its thread."""
        self._in_ring += 1
        self._steps += 1
        trace = self._trace
        trace.note_step(self._steps)
        is_last = self._steps == self._left or trace.is_truncated or not trace.is_open
        if is_last:
            self.end()
            trace.note_end()
        elif (
            self._executor.acts.count + self._total > self._slots
            or len(self._executor.acts.marks) > MAX_MARKS
        ):
            self._hand_over()

    def end(self) -> None:
        """Hand over the acts so far; the executor goes on with a small ring of the last acts."""
        if not self.is_active:
            return
        self.is_active = False
        self._executor.recorder = None
        small = continued((self._executor.acts, self.previous))
        if self._in_ring:
            self._put()
        self._executor.acts = small
        for calls in self._timed:
            calls.marks = None

    def _hand_over(self) -> None:
        try:
            fresh = self.empty.get_nowait()
        except queue.Empty:
            self.dropped += self._executor.acts.count
            self._executor.acts.count = 0
            del self._executor.acts.marks[:]
        else:
            self._put()
            fresh.count = 0
            del fresh.marks[:]
            self._fill(fresh)
        self._begin()

    def _put(self) -> None:
        self.previous = self._executor.acts
        self._trace.put(Chunk(self.previous, self._first, self._in_ring, self))

    # ---- on the writer's thread ------------------------------------------------------------------

    def events(self, chunk: Chunk) -> Iterator[list[str]]:
        """Yield the events of each act in order: arrows that end at it, the act, its kernels, and
        arrows that begin at it.
        """
        ring, at_us = chunk.ring, self._trace.at_us
        slots = range(max(0, ring.count - ring.mask - 1), ring.count)
        number = Counter[int]()  # the first act of each begins a step; the last may not end one
        if slots.start:  # its first acts are gone; such a chunk ends with its only step
            have = Counter(ring.actors[n & ring.mask] for n in slots)
            number.update({k: chunk.steps * self._lines[k].acts - n for k, n in have.items()})
        marks = self._marks_of(ring, slots)
        for n in slots:
            at = n & ring.mask
            key = ring.actors[at]
            lines = self._lines[key]
            step, piece = divmod(number[key], lines.acts)
            number[key] += 1
            begin_us, end_us = at_us(ring.begins[at]), at_us(ring.ends[at])
            events = lines.into(begin_us, chunk.first_step + step, piece)
            events.append(lines.act(begin_us, end_us, chunk.first_step + step, piece))
            if key in self._kernels:
                times = map(at_us, next(marks))
                events += self._kernels[key].of(list(times), chunk.first_step + step)
            events += lines.out_of(begin_us, end_us, chunk.first_step + step, piece)
            if begin_us - self._last_end_us > WAITED_US:
                events.insert(0, self._wait(begin_us, chunk.first_step + step, lines))
            self._last_end_us, self._last_step = end_us, chunk.first_step + step
            yield events

    def _marks_of(self, ring: Acts, slots: range) -> Iterator[array[float]]:
        """Yield the marks of each act in these slots that has some."""
        counts = [
            self._kernels[key].num_marks
            for n in slots
            if (key := ring.actors[n & ring.mask]) in self._kernels
        ]
        at = len(ring.marks) - sum(counts)  # those of acts that are gone come first
        for count in counts:
            yield ring.marks[at : at + count]
            at += count

    def _wait(self, until_us: float, step: int, lines: _Lines) -> str:
        """The rest before an act. The cause: the ranks whose registers it reads, if there are any;
        else the interpreter had something else to do.
        """
        cause = lines.waits_for if step <= self._last_step else "the next call"
        since_us = self._last_end_us
        return (
            f'{{"ph": "X", "cat": "wait", "name": "{cause}", {self._waits}, "ts": {since_us:.3f}, '
            f'"dur": {until_us - since_us:.3f}, "args": {{"step": {step}, "act": {lines.name}}}}}'
        )


def _slots(total: int) -> int:
    """A power of two with room for several steps, if those are not too large."""
    wanted = min(max(2 * total, MIN_SLOTS), MAX_SLOTS)
    return 1 << (wanted - 1).bit_length()


class _Arrows:
    """Names of the arrows of one graph on this rank.

    An arrow is one item of a register between two ranks that are both traced.
    """

    def __init__(self, bound: BoundPlan, ranks: Collection[int] | None, graph: int) -> None:
        self._rank, self._ranks, self._graph = bound.rank, ranks, graph
        self._readers = bound.readers

    def into(self, bound: BoundActor) -> list[tuple[int, str]]:
        """(acts that read one item, name) of each input."""
        return [
            (
                channel.acts_per_item,
                self._named(channel.register, source, bound.spec.id, self._rank),
            )
            for channel in bound.actor.inputs
            for source in (channel.source if channel.source >= 0 else self._rank,)
            if self._is_traced(source)
        ]

    def out_of(self, bound: BoundActor) -> list[tuple[int, str]]:
        """(acts that fill one slot, name) of each reader of each output."""
        return [
            (output.acts_per_item, self._named(output.register, self._rank, reader.id, rank))
            for register, output in zip(bound.spec.outputs, bound.actor.outputs, strict=True)
            for reader, rank in self._readers[register.id]
            if self._is_traced(rank)
        ]

    def _is_traced(self, rank: int) -> bool:
        return self._ranks is None or rank in self._ranks

    def _named(self, register: str, source: int, reader: int, rank: int) -> str:
        return f"g{self._graph}.{register}.{source}-{reader}.{rank}"


class _Lines:
    """The common part of all events of an actor. acts: in a step.  name: as JSON.  waits_for: the
    actors that fill the registers that it reads.
    """

    def __init__(self, rank: int, tid: int, bound: BoundActor, arrows: _Arrows) -> None:
        self.acts = bound.spec.acts
        name, kind = json.dumps(bound.actor.name), bound.kind
        sources = sorted({channel.source for channel in bound.actor.inputs if channel.source >= 0})
        self.name = name
        self.waits_for = f"rank {', '.join(map(str, sources))}" if sources else "this rank"
        self._where = f'"pid": {rank}, "tid": {tid}, "ts": '
        self._act = f'{{"ph": "X", "cat": "{kind}", "name": {name}, {self._where}'
        self._ins, self._outs = arrows.into(bound), arrows.out_of(bound)

    def into(self, begin_us: float, step: int, piece: int) -> list[str]:
        """Arrows that end at an act."""
        return [
            self._arrow('"f", "bp": "e"', f"{step}.{piece // every}.{name}", begin_us)
            for every, name in self._ins
            if piece % every == 0
        ]

    def act(self, begin_us: float, end_us: float, step: int, piece: int) -> str:
        """The slice of an act."""
        return (
            f'{self._act}{begin_us:.3f}, "dur": {end_us - begin_us:.3f}, '
            f'"args": {{"step": {step}, "piece": {piece}}}}}'
        )

    def out_of(self, begin_us: float, end_us: float, step: int, piece: int) -> list[str]:
        """Arrows that begin at an act."""
        inside_us = max(begin_us, end_us - 0.001)  # an arrow belongs to what goes on at its time
        return [
            self._arrow('"s"', f"{step}.{piece // every}.{name}", inside_us)
            for every, name in self._outs
            if (piece + 1) % every == 0
        ]

    def _arrow(self, kind: str, name: str, at_us: float) -> str:
        where = f"{self._where}{at_us:.3f}"
        return f'{{"ph": {kind}, "cat": "register", "name": "register", "id": "{name}", {where}}}'


class _Kernels:
    """The kernels of a segment, described when the first act is written: they are built by then."""

    def __init__(self, rank: int, tid: int, segment: Segment) -> None:
        self._segment = segment
        self._where = f'"pid": {rank}, "tid": {tid}, "ts": '

    @cached_property
    def _parts(self) -> list[tuple[str, str]]:
        """The text of each slice before and behind its times."""
        found = []
        for name, facts in describe_kernels(self._segment.made_for):
            head = f'{{"ph": "X", "cat": "{KERNEL}", "name": {json.dumps(name)}, {self._where}'
            found.append((head, json.dumps(facts)[1:]))
        return found

    @property
    def num_marks(self) -> int:
        """Marks of an act."""
        return len(self._parts) + 1

    def of(self, marks_us: Sequence[float], step: int) -> list[str]:
        """Slices of one act. marks_us: when it began, and when each kernel ended."""
        return [
            f'{head}{begin:.3f}, "dur": {end - begin:.3f}, "args": {{"step": {step}, {facts}}}'
            for (head, facts), (begin, end) in zip(self._parts, pairwise(marks_us), strict=True)
        ]


def _can_time(bound: BoundActor) -> bool:
    """Whether a kernel has ended when its call returns."""
    return bound.spec.placement.type == "cpu"


_own: Trace | None = None


def record_as_configured(executor: Executor, rank: int) -> None:
    """A graph of a process whose environment asks for a trace: all of them go into one file, which
    is there when each has done its steps, or when the process ends in order.
    """
    global _own
    config = current_config()
    if config.trace_dir is None:
        return
    if _own is None:
        job = {"job": config.job_id, "attempt": config.attempt, "world_size": config.world_size}
        header = job | {"trace": f"{config.job_id}.{config.attempt}"}
        _own = Trace(config.trace_dir, rank, steps=config.trace_steps, header=header)
        atexit.register(_close_own, _own, os.getpid())
    _own.record(executor)


def _close_own(trace: Trace, pid: int) -> None:
    if os.getpid() == pid:  # not in a process that was forked from it
        trace.close()


def file_name(rank: int) -> str:
    return f"trace-rank{rank}.json.gz"
