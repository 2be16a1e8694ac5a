"""Adds up micro-batches: gradients before they are used, and results that are means."""

from __future__ import annotations

from oneflow.core.graph import GRADIENT, LogicalGraph, Node
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.rewrite.insertion import inserting


def accumulate(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Lets updates read the mean of each gradient over the micro-batches, and outputs that are
    means over the rows of a batch be means over all of its micro-batches.
    """
    if graph.num_pieces == 1:
        return
    for node in graph:
        is_mean = node.op == "output" and node.attrs["index"] in config.means
        if is_mean or node.op == GRADIENT:
            _average(graph, node)


def _average(graph: LogicalGraph, node: Node) -> None:
    (value,) = node.inputs
    with inserting(graph, node) as at:
        mean = at.add("accumulate", [value], [value.type], value.placement, {})
    graph.set_input(node, 0, mean.outputs[0])
