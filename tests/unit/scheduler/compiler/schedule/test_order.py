# ruff: noqa: E501  (graph text has a node a line)
"""order: modes move reductions, transfers follow producers, updates follow readers."""

from __future__ import annotations

import random

import pytest

from oneflow.core.errors import ConfigError, GraphError
from oneflow.core.graph import LogicalGraph, Node
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.scheduler.compiler.pipeline import run_passes
from oneflow.scheduler.compiler.schedule.order import order
from oneflow.scheduler.compiler.verify import verify
from tests.unit.scheduler.compiler.graph_builder import mlp

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


# ---- memory --------------------------------------------------------------------------------------


def peak_of(nodes: list[Node]) -> int:
    """Most bytes of temporaries that are live at once, counted node by node."""
    ids = {node.id: i for i, node in enumerate(nodes)}
    lives = [
        (i, max([ids[u.id] for u in value.users], default=i), value.type.nbytes)
        for i, node in enumerate(nodes)
        if not node.is_structural
        for value in node.outputs
        if not any(u.is_structural for u in value.users)
    ]
    return max(sum(n for a, b, n in lives if a <= now <= b) for now in range(len(nodes)))


LATE = """
    %0: float32[64] B = input(; name='x') @cpu[0]
    %1: float32[64] B = scalar_mul(%0; value=1.0) @cpu[0]
    %2: float32[64] B = scalar_mul(%0; value=2.0) @cpu[0]
    %3: float32[64] B = scalar_mul(%0; value=3.0) @cpu[0]
    %4: float32[64] B = scalar_mul(%0; value=4.0) @cpu[0]
    %5: float32[64] B = add(%1, %2) @cpu[0]
    %6: float32[64] B = add(%5, %3) @cpu[0]
    %7: float32[64] B = add(%6, %4) @cpu[0]
    output(%7; index=0) @cpu[0]
"""


def test_what_is_used_late_is_made_late_under_memory_first():
    assert ordered(LATE) == [0, 1, 2, 5, 3, 6, 4, 7]
    assert ordered(LATE, "SpeedFirst") == ordered(LATE, "Disable") == [0, 1, 2, 3, 4, 5, 6, 7]


def test_an_update_follows_its_gradient_under_memory_first():
    text = """
        %0: float32[64] B = variable(; name='a') @cpu[0]
        %1: float32[64] B = input(; name='x') @cpu[0]
        %2: float64[] B = input(; name='lr') @cpu[0]
        %3: float32[64] B = scalar_mul(%1; value=2.0) @cpu[0]
        %4: float32[64] B = mul(%1, %1) @cpu[0]
        %5: float32[64] B = mul(%4, %4) @cpu[0]
        %6: float32[64] B = mul(%5, %0) @cpu[0]
        %7: float32[64] B = sgd_update(%0, %3, %2; weight_decay=0.0, maximize=False) @cpu[0]
        output(%6; index=0) @cpu[0]
    """
    assert ordered(text) == [0, 1, 2, 4, 5, 6, 3, 7]  # reads %0 before: never sooner than %6


def test_readers_of_a_view_run_before_what_it_shows_is_overwritten():
    text = """
        %0: float32[8, 8] B = variable(; name='a') @cpu[0]
        %1: float32[8, 8] B = input(; name='x') @cpu[0]
        %2: float64[] B = input(; name='lr') @cpu[0]
        %3: float32[64] B = reshape(%0; shape=(64,)) @cpu[0]
        %4: float32[8, 8] B = scalar_mul(%1; value=2.0) @cpu[0]
        %5: float32[8, 8] B = sgd_update(%0, %4, %2; weight_decay=0.0, maximize=False) @cpu[0]
        %6: float32[64] B = scalar_mul(%3; value=2.0) @cpu[0]
        output(%6; index=0) @cpu[0]
    """
    found = ordered(text)
    assert found.index(6) < found.index(5)


def test_memory_first_never_needs_more_than_the_order_that_was_written():
    rng = random.Random(0)
    for _ in range(60):
        lines = ["%0: float32[64] B = input(; name='x') @cpu[0]"]
        for value in range(1, 30):
            a, b = rng.randrange(value), rng.randrange(value)
            op = f"add(%{a}, %{b})" if rng.random() < 0.5 else f"scalar_mul(%{a}; value=2.0)"
            lines.append(f"%{value}: float32[64] B = {op} @cpu[0]")
        text = "graph g pieces=1 {\n" + "\n".join(lines) + "\n}"
        graph = parse_graph(text)
        before = peak_of(list(graph))
        order(graph, JobConfig("g", compress_memory=True), Cluster(1))
        verify(graph, after="order")
        assert peak_of(list(graph)) <= before


BIG = """
    %0: float32[65536] P = input(; name='x') @cpu[0, 1]
    %1: float32[8] P = input(; name='y') @cpu[0, 1]
    %2: float32[8] P = scalar_mul(%1; value=2.0) @cpu[0, 1]
    %3: float32[65536] P = scalar_mul(%0; value=2.0) @cpu[0, 1]
    %4: float32[65536] P = scalar_mul(%0; value=3.0) @cpu[0, 1]
    %5: float32[65536] P = scalar_mul(%0; value=4.0) @cpu[0, 1]
    %6: float32[65536] P = add(%4, %5) @cpu[0, 1]
    %7: float32[65536] P = add(%6, %3) @cpu[0, 1]
    %8: float32[65536] B = boxing(%7) @cpu[0, 1]
    %9: float32[8] P = scalar_mul(%2; value=5.0) @cpu[0, 1]
    %10: float32[8] B = boxing(%9) @cpu[0, 1]
    %11: float32[8] B = boxing(%2) @cpu[0, 1]
    output(%8; index=0) @cpu[0, 1]
    output(%10; index=1) @cpu[0, 1]
    output(%11; index=2) @cpu[0, 1]
"""


@pytest.mark.parametrize(
    "mode, expected",
    [
        ("Disable", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        ("MemoryFirst", [0, 1, 5, 4, 6, 3, 7, 8, 2, 9, 10, 11]),
        ("SpeedFirst", [0, 1, 2, 11, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("OverlapCpuGpu", [0, 1, 2, 11, 5, 4, 6, 3, 7, 8, 9, 10]),
        ("DelayShortGpu", [0, 1, 3, 4, 5, 6, 7, 8, 2, 9, 10, 11]),
    ],
)
def test_every_mode_has_an_order_of_its_own(mode, expected):
    assert ordered(BIG, mode) == expected
