"""The tensors that activation checkpointing does not keep, and those that it keeps to compute them
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from oneflow.core.graph import AGAIN, Node, Value, find_root
from oneflow.core.job_config import JobConfig
from oneflow.core.plan import Plan
from oneflow.graph.memory_limit import only_moves, read_outside, repeated_module
from oneflow.scheduler.compiler.layout.signatures import local_nbytes

_NEVER_DROPPED = ("variable", "constant")


def recomputed_lines(plan: Plan, config: JobConfig) -> Iterator[str]:
    """Yield a line for each tensor, by modules: its name in the printed graph, its type, and its
    bytes on a rank that has it, of one micro-batch.
    """
    again = [n for n in plan.graph if n.phase == AGAIN and not only_moves(n)]
    made = {n.outputs[0].id: n for n in plan.graph if n.outputs}
    parts = defaultdict[str, list[Node]](list)
    for node in again:
        parts[repeated_module(node, made, config.recomputed)].append(node)
    for module, nodes in parts.items():
        for value in read_outside(nodes):
            yield _line(module, "not kept", value)
        for value in _kept_for(nodes):
            yield _line(module, "kept to compute it again", value)


def _kept_for(nodes: list[Node]) -> list[Value]:
    """The values that these nodes read and that none of them makes, but parameters and numbers."""
    roots = {
        root.id: root
        for node in nodes
        for value in node.inputs
        if (root := find_root(value)).node.phase != AGAIN and root.node.op not in _NEVER_DROPPED
    }
    return list(roots.values())


def _line(module: str, what: str, value: Value) -> str:
    nbytes = local_nbytes(value)
    return f"{module}: {what}: %{value.id} {value.type} ({value.node.op}), {nbytes} bytes"
