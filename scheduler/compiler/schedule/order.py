"""One order of all nodes for all ranks.

So no two ranks ever wait for each other's next collective.

The order the user wrote is a good one: it is kept, stably, but for the nodes that a mode moves:

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

In every mode but Disable a transfer to other ranks is issued right after the values that it carries
were made. An op that overwrites a variable always comes after every reader of its old value.
"""

from __future__ import annotations

from collections.abc import Hashable

from oneflow.core.errors import InternalError
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.layout.signatures import local_nbytes
from oneflow.scheduler.compiler.schedule.order_memory import (
    ROUNDS,
    is_movable,
    lower_peak,
)
from oneflow.scheduler.compiler.schedule.order_rules import Rules

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
    rules = Rules(nodes, position)
    sequence = rules.sorted(range(len(nodes)), place)
    if config.order_mode in ("MemoryFirst", "OverlapCpuGpu"):
        rounds = ROUNDS if config.compress_memory else 1
        sequence = lower_peak(nodes, sequence, rules, rounds)
    graph.reorder([nodes[i] for i in sequence])


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
