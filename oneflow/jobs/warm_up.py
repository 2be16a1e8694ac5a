"""Work that takes longer the first time, done before workers are forked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oneflow.actors.job import Job
from oneflow.core.config import Config, set_config
from oneflow.core.graph_proto import graph_to_bytes
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.plan import Plan
from oneflow.jobs.description import Description, decode, encode
from oneflow.jobs.graph_entry import decode_graph
from oneflow.kernels.native.placing import offsets_of
from oneflow.scheduler.compiler.observe import Observer
from oneflow.scheduler.compiler.pipeline import compile_graph

SAMPLE = """
graph sample pieces=1 {
  %0: float32[4, 1] B = input(; name='input.0') @cpu[0]
  %1: int64[4] B = input(; name='input.1') @cpu[0]
  %2: float32[2, 1] B = variable(; name='weight') @cpu[0]
  %3: float32[2] B = variable(; name='bias') @cpu[0]
  %4: float32[2, 1] B = variable(; name='weight-momentum') @cpu[0]
  %5: float64[] B = input(; name='lr') @cpu[0]
  %6: float32[4, 2] ? = linear(%0, %2, %3) @cpu[0]
  %7: float32[4] ?, %8: float32[4] ? = sparse_softmax_cross_entropy(%6, %1; \
ignore_index=-100, label_smoothing=0.0) @cpu[0]
  %9: float32[] ? = reduce_sum(%7; dims=(0,), keepdim=False) @cpu[0]
  %10: float32[] ? = full_like(%9; value=1.0) @cpu[0]
  %11: float32[4] ? = expand(%10; shape=(4,)) @cpu[0]
  %12: float32[4, 2] ? = sparse_softmax_cross_entropy_grad(%11, %6, %1, %8; \
ignore_index=-100, label_smoothing=0.0) @cpu[0]
  %13: float32[2, 1] ? = matmul_weight_grad(%0, %12; transpose=True) @cpu[0]
  %14: float32[2, 1] ?, %15: float32[2, 1] ? = momentum_update(%2, %13, %4, %5; \
dampening=0.0, maximize=False, momentum=0.9, nesterov=False, weight_decay=0.0) @cpu[0]
  output(%9; index=0) @cpu[0]
}
"""
"""A step of a training: the ops of most networks' ends, some of which are fused with others."""


def rehearse() -> None:
    """Go through a worker's work until its first step: read the types of the fields of job files,
    decode a graph and its plan, place its registers and bind its kernels.

    It starts no thread, leaves no file open, and writes none but compiled kernels, even where
    the environment asks a job to. It leaves a peak of a kilobyte of memory.
    """
    offsets_of(*np.ones((3, 1), np.int64))
    config = JobConfig("sample")
    sample = Description(
        kind="inference", name="sample", config=config, inputs=(), outputs=(), entries={}
    )
    decode(encode(sample), "a sample")
    set_config(replace(Config.from_env(), trace_dir=None))
    try:
        _bind(config)
    finally:
        set_config(None)


def _bind(config: JobConfig) -> None:
    graph = decode_graph(graph_to_bytes(parse_graph(SAMPLE)))
    data = compile_graph(graph, config, Cluster(1), Observer()).to_bytes()
    plan = Plan.from_bytes(data)
    found = {n: np.zeros(x.type.shape, np.float32) for n, x in plan.graph.variables.items()}
    Job(plan, 0, found, options=config.binding).close()
