"""Runs the actors of one rank: delivers messages, launches kernels, waits for peers.

One thread runs all actors of a rank; where it has peers on other hosts, another one runs the
kernels of segments beside it (stream.py). Of the actors that may launch, the one latest in the plan
goes first: work that is nearly done is finished before new work is begun, which keeps memory low
and, with the slots the compiler gave, makes the 1F1B order.
"""

from __future__ import annotations

import threading
import time
import weakref
from bisect import bisect_left
from collections.abc import Iterable
from heapq import heappop, heappush
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from oneflow.actors.acts import Acts, describe_acts, last_acts
from oneflow.actors.bind import BoundActor, BoundPlan
from oneflow.actors.bus import Bus, describe_code
from oneflow.actors.messages import Effect, Launch, Post, Send
from oneflow.actors.static_schedule import TURNS
from oneflow.actors.stream import KernelStream
from oneflow.boxing.transport.rendezvous import Check
from oneflow.core.errors import HangError, PeerLostError, ProtocolError
from oneflow.core.log import get_logger
from oneflow.core.metrics import METRICS

if TYPE_CHECKING:
    from oneflow.actors.tracing import Recorder

WAIT_SLICE_S = 0.05
"""A sleeping rank looks up so often, to see an abort or a deadline."""
ACTS_A_TURN = 1 << 30
SAMPLE_S = 1e-3
"""Least idle time that is put down to its causes at once: looking at all actors after each short
wait would delay the very message that ended it."""
WARN_SHARE = 0.25
"""A rank that was idle for this share of its time-out says so."""
MAX_REPORT_LINES = 24
MAX_MESSAGES = 3
HANG_ACTS = 8
"""Number of last acts that are told in the error of a hang; who asks a rank gets more."""

log = get_logger(__name__)
_counting = threading.Lock()
"""A scrape counts from a thread of its own."""


class Executor:
    """actors of one bound plan.

    bus: to other ranks; None if there are none. check: called while waiting, with the ranks that
    are waited for; raises if the job was aborted or one of them has left. timeout_s: without any
    act for so long, HangError. overlap: exchange with other hosts while segments compute.
    """

    def __init__(
        self,
        bound: BoundPlan,
        bus: Bus | None,
        check: Check | None = None,
        timeout_s: float = 300.0,
        overlap: bool = False,
    ) -> None:
        self.bound = bound
        self._actors = bound.actors
        self._bus = bus
        self._check = check
        self._timeout_s = timeout_s
        self._local: list[Send] = []
        self._ready: list[int] = []
        self._launches: dict[int, Launch] = {}
        self._handlers = {key: bound.actor.handle for key, bound in bound.actors.items()}
        if bound.turns is not None:
            self._handlers[TURNS] = bound.turns.handle
        self._remaining = 0
        self._total_acts = sum(a.spec.acts for a in bound.actors.values())
        self._tally = _Tally(bound.actors.values())
        weakref.finalize(self, self._tally.count).atexit = False
        self._idle_s = 0.0
        self._has_warned = False
        self._stream: KernelStream | None = None
        self._computing: list[int] = []
        """Segments that may launch, where they have a stream."""
        if overlap and bus is not None and bound.kernels_can_run_apart:
            stream = KernelStream()
            if bus.watch(stream.file):
                self._stream = stream
            else:
                stream.close()
        self.acts = Acts()
        self.recorder: Recorder | None = None
        """Takes the acts of each step; None: no trace is being recorded."""

    # ---- steps -----------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Lets every actor run its share of one step."""
        self._remaining += self._total_acts
        for key, bound in self._actors.items():
            for effect in bound.actor.allow(bound.spec.acts):
                self._perform(key, effect)

    def run_step(self) -> None:
        """One whole step: returns when all actors of this rank have done their share."""
        with np.errstate(all="ignore"):  # log(0) is -inf, as in eager mode, and no reason to print
            self._run_step()

    def _run_step(self) -> None:
        self.begin_step()
        self._poll()
        last_act = time.monotonic()
        while self._remaining:
            if self.advance(ACTS_A_TURN):
                last_act = 0.0
                continue
            if last_act == 0.0:
                last_act = time.monotonic()
            self._wait(last_act)
        self._send_rest()
        self.bound.clock.step += 1
        self._tally.steps += 1
        if self.recorder is not None:
            self.recorder.step_done()

    def _send_rest(self) -> None:
        """Hand over the messages that a full socket or ring has kept back: peers need them to end
        their step, and this rank may wait for them elsewhere next, where nobody looks at this bus.
        """
        since = time.monotonic()
        while self._bus is not None and not self._bus.flush():
            self._wait(since)

    def count_acts(self) -> None:
        """Add the acts since the last call to the counters; any thread may call it."""
        self._tally.count()

    def advance(self, max_acts: int = 1) -> bool:
        """Deliver the waiting messages and run at most `max_acts` acts; False if nothing could be
        done.

        One flat loop: at half a million acts a second a call more or less shows.
        """
        if self._stream is not None:
            return self._advance_beside(self._stream)
        local, ready, bus, handlers = self._local, self._ready, self._bus, self._handlers
        actors, launches = self._actors, self._launches
        ring = self.acts
        ran, begins, ends, mask = ring.actors, ring.begins, ring.ends, ring.mask
        acts = first = ring.count
        last = first + max_acts
        moved = bool(local)
        while True:
            for send in local:  # and what is added meanwhile
                target = send.target
                for effect in handlers[target](send.message):
                    if type(effect) is Launch:  # as in _perform, without a call
                        launches[target] = effect
                        heappush(ready, -target)
                    elif type(effect) is Send:
                        local.append(effect)
                    else:
                        self._perform(target, effect)
            local.clear()
            if not ready or acts == last:
                break
            key = -heappop(ready)
            bound, launch = actors[key], launches[key]
            start = perf_counter()
            bound.kernel(launch.in_slots, launch.out_slots)
            end = perf_counter()
            seconds = end - start
            at = acts & mask
            ran[at], begins[at] = key, start
            ends[at] = end
            acts += 1
            for effect in bound.actor.done():
                if type(effect) is Send:
                    local.append(effect)
                elif type(effect) is Launch:
                    launches[key] = effect
                    heappush(ready, -key)
                else:
                    self._perform(key, effect)
            durations = bound.durations
            durations.counts[bisect_left(durations.bounds, seconds)] += 1
            durations.total_s += seconds
            if bound.boxing is not None:
                METRICS.collective(bound.collective, bound.boxing.remote_nbytes, seconds)
            if bus is not None:
                self._poll()
        ring.count = acts
        self._remaining -= acts - first
        return self._poll() or moved or acts > first

    def _advance_beside(self, stream: KernelStream) -> bool:
        """The same while segments run on a stream: one of them, and the other actors meanwhile."""
        local, moved = self._local, False
        while True:
            for send in local:  # and what is added meanwhile
                for effect in self._handlers[send.target](send.message):
                    self._perform(send.target, effect)
            local.clear()
            ended = stream.take()
            if ended is not None:
                self._end_act(ended.actor, ended.begin, ended.end)
            elif stream.running < 0 and self._computing:
                key = -heappop(self._computing)
                stream.launch(key, self._actors[key].kernel, self._launches[key])
            elif self._ready:
                key = -heappop(self._ready)
                launch = self._launches[key]
                begin = perf_counter()
                self._actors[key].kernel(launch.in_slots, launch.out_slots)
                self._end_act(key, begin, perf_counter())
            else:
                break
            moved = True
            self._poll()
        return self._poll() or moved

    def _end_act(self, key: int, begin: float, end: float) -> None:
        bound, ring = self._actors[key], self.acts
        at = ring.count & ring.mask
        ring.actors[at], ring.begins[at] = key, begin
        ring.ends[at] = end
        ring.count += 1
        self._remaining -= 1
        for effect in bound.actor.done():
            self._perform(key, effect)
        durations = bound.durations
        durations.counts[bisect_left(durations.bounds, end - begin)] += 1
        durations.total_s += end - begin
        if bound.boxing is not None:
            METRICS.collective(bound.collective, bound.boxing.remote_nbytes, end - begin)

    def close(self) -> None:
        """Wait for a kernel that runs; nothing runs any more."""
        if self._stream is not None:
            self._stream.close()

    @property
    def is_done(self) -> bool:
        return self._remaining == 0

    # ---- messages --------------------------------------------------------------------------------

    def _perform(self, key: int, effect: Effect) -> None:
        """Does one effect of actor `key`."""
        if type(effect) is Launch:
            self._launches[key] = effect  # an actor has at most one at a time
            is_apart = self._stream is not None and self._actors[key].is_segment
            heappush(self._computing if is_apart else self._ready, -key)
        elif type(effect) is Send:
            self._local.append(effect)
        else:
            assert isinstance(effect, Post) and self._bus is not None
            self._bus.post(effect.rank, effect.code)

    def _poll(self) -> bool:
        if self._bus is None:
            return False
        arrived = self._bus.poll()
        book = self.bound.codebook
        for sender, code in arrived:
            sends = book.get((sender, code))
            if sends is None:
                raise ProtocolError(
                    f"rank {self.bound.rank} got {describe_code(code)} from rank {sender}, "
                    "which its plan does not know"
                )
            self._local.extend(sends)
        return bool(arrived)

    # ---- waiting ---------------------------------------------------------------------------------

    def _wait(self, since: float) -> None:
        if self._bus is None:
            raise HangError(f"nothing can run and nobody will send anything:\n{self.report()}")
        computes = self._stream is not None and self._stream.running >= 0
        start = perf_counter()
        self._bus.wait(WAIT_SLICE_S)
        if not computes:
            self._idle_s += perf_counter() - start
        if self._idle_s >= SAMPLE_S:
            self._count_waits()
        if self._poll():
            self._has_warned = False
            return
        if self._check is not None:
            try:
                self._check(self._waits_on())
            except PeerLostError:
                if not self._poll():
                    raise
                return  # what it sent before it left came in just now
        if not computes:
            self._judge(time.monotonic() - since)

    def _judge(self, waited_s: float) -> None:
        if waited_s > self._timeout_s:
            raise HangError(
                f"rank {self.bound.rank}: nothing moved for {waited_s:.0f} s "
                f"in step {self.bound.clock.step}:\n{self.report()}\n"
                f"last acts:\n{self.describe_last_acts(HANG_ACTS)}"
            )
        if waited_s > WARN_SHARE * self._timeout_s and not self._has_warned:
            self._has_warned = True
            ranks = ", ".join(map(str, sorted(self._waits_on())))
            log.warning(
                "nothing has moved for %.1f s; this rank waits for rank %s", waited_s, ranks or "-"
            )

    def _count_waits(self) -> None:
        """Attribute the time this rank was idle to the causes that held its actors back, which
        shows the slow side.

        Each kind of actor and cause gets it once, however many actors wait, so that a rate is a
        share of time.
        """
        seconds, self._idle_s = self._idle_s, 0.0
        causes = {
            (bound.kind, cause)
            for bound in self._actors.values()
            if bound.actor.quota and (cause := bound.actor.lacks())
        }
        for kind, cause in causes:
            METRICS.wait_seconds[kind, cause] += seconds

    def _waits_on(self) -> set[int]:
        return {r for b in self._actors.values() if b.actor.quota for r in b.actor.waits_on()}

    def waiting(self) -> str:
        """The first actor that is held back by another rank or by its readers, and its cause; "" if
        none is.
        """
        for bound in self._actors.values():
            if bound.actor.quota and (cause := bound.actor.lacks()):
                return f"{bound.actor.name}: {cause}, waits for {bound.actor.waits_for()}"
        return ""

    def report(self) -> str:
        """Report each waiting actor with its cause, a line each; those that wait for another rank
        first.
        """
        waiting = [b for b in self._actors.values() if b.actor.quota or b.actor.running]
        waiting.sort(key=lambda b: not b.actor.lacks())
        lines = [_describe(b) for b in waiting[:MAX_REPORT_LINES]]
        if len(waiting) > len(lines):
            lines.append(f"  and {len(waiting) - len(lines)} more actors")
        return "\n".join(lines) or "  all actors of this rank are done"

    def describe_last_acts(self, most: int) -> str:
        """A line for each of the newest acts, oldest first, with its age; any thread may ask."""
        recorder = self.recorder
        rings = [self.acts]
        if recorder is not None:
            rings.append(recorder.previous)
        found = last_acts(rings, {key: b.actor for key, b in self._actors.items()}, most)
        names = {key: b.actor.name for key, b in self._actors.items()}
        acts = {key: b.spec.acts for key, b in self._actors.items()}
        return describe_acts(found, names, acts) or "  none"


class _Tally:
    """The acts of an executor, for the counters. It is counted when somebody asks, and at last when
    the executor goes away: a step costs one addition.
    """

    def __init__(self, actors: Iterable[BoundActor]) -> None:
        self._actors = list(actors)
        self._messages_a_step = sum(map(_local_messages, self._actors))
        self._counted_steps = 0
        self.steps = 0

    def count(self) -> None:
        with _counting:
            for bound in self._actors:
                acts = bound.actor.acts
                METRICS.acts[bound.kind] += acts - bound.counted
                bound.counted = acts
            messages = (self.steps - self._counted_steps) * self._messages_a_step
            self._counted_steps = self.steps
            METRICS.messages_sent["local"] += messages
            METRICS.messages_received["local"] += messages


def _describe(bound: BoundActor) -> str:
    """`segment.3(model.front): 12 acts, waits for input r5 from rank 1; last messages: ...`."""
    actor = bound.actor
    last = ", ".join(map(str, list(actor.history)[-MAX_MESSAGES:])) or "none"
    reason = actor.waits_for() or "its turn"
    return f"  {actor.name}: {actor.acts} acts, waits for {reason}; last messages: {last}"


def _local_messages(bound: BoundActor) -> int:
    """Messages a step between this actor and others of its rank, sent by it."""
    actor, acts = bound.actor, bound.spec.acts
    ready = sum(
        (acts // o.acts_per_item) * sum(type(e) is Send for e in o.publish[0])
        for o in actor.outputs
        if o.publish
    )
    freed = sum(acts // c.acts_per_item for c in actor.inputs if c.free and type(c.free[0]) is Send)
    granted = sum(acts // o.acts_per_item for o in actor.outputs if o.grants)
    return ready + freed + granted
