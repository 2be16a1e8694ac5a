"""Bytes that recomputation says it saves, and those that it does save, in pipelines and nested; and
the memory limit of graphs in pipelines. All ranks run in this process.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.core.graph_text import parse_graph
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST as B
from oneflow.core.sbp import NdSbp, Split
from oneflow.graph.binding import cluster_of, rewritten
from oneflow.graph.memory_report import Recomputed
from oneflow.graph.tracing import trace_build
from oneflow.nn.graph import GraphModule
from oneflow.scheduler.compiler.layout.signatures import (
    BYTES_PER_SECOND,
    CALL_SECONDS,
    FLOPS_PER_SECOND,
)

from .ranks import Ranks, put

S0 = Split(0)
PACE = BYTES_PER_SECOND["cpu"]
ROWS, WIDTH, BLOCKS = 256, 32, 3
"""Rows of a micro-batch, on one rank; blocks of a stage."""


class Block(nn.Module):
    def __init__(self, place: Placement, seed: int) -> None:
        super().__init__()
        data = np.random.default_rng(seed)
        copies: NdSbp = (B,) * place.ndim

        def weight(rows: int, columns: int) -> nn.Parameter:
            array = data.standard_normal((rows, columns)).astype(np.float32) / WIDTH
            return nn.Parameter(put(array, place, copies))

        self.up, self.down = weight(4 * WIDTH, WIDTH), weight(WIDTH, 4 * WIDTH)

    def forward(self, x: Any) -> Any:
        return x + F.linear(F.linear(x, self.up).tanh().exp(), self.down)


class Model(nn.Module):
    """Stages of blocks."""

    def __init__(self, places: list[Placement]) -> None:
        super().__init__()
        self.places = places
        self.stages = nn.ModuleList(
            nn.Sequential(*(Block(place, 10 * i + j) for j in range(BLOCKS)))
            for i, place in enumerate(places)
        )

    def forward(self, x: Any) -> Any:
        for place, stage in zip(self.places, self.stages, strict=True):
            x = stage(x.to_global(place, [S0]))
        return x


class Trains(nn.Graph):
    """levels: 1 recomputes blocks, 2 whole stages, 3 both."""

    def __init__(self, model: Model, pieces: int, levels: int, limit: int | None) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))
        self.config.set_gradient_accumulation_steps(pieces)
        self.config.set_memory_limit(limit)
        for i, stage in enumerate(self.model.stages):
            if len(model.places) > 1:
                stage.to(GraphModule).set_stage(i, model.places[i])
            stage.to(GraphModule).activation_checkpointing = bool(levels & 2)
            for block in stage:
                block.to(GraphModule).activation_checkpointing = bool(levels & 1)

    def build(self, x: Any) -> Any:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def spread(stages: int, copies: int, levels: int, limit: int | None = None) -> Ranks:
    places = [Placement("cpu", np.arange(i * copies, (i + 1) * copies)) for i in range(stages)]
    pieces = 2 * stages if stages > 1 else 1
    x = np.ones((ROWS * pieces * copies, WIDTH), np.float32)

    def make() -> tuple[nn.Graph, Any]:
        return Trains(Model(places), pieces, levels, limit), put(x, places[0], (S0,))

    return Ranks(make, stages * copies)


def arena(graph: Ranks, rank: int) -> int:
    return graph.cluster.bound[rank].arena_nbytes


def of_rank(graph: Ranks, rank: int) -> dict[str, Recomputed]:
    """The modules that a rank computes again, by path."""
    found = {cost.module: cost for cost in graph.recomputed if rank in cost.ranks}
    assert len(found) == sum(rank in cost.ranks for cost in graph.recomputed)
    return found


KEPT = ROWS * WIDTH * 4 * (4 + 4)
"""Bytes that a block keeps of a micro-batch on a rank: what tanh and what exp made."""


@pytest.mark.parametrize(("stages", "copies"), [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("levels", [1, 3])
def test_saved_bytes_are_those_of_the_micro_batches_under_way(
    stages: int, copies: int, levels: int
) -> None:
    plain, again = spread(stages, copies, 0), spread(stages, copies, levels)
    for i in range(stages):
        found = of_rank(again, i * copies)
        blocks = [f"model.stages.{i}.{k}" for k in range(BLOCKS)]
        outer = [f"model.stages.{i}"] if levels & 2 else []
        assert sorted(found) == sorted(blocks + outer)
        under_way = stages - i
        for block in blocks:
            assert (found[block].again_nbytes, found[block].saved_nbytes) == (
                KEPT,
                under_way * KEPT,
            )
        # While the largest is computed again, what it keeps is there once more.
        held = KEPT + sum(found[name].again_nbytes for name in outer)
        said = sum(cost.saved_nbytes for cost in found.values())
        saved = arena(plain, i * copies) - arena(again, i * copies)
        assert 0.95 * (said - held) <= saved <= said


def test_calls_side_by_side_are_computed_again_one_by_one() -> None:
    """Each right before its gradients: no more than one is there again at a time."""

    class Twice(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)))
            self.add_optimizer(flow.optim.SGD(self.block.parameters(), lr=0.1))
            self.block.to(GraphModule).activation_checkpointing = True

        def build(self, x: Any) -> Any:
            for _ in range(3):
                x = self.block(x)
            x.sum().backward()
            return x

    graph = Twice()
    traced = trace_build(graph._spec, graph.build, ((flow.ones(2, 4),), {})).trace.graph
    again = rewritten(traced, graph._spec.job_config(), cluster_of(traced))
    phases = [node.phase for node in again if node.op not in ("variable", "input")]
    found = [phase for phase, _ in groupby(phases)]
    assert found == ["forward", "backward"] + ["again", "backward"] * 3 + ["update"]
    assert str(parse_graph(str(again))) == str(again)


def test_a_module_inside_of_another_is_paid_for_twice() -> None:
    """It is computed again with the other one, and once more by itself; but for the last one, whose
    result nobody reads.
    """
    blocks, stage, both = (
        sum(cost.extra_seconds for cost in spread(1, 1, levels).recomputed) for levels in (1, 2, 3)
    )
    assert both == pytest.approx(stage + blocks * (BLOCKS - 1) / BLOCKS, rel=0.01)
    assert blocks < stage  # nobody reads what a block ends in, unless the next one starts there


def test_extra_time_is_of_what_the_backward_pass_needs_again() -> None:
    """Nobody reads the second of two products of a block, nor the sum that follows it."""
    for cost in spread(1, 1, 1).recomputed:
        flops = 2 * ROWS * WIDTH * 4 * WIDTH
        up = max(flops / FLOPS_PER_SECOND["cpu"], 4 * WIDTH * (5 * ROWS + 4 * WIDTH) / PACE)
        maps = 2 * 2 * 4 * ROWS * 4 * WIDTH / PACE  # each reads and writes all that it has
        assert cost.extra_seconds == pytest.approx(up + maps + 3 * CALL_SECONDS)


def test_extra_time_is_that_of_a_rank_and_of_all_micro_batches() -> None:
    alone = sum(cost.extra_seconds for cost in spread(1, 1, 1).recomputed)
    for cost in spread(2, 2, 1).recomputed:  # 4 micro-batches of the same rows on each rank
        assert cost.extra_seconds == pytest.approx(4 * alone / BLOCKS, rel=0.1)


def test_a_limit_takes_blocks_of_the_stages_that_do_not_fit() -> None:
    """The first of two stages keeps two micro-batches, the last one."""
    plain = spread(2, 1, 0)
    first, last = (arena(plain, rank) for rank in (0, 1))
    assert first > last
    limited = spread(2, 1, 0, limit=last)
    assert of_rank(limited, 0) and not of_rank(limited, 1)
    assert arena(limited, 0) <= last and arena(limited, 1) == last
    limit = max(arena(spread(2, 1, 1), 0), last * 2 // 3)
    tight = spread(2, 1, 0, limit)
    assert max(arena(tight, rank) for rank in (0, 1)) <= limit
    assert len(of_rank(tight, 0)) >= len(of_rank(limited, 0)) and of_rank(tight, 1)
    x = np.random.default_rng(1).standard_normal((4 * ROWS, WIDTH)).astype(np.float32)
    np.testing.assert_array_equal(tight(x)[0], plain(x)[0])
