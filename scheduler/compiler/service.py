"""Compiling as the scheduler offers it: bytes in, bytes out."""

from __future__ import annotations

from oneflow.core.graph_proto import graph_from_bytes
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.plan_cache import compile_or_find


def compile_job(graph: bytes, config: bytes, world_size: int, hosts: tuple[str, ...] = ()) -> bytes:
    """The plan of a traced graph. hosts: of every rank, or () if not known.

    Raises SbpError, PlacementError, GraphError with the user's source line.
    """
    plan = compile_or_find(
        graph_from_bytes(graph), JobConfig.from_bytes(config), Cluster(world_size, hosts)
    )
    return plan.to_bytes()
