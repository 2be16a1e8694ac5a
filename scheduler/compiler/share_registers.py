"""Lets registers that hold gathered values for a short while use one memory.

A value that is gathered behind `depend` (a parameter that ZeRO has split) is read by one segment or
two and then no more, as are the sums that the same actor brings. So the register of a later gather
may have the memory of an earlier one, if the later actor waits for all who read the earlier one: a
register without values makes it. These edges go up in level, as all others do, so no circle can
arise. With several micro-batches the first gather of a memory waits, for its next piece, until the
last reader has done with this one; several pipeline stages, whose pieces overlap, share nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.plan import READS_PEERS, ActorKind, ActorSpec, RegisterSpec

Control = Callable[[ActorSpec, ActorSpec], None]


@dataclass
class _Memory:
    """A memory, and the registers that use it one after another."""

    members: list[RegisterSpec]

    @property
    def nbytes(self) -> int:
        return max(_nbytes(r) for r in self.members)

    def is_free(self, actor: ActorSpec) -> bool:
        """Whether an actor may fill it once all who read it have done."""
        last = self.members[-1]
        return (
            last.producer.placement == actor.placement
            and last.producer.acts == actor.acts
            and all(reader.level < actor.level for reader in last.consumers)
        )


def share_registers(graph: LogicalGraph, actors: list[ActorSpec], control: Control) -> None:
    """Sets `storage` and the one slot of registers that share. control: makes the second actor
    wait for the first.
    """
    if graph.num_pieces > 1 and any(node.stage for node in graph):
        return
    memories: list[_Memory] = []
    for actor in actors:
        for register in list(actor.outputs):
            if not _is_short_lived(register):
                continue
            free = [m for m in memories if m.is_free(actor)]
            if not free:
                memories.append(_Memory([register]))
                continue
            wanted = _nbytes(register)
            memory = min(free, key=lambda m: (abs(m.nbytes - wanted), m.members[0].id))
            for reader in memory.members[-1].consumers:
                control(reader, actor)
            memory.members.append(register)
    for memory in memories:
        if len(memory.members) > 1:
            _settle(memory, control)


def _settle(memory: _Memory, control: Control) -> None:
    largest = max(memory.members, key=_nbytes)
    for register in memory.members:
        register.num_slots = 1
        register.storage = None if register is largest else largest
    first, last = memory.members[0], memory.members[-1]
    for reader in last.consumers:
        control(first.producer, reader)


def _is_short_lived(register: RegisterSpec) -> bool:
    producer = register.producer
    return (
        producer.kind is ActorKind.BOXING
        and any(_is_gather(value.node) for value in register.values)
        and all(c.kind not in READS_PEERS for c in register.consumers)
        and all(c.acts == producer.acts for c in register.consumers)
    )


def _is_gather(node: Node) -> bool:
    """Gathered behind `depend`, or only to be written into a variable."""
    if node.op != "boxing":
        return False
    users = node.outputs[0].users
    is_written = bool(users) and all(u.op == "assign" for u in users)
    return is_written or node.inputs[0].node.op == "depend"


def _nbytes(register: RegisterSpec) -> int:
    """Bytes of a slot on a rank, evenly split."""
    return sum(value.type.nbytes // _num_parts(value) for value in register.values)


def _num_parts(value: Value) -> int:
    pairs = zip(value.placement.hierarchy, value.sbp or (), strict=False)
    return math.prod(n for n, s in pairs if s.is_split)
