"""The configuration of the job that a graph is compiled to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.boxing import settings as boxing_settings
from oneflow.core.job_config import JobConfig
from oneflow.graph.names import paths_of

if TYPE_CHECKING:
    from oneflow.graph.graph import Graph


def config_of(graph: Graph) -> JobConfig:
    """The ways to compile and bind a graph that it asks for."""
    asked, scaler = graph.config, graph._scaler if graph._optimizers else None
    return JobConfig(
        graph.name,
        asked.num_pieces,
        asked.order_mode,
        asked.auto_parallel_settings,
        compress_memory=asked.compress_memory,
        pipeline=asked.pipeline,
        bucket_nbytes=asked.bucket_nbytes,
        best_offsets=asked.best_offsets,
        batch_updates=asked.batch_updates,
        unfused=tuple(sorted(asked.unfused)),
        amp="" if asked.amp_dtype is None else asked.amp_dtype.name,
        casts_in_updates=asked.fused_update_cast,
        zero=asked.zero,
        scaling=None if scaler is None else scaler.settings,
        recomputed=tuple(p for i, p in paths_of(graph).items() if i in graph._recomputed),
        means=tuple(sorted(graph._means)),
        **boxing_settings.current().job_fields(),
    )
