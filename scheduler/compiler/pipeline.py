"""The compiler's passes in their order, from a traced graph to a plan.

A pass edits the graph in place, holds no state and leaves a valid graph. What a plan is made of
stands in emit.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from oneflow.core.collector import collector_paused
from oneflow.core.errors import ConfigError
from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.log import facts, get_logger
from oneflow.core.metrics import ALL_PASSES, METRICS
from oneflow.scheduler.compiler.dedupe import dedupe
from oneflow.scheduler.compiler.infer_sbp import infer_sbp
from oneflow.scheduler.compiler.insert_boxing import insert_boxing
from oneflow.scheduler.compiler.micro_batch import micro_batch
from oneflow.scheduler.compiler.observe import Observer
from oneflow.scheduler.compiler.order import order
from oneflow.scheduler.compiler.split_stages import split_stages

if TYPE_CHECKING:
    from oneflow.core.plan import Plan

log = get_logger(__name__)
Pass = Callable[[LogicalGraph, JobConfig, Cluster], None]

PASSES: tuple[Pass, ...] = (  # order is meaning: a pass may rely on every line above it
    dedupe,
    infer_sbp,  # every value gets one SBP per hierarchy axis
    insert_boxing,  # producer and reader now agree on every edge
    split_stages,
    micro_batch,  # what runs once a step, what once a piece
    order,  # one order for all ranks
)


def compile_graph(
    graph: LogicalGraph, config: JobConfig, cluster: Cluster, observer: Observer | None = None
) -> Plan:
    """The plan of a traced graph, which is edited on the way.

    Raises SbpError, PlacementError or GraphError with the user's source line.
    """
    from oneflow.scheduler.compiler.emit import emit

    started = time.perf_counter()
    observer = observer or Observer.from_config()
    total = len(PASSES) + 1
    _run(PASSES, graph, config, cluster, observer, total)
    observer.start()
    with collector_paused():
        plan = emit(graph, config, cluster)
    observer.observe_plan("emit", plan, total, total)
    seconds = time.perf_counter() - started
    METRICS.scheduler.passes[ALL_PASSES].observe(seconds)
    log.info("compiled %s", graph.name, extra=facts(nodes=len(graph), seconds=seconds))
    return plan


def run_passes(
    graph: LogicalGraph,
    config: JobConfig,
    cluster: Cluster,
    *,
    until: str = "",
    observer: Observer | None = None,
) -> Observer:
    """Runs the passes, up to and with the one named `until`. Returns the observer."""
    names = [p.__name__ for p in PASSES]
    if until and until not in names:
        raise ConfigError(f"there is no pass {until!r}; passes are {', '.join(names)}")
    observer = observer or Observer.from_config()
    passes = PASSES[: names.index(until) + 1] if until else PASSES
    _run(passes, graph, config, cluster, observer, len(passes))
    return observer


def _run(
    passes: tuple[Pass, ...],
    graph: LogicalGraph,
    config: JobConfig,
    cluster: Cluster,
    observer: Observer,
    total: int,
) -> None:
    with collector_paused():
        for done, rewrite in enumerate(passes, 1):
            observer.start()
            rewrite(graph, config, cluster)
            observer.observe(rewrite.__name__, graph, done, total)
