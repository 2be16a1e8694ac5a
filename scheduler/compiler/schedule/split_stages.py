"""Numbers the pipeline stages: nodes of one stage run on one set of ranks."""

from __future__ import annotations

from oneflow.core.graph import LogicalGraph, Node
from oneflow.core.job_config import Cluster, JobConfig

_Ranks = tuple[int, ...]


def split_stages(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Sets `stage` of the nodes whose stage the user did not set.

    If the user set stages, a node without one (a gradient, an update, a boxing) has the stage that
    the others have on its ranks. If not, sets of ranks that share no rank are stages, in order of
    first appearance.
    """
    if any(node.stage for node in graph):
        stage_of = _stages_by_user(graph)
    else:
        stage_of = _stages_by_ranks(graph)
    for node in graph:
        if not node.stage:
            node.stage = stage_of.get(node.placement.rank_ids, 0)


def _computes(node: Node) -> bool:
    return not node.is_structural


def _stages_by_user(graph: LogicalGraph) -> dict[_Ranks, int]:
    """Ranks -> stage, where the user gave exactly one to nodes there and other ranks have other
    stages. Stage 0 was given if it is found on one set of ranks only: a node without a stage has
    the same number.
    """
    given: dict[_Ranks, set[int]] = {}
    without: set[_Ranks] = set()
    for node in graph:
        if _computes(node) or node.stage:
            given.setdefault(node.placement.rank_ids, set())
            if node.stage:
                given[node.placement.rank_ids].add(node.stage)
            else:
                without.add(node.placement.rank_ids)
    if len(given) == 1:
        return {}
    if len(without) == 1:
        given[without.pop()].add(0)
    return {ranks: min(stages) for ranks, stages in given.items() if len(stages) == 1}


def _stages_by_ranks(graph: LogicalGraph) -> dict[_Ranks, int]:
    """Ranks -> stage. Ranks that meet those of an earlier stage belong to it."""
    stage_of: dict[_Ranks, int] = {}
    owner: dict[int, int] = {}
    for node in graph:
        ranks = node.placement.rank_ids
        if ranks in stage_of or not _computes(node):
            continue
        met = [owner[r] for r in ranks if r in owner]
        stage = min(met) if met else 1 + max(owner.values(), default=-1)
        stage_of[ranks] = stage
        for rank in ranks:
            owner.setdefault(rank, stage)
    return stage_of
