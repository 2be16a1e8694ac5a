"""Nodes that become one segment."""

from __future__ import annotations

import pytest

from oneflow.core.actor_kinds import ActorKind
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.pipeline import compile_graph

GRAPH = """graph g pieces=1 {{
  %0: float32[4, 8] B = input(; name='x') @cpu[{ranks}]
  %1: float32[2, 8] B = variable(; name='w') @cpu[{ranks}]
  %2: float32[8, 2] B = transpose(%1; dims=(1, 0)) @cpu[{ranks}]
  %3: float32[4, 2] B = matmul(%0, %2; transpose_a=False, transpose_b=False) @cpu[{ranks}]
  output(%3; index=0) @cpu[{ranks}]
}}
"""


@pytest.mark.parametrize(("ranks", "num_segments"), [("0", 1), ("0, 1", 2)])
def test_what_reads_no_input_joins_the_rest_on_one_rank(ranks: str, num_segments: int) -> None:
    num_ranks = len(ranks.split(","))
    plan = compile_graph(parse_graph(GRAPH.format(ranks=ranks)), JobConfig("g"), Cluster(num_ranks))
    segments = [[n.op for n in a.nodes] for a in plan.actors if a.kind is ActorKind.SEGMENT]
    assert len(segments) == num_segments
    assert [op for ops in segments for op in ops] == ["transpose", "matmul"]
