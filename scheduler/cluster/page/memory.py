"""Bytes that live while each op of a step runs, from the plan alone: no rank binds anything for it.

Variables and registers stay for the whole step; temporaries come and go within their segment. So it
is before kernels are joined, and without their workspaces: `Graph.memory_report` has those, too.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from oneflow.boxing.boxes import local_type
from oneflow.core.actor_kinds import ActorKind
from oneflow.core.graph import find_root
from oneflow.core.plan import in_place_of

if TYPE_CHECKING:
    from oneflow.core.graph import Node, Value
    from oneflow.core.plan import ActorSpec, Plan, RegisterSpec

MAX_POINTS = 400  # of a rank; of more ops each point is the one of several with most bytes
MAX_RANKS = 8


def memory_of(plan: Plan) -> list[dict[str, Any]]:
    """Tell the memory of one rank of each set that have the same actors, the first MAX_RANKS."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank in range(plan.world_size):
        own = tuple(actor.id for actor in plan.actors if rank in actor.placement)
        alike.setdefault(own, []).append(rank)
    return [_rank_memory(plan, ranks) for ranks in list(alike.values())[:MAX_RANKS]]


def _rank_memory(plan: Plan, ranks: list[int]) -> dict[str, Any]:
    rank = ranks[0]
    actors = [actor for actor in plan.actors if rank in actor.placement]
    actors.sort(key=lambda actor: (actor.level, actor.id))
    variables = sum(
        _nbytes(value, rank)
        for node in plan.graph
        if node.op == "variable" and rank in node.placement
        for value in node.outputs
    )
    registers = _registers(plan, rank)
    held = [
        (variables + registers + nbytes, node)
        for actor in actors
        for node, nbytes in zip(actor.nodes, _temporaries(actor, rank), strict=True)
        if node.op != "variable"
    ]
    at = max(range(len(held)), key=lambda i: held[i][0], default=0)
    return {
        "rank": rank,
        "alike": len(ranks),
        "variables": variables,
        "registers": registers,
        "ops": len(held),
        "peak": _point(at, *held[at]) if held else None,
        "points": _thinned(held),
    }


def _registers(plan: Plan, rank: int) -> int:
    """Return the bytes of the registers that a rank makes, in all their slots."""
    sizes: dict[int, int] = {}
    for register in plan.registers:
        if rank in register.producer.placement:
            nbytes = sum(_nbytes(value, rank) for value in register.values) * register.num_slots
            storage = _storage(register).id
            sizes[storage] = max(sizes.get(storage, 0), nbytes)
    return sum(sizes.values())


def _storage(register: RegisterSpec) -> RegisterSpec:
    source = in_place_of(register)
    return _storage(source) if source is not None else register.storage or register


def _temporaries(actor: ActorSpec, rank: int) -> list[int]:
    """Return the bytes of an actor's temporaries that live while each of its nodes runs."""
    if actor.kind is not ActorKind.SEGMENT:
        return [0] * len(actor.nodes)
    made: dict[int, tuple[int, int]] = {}  # position and bytes, by the id of the value
    last: dict[int, int] = {}
    published = {value.id for register in actor.outputs for value in register.values}
    for position, node in enumerate(actor.nodes):
        for value in node.inputs:
            last[find_root(value).id] = position
        for value in node.outputs:
            root = find_root(value)
            last[root.id] = position
            if root is value and value.id not in published and node.op != "variable":
                made[value.id] = position, _nbytes(value, rank)
    changes = Counter[int]()
    for id_, (position, nbytes) in made.items():
        changes[position] += nbytes
        changes[last[id_] + 1] -= nbytes
    live, found = 0, []
    for position in range(len(actor.nodes)):
        live += changes[position]
        found.append(live)
    return found


def _nbytes(value: Value, rank: int) -> int:
    if value.sbp is None:
        return 0
    return local_type(value.type, value.sbp, value.placement, rank).nbytes


def _thinned(held: list[tuple[int, Node]]) -> list[list[Any]]:
    every = max(1, -(-len(held) // MAX_POINTS))
    found = []
    for start in range(0, len(held), every):
        at = max(range(start, min(start + every, len(held))), key=lambda i: held[i][0])
        found.append(_point(at, *held[at]))
    return found


def _point(at: int, nbytes: int, node: Node) -> list[Any]:
    return [at, nbytes, node.op, node.module]
