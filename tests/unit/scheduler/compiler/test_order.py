# ruff: noqa: E501  (graph text has a node a line)
"""order: modes move reductions, transfers follow producers, updates follow readers."""

from __future__ import annotations

import random

import pytest

from oneflow.core.errors import ConfigError, GraphError
from oneflow.core.graph import LogicalGraph
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.scheduler.compiler.order import order
from oneflow.scheduler.compiler.pipeline import run_passes
from oneflow.scheduler.compiler.verify import verify

from .graph_builder import mlp

TWO = Placement("cpu", [0, 1])


def ordered(text: str, mode: str = "MemoryFirst") -> list[int]:
    """Ids of the first outputs, in order."""
    graph = parse_graph(f"graph g pieces=1 {{\n{text}\n}}")
    order(graph, JobConfig("g", order_mode=mode), Cluster(4))
    verify(graph, after="order")
    return [node.outputs[0].id for node in graph if node.outputs]


GRADIENTS = """
    %0: float32[4] B = variable(; name='a') @cpu[0, 1]
    %1: float32[4] B = variable(; name='b') @cpu[0, 1]
    %2: float32[4] P = input(; name='x') @cpu[0, 1]
    %3: float64[] B = input(; name='lr') @cpu[0, 1]
    %4: float32[4] P = scalar_mul(%2; value=2.0) @cpu[0, 1]
    %5: float32[4] P = scalar_mul(%4; value=3.0) @cpu[0, 1]
    %6: float32[4] B = boxing(%5) @cpu[0, 1]
    %7: float32[4] B = sgd_update(%0, %6, %3; weight_decay=0.0, maximize=False) @cpu[0, 1]
    %8: float32[4] B = boxing(%4) @cpu[0, 1]
    %9: float32[4] B = sgd_update(%1, %8, %3; weight_decay=0.0, maximize=False) @cpu[0, 1]
"""


@pytest.mark.parametrize(
    "mode, expected",
    [
        ("MemoryFirst", [0, 1, 2, 3, 4, 5, 6, 8, 7, 9]),
        ("SpeedFirst", [0, 1, 2, 3, 4, 8, 5, 6, 7, 9]),
        ("Disable", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_modes_place_reductions(mode, expected):
    assert ordered(GRADIENTS, mode) == expected


def test_reductions_that_depend_on_each_other_stay_apart():
    text = """
        %0: float32[4] P = input(; name='x') @cpu[0, 1]
        %1: float32[4] B = boxing(%0) @cpu[0, 1]
        %2: float32[4] P = boxing(%1) @cpu[0, 1]
        %3: float32[4] B = boxing(%2) @cpu[0, 1]
    """
    assert ordered(text) == [0, 1, 2, 3]


def test_a_transfer_follows_its_producer():
    text = """
        %0: float32[4] B = input(; name='x') @cpu[0]
        %1: float32[4] B = relu(%0) @cpu[0]
        %2: float32[4] B = exp(%1) @cpu[0]
        %3: float32[4] B = boxing(%1) @cpu[1]
    """
    assert ordered(text) == [0, 1, 3, 2]


def test_an_update_comes_after_every_reader_of_its_variable():
    text = """
        %0: float32[4] B = variable(; name='w') @cpu[0]
        %1: float32[4] B = input(; name='g') @cpu[0]
        %2: float64[] B = input(; name='lr') @cpu[0]
        %3: float32[4] B = sgd_update(%0, %1, %2; weight_decay=0.0, maximize=False) @cpu[0]
        %4: float32[4] B = relu(%0) @cpu[0]
        %5: float32[4] B = exp(%3) @cpu[0]
    """
    assert ordered(text) == [0, 1, 2, 4, 3, 5]


def test_a_value_needed_before_and_after_its_update_is_an_error_at_the_users_line():
    graph = parse_graph("""graph g pieces=1 {
        %0: float32[4] B = variable(; name='w') @cpu[0]
        %1: float32[4] B = input(; name='g') @cpu[0]
        %2: float64[] B = input(; name='lr') @cpu[0]
        %3: float32[4] B = sgd_update(%0, %1, %2; weight_decay=0.0, maximize=False) @cpu[0]  # ; train.py:7
        %4: float32[4] B = add(%0, %3) @cpu[0]
    }""")
    with pytest.raises(GraphError, match=r"sgd_update \(train.py:7\).*clone"):
        order(graph, JobConfig("g"), Cluster(1))


def test_every_mode_gives_a_valid_order_of_every_node():
    for mode in ("MemoryFirst", "SpeedFirst", "OverlapCpuGpu", "DelayShortGpu", "Disable"):
        graph = mlp([TWO, Placement("cpu", [2, 3])], "S(0)", "B", "B", num_pieces=2)
        run_passes(graph, JobConfig("g", num_pieces=2, order_mode=mode), Cluster(4))
        verify(graph, after="order")


def test_the_order_is_the_same_every_time():
    texts = {str(compiled(seed)) for seed in range(3)}
    assert len(texts) == 1


def compiled(seed: int) -> LogicalGraph:
    """The same program, each time with other objects in between."""
    waste = [object() for _ in range(random.Random(seed).randrange(1000))]
    graph = mlp([TWO], "S(0)", "B", "B")
    run_passes(graph, JobConfig("g"), Cluster(2))
    assert waste is not None
    return graph


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="order_mode must be one of MemoryFirst"):
        JobConfig("g", order_mode="Fast")
