"""The memory analysis of a compiled graph: the place of each block, how long it lives, and the op
that made it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oneflow.actors.boxing import channels_of
from oneflow.actors.registers import made_on, shared_layout, slot_layout, storage_of
from oneflow.core.actor_kinds import READS_PEERS
from oneflow.core.plan import Plan
from oneflow.scheduler.compiler.layout.prediction import fullest

if TYPE_CHECKING:
    from oneflow.actors.rank_memory import RankMemory

SHOWN = 10
"""Largest blocks that the text of a report lists."""


@dataclass(frozen=True)
class Block:
    """A register, or a temporary in the scratch memory.

    actor: name of the actor that makes it.  first, last: numbers of the actor's ops between which a
    temporary is live; of a register, which stays for good, -1.  order: its number in its actor, or
    among the registers, by offset.  op, module, location: of the op that makes it, or of several
    that one kernel computes.
    """

    name: str
    op: str
    type: str
    nbytes: int
    offset: int
    actor: str
    first: int
    last: int
    order: int
    module: str
    location: str

    @property
    def is_register(self) -> bool:
        return self.first < 0


@dataclass(frozen=True)
class Recomputed:
    """A module that is computed again in the backward pass.

    saved_nbytes: of each of its ranks, that are not kept, of all micro-batches whose backward pass
    is to come.  extra_seconds: of each of its ranks, estimated, in one step.  again_nbytes: of one
    micro-batch, that are there again until its backward pass is through: so of several modules all
    but the largest is saved at least.  stage: of the pipeline.
    """

    module: str
    saved_nbytes: int
    extra_seconds: float
    again_nbytes: int = 0
    stage: int = 0
    ranks: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class MemoryReport:
    """Memory of one rank.

    arena_nbytes: registers and scratch memory.  lower_bound: the least that any offsets would need
    with this order of ops.  variable_nbytes: parameters, buffers and optimizer states, which are
    not in the arena.  blocks: all registers and temporaries.  limit: of `set_memory_limit`, if any.
    read_by: bytes of its registers that other ranks read, by their rank.  mirrors: bytes that it
    keeps besides the arena for copies of the registers of ranks on other hosts, by their rank.
    """

    graph: str
    rank: int
    register_nbytes: int
    scratch_nbytes: int
    lower_bound: int
    variable_nbytes: int
    blocks: tuple[Block, ...]
    recomputed: tuple[Recomputed, ...] = ()
    limit: int | None = None
    peaks: dict[str, int] = field(default_factory=dict)
    """The op of each segment, by its number, at which most of its bytes are live."""
    read_by: dict[int, int] = field(default_factory=dict)
    mirrors: dict[int, int] = field(default_factory=dict)

    @property
    def arena_nbytes(self) -> int:
        return self.register_nbytes + self.scratch_nbytes

    def largest(self, count: int = SHOWN) -> list[Block]:
        """The largest blocks, largest first."""
        return sorted(self.blocks, key=lambda b: (-b.nbytes, b.name))[:count]

    def by_module(self) -> dict[str, int]:
        """Bytes that each module's ops hold: their registers, and their temporaries at the moment
        at which most bytes of their segment are live. Most first.
        """
        held: Counter[str] = Counter()
        for block in self.blocks:
            if block.is_register or block.first <= self.peaks[block.actor] <= block.last:
                held[block.module] += block.nbytes
        return dict(held.most_common())

    def table(self) -> str:
        """A line for each block: shape, dtype, life, place and order, and the op that made it."""
        rows: list[tuple[object, ...]] = [_COLUMNS]
        for b in sorted(self.blocks, key=lambda b: (not b.is_register, b.actor, b.order)):
            life = "always" if b.is_register else f"{b.first}-{b.last}"
            maker = b.op, b.module, b.location
            rows.append((b.actor, b.order, b.name, b.type, b.nbytes, b.offset, life, *maker))
        widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(f"{c!s:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    def __str__(self) -> str:
        limit = "" if self.limit is None else f", limit {self.limit}"
        lines = [
            f"memory of {self.graph} on rank {self.rank}: arena {self.arena_nbytes} bytes "
            f"(registers {self.register_nbytes}, scratch {self.scratch_nbytes}), least possible "
            f"{self.lower_bound}{limit}; variables {self.variable_nbytes}",
            "largest blocks:",
            *("  " + describe_block(b) for b in self.largest()),
            "held by modules at the peak:",
            *(f"  {n:>14,} {module or '(none)'}" for module, n in self.by_module().items()),
        ]
        for title, found in (
            ("registers that other ranks read", self.read_by),
            ("copies of registers on other hosts, besides the arena", self.mirrors),
        ):
            if found:
                lines += [f"{title}:", *(f"  {n:>14,} rank {r}" for r, n in found.items())]
        if self.recomputed:
            lines.append("computed again:")
            lines += [
                f"  {r.saved_nbytes:>14,} bytes saved, of which {r.again_nbytes:,} come back for a "
                f"while; {1e3 * r.extra_seconds:.3f} ms more: {r.module}"
                for r in self.recomputed
            ]
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw when and where each temporary lies, to a picture file. Needs the extra `plot`."""
        from matplotlib.figure import Figure

        actors = sorted({b.actor for b in self.blocks if not b.is_register})
        figure = Figure(figsize=(10, 1 + 4 * max(len(actors), 1)))
        for i, actor in enumerate(actors):
            axes = figure.add_subplot(len(actors), 1, i + 1)
            blocks = [b for b in self.blocks if b.actor == actor and not b.is_register]
            for b in blocks:
                axes.broken_barh(
                    [(b.first, b.last - b.first + 1)],
                    (b.offset, b.nbytes),
                    facecolors=f"C{b.order % 10}",
                    edgecolor="white",
                    linewidth=0.3,
                )
            axes.set_title(actor)
            axes.set_xlabel("op")
            axes.set_ylabel("offset in bytes")
            axes.autoscale_view()
        figure.tight_layout()
        figure.savefig(path)


_COLUMNS = "actor", "order", "name", "type", "bytes", "offset", "life", "made by", "module", "line"


def describe_block(block: Block) -> str:
    """Describe a block in one line: bytes, type, and the op that made it, with its place."""
    kind = "register" if block.is_register else f"live in ops {block.first}-{block.last}"
    where = f" at {block.location}" if block.location else ""
    maker = f"{block.op} of {block.module or '(none)'}"
    return f"{block.nbytes:>14,} {block.name} {block.type} {kind}, {maker}{where}"


def report_memory(
    plan: Plan,
    rank: int,
    memory: RankMemory,
    *,
    variable_nbytes: int = 0,
    recomputed: Iterable[Recomputed] = (),
    limit: int | None = None,
    places: Sequence[str] = (),
) -> MemoryReport:
    """The analysis of a plan on a rank. places: where each rank runs; (): all in one."""
    blocks = _registers(plan, rank)
    peaks: dict[str, int] = {}
    for id_, segment in memory.segments.items():
        actor = plan.actors[id_].name
        found = list(segment.temporaries())
        by_offset = sorted(range(len(found)), key=lambda i: (found[i].offset, found[i].life.first))
        order = {i: k for k, i in enumerate(by_offset)}
        changes: Counter[int] = Counter()
        for i, t in enumerate(found):
            changes[t.life.first] += t.life.nbytes
            changes[t.life.last + 1] -= t.life.nbytes
            blocks.append(
                Block(
                    t.name,
                    t.kernel,
                    str(t.type),
                    t.life.nbytes,
                    t.offset,
                    actor,
                    t.life.first,
                    t.life.last,
                    order[i],
                    t.node.module,
                    t.node.location,
                )
            )
        peaks[actor] = fullest(changes)
    return MemoryReport(
        plan.graph.name,
        rank,
        memory.register_nbytes,
        memory.scratch_nbytes,
        memory.register_nbytes + memory.scratch_bound,
        variable_nbytes,
        tuple(blocks),
        tuple(recomputed),
        limit,
        peaks,
        _read_by(plan, rank),
        {
            r: shared_layout(plan, r)[1]
            for r in plan.graph.rank_ids
            if places and places[r] != places[rank]
        },
    )


def _read_by(plan: Plan, rank: int) -> dict[int, int]:
    """Bytes of a rank's registers that others read in their places, or copy to their hosts."""
    found: dict[int, dict[int, int]] = {}
    for actor in plan.actors:
        for other in actor.placement.rank_ids if actor.kind in READS_PEERS else ():
            for channel in channels_of(actor, other) if other != rank else ():
                register = channel.register
                if channel.source == rank and register.values:
                    nbytes = slot_layout(register, rank).nbytes * register.num_slots
                    found.setdefault(other, {})[storage_of(register).id] = nbytes
    return {other: sum(sizes.values()) for other, sizes in sorted(found.items())}


def _registers(plan: Plan, rank: int) -> list[Block]:
    blocks: list[Block] = []
    offset = 0
    for register in plan.registers:
        if (
            not made_on(register, rank)
            or not register.values
            or storage_of(register) is not register
        ):
            continue
        layout = slot_layout(register, rank)
        for value in register.values:
            node = value.node
            blocks.append(
                Block(
                    f"%{value.id}",
                    node.op,
                    str(layout.types[value.id]),
                    layout.types[value.id].nbytes * register.num_slots,
                    offset + layout.offsets[value.id],
                    register.producer.name,
                    -1,
                    -1,
                    len(blocks),
                    node.module,
                    node.location,
                )
            )
        offset += layout.nbytes * register.num_slots
    return blocks
