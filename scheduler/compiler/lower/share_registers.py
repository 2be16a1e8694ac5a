"""Lets registers that are read for a short while use one memory in turns.

A register whose last reader is below the producer of another in level may leave its memory to that
one, which is granted it when all readers of the first have done (actors/actor.py). So a graph whose
backward pass is cut into many segments (ZeRO: parameters are gathered for one segment or two,
gradients scattered as soon as there are enough) holds few of its registers at a time.

Grants go up in level, as all edges do, so no circle can arise. With several micro-batches the first
register of a memory waits, for its next piece, until the last has been read. Where several pipeline
stages overlap their pieces, values made for each piece take turns within their task alone, the
forward pass of a stage or the backward one: a stage is through with the task of one piece before it
begins that of the next, but other tasks may come between.

A memory is passed on to a register that is about as large; registers that other ranks read share
none with those that they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from oneflow.core.actor_kinds import READS_PEERS, ActorKind
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.plan import Plan, RegisterSpec, in_place_of
from oneflow.scheduler.compiler.layout.signatures import local_nbytes
from oneflow.scheduler.compiler.schedule.phases import Phases

SHORT_NBYTES = 4096
"""Registers of fewer bytes are not worth a message."""
_MAKERS = frozenset({ActorKind.SEGMENT, ActorKind.BOXING, ActorKind.FLAT_REDUCE, ActorKind.BOX_SUM})
"""Kinds whose registers take turns."""


@dataclass
class _Memory:
    """A memory, the registers that use it one after another, and the level of the last reader."""

    members: list[RegisterSpec]
    nbytes: int
    level: int
    is_shared: bool

    def add(self, register: RegisterSpec) -> None:
        self.members.append(register)
        self.nbytes = max(self.nbytes, _nbytes(register))
        self.level = _last_level(register)


def share_registers(plan: Plan, config: JobConfig, cluster: Cluster) -> None:
    """Set `storage` and the one slot of registers that share."""
    phases = Phases(plan, config)
    memories: dict[object, list[_Memory]] = {}
    for actor in plan.actors:
        if actor.kind not in _MAKERS:
            continue
        task = phases.task_of(actor)
        known = memories.setdefault((actor.placement, actor.acts, task), [])
        for register in actor.outputs:
            if not _may_take_turns(register, phases):
                continue
            is_shared = any(c.kind in READS_PEERS for c in register.consumers)
            wanted = _nbytes(register)
            free = [
                m
                for m in known
                if m.level < actor.level
                and m.is_shared is is_shared
                and 2 * min(m.nbytes, wanted) >= max(m.nbytes, wanted)
            ]
            if free:
                memory = min(free, key=lambda m: (abs(m.nbytes - wanted), m.members[0].id))
                memory.add(register)
            else:
                level = _last_level(register)
                known.append(_Memory([register], wanted, level, is_shared))
    for some in memories.values():
        for memory in some:
            if len(memory.members) > 1:
                _settle(memory)


def _settle(memory: _Memory) -> None:
    largest = max(memory.members, key=_nbytes)
    for register in memory.members:
        register.num_slots = 1
        register.storage = None if register is largest else largest
        for held in _made_in_place(register):
            held.num_slots = 1


def _may_take_turns(register: RegisterSpec, phases: Phases) -> bool:
    producer = register.producer
    held = [register, *_made_in_place(register)]
    tasks = {phases.task_of(c) for r in held for c in r.consumers}
    return (
        bool(register.values)
        and not any(map(_is_lent, held))
        and in_place_of(register) is None
        and register.items == producer.acts
        and all(c.acts == producer.acts for c in register.consumers)
        and tasks <= {phases.task_of(producer)}
        and _nbytes(register) >= SHORT_NBYTES
    )


def _is_lent(register: RegisterSpec) -> bool:
    """Whether the caller reads it between this step and the next."""
    made = {v.id for v in register.values}
    readers = [n for c in register.consumers if c.kind is ActorKind.OUTPUT for n in c.nodes]
    return any(n.attrs.get("lent") and n.inputs[0].id in made for n in readers)


def _made_in_place(register: RegisterSpec) -> list[RegisterSpec]:
    """The registers that are made of it in its own memory, at first and second hand."""
    made = [r for c in register.consumers for r in c.outputs if in_place_of(r) is register]
    return made + [r for first in made for r in _made_in_place(first)]


def _last_level(register: RegisterSpec) -> int:
    """The level of the last actor that reads its memory."""
    held = [register, *_made_in_place(register)]
    return max((c.level for r in held for c in r.consumers), default=register.producer.level)


def _nbytes(register: RegisterSpec) -> int:
    """Bytes of a slot on a rank, evenly split."""
    return sum(map(local_nbytes, register.values))
