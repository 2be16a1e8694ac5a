"""The way from a traced graph to a job that runs: compiled here, or with the scheduler and the
other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NoReturn

from oneflow.actors.job import Job
from oneflow.boxing import settings
from oneflow.core.config import current_config
from oneflow.core.graph import LogicalGraph
from oneflow.core.graph_proto import graph_digest, graph_to_bytes, node_digests
from oneflow.core.graph_text import print_node
from oneflow.core.job_config import DEFAULT, BindOptions, Cluster, JobConfig
from oneflow.core.plan import Plan, plan_digest
from oneflow.core.stage_log import note
from oneflow.distributed.world import world
from oneflow.scheduler.compiler.observe import Observer
from oneflow.scheduler.compiler.pipeline import run_passes
from oneflow.scheduler.compiler.plan_cache import compile_or_find

PATIENCE = 1.5
"""A broken connection is an error of its own after so many times what the scheduler needs to
notice a lost rank.
"""


Arrays = Callable[[Plan], Mapping[str, Any]]
"""Plan -> this rank's parts of its variables by their names, as the plan lays them out."""


def compile_and_bind(
    graph: LogicalGraph, config: JobConfig, arrays: Arrays, device_index: int
) -> Job:
    """Compile a graph and bind its plan to this rank.

    graph: as traced on this rank. arrays: called once the plan is known.

    A graph whose values all live on this rank is compiled here; one that spans ranks is compiled by
    the scheduler, after all ranks have agreed that they traced the same.
    """
    start = perf_counter()
    if len(graph.rank_ids) == 1:  # every rank that calls it compiles the same
        plan, digest = compile_alone(graph, config), ""
    else:
        data = compile_together(graph, config)
        plan, digest = Plan.from_bytes(data), plan_digest(data)
    compiled = perf_counter()
    note(config.name, "compile", compiled - start)
    if current_config().dry_run:
        _end_dry_run(plan, compiled - start)
    job = bind_plan(plan, digest, config, arrays(plan), device_index)
    note(config.name, "bind", perf_counter() - compiled)
    return job


def _end_dry_run(plan: Plan, seconds: float) -> NoReturn:
    """End this process, as ONEFLOW_DRY_RUN asks for, now that its first graph is compiled."""
    if world().rank == 0:
        print(
            f"{plan.graph.name}: compiled in {seconds:.3f} s, {len(plan.graph)} ops, "
            f"{len(plan.actors)} actors; ONEFLOW_DRY_RUN: nothing is run, the graph after each "
            f"pass is in {current_config().dump_dir}",
            flush=True,
        )
    raise SystemExit(0)


def bind_plan(
    plan: Plan, digest: str, config: JobConfig, arrays: Mapping[str, Any], device_index: int
) -> Job:
    """Bind a plan to this rank; of a plan that spans ranks all of them call it. digest: of such a
    plan.
    """
    options = config.binding
    if len(plan.graph.rank_ids) == 1:  # only one rank has actors
        return Job(plan, world().rank, arrays, device_index=device_index, options=options)
    return open_plan(plan, digest, config.name, arrays, device_index, options=options)


def cluster_of(graph: LogicalGraph) -> Cluster:
    """The ranks as the compiler of the graph knows them."""
    here, ranks = world(), graph.rank_ids
    if len(ranks) == 1:
        return Cluster(max(*ranks, here.rank) + 1)
    return Cluster(here.world_size, here.places if here.world_size > 1 else ())


def rewritten(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> LogicalGraph:
    """The graph, of which a copy is taken, as it is when its layouts are to be found."""
    made: LogicalGraph = run_passes(
        graph.copied(), config, cluster, until="dedupe", observer=Observer()
    )
    return made


def compile_alone(graph: LogicalGraph, config: JobConfig) -> Plan:
    """The plan of a graph, compiled here without asking other ranks."""
    return compile_or_find(graph, config, cluster_of(graph))


def compile_together(graph: LogicalGraph, config: JobConfig) -> bytes:
    """The plan of a graph that spans ranks, after all of them have agreed on the graph."""
    here = world()
    config = replace(config, lower_all_reduce=_lowers_all_reduce(graph))
    nodes = list(graph)

    def describe(index: int) -> str:
        node = nodes[index] if index < len(nodes) else None
        return (
            f"{print_node(node, with_location=False)} ({node.location})" if node else "no such node"
        )

    return here.compile(
        config.name,
        graph_digest(graph).encode() + config.to_bytes(),
        node_digests(graph),
        graph_to_bytes(graph) if here.rank == 0 else b"",
        config.to_bytes() if here.rank == 0 else b"",
        describe,
    )


def _lowers_all_reduce(graph: LogicalGraph) -> bool:
    """Whether the plan leaves all_reduces to the backend of collectives; all ranks find the same.

    Not asked for, it does so where that backend has one of its own for the device of the graph.
    """
    wanted = settings.current().all_reduce_in_graphs
    if wanted is not None:
        return wanted
    here = world()
    everyone = tuple(range(here.world_size))
    placements = {node.placement for node in graph}
    if any(p.type != "cuda" for p in placements):
        return False
    if {r for p in placements for r in p.rank_ids} != set(everyone):
        return False  # the others trace the graph too, but cannot ask for its GPUs
    return here.device_collectives(everyone).has_own_all_reduce


def open_plan(
    plan: Plan,
    digest: str,
    job_name: str,
    variables: Mapping[str, Any],
    device_index: int,
    *,
    options: BindOptions = DEFAULT,
) -> Job:
    """Binds a plan that spans ranks; all ranks of the world call it with the same plan.

    digest: see `plan_digest`.
    """
    from oneflow.actors.fabric import open_fabric  # TLS and sockets, which one process needs not
    from oneflow.distributed.waits import StepWatch

    here = world()
    client = here.client
    name = f"{job_name}.{digest}.{here.next_job_number()}"
    ranks = sorted({r for actor in plan.actors for r in actor.placement.rank_ids})

    def connect(plan: Plan, rank: int) -> Any:
        return open_fabric(
            plan,
            rank,
            ranks,
            name,
            client,
            places=here.places,
            patience_s=PATIENCE * here.config.act_s,
            tls=client.tls,
            collectives=partial(here.collectives_on, plan.device_type),
        )

    watch = StepWatch(client, here.long_waits, name)
    job = Job(
        plan,
        here.rank,
        variables,
        open_fabric=connect if here.rank in ranks else None,  # others have no actors
        check=watch.check,
        timeout_s=here.timeout_s,
        device_index=device_index,
        options=options,
    )
    return watch.watch(job)
