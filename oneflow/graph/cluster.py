"""The ranks of a graph as the compiler knows them."""

from __future__ import annotations

from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import Cluster
from oneflow.distributed.world import world


def cluster_of(graph: LogicalGraph) -> Cluster:
    """The ranks as the compiler of the graph knows them."""
    here, ranks = world(), graph.rank_ids
    if len(ranks) == 1:
        return Cluster(max(*ranks, here.rank) + 1)
    return Cluster(here.world_size, here.places if here.world_size > 1 else ())
