"""Memory over a step for the web page: sums by hand, and the report of a rank that binds it."""

from __future__ import annotations

import json

import pytest

from oneflow.actors.rank_memory import plan_memory
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.plan import Plan
from oneflow.graph.memory_report import report_memory
from oneflow.kernels.hardware import hardware_for
from oneflow.scheduler.cluster.page import memory as page_memory
from oneflow.scheduler.cluster.page.memory import memory_of
from oneflow.scheduler.compiler.pipeline import compile_graph
from tests.unit.actors.programs import two_layers

FLOAT = 4
CPU = hardware_for("cpu", 0)


def plan_of(first: str, second: str, pieces: int = 1) -> Plan:
    text = two_layers(first, second, width=16, pieces=pieces)
    return compile_graph(parse_graph(text), JobConfig("job"), Cluster(2))


def test_temporaries_come_and_go_beside_what_stays() -> None:
    first, second = memory_of(plan_of("cpu[0]", "cpu[1]"))
    assert (first["rank"], first["alike"], second["rank"]) == (0, 1, 1)
    assert first["variables"] == 16 * 8 * FLOAT
    x, h, lr = 12 * 8 * FLOAT, 12 * 16 * FLOAT, 8
    assert first["registers"] == x + lr + 2 * h  # h, and its gradient from the other rank
    stays = first["variables"] + first["registers"]
    z, dz, dw1 = h, h, 16 * 8 * FLOAT
    assert [(op, nbytes - stays) for _, nbytes, op, _ in first["points"]] == [
        *[("input", 0), ("input", 0), ("matmul", z), ("relu", z), ("boxing", 0)],
        *[("relu_grad", dz), ("matmul_weight_grad", dz + dw1), ("sgd_update", dw1)],
    ]
    assert first["peak"] == [6, stays + dz + dw1, "matmul_weight_grad", ""]
    assert (first["ops"], [at for at, *_ in first["points"]]) == (8, list(range(8)))
    assert json.dumps([first, second], allow_nan=False)


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("second", ["cpu[0, 1]", "cpu[1]"])
def test_registers_are_those_that_a_rank_reports(second: str, pieces: int) -> None:
    plan = plan_of("cpu[0, 1]" if second == "cpu[0, 1]" else "cpu[0]", second, pieces)
    for own in memory_of(plan):
        report = report_memory(plan, own["rank"], plan_memory(plan, own["rank"], CPU))
        assert own["registers"] == sum(b.nbytes for b in report.blocks if b.is_register)


def test_ranks_that_do_the_same_are_told_once() -> None:
    (own,) = memory_of(plan_of("cpu[0, 1]", "cpu[0, 1]"))
    assert (own["rank"], own["alike"]) == (0, 2)


def test_of_many_ops_the_fullest_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("cpu[0, 1]", "cpu[0, 1]")
    (whole,) = memory_of(plan)
    monkeypatch.setattr(page_memory, "MAX_POINTS", 4)
    (own,) = memory_of(plan)
    every = -(-whole["ops"] // 4)
    parts = [whole["points"][i : i + every] for i in range(0, whole["ops"], every)]
    assert own["points"] == [max(part, key=lambda point: point[1]) for part in parts]
    assert own["peak"] == whole["peak"] and own["peak"] in own["points"]
