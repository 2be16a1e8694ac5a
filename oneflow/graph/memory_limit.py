"""The memory limit of a graph: modules to compute again are chosen so that the plan fits.

For each depth of the module tree the modules of that depth are tried: what each saves and costs
follows from a trace in which all of them are computed again, and the plan of that trace says
whether the depth can fit at all. Of a depth that can, those with the least cost for each byte are
taken, as few as fit; of the depths, the one that costs least. Every decision rests on the bytes of
a whole plan, worked out without allocating, so the plan that runs fits too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oneflow.actors.device import hardware_for, is_on_gpu
from oneflow.actors.rank_memory import plan_memory
from oneflow.core.errors import GraphError
from oneflow.core.job_config import JobConfig
from oneflow.distributed.world import world
from oneflow.graph.binding import compile_alone
from oneflow.graph.memory_report import (
    MemoryReport,
    Recomputed,
    describe_block,
    report_memory,
)
from oneflow.graph.names import paths_of
from oneflow.graph.trace import Trace
from oneflow.graph.tracing import trace_build
from oneflow.graph.tree import Tree
from oneflow.scheduler.compiler.signatures import compute_seconds

if TYPE_CHECKING:
    from oneflow.graph.compiling import Compiled
    from oneflow.graph.graph import Graph

NAMED = 5
"""Largest blocks that the error names."""


@dataclass(frozen=True)
class Trial:
    """The fullest rank's memory if some modules are computed again.

    modules: their ids.  costs: what each saves and costs, by its path.
    """

    modules: frozenset[int]
    report: MemoryReport
    costs: tuple[Recomputed, ...]

    @property
    def nbytes(self) -> int:
        return self.report.arena_nbytes

    @property
    def seconds(self) -> float:
        return sum(cost.extra_seconds for cost in self.costs)


def fit_memory(graph: Graph, given: Tree, config: JobConfig) -> None:
    """Choose the modules that are computed again, so that registers and scratch memory of every
    rank fit in `config.set_memory_limit`. Raises GraphError if no choice fits.
    """
    limit = graph.config.memory_limit
    if limit is None:
        return
    given_up = frozenset(graph._recomputed)

    def attempt(modules: Collection[int]) -> Trial:
        return _try(graph, given, config, given_up | frozenset(modules))

    tried = [attempt(())]
    if tried[0].nbytes > limit:
        for modules in _depths(graph):
            tried += _fewest(modules, limit, attempt)
    fitting = [t for t in tried if t.nbytes <= limit]
    if not fitting:
        raise _lacks(graph, limit, tried)
    graph._recomputed = set(min(fitting, key=lambda t: t.seconds).modules)


def _depths(graph: Graph) -> list[dict[str, int]]:
    """Ids of the modules of each depth by their paths, without the outermost."""
    by_depth: dict[int, dict[str, int]] = {}
    for id_, path in paths_of(graph).items():
        by_depth.setdefault(path.count("."), {})[path] = id_
    return [modules for depth, modules in sorted(by_depth.items()) if depth]


def _fewest(
    modules: dict[str, int], limit: int, attempt: Callable[[Collection[int]], Trial]
) -> list[Trial]:
    """The trial of all modules, and if that fits the one of the fewest of them that does."""
    everything = attempt(modules.values())
    useful = [c for c in everything.costs if c.saved_nbytes and c.module in modules]
    useful.sort(key=lambda c: (c.extra_seconds / c.saved_nbytes, c.module))
    names = list(dict.fromkeys(c.module for c in useful))
    if everything.nbytes > limit or not names:
        return [everything]
    found = [everything]
    low, high = 1, len(names)
    while low <= high:
        middle = (low + high) // 2
        trial = attempt([modules[name] for name in names[:middle]])
        if trial.nbytes <= limit:
            found.append(trial)
            high = middle - 1
        else:
            low = middle + 1
    return found


def _try(graph: Graph, given: Tree, config: JobConfig, modules: frozenset[int]) -> Trial:
    before = graph._recomputed
    graph._recomputed = set(modules)
    try:
        trace = trace_build(graph, given).trace
    finally:
        graph._recomputed = before
    costs = costs_of(trace)
    plan = compile_alone(trace.graph, config, world().rank)
    hardware = hardware_for("cuda" if is_on_gpu(plan) else "cpu", 0)
    ranks = sorted({rank for actor in plan.actors for rank in actor.placement.rank_ids})
    reports = [
        report_memory(plan, rank, plan_memory(plan, rank, hardware, config.binding))
        for rank in ranks
    ]
    return Trial(modules, max(reports, key=lambda r: r.arena_nbytes), costs)


def costs_of(trace: Trace) -> tuple[Recomputed, ...]:
    """Savings and costs of the modules that a trace computes again, before it is compiled."""
    if not trace.forgotten:
        return ()
    nodes = {node.id: node for node in trace.graph if not node.is_structural}
    return tuple(
        Recomputed(
            part.path,
            part.nbytes,
            sum(compute_seconds(nodes[i]) for i in range(*part.span) if i in nodes),
        )
        for part in trace.forgotten
    )


def _lacks(graph: Graph, limit: int, tried: list[Trial]) -> GraphError:
    least = min(tried, key=lambda t: t.nbytes)
    largest = "\n".join("  " + describe_block(b).strip() for b in least.report.largest(NAMED))
    missing = least.nbytes - limit
    return GraphError(
        f"graph {graph.name} does not fit in its memory limit of {limit} bytes: it needs "
        f"{tried[0].nbytes} bytes, and {least.nbytes} if as much as possible is computed again: "
        f"{missing} too many on rank {least.report.rank}. The largest blocks are then\n{largest}\n"
        "raise config.set_memory_limit, or make the batch or these tensors smaller"
    )


def report_of(graph: Graph, compiled: Compiled) -> MemoryReport:
    """The memory analysis of this rank."""
    bound = compiled.job.bound
    arrays = [x._array for x in compiled.variables.values() if x._array is not None]
    return report_memory(
        bound.plan,
        bound.rank,
        bound.memory,
        variable_nbytes=sum(array.nbytes for array in arrays),
        recomputed=compiled.recomputed,
        limit=graph.config.memory_limit,
    )
