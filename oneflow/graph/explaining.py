"""`graph.explain()`: the layouts of a graph, and the costs of others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oneflow.core.errors import GraphError
from oneflow.core.job_config import AutoParallel
from oneflow.core.sbp import NdSbp, nd_sbp_str
from oneflow.graph.binding import cluster_of, rewritten
from oneflow.graph.choosing import Layout
from oneflow.scheduler.compiler.layout.place_stages import place_stages
from oneflow.scheduler.compiler.layout.search_sbp import Allows, Search

if TYPE_CHECKING:
    from oneflow.core.graph import LogicalGraph
    from oneflow.graph.spec import GraphSpec

SHOWN = 3
"""Layouts besides the chosen one that an explanation has."""

FOLLOWED, SEARCHED = "followed", "searched"


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


def explain(spec: GraphSpec) -> Explanation:
    """See Graph.explain."""
    trace = None
    if spec.plans.now is not None:
        trace = spec.plans.now.trace
    elif spec.plans.built is not None:
        trace = spec.plans.built.trace
    if trace is None:
        raise GraphError(
            f"explain: graph {spec.name} was not traced here: call it, or build_graph, first"
        )
    settings, choice = spec.config.auto_parallel_settings, spec.choice
    traced = trace.graph
    if len(traced.rank_ids) > 1:  # else it is compiled already, and lies on one rank
        traced = rewritten(traced, spec.job_config(), cluster_of(traced))
    asked = settings or AutoParallel()
    place_stages(traced, asked)
    search = Search(traced, asked, cluster_of(traced))
    others = choice.others() if choice is not None else []
    name = choice.name if choice is not None and choice.name else SEARCHED
    followed = Layout.of(FOLLOWED, search.followed())
    searched = Layout.of(name, search.best())
    chosen, other = (followed, searched) if settings is None else (searched, followed)
    others += [other, *_conditions(search, traced, searched)]
    shown: list[Layout] = []
    for layout in sorted(others, key=lambda x: x.seconds):
        known = [chosen, *shown]
        if all((k.seconds, k.variables) != (layout.seconds, layout.variables) for k in known):
            shown.append(layout)
    return Explanation(spec.name, chosen, tuple(shown[:SHOWN]))


def _conditions(search: Search, graph: LogicalGraph, best: Layout) -> Iterator[Layout]:
    """The best layouts with variables as given, as copies, or split, and with one of the largest
    variables otherwise than in the best of all.
    """

    def layout(name: str, allows: Allows) -> Layout:
        return Layout.of(name, search.best(allows))

    yield layout("variables as given", lambda n, s: s == n.outputs[0].sbp)
    yield layout("variables copied", lambda _, s: all(x.is_broadcast for x in s))
    yield layout("variables split", lambda _, s: not any(x.is_broadcast for x in s))
    free = [n for n in graph.of_kind("variable") if n.attrs.get("free")]
    free.sort(key=lambda n: -n.outputs[0].type.nbytes)
    for node in free[:SHOWN]:
        name = str(node.attrs["name"])
        lies = best.variables[name]
        yield layout(f"{name} not {nd_sbp_str(lies)}", _other_than(node.id, lies))


def _other_than(id_: int, lies: NdSbp) -> Allows:
    return lambda node, nd_sbp: node.id != id_ or nd_sbp != lies
