"""Cuts a graph into the stages of a pipeline, as auto-parallel has decided.

The forward pass is cut in the order of the program, so that the longest part, with bringing its
input, is as short as can be; gradients belong to the stage of their module, variables to that of
their first reader, updates to that of the variable they overwrite.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from oneflow.core.graph import FORWARD, LogicalGraph, Node, Value, written_variable
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.layout.critical_path import node_seconds
from oneflow.scheduler.compiler.layout.place_stages import the_placement
from oneflow.scheduler.compiler.layout.signatures import BYTES_PER_SECOND

MOST_CUTS = 200
"""Places, those where least crosses, of which stages may begin at some."""

_WAITING = frozenset({"variable", "unpack"})
"""Kinds of nodes that stand where they are first read."""


def assign_stages(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Sets `stage` of every node."""
    num_stages = 1 if config.auto_parallel is None else config.auto_parallel.num_stages
    if num_stages == 1 or the_placement(graph) is None:
        return
    forward = [n for n in graph if n.phase == FORWARD and n.inputs and _is_cut(n)]
    first = _cut(forward, num_stages)
    for position, node in enumerate(forward):
        node.stage = sum(position >= start for start in first)
    known = {node.id for node in forward}
    for node in reversed(list(graph)):
        if node.op in _WAITING:
            readers = [u.stage for v in node.outputs for u in v.users if u.id in known]
            node.stage = min(readers, default=-1)
    _follow(graph, forward)


def _is_cut(node: Node) -> bool:
    return node.op not in ("output", *_WAITING)


def _cut(forward: Sequence[Node], num_stages: int) -> list[int]:
    """The positions at which stages 1, 2, ... begin: the longest stage, with the time to bring
    its input, is as short as can be.
    """
    seconds = node_seconds(forward)
    until = [0.0, *itertools.accumulate(seconds[n.id] for n in forward)]
    crossing = _crossing(forward)
    inner = sorted(range(1, len(forward)), key=lambda i: (crossing[i], i))[:MOST_CUTS]
    cuts = [0, *sorted(inner), len(forward)]
    moving = {i: 2 * crossing[i] / BYTES_PER_SECOND[forward[0].placement.type] for i in cuts}
    best: list[tuple[float, tuple[int, ...]]] = [(until[i], ()) for i in cuts]
    for _ in range(num_stages - 1):
        best = [
            min(
                (
                    (
                        max(best[i][0], moving[start] + until[stop] - until[start]),
                        (*best[i][1], start),
                    )
                    for i, start in enumerate(cuts[:j])
                ),
                default=best[j],
            )
            for j, stop in enumerate(cuts)
        ]
    return list(best[-1][1])


def _crossing(forward: Sequence[Node]) -> list[int]:
    """Bytes that are made before each position and read from there on."""
    place = {node.id: i for i, node in enumerate(forward)}
    change = [0] * (len(forward) + 1)
    for i, node in enumerate(forward):
        for value in node.outputs:
            last = max((place[u.id] for u in value.users if u.id in place), default=i)
            change[i + 1] += value.type.nbytes
            change[min(last + 1, len(forward))] -= value.type.nbytes
    return list(itertools.accumulate(change))


def _follow(graph: LogicalGraph, forward: Sequence[Node]) -> None:
    """Stages of the nodes after the forward pass, and of variables that only it reads."""
    of_module: dict[str, set[int]] = {}
    for node in forward:
        of_module.setdefault(node.module, set()).add(node.stage)
    known = {module: stages.pop() for module, stages in of_module.items() if len(stages) == 1}
    done = {node.id for node in forward}
    for node in graph:
        if node.id in done or not node.inputs or node.op in _WAITING:
            continue
        read = [v.node.stage for v in node.inputs if v.node.op != "input" and v.node.stage >= 0]
        node.stage = known.get(node.module, min(read, default=0))
        written = _written(node)
        if written:
            node.stage = max(next((v.node.stage for v in written if v.node.stage >= 0), 0), 0)
        for value in node.inputs:
            if value.node.op in _WAITING and value.node.stage < 0:
                value.node.stage = node.stage
    for node in graph:
        node.stage = max(node.stage, 0)


def _written(node: Node) -> list[Value]:
    """The variables that a node overwrites."""
    found = map(written_variable, node.overwritten)
    return [v for v in found if v.node.op == "variable"]
