"""Peers and callers read registers, never a variable's own memory: a variable that they read is
copied first.
"""

from __future__ import annotations

from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import Cluster, JobConfig


def copy_variables(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Insert a copy before each structural reader of a variable."""
    for node in graph:
        if not node.is_structural or node.op == "repeat":
            continue
        for i, value in enumerate(node.inputs):
            if value.node.op == "variable":
                sbp = [value.sbp]
                copy = graph.insert(node, "copy", [value], [value.type], value.placement, sbp=sbp)
                graph.set_input(node, i, copy.outputs[0])
