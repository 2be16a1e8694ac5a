"""The memory limit of a graph: modules to compute again are chosen so that the plan fits.

For each depth of the module tree the modules of that depth are tried: what each saves and costs
follows from a trace in which all of them are computed again, and the plan of that trace says
whether the depth can fit at all. Of a depth that can, those with the least cost for each byte are
taken, as few as fit, on each set of ranks (a pipeline stage) that does not fit without; of the
depths, the one that costs least. Every decision rests on the bytes of a whole plan, worked out
without allocating, so the plan that runs fits too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oneflow.actors.device import hardware_for, is_on_gpu
from oneflow.actors.rank_memory import plan_memory
from oneflow.core.errors import GraphError
from oneflow.core.graph import Node, Value
from oneflow.core.job_config import JobConfig
from oneflow.core.plan import Plan
from oneflow.core.sbp import NdSbp
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
from oneflow.scheduler.compiler.dedupe import live_nodes
from oneflow.scheduler.compiler.phases import Phases
from oneflow.scheduler.compiler.signatures import compute_seconds, num_parts

if TYPE_CHECKING:
    from oneflow.graph.compiling import Compiled
    from oneflow.graph.graph import Graph

NAMED = 5
"""Largest blocks that the error names."""


class LimitError(GraphError):
    """A graph does not fit in its memory limit. nbytes: the least that it needs."""

    nbytes: int


@dataclass(frozen=True)
class Trial:
    """The memory of each rank if some modules are computed again.

    modules: their ids.  costs: what each saves and costs, by its path.
    """

    modules: frozenset[int]
    reports: dict[int, MemoryReport]
    costs: tuple[Recomputed, ...]

    @property
    def report(self) -> MemoryReport:
        """That of the fullest rank."""
        return max(self.reports.values(), key=lambda r: r.arena_nbytes)

    @property
    def nbytes(self) -> int:
        return self.report.arena_nbytes

    @property
    def seconds(self) -> float:
        return sum(cost.extra_seconds for cost in self.costs)

    def exceeds(self, limit: int, ranks: Collection[int]) -> bool:
        """Does one of the ranks take more?"""
        return any(self.reports[r].arena_nbytes > limit for r in ranks if r in self.reports)


def fit_memory(graph: Graph, given: Tree, config: JobConfig) -> None:
    """Choose the modules that are computed again, so that registers and scratch memory of every
    rank fit in `config.set_memory_limit`. Raises LimitError if no choice fits.
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
            tried += _fewest(modules, limit, attempt, tried[0])
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
    modules: dict[str, int],
    limit: int,
    attempt: Callable[[Collection[int]], Trial],
    plain: Trial,
) -> list[Trial]:
    """The trial of all modules, and if that fits those of the fewest of each set of ranks.

    plain: the trial of none.
    """
    everything = attempt(modules.values())
    useful = [c for c in everything.costs if c.saved_nbytes and c.module in modules]
    useful.sort(key=lambda c: (c.extra_seconds / c.saved_nbytes, c.module))
    names: dict[tuple[int, ...], list[str]] = {}
    for cost in useful:
        of_ranks = names.setdefault(cost.ranks, [])
        if plain.exceeds(limit, cost.ranks) and cost.module not in of_ranks:
            of_ranks.append(cost.module)
    found = [everything]
    if everything.nbytes > limit:
        return found
    for ranks in names:
        others = [name for r, some in names.items() if r != ranks for name in some]
        low, high = 0, len(names[ranks])
        while low < high:
            middle = (low + high) // 2
            taken = names[ranks][:middle]
            trial = attempt([modules[name] for name in (*others, *taken)])
            if trial.nbytes <= limit:
                found.append(trial)
                high = middle
            else:
                low = middle + 1
        names[ranks] = names[ranks][:high]
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
    reports = {
        rank: report_memory(plan, rank, plan_memory(plan, rank, hardware, config.binding))
        for rank in ranks
    }
    return Trial(modules, reports, costs_in(plan, costs, config))


def costs_of(trace: Trace) -> tuple[Recomputed, ...]:
    """Savings and costs of the modules that a trace computes again, before it is compiled; savings
    of one micro-batch.
    """
    parts = [part for part in trace.forgotten if part.is_found]
    if not parts:
        return ()
    live = live_nodes(trace.graph)
    nodes = {n.id: n for n in trace.graph if n.id in live and not _only_moves(n)}

    def seconds(first: int, last: int) -> float:
        found = [nodes[i] for i in range(first, last) if i in nodes]
        return sum(compute_seconds(node, trace.expected) for node in found)

    found = []
    for part in parts:
        saved = sum(_local_nbytes(value, trace.expected(value)) for value in part.values)
        extra = trace.graph.num_pieces * seconds(*part.span)
        ranks = part.last.placement.rank_ids
        found.append(Recomputed(part.path, saved, extra, saved, part.last.stage, ranks))
    return tuple(found)


def _only_moves(node: Node) -> bool:
    return node.is_structural or node.op == "depend"


def _local_nbytes(value: Value, nd_sbp: NdSbp) -> int:
    return value.type.nbytes // num_parts(nd_sbp, value.placement.hierarchy)


def costs_in(plan: Plan, costs: Sequence[Recomputed], config: JobConfig) -> tuple[Recomputed, ...]:
    """The same with the savings of all micro-batches that a stage has under way."""
    if not costs:
        return ()
    phases = Phases(plan, config)
    return tuple(
        replace(cost, saved_nbytes=cost.again_nbytes * phases.pieces_kept(cost.stage))
        for cost in costs
    )


def _lacks(graph: Graph, limit: int, tried: list[Trial]) -> LimitError:
    least = min(tried, key=lambda t: t.nbytes)
    largest = "\n".join("  " + describe_block(b).strip() for b in least.report.largest(NAMED))
    missing = least.nbytes - limit
    error = LimitError(
        f"graph {graph.name} does not fit in its memory limit of {limit} bytes: it needs "
        f"{tried[0].nbytes} bytes, and {least.nbytes} if as much as possible is computed again: "
        f"{missing} too many on rank {least.report.rank}. The largest blocks are then\n{largest}\n"
        "raise config.set_memory_limit, or make the batch or these tensors smaller"
    )
    error.nbytes = least.nbytes
    return error


def report_of(graph: Graph, compiled: Compiled) -> MemoryReport:
    """The memory analysis of this rank."""
    bound = compiled.job.bound
    arrays = [x._array for x in compiled.variables.values() if x._array is not None]
    return report_memory(
        bound.plan,
        bound.rank,
        bound.memory,
        variable_nbytes=sum(array.nbytes for array in arrays),
        recomputed=[cost for cost in compiled.recomputed if bound.rank in cost.ranks],
        limit=graph.config.memory_limit,
        places=world().places if world().world_size > 1 else (),
    )
