"""Runs the compiler's passes (passes.py), from a traced graph to a plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from oneflow.core.collector import collector_paused
from oneflow.core.errors import ConfigError
from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.log import facts, get_logger
from oneflow.core.metrics import ALL_PASSES, METRICS
from oneflow.scheduler.compiler.observe import Observer
from oneflow.scheduler.compiler.passes import MODULES, PASSES

if TYPE_CHECKING:
    from oneflow.core.plan import Plan

log = get_logger(__name__)
Pass = Callable[[Any, JobConfig, Cluster], "Plan | None"]
"""Edits the graph or the plan that it is given; returns the plan if it is the one that makes it."""


@cache
def pass_named(name: str) -> Pass:
    """The pass of that name. Raises ConfigError if there is none."""
    if name not in PASSES:
        raise ConfigError(f"there is no pass {name!r}; passes are {', '.join(PASSES)}")
    found: Pass = getattr(import_module(MODULES[name]), name)
    return found


def compile_graph(
    graph: LogicalGraph, config: JobConfig, cluster: Cluster, observer: Observer | None = None
) -> Plan:
    """The plan of a traced graph, which is edited on the way.

    Raises SbpError, PlacementError or GraphError with the user's source line.
    """
    started = time.perf_counter()
    observer = observer or Observer.from_config()
    size = len(graph)
    plan: Plan = run_passes(graph, config, cluster, observer=observer)
    plan.sizes = [size, *(t.num_nodes for t in observer.times[-len(PASSES) :])]
    seconds = time.perf_counter() - started
    METRICS.scheduler.passes[ALL_PASSES].observe(seconds)
    log.info("compiled %s", graph.name, extra=facts(nodes=len(graph), seconds=seconds))
    return plan


def run_passes(
    graph: LogicalGraph,
    config: JobConfig,
    cluster: Cluster,
    *,
    until: str = PASSES[-1],
    observer: Observer | None = None,
) -> Any:
    """Run the passes, up to and with the one named `until`. Returns the graph, or the
    plan once there is one. Raises ConfigError for a name that no pass has.
    """
    pass_named(until)
    observer = observer or Observer.from_config()
    names = PASSES[: PASSES.index(until) + 1]
    made: LogicalGraph | Plan = graph
    with collector_paused():
        for done, name in enumerate(names, 1):
            rewrite = pass_named(name)
            observer.start()
            made = rewrite(made, config, cluster) or made
            observer.observe(name, made, done, len(names))
    return made
