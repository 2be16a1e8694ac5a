"""Computes nothing twice, and nothing that nobody reads."""

from __future__ import annotations

from collections.abc import Hashable

from oneflow.core.graph import GRADIENT, SEED, STRUCTURAL, LogicalGraph, Node, Value, hand_over
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.op import find_op

KEPT = frozenset({"input", "variable", "output"})
"""The job's interface: kept although nobody may read them."""
_MARKS = SEED, GRADIENT


def dedupe(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Merge equal pure nodes, drop ops that do nothing, erase nodes without effect."""
    pure = _Purity()
    seen: dict[Hashable, Node] = {}
    for node in graph:
        if not pure[node.op]:
            continue
        same = _forwarded(node)
        if same is None:
            first = seen.setdefault(_meaning(node), node)
            if first is node or _is_overwritten(first) or _is_overwritten(node):
                continue
            same = first.outputs
        for old, new in zip(node.outputs, same, strict=True):
            hand_over(old, new)
    erase_dead(graph)


class _Purity(dict[str, bool]):
    """op name -> may two equal nodes be one?"""

    def __missing__(self, name: str) -> bool:
        if name in STRUCTURAL:
            pure = name in ("to_global", "repeat", *_MARKS)
        else:
            op = find_op(name)
            pure = not (op.is_random or op.mutates or op.has_effect)
        self[name] = pure
        return pure


def _is_overwritten(node: Node) -> bool:
    """Does a reader write into a result? Then it is a buffer of its own, however equal at first."""
    return any(user.overwrites(value) for value in node.outputs for user in value.users)


def _forwarded(node: Node) -> list[Value] | None:
    """The values that a node which does nothing hands through."""
    if node.op in _MARKS:
        return node.inputs
    if not node.declared.is_conversion:
        return None
    value = node.inputs[0]
    same = value.type == node.outputs[0].type and value.placement == node.placement
    return [value] if same else None


def _meaning(node: Node) -> Hashable:
    return (
        node.op,
        node.attrs_key,
        tuple([v.id for v in node.inputs]),
        node.placement,
        node.stage,
        tuple([(v.type, v.sbp) for v in node.outputs]),
    )


def erase_dead(graph: LogicalGraph) -> None:
    """Erases, from the end, nodes whose outputs nobody reads and that do nothing else."""
    for node in reversed(list(graph)):
        is_read = any(v.users for v in node.outputs)
        if not is_read and node.op not in KEPT and not node.has_effect:
            graph.erase(node)
