"""The compiled plan: actors, registers and the graph they run. The same for every rank.

The scheduler makes it (`scheduler/compiler/pipeline.py`); each rank derives its own part from
(Plan, rank).
"""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import dataclass, field, replace

from oneflow.core.actor_kinds import SECOND_HALVES, ActorKind
from oneflow.core.errors import ProtocolError
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.graph_proto import graph_from_proto, graph_to_proto
from oneflow.core.placement import Placement

PLAN_VERSION = 5


@dataclass
class RegisterSpec:
    """A register of the plan.

    values: lie side by side in a slot. items: how often it is filled in a step. storage: the
    register whose memory it uses after that was read; None: it has its own. Where its producer
    reads that register, it works in place there (`in_place_of`); else the registers of one memory
    take turns (`actors/registers.py: turns`).
    """

    id: int
    values: list[Value]
    producer: ActorSpec
    consumers: list[ActorSpec] = field(default_factory=list)
    num_slots: int = 1
    items: int = 1
    storage: RegisterSpec | None = None


@dataclass
class ActorSpec:
    """An actor of the plan.

    nodes: of the graph, in order. acts: how often it runs in a step. level: longest chain of actors
    before it.
    """

    id: int
    kind: ActorKind
    nodes: list[Node]
    level: int
    acts: int = 1
    inputs: list[RegisterSpec] = field(default_factory=list)
    outputs: list[RegisterSpec] = field(default_factory=list)

    @property
    def placement(self) -> Placement:
        return self.nodes[0].placement

    @property
    def name(self) -> str:
        """Name the actor for reports: kind, id, and the module of its first node."""
        where = self.nodes[0].module or self.nodes[0].op
        return f"{self.kind.name.lower()}.{self.id}({where})"


def in_place_of(register: RegisterSpec) -> RegisterSpec | None:
    """The register that its producer reads and overwrites to make it; None if there is none."""
    producer = register.producer
    if producer.kind in SECOND_HALVES:
        return producer.inputs[0]
    storage = register.storage
    return storage if storage and any(r is storage for r in producer.inputs) else None


@dataclass(eq=False)
class Plan:
    """The compiled job.

    graph: after all passes. actors and registers: by id.  turns: lists of actors, by id, of which
    those on a rank act one after another, in this order, in each step.  sizes: nodes of the graph
    as traced, and after each of the compiler's passes.
    """

    graph: LogicalGraph
    actors: list[ActorSpec]
    registers: list[RegisterSpec]
    world_size: int
    turns: list[list[int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    _origin: Plan | None = None

    @property
    def device_type(self) -> str:
        """The kind of device that the registers are on: "cpu" unless an actor is elsewhere."""
        kinds = (actor.placement.type for actor in self.actors)
        return next((kind for kind in kinds if kind != "cpu"), "cpu")

    @property
    def origin(self) -> Plan:
        """The plan that this one is under another name, or this one."""
        return self._origin or self

    def named(self, name: str) -> Plan:
        """This plan for another graph that is equal but for its name."""
        if name == self.graph.name:
            return self
        graph = copy(self.graph)
        graph.name = name
        return replace(self, graph=graph, _origin=self.origin)

    def to_bytes(self) -> bytes:
        from oneflow.protos import plan_pb2

        positions = {id(node): i for i, node in enumerate(self.graph)}
        proto = plan_pb2.Plan(version=PLAN_VERSION, world_size=self.world_size, sizes=self.sizes)
        proto.graph.CopyFrom(graph_to_proto(self.graph))
        for actor in self.actors:
            proto.actors.add(
                kind=int(actor.kind),
                nodes=[positions[id(n)] for n in actor.nodes],
                level=actor.level,
                inputs=[r.id for r in actor.inputs],
                outputs=[r.id for r in actor.outputs],
                acts=actor.acts,
            )
        for register in self.registers:
            proto.registers.add(
                values=[v.id for v in register.values],
                producer=register.producer.id,
                consumers=[a.id for a in register.consumers],
                num_slots=register.num_slots,
                items=register.items,
                storage=0 if register.storage is None else register.storage.id + 1,
            )
        for order in self.turns:
            proto.turns.add(actors=order)
        return bytes(proto.SerializeToString(deterministic=True))

    @staticmethod
    def from_bytes(data: bytes) -> Plan:
        """Raises ProtocolError if `data` is not a plan of this version."""
        from google.protobuf.message import DecodeError

        from oneflow.protos import plan_pb2

        try:
            proto = plan_pb2.Plan.FromString(data)
        except DecodeError as error:
            raise ProtocolError(f"not a plan: {error}") from error
        if proto.version != PLAN_VERSION:
            raise ProtocolError(
                f"the plan has version {proto.version}, this program reads {PLAN_VERSION}"
            )
        try:
            plan = _link(proto, graph_from_proto(proto.graph))
            plan.turns = [list(order.actors) for order in proto.turns]
            plan.sizes = list(proto.sizes)
            if any(actor >= len(plan.actors) for order in plan.turns for actor in order):
                raise IndexError("a turn of an actor that there is not")
            return plan
        except (IndexError, KeyError, StopIteration, ValueError) as error:
            raise ProtocolError(f"the plan contradicts itself: {error!r}") from error

    def __str__(self) -> str:
        """Print the plan for people: one line an actor and a register."""
        lines = [f"plan {self.graph.name} world_size={self.world_size}"]
        for a in self.actors:
            reads = ", ".join(f"r{r.id}" for r in a.inputs)
            writes = ", ".join(f"r{r.id}" for r in a.outputs)
            lines.append(
                f"  {a.name} @{a.placement.notation} level={a.level} acts={a.acts} "
                f"nodes={len(a.nodes)}: ({reads}) -> ({writes})"
            )
        for r in self.registers:
            values = ",".join(f" %{v.id}: {v.type}" for v in r.values)
            where = "" if r.storage is None else f" in r{r.storage.id}"
            lines.append(f"  r{r.id} slots={r.num_slots} items={r.items}{where}:{values}")
        for order in self.turns:
            lines.append("  turns " + " ".join(map(str, order)))
        return "\n".join(lines)


def plan_digest(data: bytes) -> str:
    """Return the digest on which ranks agree before anything runs."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _link(proto: object, graph: LogicalGraph) -> Plan:
    nodes = list(graph)
    values = {v.id: v for n in nodes for v in n.outputs}
    actors = [
        ActorSpec(i, ActorKind(a.kind), [nodes[k] for k in a.nodes], a.level, a.acts)
        for i, a in enumerate(proto.actors)  # type: ignore[attr-defined]
    ]
    listed = list(proto.registers)  # type: ignore[attr-defined]
    registers = [
        RegisterSpec(
            i,
            [values[v] for v in r.values],
            actors[r.producer],
            [actors[c] for c in r.consumers],
            r.num_slots,
            r.items,
        )
        for i, r in enumerate(listed)
    ]
    for register, stored in zip(registers, listed, strict=True):
        register.storage = registers[stored.storage - 1] if stored.storage else None
    for actor, message in zip(actors, proto.actors, strict=True):  # type: ignore[attr-defined]
        actor.inputs = [registers[i] for i in message.inputs]
        actor.outputs = [registers[i] for i in message.outputs]
    return Plan(graph, actors, registers, proto.world_size)  # type: ignore[attr-defined]
