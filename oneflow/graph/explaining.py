"""`graph.explain()`: the layouts of a graph, and what others would cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oneflow.core.errors import GraphError
from oneflow.core.job_config import AutoParallel, Cluster
from oneflow.core.sbp import NdSbp, nd_sbp_str
from oneflow.distributed.world import world

if TYPE_CHECKING:
    from oneflow.core.graph import LogicalGraph
    from oneflow.graph.graph import Graph
    from oneflow.scheduler.compiler.search_sbp import Chosen

SHOWN = 3
"""Layouts besides the chosen one that an explanation has."""

FOLLOWED, SEARCHED = "followed", "searched"
KINDS = {
    FOLLOWED: "every op follows its inputs, as in eager execution",
    SEARCHED: "the least estimated time of a step",
    "given": "the least if variables lie as they were given",
    "copied": "the least if every rank has a copy of all variables",
    "split": "the least if variables are split",
}


@dataclass(frozen=True)
class Layout:
    """One way to lay out a graph.

    name: a key of KINDS.  seconds: estimated, of a step.  moved_nbytes: between ranks, all of them
    together.  memory_nbytes: predicted, of the fullest rank, variables included.  variables: their
    layouts by name.  is_exact: the search has proved that nothing of its kind takes less time.
    """

    name: str
    seconds: float
    moved_nbytes: int
    memory_nbytes: int
    variables: dict[str, NdSbp]
    is_exact: bool

    def __str__(self) -> str:
        proved = " (proved)" if self.is_exact else ""
        return (
            f"{self.name}: {1e3 * self.seconds:.3f} ms a step, {self.moved_nbytes:,} bytes moved, "
            f"{self.memory_nbytes:,} bytes on a rank: {KINDS[self.name]}{proved}"
        )


@dataclass(frozen=True)
class Explanation:
    """The layout of a graph, and the best of the others, the one with the least time first."""

    graph: str
    chosen: Layout
    others: tuple[Layout, ...]

    def __str__(self) -> str:
        lines = [f"layouts of {self.graph}", f"  chosen  {self.chosen}"]
        for other in self.others:
            lines.append(f"  x {other.seconds / self.chosen.seconds:.3f} {other}")
        lines.append("variables:")
        lines += [f"  {nd_sbp_str(s):<12} {n}" for n, s in self.chosen.variables.items()]
        return "\n".join(lines)


def explain(graph: Graph) -> Explanation:
    """See Graph.explain."""
    trace = None
    if graph._compiled is not None:
        trace = graph._compiled.trace
    elif graph._built is not None:
        trace = graph._built.trace
    if trace is None:
        raise GraphError(
            f"explain: graph {graph.name} was not traced here: call it, or build_graph, first"
        )
    settings = graph.config.auto_parallel_settings
    name = FOLLOWED if settings is None else SEARCHED
    found = {kind: _layout(kind, trace.graph, settings or AutoParallel()) for kind in KINDS}
    chosen = found.pop(name)
    others: list[Layout] = []
    for other in sorted(found.values(), key=lambda layout: layout.seconds):
        known = [chosen, *others]
        if all((k.seconds, k.variables) != (other.seconds, other.variables) for k in known):
            others.append(other)
    return Explanation(graph.name, chosen, tuple(others[:SHOWN]))


def _layout(kind: str, graph: LogicalGraph, settings: AutoParallel) -> Layout:
    from oneflow.scheduler.compiler.search_sbp import follow, search_sbp

    cluster = cluster_of(graph)
    if kind == FOLLOWED:
        found = follow(graph, settings, cluster)
    elif kind == SEARCHED:
        found = search_sbp(graph, settings, cluster)
    else:
        found = search_sbp(graph, replace(settings, keeps=kind), cluster)
    return Layout(
        kind,
        found.seconds,
        found.bytes.moved_nbytes,
        found.bytes.memory_nbytes,
        _variables(found),
        found.is_exact,
    )


def _variables(found: Chosen) -> dict[str, NdSbp]:
    return {
        str(node.attrs["name"]): choice.outputs[0]
        for node, choice in zip(found.nodes, found.choices, strict=True)
        if node.op == "variable"
    }


def cluster_of(graph: LogicalGraph) -> Cluster:
    """The ranks as the compiler of the graph knows them."""
    here, ranks = world(), graph.rank_ids
    if len(ranks) == 1:
        return Cluster(max(*ranks, here.rank) + 1)
    return Cluster(here.world_size, here.places if here.world_size > 1 else ())
