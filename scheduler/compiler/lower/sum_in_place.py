"""Lets the first half of an all_reduce put its share of the sum where its own summand was."""

from __future__ import annotations

from oneflow.core.actor_kinds import ActorKind
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.plan import Plan


def sum_in_place(plan: Plan, config: JobConfig, cluster: Cluster) -> None:
    """Set `storage` of the register that a first half fills, if nobody else reads the summand: a
    rank reads of its peers no share but its own. (On a GPU a summand of a large sum cannot wait
    apart.)
    """
    for actor in plan.actors:
        sources = [r for r in actor.inputs if r.values]
        is_first_half = actor.kind is ActorKind.FLAT_REDUCE_SCATTER
        if not is_first_half or actor.placement.type != "cpu" or len(sources) != 1:
            continue
        (source,), (target,) = sources, [r for r in actor.outputs if r.values]
        is_alone = len(source.consumers) == 1 and source.items == target.items
        if is_alone and [v.id for v in source.values] == [n.inputs[0].id for n in actor.nodes]:
            target.storage = source
