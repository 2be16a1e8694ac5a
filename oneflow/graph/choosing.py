"""Auto-parallel of level "full": stages, hierarchy, micro-batches, ZeRO and modules that are
computed again.

A candidate is a setting of these, which the compiler's passes give to a copy of the traced graph;
with other micro-batches every rank traces the graph anew. Rank 0 searches the layouts of each for
the least time of a step, leaves out those whose computing alone takes longer than the best few, and
tells the others. Candidates that need memory less than time (ZeRO 1 and 3, micro-batches without
stages, computing again) are tried if nothing else fits. Of those that take about as long the
simplest is taken. With a memory limit the plans of the first few say which fits. The chosen one is
set as a user would set it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

from oneflow.core.job_config import Cluster, JobConfig, Zero
from oneflow.distributed.objects import broadcast_object
from oneflow.distributed.world import world
from oneflow.graph.binding import cluster_of, rewritten
from oneflow.graph.memory_limit import LimitError, fit_memory
from oneflow.graph.micro_batches import batch_rows, means_of
from oneflow.graph.trace import Trace
from oneflow.graph.tracing import Build, Traced, trace_build
from oneflow.graph.tree import Tree, tensors_of
from oneflow.scheduler.compiler.layout.place_stages import place_stages, the_placement
from oneflow.scheduler.compiler.layout.prediction import least_seconds
from oneflow.scheduler.compiler.layout.search_sbp import Chosen, Search, fits

if TYPE_CHECKING:
    from oneflow.core.graph import LogicalGraph
    from oneflow.core.sbp import NdSbp
    from oneflow.graph.spec import GraphSpec

PIECES = (2, 4, 8, 16)
"""Numbers of micro-batches that are tried."""

ALIKE = 1.03
"""Times whose ratio is less than this are taken for equal: estimates are not better."""

ATTEMPTS = 8
"""Candidates whose plans are made to see if they fit in a memory limit."""

KEPT = 4
"""Candidates that are estimated in any case: the best, and those that `explain` may show."""


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

    def of(self, config: JobConfig) -> JobConfig:
        """The configuration of a job that runs so, but for the modules that are computed again."""
        assert config.auto_parallel is not None
        search = replace(config.auto_parallel, num_stages=self.stages, grid=self.grid)
        zero = Zero(self.zero) if self.zero else config.zero
        return replace(config, num_pieces=self.pieces, auto_parallel=search, zero=zero)

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
class Layout:
    """One way to lay out a graph.

    name: followed by every op as in eager execution, searched, or searched under a condition on
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

    @classmethod
    def of(cls, name: str, found: Chosen) -> Layout:
        """That which a search has found."""
        choices = zip(found.nodes, found.choices, strict=True)
        return cls(
            name,
            found.step_seconds,
            found.bytes.moved_nbytes,
            found.bytes.memory_nbytes,
            {str(n.attrs["name"]): c.outputs[0] for n, c in choices if n.op == "variable"},
            found.is_exact,
        )


@dataclass(frozen=True)
class Estimate:
    """The layout of a candidate with its costs. fits: in the memory."""

    candidate: Candidate
    layout: Layout
    fits: bool

    @property
    def seconds(self) -> float:
        return self.layout.seconds


@dataclass(frozen=True)
class Choice:
    """The candidate that a graph runs as, and all that were tried, layouts alone first. means:
    outputs that are means over micro-batches, if it cuts the batch.
    """

    candidate: Candidate
    tried: tuple[Estimate, ...]
    means: tuple[int, ...] = ()

    @property
    def cuts(self) -> bool:
        """Whether it cuts the batch, which the user did not."""
        return self.candidate.pieces > self.tried[0].candidate.pieces

    @property
    def name(self) -> str:
        """The chosen settings; "" if only layouts are searched."""
        is_plain = self.candidate == self.tried[0].candidate
        return "" if is_plain else str(self.candidate)

    def others(self) -> list[Layout]:
        """The layouts that were not chosen."""
        return [e.layout for e in self.tried if e.candidate != self.candidate]


def trace_chosen(spec: GraphSpec, build: Build, given: Tree) -> Traced:
    """Trace a graph for (args, kwargs), and choose how it runs: all of it at its first call, if
    `config` says so, and the modules to compute again so that the plan fits in the memory limit.
    All ranks call it. Raises LimitError if nothing of the first few fits.
    """
    config, choice = spec.config, spec.choice
    if config.chooses_all and choice is None:
        return _Choosing(spec, build, given).choose()
    if config.chooses_all and choice is not None and choice.cuts:
        # A batch of other inputs is cut into as many micro-batches as divide it.
        rows = [x.meta.shape[0] for x in tensors_of(given) if x.meta.shape]
        config.num_pieces = math.gcd(config.num_pieces, *rows)
    traced = trace_build(spec, build, given)
    _recompute(spec, fit_memory(spec, traced.trace.graph, spec.job_config()))
    return traced


def _recompute(spec: GraphSpec, modules: frozenset[str]) -> None:
    """Let modules be computed again."""
    if modules:
        spec.recomputed |= {i for i, path in spec.paths().items() if path in modules}


class _Choosing:
    def __init__(self, spec: GraphSpec, build: Build, given: Tree) -> None:
        self._spec, self._build, self._given = spec, build, given
        self._fixed_pieces = spec.config.num_pieces
        self._base = Candidate(pieces=self._fixed_pieces)
        self._is_judge = world().rank == 0
        self._tried: dict[Candidate, Estimate] = {}
        traced = trace_build(spec, build, given)
        self._traced = {self._fixed_pieces: traced}
        """The graph as traced, by the number of micro-batches."""
        self._ranks = _ranks_to_divide(traced.trace)
        self._means: frozenset[int] = frozenset()
        self._cuts = self._possible_cuts(traced.trace)
        self._judge([self._base])

    def choose(self) -> Traced:
        """Let the graph run as the best candidate that fits. Returns its trace."""
        failed = dict[Candidate, LimitError]()
        for choice in self._choices():
            best = [e.candidate for e in ranked(choice.tried) if e.candidate not in failed]
            for candidate in best[:ATTEMPTS]:
                traced, config = self._trace(candidate.pieces), self._config(candidate)
                try:
                    modules = fit_memory(self._spec, traced.trace.graph, config)
                except LimitError as error:
                    failed[candidate] = error
                    continue
                self._set(candidate, config, modules)
                self._spec.choice = replace(choice, candidate=candidate, means=config.means)
                return traced
        raise min(failed.values(), key=lambda e: e.nbytes)

    def _set(self, candidate: Candidate, config: JobConfig, modules: frozenset[str]) -> None:
        asked = self._spec.config
        asked.num_pieces, asked.zero = candidate.pieces, config.zero
        asked.stages, asked.grid = candidate.stages, candidate.grid
        _recompute(self._spec, modules)

    def _choices(self) -> Iterator[Choice]:
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
        return Choice(self._base, tuple(_estimate(row) for row in told or ()))

    # ---- candidates ------------------------------------------------------------------------------

    def _quick(self) -> Iterator[Candidate]:
        """Candidates that may take less time than layouts alone."""
        for stages in range(1, self._ranks + 1):
            if self._ranks % stages:
                continue
            for grid in grids(self._ranks // stages):
                for pieces in self._pieces_of(stages):
                    yield Candidate(stages, pieces, 0, 0, grid)
        if self._may_split:
            yield replace(self._base, zero=2)

    def _small(self) -> Iterator[Candidate]:
        """Candidates that may take less memory."""
        depths = sorted({path.count(".") for path in self._spec.paths().values()} - {0})[:2]
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
        spec = self._spec
        return self._ranks > 1 and spec.config.zero is None and bool(spec.optimizers)

    def _possible_cuts(self, first: Trace) -> list[int]:
        """Numbers of micro-batches that leave the results as they are."""
        rows = batch_rows(first)
        if self._fixed_pieces > 1 or not rows or not all(rows):
            return []
        each = math.gcd(*rows)  # every rank has equal parts of every micro-batch
        counts = [n for n in PIECES if not each % (n * self._ranks)]
        if not counts:
            return []
        means = means_of(first, self._trace(counts[0]).trace)
        if means is None:
            return []
        self._means = means
        return counts

    # ---- trying ----------------------------------------------------------------------------------

    def _new(self, candidates: Iterator[Candidate]) -> list[Candidate]:
        """Those that were not tried yet, of which all are traced now."""
        wanted = [c for c in dict.fromkeys(candidates) if c not in self._tried and c != self._base]
        for pieces in dict.fromkeys(c.pieces for c in wanted):
            self._trace(pieces)
        return wanted

    def _trace(self, pieces: int) -> Traced:
        """The graph as traced for so many micro-batches."""
        if pieces not in self._traced:
            read = [source.first for source in self._traced[self._fixed_pieces].trace.sources]
            self._traced[pieces] = trace_build(
                self._spec, self._build, self._given, num_pieces=pieces, read_ahead=read
            )
        return self._traced[pieces]

    def _config(self, candidate: Candidate) -> JobConfig:
        """The configuration of a job that runs as a candidate."""
        paths, config = self._spec.paths().values(), self._spec.job_config()
        again = set(config.recomputed)
        again |= {p for p in paths if candidate.depth == p.count(".") > 0}
        return replace(
            candidate.of(config),
            recomputed=tuple(p for p in paths if p in again),
            means=tuple(sorted(self._means)) if candidate.pieces > 1 else (),
        )

    def _judge(self, candidates: Sequence[Candidate]) -> None:
        """Estimate each, on rank 0, if its computing alone takes less time than the best few."""
        graphs = {}
        for candidate in sorted(candidates) if self._is_judge else ():
            traced = self._trace(candidate.pieces).trace.graph
            graphs[candidate] = placed(traced, self._config(candidate), cluster_of(traced))
        bounds = {c: least_seconds(graph) for c, graph in graphs.items()}
        for candidate in sorted(bounds, key=lambda c: (bounds[c], c)):
            fitting = sorted(e.seconds for e in self._tried.values() if e.fits)
            if len(fitting) < KEPT or bounds[candidate] < fitting[KEPT - 1]:
                graph, limit = graphs[candidate], self._spec.config.memory_limit
                made = self._config(candidate), cluster_of(graph)
                self._tried[candidate] = estimated(candidate, graph, *made, limit)

    def _something_fits(self) -> bool:
        """Whether rank 0 has found a candidate that fits; all ranks hear the same."""
        found = any(e.fits for e in self._tried.values())
        return bool(broadcast_object(found, 0)) if world().world_size > 1 else found


def placed(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> LogicalGraph:
    """The graph as the passes make it, with the stages and the hierarchy of the configuration."""
    made = rewritten(graph, config, cluster)
    assert config.auto_parallel is not None
    place_stages(made, config.auto_parallel)
    return made


def estimated(
    candidate: Candidate,
    graph: LogicalGraph,
    config: JobConfig,
    cluster: Cluster,
    limit: int | None = None,
) -> Estimate:
    """The costs of a candidate. graph: as `placed`.  limit: see `fits`."""
    assert config.auto_parallel is not None
    found = Search(graph, config.auto_parallel, cluster).best()
    layout = replace(Layout.of(str(candidate), found), variables={})
    return Estimate(candidate, layout, fits(found, limit, cluster))


def ranked(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The simplest of those that take about the least time, then by time those that are estimated
    to fit in the memory, then by memory the rest.
    """
    fitting = [e for e in estimates if e.fits]
    least = min((e.seconds for e in fitting), default=0.0)
    alike = [e for e in fitting if e.seconds <= ALIKE * least]
    return [
        *sorted(alike, key=lambda e: e.candidate),
        *sorted((e for e in fitting if e not in alike), key=lambda e: (e.seconds, e.candidate)),
        *sorted(
            (e for e in estimates if not e.fits),
            key=lambda e: (e.layout.memory_nbytes, e.candidate),
        ),
    ]


def _estimate(row: Sequence[Any]) -> Estimate:
    (stages, pieces, zero, depth, grid), layout, is_fitting = row
    candidate = Candidate(stages, pieces, zero, depth, tuple(grid))
    return Estimate(candidate, Layout(*layout), is_fitting)


def _ranks_to_divide(trace: Trace) -> int:
    """Ranks that stages or a grid may divide; 1 of a graph with placements of its own."""

    found = the_placement(trace.graph)
    return 1 if found is None else found.size


def grids(size: int) -> list[tuple[int, ...]]:
    """Hierarchies of one or two axes; () for one."""
    return [(), *((a, size // a) for a in range(2, size) if not size % a)]
