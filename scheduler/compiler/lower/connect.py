"""Makes the registers through which the actors of a plan hand on values, or only wait for each
other.
"""

from __future__ import annotations

from oneflow.core.actor_kinds import FIRST_HALVES, SECOND_HALVES, ActorKind
from oneflow.core.errors import InternalError
from oneflow.core.graph import LogicalGraph, Node, Value, written_variable
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.plan import ActorSpec, Plan, RegisterSpec
from oneflow.scheduler.compiler.lower.group_segments import overtaken_readers
from oneflow.scheduler.compiler.schedule.order import is_reduction

_ONE_REGISTER = SECOND_HALVES | {ActorKind.FLAT_REDUCE, ActorKind.ALL_REDUCE}
"""Kinds that work on the bytes of one register: so all they make is in it, and all readers hold
it."""


def connect(plan: Plan, config: JobConfig, cluster: Cluster) -> None:
    """Add the registers between the actors. Linear in the number of nodes."""
    actors, registers = plan.actors, plan.registers
    makers = _makers(actors)
    for actor in actors:
        if actor.kind in FIRST_HALVES:
            _add(registers, actor, [n.outputs[0] for n in actor.nodes], [actors[actor.id + 1]])
            continue
        for consumers, values in _by_consumers(actor, actors, makers).items():
            _add(registers, actor, values, [actors[c] for c in consumers])
    _add_control(plan.graph, actors, makers, registers)
    _chain_calls(actors, registers)


def _makers(actors: list[ActorSpec]) -> dict[int, int]:
    """node id -> id of the actor that makes its outputs known to others (of two halves, the
    second).
    """
    return {
        node.id: actor.id
        for actor in actors
        if actor.kind not in FIRST_HALVES
        for node in actor.nodes
    }


def _by_consumers(
    actor: ActorSpec, actors: list[ActorSpec], makers: dict[int, int]
) -> dict[tuple[int, ...], list[Value]]:
    """The values that other actors read, by their readers; those that the same actors
    read travel together.
    """
    result: dict[tuple[int, ...], list[Value]] = {}
    for node in actor.nodes:
        for value in node.outputs:
            readers = sorted(_readers(value, actor, actors, makers))
            if readers:
                result.setdefault(tuple(readers), []).append(value)
    if actor.kind in _ONE_REGISTER and result:
        readers = sorted({r for key in result for r in key})
        return {tuple(readers): [n.outputs[0] for n in actor.nodes]}
    # What is sent first is there first: gradients can wait, gathered parameters are read next.
    late = {readers: _is_reduced(readers, actors) for readers in result}
    return dict(sorted(result.items(), key=lambda item: late[item[0]]))


def _is_reduced(readers: tuple[int, ...], actors: list[ActorSpec]) -> bool:
    return all(is_reduction(actors[r].nodes[0]) for r in readers)


def _readers(
    value: Value, actor: ActorSpec, actors: list[ActorSpec], makers: dict[int, int]
) -> set[int]:
    found: set[int] = set()
    for user in value.users:
        if user.op == "repeat":
            found |= _readers(user.outputs[0], actor, actors, makers)
            continue
        reader = makers[user.id]
        if reader == actor.id:
            continue
        if actors[reader].kind in SECOND_HALVES:
            reader -= 1  # its first phase reads the input
        found.add(reader)
    return found


def _add_control(
    graph: LogicalGraph,
    actors: list[ActorSpec],
    makers: dict[int, int],
    registers: list[RegisterSpec],
) -> None:
    """Add registers without values: an actor that overwrites a variable waits for those that read
    it in this step.
    """
    known = {(r.producer.id, c.id) for r in registers for c in r.consumers}

    def order(first: ActorSpec, last: ActorSpec) -> None:
        pair = first.id, last.id
        if first is not last and pair not in known:
            known.add(pair)
            # Of what is overwritten in each piece each piece reads what the one before left.
            items = 1 if 1 in (first.acts, last.acts) else first.acts
            _add(registers, first, [], [last], items=items)

    for node in graph:
        for reader in overtaken_readers(node):
            order(actors[makers[reader.id]], actors[makers[node.id]])
    for opening, closing in _uses_of_pieces(graph, actors, makers):
        order(opening, closing)


def _uses_of_pieces(
    graph: LogicalGraph, actors: list[ActorSpec], makers: dict[int, int]
) -> list[tuple[ActorSpec, ActorSpec]]:
    """Pairs of an actor that uses a variable first in a piece and one that uses it last, if each
    piece overwrites it several times: the next piece begins when this one is through with it.
    """
    writers: dict[Value, list[Node]] = {}
    for node in graph:
        for value in node.overwritten:
            variable = written_variable(value)
            if variable.node.op == "variable" and actors[makers[node.id]].acts > 1:
                writers.setdefault(variable, []).append(node)
    found = []
    for variable, nodes in writers.items():
        last = next(v for v in nodes[-1].outputs if written_variable(v) is variable)
        opening = {*_readers_of(variable, actors, makers), makers[nodes[0].id]}
        closing = {*_readers_of(last, actors, makers), makers[nodes[-1].id]}
        is_one = closing <= {makers[nodes[0].id]}
        found += [] if is_one else [(actors[a], actors[c]) for a in opening for c in closing]
    return found


def _readers_of(value: Value, actors: list[ActorSpec], makers: dict[int, int]) -> set[int]:
    """The actors of each piece that read a variable's memory as it is at this value."""
    numbers = {makers[u.id] for u in value.users if u.op != "output"}
    return {n for n in numbers if actors[n].acts > 1}


def _chain_calls(actors: list[ActorSpec], registers: list[RegisterSpec]) -> None:
    """Registers without values that make each rank begin its calls of a backend in one order."""
    last: dict[int, ActorSpec] = {}
    for actor in actors:
        if actor.kind is ActorKind.ALL_REDUCE:
            ranks = actor.placement.rank_ids
            before = {last[r].id: last[r] for r in ranks if r in last}
            for first in before.values():
                _add(registers, first, [], [actor])
            last.update(dict.fromkeys(ranks, actor))


def _add(
    registers: list[RegisterSpec],
    producer: ActorSpec,
    values: list[Value],
    consumers: list[ActorSpec],
    items: int = 0,
) -> None:
    """Add a register. items: filled per step; 0: once an act, or once a step by an actor that
    gathers pieces.
    """
    if not items:
        items = 1 if producer.kind in (ActorKind.ACCUMULATE, ActorKind.PACK) else producer.acts
    for consumer in consumers:
        if consumer.acts % items:
            raise InternalError(
                f"{consumer.name} runs {consumer.acts} times for {items} items of {producer.name}"
            )
    register = RegisterSpec(len(registers), values, producer, consumers, items=items)
    registers.append(register)
    producer.outputs.append(register)
    for consumer in consumers:
        consumer.inputs.append(register)
