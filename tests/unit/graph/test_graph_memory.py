"""Memory of a step: its order, its offsets and the values that neither changes."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.actors.rank_memory import plan_memory
from oneflow.actors.registers import is_shared, made_on
from oneflow.core.config import Config, current_config, set_config
from oneflow.core.errors import ConfigError, GraphError
from oneflow.graph.memory_report import report_memory
from oneflow.kernels.hardware import hardware_for
from tests.unit.actors.programs import compile_text, two_layers

CPU = hardware_for("cpu", 0)
NUMEL = 32768
"""Elements of a temporary of 128 KiB."""


class UsesSixLate(nn.Graph):
    """Six temporaries that the user makes at once and uses one after another."""

    def build(self, x: Any) -> Any:
        made = [x * (k + 2.0) for k in range(6)]
        total = x.sum()
        for temporary in made:
            total = total + (temporary * temporary).sum()
        return total


def arena_of(mode: str, *, compress: bool = False) -> tuple[int, float]:
    """Bytes of registers and scratch memory, and the graph's results."""
    graph = UsesSixLate()
    graph.config.enable_straighten_algorithm(mode)
    graph.config.enable_compress_memory(compress)
    result = graph(flow.ones(NUMEL)).item()
    return graph._spec.plans.now.job.bound.arena_nbytes, result


def test_memory_first_makes_late_what_is_used_late(monkeypatch: pytest.MonkeyPatch) -> None:
    # In one kernel none of them would be in memory.
    apart = replace(current_config(), fuses_kernels=False)
    monkeypatch.setattr("oneflow.actors.rank_memory.current_config", lambda: apart)
    arenas, results = zip(*(arena_of(mode) for mode in ("MemoryFirst", "Disable")), strict=True)
    register = 4 * NUMEL  # of the input
    assert arenas[0] < register + 2.1 * register
    assert arenas[1] > register + 6 * register
    assert results[0] == results[1] == NUMEL * (1 + sum(k * k for k in range(2, 8)))


def test_compressed_memory_is_no_larger_and_gives_the_same() -> None:
    plain, expected = arena_of("MemoryFirst")
    found, result = arena_of("MemoryFirst", compress=True)
    assert found <= plain and result == expected


# ---- the report ----------------------------------------------------------------------------------


class Block(nn.Module):
    """Wide inside, narrow outside, and it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.dropout = nn.Dropout(0.25)

    def forward(self, x: Any) -> Any:
        return x + self.down(self.dropout(flow.tanh(self.up(x))))


class Train(nn.Graph):
    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        flow.manual_seed(3)
        self.net = nn.Sequential(*(Block() for _ in range(6)))
        self.add_optimizer(flow.optim.SGD(self.net.parameters(), lr=0.1))
        self.config.set_memory_limit(limit)

    def build(self, x: Any) -> Any:
        loss = self.net(x).square().mean()
        loss.backward()
        return loss


X = np.random.default_rng(5).standard_normal((128, 16)).astype(np.float32)


def losses(graph: Train, steps: int = 3) -> list[float]:
    flow.manual_seed(7)
    return [graph(flow.tensor(X)).item() for _ in range(steps)]


def test_the_report_adds_up() -> None:
    graph = Train()
    with pytest.raises(GraphError, match="not compiled yet"):
        graph.memory_report()
    losses(graph, 1)
    report = graph.memory_report()
    assert report.arena_nbytes == graph._spec.plans.now.job.bound.arena_nbytes >= report.lower_bound
    assert report.variable_nbytes == sum(p.numel() * 4 for p in graph.net.parameters())
    temporaries = [b for b in report.blocks if not b.is_register]
    for i, a in enumerate(temporaries):
        assert a.offset + a.nbytes <= report.scratch_nbytes
        for b in temporaries[:i]:
            lives_with = a.actor == b.actor and a.first <= b.last and b.first <= a.last
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert not lives_with or apart or not (a.nbytes and b.nbytes)
    assert report.largest(1)[0].nbytes == max(b.nbytes for b in report.blocks) == 128 * 64 * 4
    held = report.by_module()
    assert {"net.0", "net.1"} <= {name.rsplit(".", 1)[0] for name in held if name.count(".") == 2}
    assert sum(held.values()) <= report.arena_nbytes
    assert "test_graph_memory.py" in report.largest(1)[0].location


def test_sums_of_micro_batches_belong_to_the_module_of_their_gradients() -> None:
    graph = Train()
    graph.config.set_gradient_accumulation_steps(4)
    graph(flow.tensor(X))
    sums = [b for b in graph.memory_report().blocks if b.op == "accumulate"]
    assert {b.module for b in sums} == {
        f"net.{i}.{part}" for i in range(6) for part in ("up", "down")
    }


def test_only_what_is_outside_of_modules_is_of_none() -> None:
    graph = Train()
    losses(graph, 1)
    report = graph.memory_report()
    ops = {b.op for b in report.blocks if not b.module}
    assert not ops & {"matmul", "matmul_weight_grad", "sum_rows", "tanh_grad", "dropout_mask"}
    lines = {b.location for b in report.blocks if b.op == "matmul_weight_grad"}
    here = Path(__file__).read_text().splitlines()
    forward = 1 + next(i for i, line in enumerate(here) if "return x + self.down" in line)
    assert {line.rpartition(":")[2] for line in lines} <= {str(forward)}


@pytest.mark.parametrize("pieces", [1, 2])
def test_what_ranks_keep_for_each_other_is_counted(pieces: int) -> None:
    """Two stages: rank 1 reads the hidden values of rank 0, which reads their gradients."""
    rows, width = 12, 16
    text = two_layers("cpu[0]", "cpu[1]", "B", rows=rows, width=width, pieces=pieces)
    plan = compile_text(text, 2)
    reports = [
        report_memory(plan, r, plan_memory(plan, r, CPU), places=("a", "b")) for r in range(2)
    ]
    piece = rows // pieces * width * 4
    slots = [
        {r.num_slots for r in plan.registers if is_shared(r) and made_on(r, i)} for i in (0, 1)
    ]
    for rank, (report, (count,)) in enumerate(zip(reports, slots, strict=True)):
        assert report.read_by == {1 - rank: piece * count}
        assert report.mirrors == {1 - rank: reports[1 - rank].read_by[rank]}
        assert f"rank {1 - rank}" in str(report)
    near = report_memory(plan, 0, plan_memory(plan, 0, CPU), places=("a", "a"))
    assert near.read_by == reports[0].read_by and not near.mirrors


def test_the_report_as_text() -> None:
    graph = Train()
    losses(graph, 1)
    report = graph.memory_report()
    text, table = str(report), report.table()
    assert f"arena {report.arena_nbytes} bytes" in text and "largest blocks" in text
    assert len(table.splitlines()) == 1 + len(report.blocks)
    assert "float32[128, 64]" in table and "net.0.up" in table
    header, *rows = table.splitlines()
    at = header.index("module")
    assert all(any(row[at:].startswith(b.module) for row in rows) for b in report.blocks)


def test_blocks_of_one_kernel_belong_to_their_own_modules() -> None:
    """A dense layer and the function that follows are one kernel, named by its ops."""

    class Both(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.act, self.down = nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)
            parameters = [*self.up.parameters(), *self.down.parameters()]
            self.add_optimizer(flow.optim.SGD(parameters, lr=0.1))

        def build(self, x: Any) -> Any:
            loss = self.down(self.act(self.up(x))).sum()
            loss.backward()
            return loss

    graph = Both()
    graph(flow.ones(32, 64))
    blocks = graph.memory_report().blocks
    wide = {(b.op, b.module) for b in blocks if b.type == "float32[32, 128]" and b.first < 2}
    assert wide == {
        ("linear.matmul", "up"),
        ("linear.add + gelu", "up"),
        ("linear.add + gelu", "act"),
    }
    (between,) = (b for b in blocks if b.op == "linear.matmul" and b.module == "up")
    assert between.name.endswith("'") and (between.first, between.last) == (0, 1)


def test_a_graph_lets_go_of_the_histories_of_its_outputs() -> None:
    """All calls of its trace hang on them. An eager tensor that is returned keeps its own."""
    model = nn.Linear(3, 3)
    outside = (model.weight * 2.0).sum()
    seen: list[Any] = []

    class Returns(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x: Any) -> Any:
            loss = self.model(x).sum()
            seen.append(weakref.ref(loss.grad_fn))
            loss.backward()
            return loss, outside

    graph = Returns()
    graph(flow.ones(2, 3))
    gc.collect()
    assert seen[0]() is None
    outside.backward()
    np.testing.assert_array_equal(model.weight.grad.numpy(), np.full((3, 3), 2.0))


@pytest.mark.parametrize(
    "variables, level, is_told", [({}, 2, False), ({}, 3, True), ({"GLOG_v": "3"}, -1, True)]
)
def test_the_analysis_is_printed_where_it_is_asked_for(
    variables: dict[str, str], level: int, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    before = current_config()
    set_config(Config.from_env(variables))
    try:
        graph = Train()
        graph.debug(level)
        losses(graph, 1)
    finally:
        set_config(before)
    assert (graph.memory_report().table() in capsys.readouterr().out) is is_told


# ---- the limit -----------------------------------------------------------------------------------


def test_a_limit_computes_as_much_again_as_it_needs_and_changes_no_bit() -> None:
    plain = Train()
    expected = losses(plain)
    needed = plain.memory_report().arena_nbytes
    chosen = []
    for share in (1.0, 0.9, 0.75):
        graph = Train(int(share * needed))
        assert losses(graph) == expected
        report = graph.memory_report()
        assert report.arena_nbytes <= share * needed
        assert all(r.saved_nbytes > 0 and r.extra_seconds > 0 for r in report.recomputed)
        chosen.append(len(report.recomputed))
        for ours, theirs in zip(graph.net.parameters(), plain.net.parameters(), strict=True):
            assert np.array_equal(ours.numpy(), theirs.numpy())
    assert 0 == chosen[0] < chosen[1] <= chosen[2]


def test_a_limit_that_nothing_meets_says_what_it_lacks() -> None:
    graph = Train(10_000)
    with pytest.raises(GraphError, match="limit of 10000 bytes: it needs") as caught:
        graph(flow.tensor(X))
    assert "float32[128, 64]" in str(caught.value) and "too many on rank 0" in str(caught.value)
    with pytest.raises(ConfigError, match="nbytes must be an integer >= 1"):
        graph.config.set_memory_limit(0)
