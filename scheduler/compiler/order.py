"""One order of all nodes for all ranks.

So no two ranks ever wait for each other's next collective.

The order the user wrote is a good one: it is kept, stably, but for what a mode moves:

  MemoryFirst (default)  the reductions of partial sums (gradients) that can already run stand
                         together, so that one actor carries many of them; computing moves to
                         where less memory is live at once (order_memory.py)
  SpeedFirst             a reduction is issued as soon as its input is made, to run beside the
                         computing that follows
  OverlapCpuGpu          reductions as in SpeedFirst, which the host runs while a device
                         computes; computing as in MemoryFirst
  DelayShortGpu          as SpeedFirst, and ops on few bytes wait for their first reader, so that a
                         device gets its long kernels before them
  Disable                nothing is moved

In every mode but Disable a transfer to other ranks is issued right after what it carries was made.
An op that overwrites a variable always comes after every reader of what it overwrites.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush

from oneflow.core.errors import GraphError, InternalError
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.op import find_op
from oneflow.scheduler.compiler.order_memory import (
    ROUNDS,
    is_movable,
    local_nbytes,
    lower_peak,
)

SHORT_NBYTES = 64 * 1024
"""Ops that read and write fewer bytes than this take a device about as long as their launch."""


def order(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Relinks the graph in execution order. Raises GraphError where a value is read after it had to
    be overwritten."""
    nodes = list(graph)
    position = {node.id: i for i, node in enumerate(nodes)}
    place = list(range(len(nodes)))
    if config.order_mode != "Disable":
        if config.order_mode == "DelayShortGpu":
            _delay_short(nodes, position, place)
        _place_early(nodes, position, place)
        if config.order_mode == "MemoryFirst":
            _gather_reductions(nodes, position, place)
        else:
            _hasten_reductions(nodes, position, place)
    nodes = _sorted(nodes, place)
    if config.order_mode in ("MemoryFirst", "OverlapCpuGpu"):
        rounds = ROUNDS if config.compress_memory else 1
        nodes = lower_peak(nodes, _after_readers, _sorted, rounds)
    graph.reorder(nodes)


# ---- what a mode wants ---------------------------------------------------------------------------


def _made_by_computing(value: Value) -> bool:
    return value.node.op not in ("input", "variable")


def _place_early(nodes: list[Node], position: dict[int, int], place: list[int]) -> None:
    """Transfers right after the producer: the receiving stage waits for nothing else. Accumulation
    likewise: it frees a gradient."""
    for i, node in enumerate(nodes):
        is_transfer = node.op == "boxing" and node.inputs[0].placement != node.placement
        if node.op == "accumulate" or (is_transfer and _made_by_computing(node.inputs[0])):
            place[i] = place[position[node.inputs[0].node.id]]


def _reductions(nodes: list[Node]) -> list[int]:
    """Positions of boxing nodes that add partial sums within one placement."""
    return [i for i, node in enumerate(nodes) if is_reduction(node)]


def is_reduction(node: Node) -> bool:
    """Does it add partial sums within a placement?"""
    if node.op != "boxing" or node.inputs[0].placement != node.placement:
        return False
    before, after = node.inputs[0].sbp, node.outputs[0].sbp
    if before is None or after is None:
        raise InternalError(f"{node.describe()} has no SBP")
    return any(b.is_partial and not a.is_partial for b, a in zip(before, after, strict=True))


def _gather_reductions(nodes: list[Node], position: dict[int, int], place: list[int]) -> None:
    """Those of one kind stand where the first of them does, if their inputs are made by then."""
    leaders: dict[Hashable, int] = {}
    for i in _reductions(nodes):
        node = nodes[i]
        kind = (_changes(node), node.placement, node.rate, node.stage)
        leader = leaders.get(kind)
        if leader is not None and place[position[node.inputs[0].node.id]] < leader:
            place[i] = leader
        else:
            leaders[kind] = i


def _changes(node: Node) -> Hashable:
    """Return the axes that a boxing changes, and how: they decide which ranks talk to
    each other.
    """
    pairs = zip(node.inputs[0].sbp or (), node.outputs[0].sbp or (), strict=True)
    return tuple(
        (axis, before, after) for axis, (before, after) in enumerate(pairs) if before is not after
    )


def _hasten_reductions(nodes: list[Node], position: dict[int, int], place: list[int]) -> None:
    for i in _reductions(nodes):
        place[i] = place[position[nodes[i].inputs[0].node.id]]


def _delay_short(nodes: list[Node], position: dict[int, int], place: list[int]) -> None:
    for i in range(len(nodes) - 1, -1, -1):
        values = [*nodes[i].inputs, *nodes[i].outputs]
        if is_movable(nodes[i]) and sum(local_nbytes(v) for v in values) < SHORT_NBYTES:
            readers = [place[position[u.id]] for v in nodes[i].outputs for u in v.users]
            place[i] = max(place[i], min(readers, default=0))


# ---- a valid order closest to it -----------------------------------------------------------------


def _sorted(nodes: list[Node], place: list[int]) -> list[Node]:
    """Sort the nodes so that of those that can run, the one with the lowest place always comes
    next; of one place, the first in `nodes`.
    """
    position = {node.id: i for i, node in enumerate(nodes)}
    ranks = sorted(range(len(nodes)), key=place.__getitem__)
    rank_of = [0] * len(nodes)
    for rank, i in enumerate(ranks):
        rank_of[i] = rank
    after = _after_readers(nodes)
    waits = [len(node.inputs) for node in nodes]
    for writers in after.values():
        for writer in writers:
            waits[writer] += 1
    ready = [rank_of[i] for i, count in enumerate(waits) if count == 0]
    heapify(ready)
    result = []
    while ready:
        i = ranks[heappop(ready)]
        node = nodes[i]
        result.append(node)
        released = [position[user.id] for value in node.outputs for user in value.users]
        for j in (*released, *after.get(i, ())):
            waits[j] -= 1
            if waits[j] == 0:
                heappush(ready, rank_of[j])
    if len(result) != len(nodes):
        raise _no_order(nodes, waits)
    return result


def _after_readers(nodes: list[Node]) -> dict[int, list[int]]:
    """Reader -> writers that must come after it, by position."""
    position = {node.id: i for i, node in enumerate(nodes)}
    mutates: dict[str, list[int]] = {}
    after: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        if node.op not in mutates:
            op = None if node.is_structural else find_op(node.op)
            mutates[node.op] = list(op.mutates.values()) if op else []
        for index in mutates[node.op]:
            for reader in _readers(node.inputs[index], node):
                if reader is not node:
                    after.setdefault(position[reader.id], []).append(i)
    return after


def _readers(value: Value, writer: Node) -> Iterator[Node]:
    """The nodes that read a value, or a view of it, before `writer` overwrites it."""
    for user in value.users:
        yield user
        if user is not writer and user.inputs[0] is value and _shows_input(user):
            yield from _readers(user.outputs[0], writer)


def _shows_input(node: Node) -> bool:
    """May its output be the memory of its first input?"""
    if node.is_structural:
        return node.op == "repeat"
    op = find_op(node.op)
    return op.is_view or op.is_alias


def _no_order(nodes: list[Node], waits: list[int]) -> GraphError:
    stuck = next(
        n
        for n, count in zip(nodes, waits, strict=True)
        if count and not n.is_structural and find_op(n.op).mutates
    )
    return GraphError(
        f"{stuck.describe()}: it overwrites a value that is still read after it has run; "
        "read the value that the update returns, or clone the old one first"
    )
