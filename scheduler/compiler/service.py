"""Compiling as the scheduler offers it: bytes in, bytes out."""

from __future__ import annotations

import time

from oneflow.core.graph_proto import graph_from_bytes
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.metrics import METRICS
from oneflow.scheduler.compiler.pipeline import compile_graph


def compile_job(graph: bytes, config: bytes, world_size: int, hosts: tuple[str, ...] = ()) -> bytes:
    """The plan of a traced graph. hosts: of every rank, or () if not known.

    Raises SbpError, PlacementError, GraphError with the user's source line.
    """
    start = time.perf_counter()
    plan = compile_graph(
        graph_from_bytes(graph), JobConfig.from_bytes(config), Cluster(world_size, hosts)
    )
    data = plan.to_bytes()
    METRICS.scheduler.compiled(time.perf_counter() - start)
    return data
