"""The jobs bound in this process now, for a scrape, a heartbeat or a signal that asks about them.

Nothing here is on the way of a step; it looks at the actors from outside, when asked. Other threads
do so while the actors run, so a number may be a moment old.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from oneflow.actors.bind import BoundActor
from oneflow.core.actor_kinds import MEETS_PEERS, ActorKind
from oneflow.core.metrics import CAUSES, METRICS, SLOT_STATES, Metrics
from oneflow.kernels.hardware import hardware_for

if TYPE_CHECKING:
    from oneflow.actors.job import Job

_lock = threading.Lock()
_jobs: weakref.WeakSet[Job] = weakref.WeakSet()

LAST_ACTS = 64
"""So many are told of each job."""


def add(job: Job) -> None:
    """`job` is bound now."""
    with _lock:
        _jobs.add(job)
        if refresh not in METRICS.gauges:
            METRICS.gauges.append(refresh)
    kind = job.bound.plan.device_type
    if kind != "cpu":
        METRICS.capacity = partial(_capacity, kind)
    reserved = sum(j.bound.arena_nbytes for j in jobs())
    METRICS.device_memory_peak.note(reserved)


def remove(job: Job) -> None:
    """`job` gives its memory back."""
    job.executor.count_acts()
    with _lock:
        _jobs.discard(job)


def jobs() -> list[Job]:
    with _lock:
        return list(_jobs)


def progress() -> int:
    """Grows with every act and every collective of this process; heartbeats carry it."""
    for job in jobs():
        job.executor.count_acts()
    calls = sum(sum(times.counts) for _, times in METRICS.collective_seconds.rows())
    return int(sum(acts for _, acts in METRICS.acts.rows()) + calls)


def report() -> str:
    """Report, of every job in the middle of a step, each waiting actor with its cause, and its last
    acts.
    """
    parts = [
        f"job {j.bound.plan.graph.name}, step {j.bound.clock.step}:\n{j.executor.report()}"
        for j in jobs()
        if not j.executor.is_done
    ]
    parts = parts or ["no job is in a step"]
    parts += [
        f"last acts of job {j.bound.plan.graph.name}:\n{j.executor.describe_last_acts(LAST_ACTS)}"
        for j in jobs()
    ]
    return "\n".join(parts)


def waiting() -> str:
    """An actor that waits now, with the cause; "" if none does."""
    found = (j.executor.waiting() for j in jobs() if not j.executor.is_done)
    return next(filter(None, found), "")


def actor_waits() -> dict[str, dict[str, float]]:
    """Return seconds for which actors of each kind have waited in this process, by cause."""
    waited = METRICS.wait_seconds
    return {kind: {c: waited[kind, c] for c in CAUSES} for kind in list(METRICS.act_seconds)}


def refresh(metrics: Metrics) -> None:
    """Bring the metrics that are counted by looking up to date: acts so far, actors, registers,
    memory.
    """
    for key in metrics.registers:
        metrics.registers[key] = 0
    states: Counter[tuple[str, str]] = Counter({key: 0 for key in metrics.actor_states})
    reserved = used = 0
    for job in jobs():
        job.executor.count_acts()
        job.sample_latency()
        reserved += job.bound.arena_nbytes
        for bound in job.bound.actors.values():
            states[bound.kind, _state(bound)] += 1
            used += _count_slots(bound, metrics)
    metrics.actor_states.update(states)
    metrics.set_device_memory("reserved", reserved)
    metrics.set_device_memory("used", used)


def _capacity(kind: str) -> dict[str, int]:
    """Return free and total memory of this rank's own device of a kind, counting all processes."""
    free, total = hardware_for(kind).memory()
    return {"free": free, "limit": total}


def _state(bound: BoundActor) -> str:
    actor = bound.actor
    if actor.running:
        return "running"
    if not actor.quota:
        return "idle"
    return "waiting_input" if actor.missing else "waiting_output" if actor.short else "running"


def _count_slots(bound: BoundActor, metrics: Metrics) -> int:
    """Adds an actor's slots by their state; returns the bytes of those that are not free."""
    kind = _register_kind(bound.spec.kind)
    used = 0
    for k, output in enumerate(bound.actor.outputs):
        if output.inplace >= 0:
            continue  # the slots of the register it overwrites
        free = len(bound.actor.free[k])
        in_use = int(bound.actor.is_filling(k))
        filled = max(len(output.publish) - free - in_use, 0)
        for state, count in zip(SLOT_STATES, (free, filled, in_use), strict=True):
            metrics.registers[kind, state] += count
        used += (filled + in_use) * bound.slot_nbytes[k]
    return used


def _register_kind(kind: ActorKind) -> str:
    if kind in MEETS_PEERS:
        return "transfer"
    return "io" if kind in (ActorKind.INPUT, ActorKind.OUTPUT) else "compute"
