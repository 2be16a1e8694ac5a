"""Computes nothing twice, and nothing that nobody reads."""

from __future__ import annotations

from collections.abc import Hashable

from oneflow.core.graph import GRADIENT, SEED, LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.op import find_op

KEPT = frozenset({"input", "variable", "output"})
"""The job's interface: kept although nobody may read them."""
SAME_TYPE_IS_SAME_VALUE = frozenset({"cast", "reshape", "expand"})
"""Ops that do nothing if their result has the type of their first input."""
_MARKS = SEED, GRADIENT


def dedupe(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Merges equal pure nodes, drops ops that do nothing, erases what has no effect."""
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
        _replace(node, same)
    erase_dead(graph)


class _Purity(dict[str, bool]):
    """op name -> may two equal nodes be one?"""

    def __missing__(self, name: str) -> bool:
        node = Node(-1, name, None, {})  # type: ignore[arg-type]
        if node.is_structural:
            pure = name in ("to_global", "repeat", *_MARKS)
        else:
            op = find_op(name)
            pure = not (op.is_random or op.mutates or op.has_effect)
        self[name] = pure
        return pure


def _is_overwritten(node: Node) -> bool:
    """Does a reader write into a result? Then it is a buffer of its own, however equal at first."""
    return any(
        value is user.inputs[index]
        for value in node.outputs
        for user in value.users
        if not user.is_structural
        for index in find_op(user.op).mutates.values()
    )


def _forwarded(node: Node) -> list[Value] | None:
    """The values that a node which does nothing hands through."""
    if node.op in _MARKS:
        return node.inputs
    if node.op not in SAME_TYPE_IS_SAME_VALUE:
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


def _replace(node: Node, values: list[Value]) -> None:
    """Every reader of `node` reads `values` instead; linear in the number of uses."""
    for old, new in zip(node.outputs, values, strict=True):
        users, old.users = old.users, []
        for user in dict.fromkeys(users):
            user.inputs = [new if v is old else v for v in user.inputs]
        new.users.extend(users)


def erase_dead(graph: LogicalGraph) -> None:
    """Erases, from the end, nodes whose outputs nobody reads and that do nothing else."""
    has_effect: dict[str, bool] = {}
    for node in reversed(list(graph)):
        if any(v.users for v in node.outputs):
            continue
        if node.op not in has_effect:
            has_effect[node.op] = _has_effect(node)
        if not has_effect[node.op]:
            graph.erase(node)


def _has_effect(node: Node) -> bool:
    if node.is_structural:
        return node.op in KEPT
    op = find_op(node.op)
    return bool(op.mutates) or op.has_effect
