"""Plans of job files, made before there are devices for them, and the ways in which such files can
be run.

A submission that asks for auto-parallel has the stages of a pipeline, the hierarchy of the ranks
and ZeRO chosen, too: the passes give each of a few settings to a copy of the file's graph, and the
one with the least estimated time of a step is taken. The batch is cut into as many micro-batches as
the file says; which rows make one depends on how many ranks the batch is cut between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import NO_OVERRIDES, Cluster, JobConfig, Overrides
from oneflow.graph.choosing import Candidate, estimated, grids, placed, ranked
from oneflow.io.files import AnyPath
from oneflow.jobs.jobfile import MANY_STEPS, JobFile
from oneflow.jobs.running import job_config, placed_graph, spans_ranks
from oneflow.scheduler.compiler.layout.place_stages import the_placement
from oneflow.scheduler.compiler.observe import Observer
from oneflow.scheduler.compiler.pipeline import compile_graph

MOST = 12
"""Candidates that are tried, the simplest first: each takes a search for layouts."""


def compile_plan(
    path: AnyPath,
    devices: int,
    device_type: str,
    hosts: tuple[str, ...] = (),
    progress: Callable[[str, int, int], None] | None = None,
    overrides: Overrides = NO_OVERRIDES,
) -> bytes:
    """The plan of a job file for so many devices, as `plan_file` of a worker takes it.

    hosts: of each rank; () if all are on one.  progress: see Observer.  overrides: see JobFile.
    Raises JobFileError, PlacementError, SbpError or GraphError.
    """
    observer = Observer.from_config()
    observer.progress = progress or observer.progress
    with JobFile(path, check_data=False, overrides=overrides) as file:
        count = devices if file.description.kind == "graph" or spans_ranks(file) else 1
        graph = placed_graph(file, count, device_type)
        config = job_config(file, graph.num_pieces)
        cluster = Cluster(count, hosts if count == devices else ())
        if overrides.auto_parallel:
            config = choose(graph, config, cluster)
        return compile_graph(graph, config, cluster, observer).to_bytes()


def choose(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> JobConfig:
    """The configuration with the settings that take the least time, of those that fit in memory."""
    tried = []
    for candidate in islice(_candidates(graph, config), MOST):
        made = candidate.of(config)
        tried.append(estimated(candidate, placed(graph, made, cluster), made, cluster))
    return ranked(tried)[0].candidate.of(config)


def _candidates(graph: LogicalGraph, config: JobConfig) -> Iterator[Candidate]:
    """Settings that may take less time than layouts alone, which come first. A pipeline needs a
    micro-batch for each of its stages, so as not to wait most of the time.
    """
    pieces, everyone = config.num_pieces, the_placement(graph)
    yield Candidate(pieces=pieces)
    if everyone is None:  # a graph with placements of its own
        return
    if config.zero is None:
        yield Candidate(pieces=pieces, zero=2)
    for stages in range(1, min(everyone.size, pieces) + 1):
        if not everyone.size % stages:
            for grid in grids(everyone.size // stages):
                if stages > 1 or grid:
                    yield Candidate(stages, pieces, grid=grid)


def check_fit(path: AnyPath, kind: str, devices: int, device_type: str, steps: int) -> int:
    """Check that a job file can be run as it is asked for, before there are devices for it.

    kind: graph or inference. steps: 0, as many as the file says. Digests are left to the ranks
    that use the file. Returns the most steps for which it can be run so. Raises JobFileError or
    PlacementError.
    """
    with JobFile(path, check_data=False, check_digests=False) as file:
        file.check_kind(kind)
        if kind == "graph":
            file.check_steps(steps or file.description.steps)
        if kind == "graph" or spans_ranks(file):
            placed_graph(file, devices, device_type)
        return file.most_steps if kind == "graph" else MANY_STEPS
