"""`graph.explain()`: the layouts of a graph, and what others would cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oneflow.core.errors import GraphError
from oneflow.core.job_config import AutoParallel
from oneflow.core.sbp import NdSbp, nd_sbp_str
from oneflow.graph.choosing import Estimate
from oneflow.graph.cluster import cluster_of, rewritten
from oneflow.scheduler.compiler.layout.place_stages import place_stages
from oneflow.scheduler.compiler.layout.search_sbp import Allows, Chosen, Search

if TYPE_CHECKING:
    from oneflow.core.graph import LogicalGraph
    from oneflow.graph.spec import GraphSpec

SHOWN = 3
"""Layouts besides the chosen one that an explanation has."""

FOLLOWED, SEARCHED = "followed", "searched"


@dataclass(frozen=True)
class Layout:
    """One way to lay out a graph.

    name: FOLLOWED by every op as in eager execution, SEARCHED, or searched under a condition on
    variables, which it names; or the stages, micro-batches and the like that level "full" tried.
    seconds: estimated, of a step.  moved_nbytes: between ranks, all of them together.
    memory_nbytes: predicted, of the fullest rank, variables included.  variables: their layouts by
    name, where they were kept.  is_exact: the search has proved that nothing of its kind takes less
    time.
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
            f"{self.memory_nbytes:,} bytes on a rank{proved}"
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
        traced = rewritten(traced, spec.job_config())
    search = _Search(traced, settings or AutoParallel())
    others = list(map(_estimated, choice.others())) if choice is not None else []
    name = choice.name if choice is not None and choice.name else SEARCHED
    followed, searched = search.followed(), search.layout(name, None)
    chosen, other = (followed, searched) if settings is None else (searched, followed)
    others += [other, *search.conditions(searched)]
    shown: list[Layout] = []
    for layout in sorted(others, key=lambda x: x.seconds):
        known = [chosen, *shown]
        if all((k.seconds, k.variables) != (layout.seconds, layout.variables) for k in known):
            shown.append(layout)
    return Explanation(spec.name, chosen, tuple(shown[:SHOWN]))


def _estimated(found: Estimate) -> Layout:
    return Layout(
        str(found.candidate),
        found.seconds,
        found.moved_nbytes,
        found.memory_nbytes,
        {},
        found.is_exact,
    )


class _Search:
    """Searches over one graph, under conditions."""

    def __init__(self, graph: LogicalGraph, settings: AutoParallel) -> None:
        cluster = cluster_of(graph)
        place_stages(graph, settings)
        self._graph, self._search = graph, Search(graph, settings, cluster)

    def followed(self) -> Layout:
        return _layout(FOLLOWED, self._search.followed())

    def layout(self, name: str, allows: Allows | None) -> Layout:
        return _layout(name, self._search.best(allows))

    def conditions(self, best: Layout) -> Iterator[Layout]:
        """The best layouts with variables as given, as copies, or split, and with one of the
        largest variables otherwise than in the best of all.
        """
        yield self.layout("variables as given", lambda n, s: s == n.outputs[0].sbp)
        yield self.layout("variables copied", lambda _, s: all(x.is_broadcast for x in s))
        yield self.layout("variables split", lambda _, s: not any(x.is_broadcast for x in s))
        free = [n for n in self._graph.of_kind("variable") if n.attrs.get("free")]
        free.sort(key=lambda n: -n.outputs[0].type.nbytes)
        for node in free[:SHOWN]:
            name = str(node.attrs["name"])
            lies = best.variables[name]
            yield self.layout(f"{name} not {nd_sbp_str(lies)}", _other_than(node.id, lies))


def _other_than(id_: int, lies: NdSbp) -> Allows:
    return lambda node, nd_sbp: node.id != id_ or nd_sbp != lies


def _layout(name: str, found: Chosen) -> Layout:
    held = found.bytes
    return Layout(
        name,
        found.step_seconds,
        held.moved_nbytes,
        held.memory_nbytes,
        _variables(found),
        found.is_exact,
    )


def _variables(found: Chosen) -> dict[str, NdSbp]:
    return {
        str(node.attrs["name"]): choice.outputs[0]
        for node, choice in zip(found.nodes, found.choices, strict=True)
        if node.op == "variable"
    }
