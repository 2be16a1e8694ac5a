"""The plan of memory: offsets of values in slots, of slots in arenas, of temporaries in scratch
memory.

All sizes are in bytes and aligned to 64 (a cache line, and the alignment that BLAS likes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from oneflow.actors.offset_search import search_offsets
from oneflow.actors.offsets import ORDERS, Blocks, least_offsets
from oneflow.kernels.array import ALIGNMENT

SEARCHED = 2000
"""Number of temporaries up to which a thorough plan searches."""


def aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@dataclass(frozen=True)
class Lifetime:
    """A temporary: nbytes, live from the end of step `first` to the end of step `last` of a
    straight-line program.
    """

    key: int
    nbytes: int
    first: int
    last: int


def plan_offsets(
    lifetimes: Iterable[Lifetime], thorough: bool = False, best: bool = True
) -> tuple[dict[int, int], int]:
    """Offset of every temporary, and the size of the arena they need.

    Temporaries that live at the same time never overlap. Compared with `lower_bound`, the peak of
    live bytes, the size is usually exact for training graphs. thorough: where it is not, search on
    for some seconds.  best: of several orders of placing them, else of the first.
    """
    lifetimes = list(lifetimes)
    items = [item for item in lifetimes if item.nbytes]
    offsets = dict.fromkeys((item.key for item in lifetimes), 0)
    if not items:
        return offsets, 0
    blocks = Blocks.of([(aligned(t.nbytes) // ALIGNMENT, t.first, t.last) for t in items])
    placed, least = least_offsets(blocks, ORDERS if best else ORDERS[:1]), blocks.peak
    if thorough and placed.max_end > least and len(items) <= SEARCHED:
        placed = search_offsets(blocks)
    for item, offset in zip(items, placed.offsets.tolist(), strict=True):
        offsets[item.key] = offset * ALIGNMENT
    return offsets, placed.max_end * ALIGNMENT


def lower_bound(lifetimes: Iterable[Lifetime]) -> int:
    """Peak of live bytes over time: no placement can need less."""
    changes: dict[int, int] = {}
    for item in lifetimes:
        size = aligned(item.nbytes)
        changes[item.first] = changes.get(item.first, 0) + size
        changes[item.last + 1] = changes.get(item.last + 1, 0) - size
    live = peak = 0
    for time in sorted(changes):
        live += changes[time]
        peak = max(peak, live)
    return peak
