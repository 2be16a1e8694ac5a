"""The memory that a plan takes on a rank, worked out without allocating any."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from oneflow.actors.random_rows import random_rows
from oneflow.actors.registers import private_layout, shared_layout
from oneflow.actors.segment import Segment
from oneflow.core.actor_kinds import ActorKind
from oneflow.core.config import current_config
from oneflow.core.job_config import DEFAULT, BindOptions
from oneflow.core.plan import Plan
from oneflow.kernels.hardware import Hardware

_segments: WeakKeyDictionary[Plan, dict[Hashable, Segment]] = WeakKeyDictionary()
"""Segments that were prepared for plans in use: an equal graph is only bound to its own memory."""


@dataclass(frozen=True)
class RankMemory:
    """segments: by the id of their actor; one runs at a time, so all use one scratch memory.

    register_nbytes: of all registers, shared and private.
    """

    segments: dict[int, Segment]
    register_nbytes: int

    @property
    def scratch_nbytes(self) -> int:
        return max((s.scratch_nbytes for s in self.segments.values()), default=0)

    @property
    def scratch_bound(self) -> int:
        """The least scratch memory that any placement of temporaries would need."""
        return max((s.scratch_bound for s in self.segments.values()), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of registers and scratch memory."""
        return self.register_nbytes + self.scratch_nbytes


def plan_memory(
    plan: Plan, rank: int, hardware: Hardware, options: BindOptions = DEFAULT
) -> RankMemory:
    """Work out the memory of `rank`."""
    rows = random_rows(plan.graph)
    segments = {}
    fuses = current_config().fuses_kernels
    known = _segments.setdefault(plan.origin, {})
    for spec in plan.actors:
        if spec.kind is ActorKind.SEGMENT and rank in spec.placement:
            published = frozenset(v.id for r in spec.outputs for v in r.values)
            key = rank, hardware.kind, spec.id, options, fuses
            segment = known[key].again(hardware) if key in known else None
            if segment is None:
                segment = known[key] = Segment(
                    spec.nodes, rank, hardware, published, rows, options, fuses
                )
            segments[spec.id] = segment
    return RankMemory(segments, private_layout(plan, rank)[1] + shared_layout(plan, rank)[1])
