"""Auto-parallel of level "full": stages, hierarchy, micro-batches, ZeRO and what is computed again.

A candidate is a setting of these. Stages and hierarchies are given to copies of a traced graph;
with other micro-batches, ZeRO or modules that are computed again every rank traces the graph anew,
so that all ranks stay alike. Rank 0 searches the layouts of each for the least time of a step,
leaves out those whose computing alone takes longer than the best few, and tells the others.
Candidates that need memory less than time (ZeRO 1 and 3, micro-batches without stages, computing
again) are tried if nothing else fits. Of those that take about as long the simplest is taken. With
a memory limit the plans of the first few say which fits. The chosen one is set as a user would set
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

from oneflow.core.job_config import AutoParallel
from oneflow.distributed.objects import broadcast_object
from oneflow.distributed.world import world
from oneflow.graph.cluster import cluster_of
from oneflow.graph.memory_limit import LimitError
from oneflow.graph.micro_batches import batch_rows, means_of
from oneflow.graph.names import paths_of
from oneflow.graph.trace import Trace
from oneflow.graph.tracing import trace_build
from oneflow.graph.tree import Tree, tensors_of
from oneflow.graph.zero import Zero
from oneflow.scheduler.compiler.place_stages import assign_stages, place_stages, the_placement
from oneflow.scheduler.compiler.prediction import least_seconds
from oneflow.scheduler.compiler.search_sbp import Search, fits

if TYPE_CHECKING:
    from oneflow.core.graph import LogicalGraph
    from oneflow.graph.graph import Graph

PIECES = (2, 4, 8, 16)
"""Numbers of micro-batches that are tried."""

ALIKE = 1.03
"""Times whose ratio is less than this are taken for equal: estimates are not better."""

ATTEMPTS = 8
"""Candidates whose plans are made to see if they fit in a memory limit."""

KEPT = 4
"""Candidates that are estimated in any case: the best, and those that `explain` may show."""

ZERO_MIN_SIZE, ZERO_RESTORE_LEVEL = 1024, 1
"""The settings that `enable_zero` has from the start."""


@dataclass(frozen=True, order=True)
class Candidate:
    """A way to run a graph; the simplest comes first.

    depth: of the modules that are computed again, 0 for none.  zero: stage.  grid: hierarchy of the
    ranks of each stage, () for a row.
    """

    stages: int = 1
    pieces: int = 1
    zero: int = 0
    depth: int = 0
    grid: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = []
        if self.stages > 1:
            parts.append(f"{self.stages} stages")
        if self.grid:
            parts.append(f"ranks {' x '.join(map(str, self.grid))}")
        if self.pieces > 1:
            parts.append(f"{self.pieces} micro-batches")
        if self.zero:
            parts.append(f"ZeRO {self.zero}")
        if self.depth:
            parts.append(f"modules of depth {self.depth} computed again")
        return ", ".join(parts) or "layouts alone"


@dataclass(frozen=True)
class Estimate:
    """Costs of a candidate: see `explaining.Layout`. fits: in the memory."""

    candidate: Candidate
    seconds: float
    moved_nbytes: int
    memory_nbytes: int
    is_exact: bool
    fits: bool


@dataclass(frozen=True)
class Choice:
    """The candidate that a graph runs as, and what was tried, layouts alone first. cuts: it cuts
    the batch, which the user did not.
    """

    candidate: Candidate
    tried: tuple[Estimate, ...]
    cuts: bool

    def of(self, candidate: Candidate) -> Choice:
        """The same with another candidate chosen."""
        return replace(
            self, candidate=candidate, cuts=candidate.pieces > self.tried[0].candidate.pieces
        )

    @property
    def name(self) -> str:
        """The chosen settings; "" if only layouts are searched."""
        is_plain = self.candidate == self.tried[0].candidate
        return "" if is_plain else str(self.candidate)

    def others(self) -> list[Estimate]:
        """The estimates of what was not chosen."""
        return [e for e in self.tried if e.candidate != self.candidate]


def choose(graph: Graph, given: Tree, fit: Callable[[], None]) -> None:
    """Choose how the graph runs, at its first call, if `config` says so. All ranks call it.

    fit: chooses what is computed again, so that the plan fits in the memory limit. Raises its
    LimitError if no candidate of the first few fits.
    """
    if not graph.config.chooses_all:
        fit()
        return
    if graph._choice is not None:
        _keep_to(graph, given)
        fit()
        return
    tries, failed = _Choosing(graph, given), dict[Candidate, LimitError]()
    for choice in tries.choices():
        ranked = [e.candidate for e in _ranked(choice.tried) if e.candidate not in failed]
        for candidate in ranked[:ATTEMPTS]:
            try:
                with _trying(graph, candidate, None):
                    fit()
                    recomputed = graph._recomputed
            except LimitError as error:
                failed[candidate] = error
                continue
            _set(graph, candidate)
            graph._recomputed = recomputed
            graph._choice = choice.of(candidate)
            return
    raise min(failed.values(), key=lambda e: e.nbytes)


class _Choosing:
    def __init__(self, graph: Graph, given: Tree) -> None:
        self._graph, self._given = graph, given
        self._fixed_pieces = graph.config.num_pieces
        self._base = Candidate(pieces=self._fixed_pieces)
        self._is_judge = world().rank == 0
        self._tried: dict[Candidate, Estimate] = {}
        self._traced: dict[Candidate, LogicalGraph] = {}
        """Graphs as traced, by the settings that tracing depends on."""
        first = self._trace(self._base)
        self._traced[self._base] = first.graph
        graph._read_ahead = [source.first for source in first.sources]
        self._ranks = _ranks_to_divide(first)
        self._cuts = self._possible_cuts(first)
        self._judge([self._base])

    def choices(self) -> Iterator[Choice]:
        """The estimates to choose among, then those with all that takes less memory."""
        self._judge(self._new(self._quick()))
        if self._something_fits():
            yield self._told()
        self._judge(self._new(self._small()))
        yield self._told()

    def _told(self) -> Choice:
        """The estimates of rank 0, nothing chosen yet."""
        told = [astuple(e) for e in self._tried.values()] if self._is_judge else None
        if world().world_size > 1:
            told = broadcast_object(told, 0)
        return Choice(self._base, tuple(_estimate(row) for row in told or ()), False)

    # ---- candidates ------------------------------------------------------------------------------

    def _quick(self) -> Iterator[Candidate]:
        """Candidates that may take less time than layouts alone."""
        for stages in range(1, self._ranks + 1):
            if self._ranks % stages:
                continue
            for grid in _grids(self._ranks // stages):
                for pieces in self._pieces_of(stages):
                    yield Candidate(stages, pieces, 0, 0, grid)
        if self._may_split:
            yield replace(self._base, zero=2)

    def _small(self) -> Iterator[Candidate]:
        """Candidates that may take less memory."""
        depths = sorted({path.count(".") for path in paths_of(self._graph).values()} - {0})[:2]
        stages = [n for n in range(1, self._ranks + 1) if not self._ranks % n]
        for pieces in (self._fixed_pieces, *self._cuts):
            for depth in (0, *depths):
                for zero in (0, 1, 2, 3) if self._may_split else (0,):
                    yield Candidate(1, pieces, zero, depth)
                for count in stages[1:]:
                    yield Candidate(count, pieces, 0, depth)

    def _pieces_of(self, stages: int) -> Sequence[int]:
        if stages == 1 or not self._cuts:
            return [self._fixed_pieces]
        return [n for n in self._cuts if stages <= n <= 4 * stages] or [self._fixed_pieces]

    @property
    def _may_split(self) -> bool:
        """May ZeRO be chosen? Its copies must be there to be split."""
        graph = self._graph
        return self._ranks > 1 and graph.config.zero is None and bool(graph._optimizers)

    def _possible_cuts(self, first: Trace) -> list[int]:
        """Numbers of micro-batches that leave the results as they are."""
        rows = batch_rows(first)
        if self._fixed_pieces > 1 or not rows or not all(rows):
            return []
        each = math.gcd(*rows)  # every rank has equal parts of every micro-batch
        counts = [n for n in PIECES if not each % (n * self._ranks)]
        if not counts:
            return []
        means = means_of(first, self._trace(Candidate(pieces=counts[0]), frozenset()))
        if means is None:
            return []
        self._graph._means = means
        return counts

    # ---- trying ----------------------------------------------------------------------------------

    def _new(self, candidates: Iterator[Candidate]) -> list[Candidate]:
        """Those that were not tried yet, of which all are traced now."""
        wanted = [c for c in dict.fromkeys(candidates) if c not in self._tried and c != self._base]
        for traced in dict.fromkeys(_as_traced(c) for c in wanted):
            if traced not in self._traced:
                self._traced[traced] = self._trace(traced).graph
        return wanted

    def _trace(self, candidate: Candidate, means: frozenset[int] | None = None) -> Trace:
        with _trying(self._graph, candidate, means):
            return trace_build(self._graph, self._given).trace

    def _judge(self, candidates: Sequence[Candidate]) -> None:
        """Estimate each, on rank 0, if its computing alone takes less time than the best few."""
        graphs = {c: self._placed(c) for c in sorted(candidates)} if self._is_judge else {}
        bounds = {c: least_seconds(graph) for c, graph in graphs.items()}
        for candidate in sorted(bounds, key=lambda c: (bounds[c], c)):
            fitting = sorted(e.seconds for e in self._tried.values() if e.fits)
            if len(fitting) < KEPT or bounds[candidate] < fitting[KEPT - 1]:
                self._tried[candidate] = self._estimated(candidate, graphs[candidate])

    def _placed(self, candidate: Candidate) -> LogicalGraph:
        """A copy of the traced graph with the stages and the hierarchy of a candidate."""
        graph = self._traced[_as_traced(candidate)].copied()
        if candidate.stages > 1 and the_placement(graph) is not None:
            assign_stages(graph, candidate.stages)
        place_stages(graph, settings_of(self._graph, candidate))
        return graph

    def _estimated(self, candidate: Candidate, graph: LogicalGraph) -> Estimate:
        settings = settings_of(self._graph, candidate)
        cluster = cluster_of(graph)
        found = Search(graph, settings, cluster).best()
        held, limit = found.bytes, self._graph.config.memory_limit
        return Estimate(
            candidate,
            found.step_seconds,
            held.moved_nbytes,
            held.memory_nbytes,
            found.is_exact,
            fits(found, limit, cluster),
        )

    def _something_fits(self) -> bool:
        """Whether rank 0 has found a candidate that fits; all ranks hear the same."""
        found = any(e.fits for e in self._tried.values())
        return bool(broadcast_object(found, 0)) if world().world_size > 1 else found


def _as_traced(candidate: Candidate) -> Candidate:
    """The candidate as whose trace its graph begins."""
    return replace(candidate, stages=1, grid=())


def _ranked(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The simplest of those that take about the least time, then by time what is estimated to fit
    in the memory, then by memory the rest.
    """
    fitting = [e for e in estimates if e.fits]
    least = min((e.seconds for e in fitting), default=0.0)
    alike = [e for e in fitting if e.seconds <= ALIKE * least]
    return [
        *sorted(alike, key=lambda e: e.candidate),
        *sorted((e for e in fitting if e not in alike), key=lambda e: (e.seconds, e.candidate)),
        *sorted((e for e in estimates if not e.fits), key=lambda e: (e.memory_nbytes, e.candidate)),
    ]


def _estimate(row: Sequence[Any]) -> Estimate:
    (stages, pieces, zero, depth, grid), *rest = row
    return Estimate(Candidate(stages, pieces, zero, depth, tuple(grid)), *rest)


def _ranks_to_divide(trace: Trace) -> int:
    """Ranks that stages or a grid may divide; 1 of a graph with placements of its own."""

    found = the_placement(trace.graph)
    return 1 if found is None else found.size


def _grids(size: int) -> list[tuple[int, ...]]:
    """Hierarchies of one or two axes; () for one."""
    return [(), *((a, size // a) for a in range(2, size) if not size % a)]


# ---- settings ------------------------------------------------------------------------------------


def settings_of(graph: Graph, candidate: Candidate) -> AutoParallel:
    """The settings of the search for a candidate's layouts."""
    settings = graph.config.auto_parallel_settings
    assert settings is not None
    return replace(settings, num_stages=candidate.stages, grid=candidate.grid)


def _set(graph: Graph, candidate: Candidate) -> None:
    """Let the graph be traced and compiled so."""
    config = graph.config
    config.num_pieces = candidate.pieces
    config.stages, config.grid = candidate.stages, candidate.grid
    if candidate.zero:
        config.zero = Zero(candidate.zero, ZERO_MIN_SIZE, ZERO_RESTORE_LEVEL)
    if candidate.depth:
        depth = candidate.depth
        graph._recomputed |= {i for i, p in paths_of(graph).items() if p.count(".") == depth}
    if candidate.pieces == 1:
        graph._means = frozenset()


@contextmanager
def _trying(graph: Graph, candidate: Candidate, means: frozenset[int] | None) -> Iterator[None]:
    """Within, the graph is traced as the candidate says. means: see Trace; None: as known."""
    config = graph.config
    before = config.num_pieces, config.stages, config.grid, config.zero
    own = set(graph._recomputed), dict(graph._split), dict(graph._gathered), graph._means
    if means is not None:
        graph._means = means
    _set(graph, candidate)
    try:
        yield
    finally:
        config.num_pieces, config.stages, config.grid, config.zero = before
        graph._recomputed, graph._split, graph._gathered, graph._means = own


def _keep_to(graph: Graph, given: Tree) -> None:
    """A batch of other inputs is cut into as many micro-batches as divide it."""
    if graph._choice is not None and graph._choice.cuts:
        rows = [x.meta.shape[0] for x in tensors_of(given) if x.meta.shape]
        graph.config.num_pieces = math.gcd(graph.config.num_pieces, *rows)
