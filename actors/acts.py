"""The last acts of the actors of a rank: a ring that the executor fills as it runs.

An entry costs three stores into lists that are there already; which piece an act was for is worked
out afterwards, as an actor's acts are in order. A signal handler or another thread that looks while
actors run may see one entry that is being written; its end is written last.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

RING_SLOTS = 64


class Acts:
    """Room for the last `slots` (a power of two) acts: act number n is at n & mask.

    actors: ids in the plan.  begins, ends: seconds of the monotonic clock, which all processes of a
    host share; an end of 0.0 is a slot that was never used.  count: acts so far, as of the last
    time that the executor paused.  marks: where kernels are timed, of each act of a segment, in
    order, its beginning and the ends of its calls.
    """

    __slots__ = ("actors", "begins", "count", "ends", "marks", "mask")

    def __init__(self, slots: int = RING_SLOTS) -> None:
        if slots & (slots - 1):
            raise ValueError(f"{slots} slots: must be a power of two")
        self.actors = [0] * slots
        self.begins = [0.0] * slots
        self.ends = [0.0] * slots
        self.mask = slots - 1
        self.marks = array("d")
        self.count = 0


@dataclass(frozen=True)
class Act:
    """One act of an actor. number: of this actor's acts, from 0.  begin, end: as in Acts."""

    actor: int
    number: int
    begin: float
    end: float


class Counts(Protocol):
    """The facts of an actor that `last_acts` has to know."""

    @property
    def acts(self) -> int: ...


def last_acts(rings: Iterable[Acts], actors: Mapping[int, Counts], most: int) -> list[Act]:
    """The newest acts in these rings, oldest first. actors: by id, with their acts so far."""
    seen: Counter[int] = Counter()
    acts = []
    for end, begin, key in _newest(rings, most):
        seen[key] += 1
        acts.append(Act(key, actors[key].acts - seen[key], begin, end))
    return acts[::-1]


def continued(rings: Iterable[Acts]) -> Acts:
    """A ring that holds the newest acts of these and goes on from there."""
    ring = Acts()
    for i, (end, begin, key) in enumerate(reversed(_newest(rings, RING_SLOTS))):
        ring.ends[i], ring.begins[i], ring.actors[i] = end, begin, key
        ring.count = i + 1
    return ring


def _newest(rings: Iterable[Acts], most: int) -> list[tuple[float, float, int]]:
    """(end, begin, actor) of the newest acts in these rings, newest first."""
    found = [
        entry
        for ring in rings
        for entry in zip(ring.ends, ring.begins, ring.actors, strict=True)
        if entry[0]
    ]
    found.sort(reverse=True)
    return found[:most]


def describe_acts(
    acts: Iterable[Act], names: Mapping[int, str], per_step: Mapping[int, int]
) -> str:
    """A line each, with ages. per_step: acts of an actor in a step."""
    now = perf_counter()
    lines = []
    for act in acts:
        step, piece = divmod(act.number, per_step[act.actor])
        lines.append(
            f"  {now - act.end:10.6f} s ago: {names[act.actor]}, call {step} piece {piece}, "
            f"took {(act.end - act.begin) * 1e6:.1f} us"
        )
    return "\n".join(lines)
