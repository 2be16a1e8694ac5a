"""Boxing nodes of one level share an actor, as far as the configuration allows."""

from __future__ import annotations

from typing import Any

import pytest

from oneflow.core.actor_kinds import ActorKind
from oneflow.core.errors import ConfigError
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.lower.fusion import boxing_kind, fused
from oneflow.scheduler.compiler.pipeline import compile_graph

TEXT = """graph g pieces=1 {
  %0: float32[256] P = variable(; name='a') @cpu[0, 1]
  %1: float32[256] P = variable(; name='b') @cpu[0, 1]
  %2: float32[512] P = variable(; name='c') @cpu[0, 1]
  %4: float32[256] B = to_global(%0) @cpu[0, 1]
  %5: float32[256] B = to_global(%1) @cpu[0, 1]
  %6: float32[512] B = to_global(%2) @cpu[0, 1]
  %7: float32[256] S(0) = to_global(%0) @cpu[0, 1]
  output(%4; index=0) @cpu[0, 1]
  output(%5; index=1) @cpu[0, 1]
  output(%6; index=2) @cpu[0, 1]
  output(%7; index=3) @cpu[0, 1]
}"""


def moves(**fields: Any) -> list[list[str]]:
    """The names of the variables that each boxing actor moves."""
    plan = compile_graph(parse_graph(TEXT), JobConfig("g", **fields), Cluster(2))
    kinds = (ActorKind.BOXING, ActorKind.FLAT_REDUCE)
    return sorted(
        [str(n.inputs[0].node.inputs[0].node.attrs["name"]) for n in actor.nodes]
        for actor in plan.actors
        if actor.kind in kinds
    )


def test_sums_go_together_by_default() -> None:
    assert moves() == [["a"], ["a", "b", "c"]]


def test_fusion_can_be_turned_off() -> None:
    assert moves(fuse_boxing=False) == [["a"], ["a"], ["b"], ["c"]]
    assert moves(unfused_boxing=("all_reduce",)) == [["a"], ["a"], ["b"], ["c"]]
    assert moves(unfused_boxing=("all_gather",)) == moves()


def test_limits_cut_in_order() -> None:
    assert moves(fusion_ops=2) == [["a"], ["a", "b"], ["c"]]
    assert moves(fusion_nbytes=2048) == [["a"], ["a", "b"], ["c"]]
    assert moves(fusion_nbytes=1) == [["a"], ["a"], ["b"], ["c"]]


KINDS = """graph g pieces=1 {
  %0: float32[8] P = variable(; name='a') @cpu[0, 1]
  %1: float32[8] B = variable(; name='b') @cpu[0]
  %2: float32[8] B = boxing(%0) @cpu[0]
  %3: float32[8] B = boxing(%1) @cpu[0, 1]
  %4: float32[8] S(0) = boxing(%0) @cpu[0, 1]
  %5: float32[8] B = boxing(%4) @cpu[0, 1]
  %6: float32[8] B = boxing(%0) @cpu[1, 2]
  output(%6; index=0) @cpu[1, 2]
}"""


def test_kinds_have_the_names_that_users_know() -> None:
    nodes = list(parse_graph(KINDS).of_kind("boxing"))
    assert [boxing_kind(n) for n in nodes] == [
        "reduce", "broadcast", "reduce_scatter", "all_gather", "transfer",
    ]  # fmt: skip
    apart = fused(nodes, JobConfig("g", mix_boxing=False))
    assert len(apart) == 5
    assert fused(nodes, JobConfig("g")) == [nodes]
    assert fused(nodes, JobConfig("g", unfused_boxing=("reduce",))) == [nodes[1:], nodes[:1]]


@pytest.mark.parametrize("fields", [{"fusion_nbytes": -1}, {"fusion_ops": -1}])
def test_negative_limits_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="0 \\(no limit\\) or more"):
        JobConfig("g", **fields)
