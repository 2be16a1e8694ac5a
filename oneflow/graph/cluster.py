"""A traced graph as the compiler sees it: its ranks, and what rewriting makes of it."""

from __future__ import annotations

from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.distributed.world import world
from oneflow.scheduler.compiler.observe import Observer
from oneflow.scheduler.compiler.pipeline import run_passes


def cluster_of(graph: LogicalGraph) -> Cluster:
    """The ranks as the compiler of the graph knows them."""
    here, ranks = world(), graph.rank_ids
    if len(ranks) == 1:
        return Cluster(max(*ranks, here.rank) + 1)
    return Cluster(here.world_size, here.places if here.world_size > 1 else ())


def rewritten(graph: LogicalGraph, config: JobConfig) -> LogicalGraph:
    """The graph, of which a copy is taken, as it is when its layouts are to be found."""
    made: LogicalGraph = run_passes(
        graph.copied(), config, cluster_of(graph), until="dedupe", observer=Observer()
    )
    return made
