"""The plan of a graph job as boxes and edges, for a picture: actors, and registers between them.

A plan is read in a thread and kept as JSON; one that is too large to be drawn is not read at all,
so that no page can hold up the scheduler.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.scheduler.jobs.records import JobRecord

if TYPE_CHECKING:
    from oneflow.core.graph import Node
    from oneflow.core.plan import ActorSpec, Plan, RegisterSpec
    from oneflow.core.sbp import NdSbp
    from oneflow.scheduler.cluster.state import State

MAX_PLAN_NBYTES = 512 << 10
MAX_BOXES = 150  # beyond, actors of one kind and stage share a box
MAX_EDGES = 1000
MAX_KEPT = 16  # pictures
MAX_WORDS = 4  # names of ops in a box


class Pictures:
    """Pictures of plans, by the digest of the plan."""

    def __init__(self, state: State) -> None:
        self._plans, self._blobs = state.plans, state.blobs
        self._kept: dict[str, dict[str, Any]] = {}

    async def of(self, record: JobRecord) -> dict[str, Any]:
        """Return the picture of a job's plan, or {"why": ...} if there is none.

        Raises ProtocolError for a plan that contradicts itself.
        """
        digest = self._plans.plan_of(record)
        if not digest:
            return {"why": "The scheduler has no plan of this job: it has one once it is compiled."}
        found = self._kept.get(digest)
        if found is None:
            found = await asyncio.to_thread(_read, self._blobs.path(digest))
            while len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[digest] = found
        return found


def _read(path: Path) -> dict[str, Any]:
    from oneflow.core.plan import Plan
    from oneflow.scheduler.cluster.page.memory import memory_of

    nbytes = path.stat().st_size
    if nbytes > MAX_PLAN_NBYTES:
        return {"why": f"The plan has {nbytes} bytes; at most {MAX_PLAN_NBYTES} are drawn."}
    plan = Plan.from_bytes(path.read_bytes())
    return picture(plan) | {"memory": memory_of(plan)}


def picture(plan: Plan) -> dict[str, Any]:
    """Return boxes in the order of their levels, and edges with global bytes of one slot."""
    places = _places(plan)
    groups: dict[int, list[ActorSpec]] = {}
    for actor in plan.actors:
        groups.setdefault(places[actor.id], []).append(actor)
    edges: dict[tuple[int, int], list[RegisterSpec]] = {}
    for register in plan.registers:
        for reader in {places[consumer.id] for consumer in register.consumers}:
            if (writer := places[register.producer.id]) != reader:
                edges.setdefault((writer, reader), []).append(register)
    return {
        "world_size": plan.world_size,
        "boxes": [_box(number, actors) for number, actors in groups.items()],
        "edges": [_edge(*ends, found) for ends, found in list(edges.items())[:MAX_EDGES]],
        "edges_left_out": max(0, len(edges) - MAX_EDGES),
    }


def _places(plan: Plan) -> dict[int, int]:
    """Map each actor to the number of its box."""
    if len(plan.actors) <= MAX_BOXES:
        return {actor.id: actor.id for actor in plan.actors}
    numbers: dict[tuple[int, int, str], int] = {}
    return {
        actor.id: numbers.setdefault((_stage(actor), actor.kind, _phase(actor)), len(numbers))
        for actor in plan.actors
    }


def _stage(actor: ActorSpec) -> int:
    return int(actor.nodes[0].stage)


def _phase(actor: ActorSpec) -> str:
    return str(actor.nodes[0].phase)


def _box(number: int, actors: list[ActorSpec]) -> dict[str, Any]:
    nodes: list[Node] = [node for actor in actors for node in actor.nodes]
    first = actors[0]
    return {
        "id": number,
        "kind": first.kind.name.lower(),
        "count": len(actors),
        "stage": _stage(first),
        "phase": _phase(first),
        "level": min(actor.level for actor in actors),
        "acts": first.acts,
        "nodes": len(nodes),
        "where": first.placement.notation,
        "module": nodes[0].module,
        "ops": _told(Counter(node.op for node in nodes)),
    }


def _told(ops: Counter[str]) -> str:
    words = [f"{op} x {n}" if n > 1 else op for op, n in ops.most_common(MAX_WORDS)]
    return ", ".join(words) + (", ..." if len(ops) > MAX_WORDS else "")


def _edge(writer: int, reader: int, registers: list[RegisterSpec]) -> dict[str, Any]:
    values = [value for register in registers for value in register.values]
    layouts = Counter(_layout(value.sbp) for value in values)
    return {
        "from": writer,
        "to": reader,
        "nbytes": sum(value.type.nbytes for value in values),
        "sbp": _told(layouts),
        "slots": max(register.num_slots for register in registers),
        "values": len(values),
        "type": str(values[0].type) if len(values) == 1 else "",
    }


def _layout(sbp: NdSbp | None) -> str:
    if sbp is None:
        return "?"
    words = ", ".join(map(str, sbp))
    return f"({words})" if len(sbp) > 1 else words
