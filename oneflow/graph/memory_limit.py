"""The memory limit of a graph: modules to compute again are chosen so that the plan fits.

For each depth of the module tree the modules of that depth are tried: the plan in which all of them
are computed again gives the saving and the cost of each, and whether the depth can fit at all. Of a
depth that can, those with the least cost for each byte are taken, as few as fit, on each set of
ranks (a pipeline stage) that does not fit without; of the depths, the one that costs least. Every
decision rests on the bytes of a whole plan, worked out without allocating, so the plan that runs
fits too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oneflow.actors.rank_memory import plan_memory
from oneflow.core.errors import GraphError
from oneflow.core.graph import AGAIN, LogicalGraph, Node, Value, find_root
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
from oneflow.kernels.hardware import hardware_for
from oneflow.scheduler.compiler.layout.signatures import compute_seconds, local_nbytes
from oneflow.scheduler.compiler.rewrite.recompute import is_under
from oneflow.scheduler.compiler.schedule.phases import Phases

if TYPE_CHECKING:
    from oneflow.graph.compiling import Compiled
    from oneflow.graph.spec import GraphSpec

NAMED = 5
"""Largest blocks that the error names."""


class LimitError(GraphError):
    """A graph does not fit in its memory limit. nbytes: the least that it needs."""

    nbytes: int


@dataclass(frozen=True)
class Trial:
    """The memory of each rank if some modules are computed again.

    modules: their paths.  costs: the bytes each saves, and the seconds it costs.
    """

    modules: frozenset[str]
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


def fit_memory(spec: GraphSpec, traced: LogicalGraph, config: JobConfig) -> frozenset[str]:
    """The paths of the modules to compute again, so that registers and scratch memory of every rank
    fit in `config.set_memory_limit`: those of the configuration, and as few more as that takes.
    Raises LimitError if no choice fits.
    """
    limit, given = spec.config.memory_limit, frozenset(config.recomputed)
    if limit is None:
        return given

    def attempt(modules: Collection[str]) -> Trial:
        wanted = given | frozenset(modules)
        paths = tuple(p for p in spec.paths().values() if p in wanted)
        return _try(traced, replace(config, recomputed=paths))

    tried = [attempt(())]
    if tried[0].nbytes > limit:
        for modules in _depths(spec):
            tried += _fewest(modules, limit, attempt, tried[0])
    fitting = [t for t in tried if t.nbytes <= limit]
    if not fitting:
        raise _lacks(spec, limit, tried)
    return min(fitting, key=lambda t: t.seconds).modules


def _depths(spec: GraphSpec) -> list[list[str]]:
    """The paths of the modules of each depth, without the outermost."""
    by_depth: dict[int, list[str]] = {}
    for path in spec.paths().values():
        by_depth.setdefault(path.count("."), []).append(path)
    return [modules for depth, modules in sorted(by_depth.items()) if depth]


def _fewest(
    modules: Collection[str],
    limit: int,
    attempt: Callable[[Collection[str]], Trial],
    plain: Trial,
) -> list[Trial]:
    """The trial of all modules, and if that fits those of the fewest of each set of ranks.

    plain: the trial of none.
    """
    everything = attempt(modules)
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
            trial = attempt([*others, *taken])
            if trial.nbytes <= limit:
                found.append(trial)
                high = middle
            else:
                low = middle + 1
        names[ranks] = names[ranks][:high]
    return found


def _try(traced: LogicalGraph, config: JobConfig) -> Trial:
    plan = compile_alone(traced.copied(), config)
    hardware = hardware_for(plan.device_type, 0)
    ranks = sorted({rank for actor in plan.actors for rank in actor.placement.rank_ids})
    reports = {
        rank: report_memory(plan, rank, plan_memory(plan, rank, hardware, config.binding))
        for rank in ranks
    }
    return Trial(frozenset(config.recomputed), reports, costs_in(plan, config))


def costs_in(plan: Plan, config: JobConfig) -> tuple[Recomputed, ...]:
    """Savings and costs of the modules that a plan computes again, on each of their ranks; savings
    of all micro-batches that a stage has under way.
    """
    again = [n for n in plan.graph if n.phase == AGAIN and not only_moves(n)]
    if not again:
        return ()
    made = {n.outputs[0].id: n for n in plan.graph if n.outputs}
    parts = defaultdict[tuple[str, int, tuple[int, ...]], list[Node]](list)
    for node in again:
        module = repeated_module(node, made, config.recomputed)
        parts[module, node.stage, node.placement.rank_ids].append(node)
    phases, found = Phases(plan, config), []
    for (module, stage, ranks), nodes in sorted(parts.items(), key=_by_module(config)):
        nbytes = sum(local_nbytes(value) for value in read_outside(nodes))
        seconds = plan.graph.num_pieces * sum(compute_seconds(n, _layout) for n in nodes)
        saved = nbytes * phases.pieces_kept(stage)
        found.append(Recomputed(module, saved, seconds, nbytes, stage, ranks))
    return tuple(found)


def only_moves(node: Node) -> bool:
    return node.is_structural or node.op == "depend"


def repeated_module(node: Node, made: dict[int, Node], recomputed: Sequence[str]) -> str:
    """The module for whose sake a node is computed again: the outermost one that is, or of
    one that repeats nodes computed again already, one further inside.
    """
    depth, first = 0, made.get(node.grad_of)
    while first is not None and first.phase == AGAIN:
        depth, first = depth + 1, made.get(first.grad_of)
    depth += first is None  # of the op that it repeats nothing was read, so it is gone
    paths = sorted((p for p in recomputed if is_under(node.module, p)), key=len)
    return paths[min(depth, len(paths) - 1)]


def _by_module(config: JobConfig) -> Callable[[tuple[tuple[str, int, Any], Any]], Any]:
    return lambda item: (config.recomputed.index(item[0][0]), *item[0][1:])


def read_outside(nodes: list[Node]) -> Iterable[Value]:
    """The values, in memory of their own, that others read than these nodes."""
    ids = {node.id for node in nodes}
    values = (v for node in nodes for v in node.outputs)
    read = (v for v in values if any(user.id not in ids for user in v.users))
    roots = {root.id: root for v in read if (root := find_root(v)).node.id in ids}
    return roots.values()


def _layout(value: Value) -> NdSbp:
    assert value.sbp is not None
    return value.sbp


def _lacks(spec: GraphSpec, limit: int, tried: list[Trial]) -> LimitError:
    least = min(tried, key=lambda t: t.nbytes)
    largest = "\n".join("  " + describe_block(b).strip() for b in least.report.largest(NAMED))
    missing = least.nbytes - limit
    error = LimitError(
        f"graph {spec.name} does not fit in its memory limit of {limit} bytes: it needs "
        f"{tried[0].nbytes} bytes, and {least.nbytes} if as much as possible is computed again: "
        f"{missing} too many on rank {least.report.rank}. The largest blocks are then\n{largest}\n"
        "raise config.set_memory_limit, or make the batch or these tensors smaller"
    )
    error.nbytes = least.nbytes
    return error


def report_of(spec: GraphSpec, compiled: Compiled) -> MemoryReport:
    """The memory analysis of this rank."""
    bound = compiled.job.bound
    arrays = [x._array for x in compiled.variables.values() if x._array is not None]
    return report_memory(
        bound.plan,
        bound.rank,
        bound.memory,
        variable_nbytes=sum(array.nbytes for array in arrays),
        recomputed=[cost for cost in compiled.recomputed if bound.rank in cost.ranks],
        limit=spec.config.memory_limit,
        places=world().places if world().world_size > 1 else (),
    )
