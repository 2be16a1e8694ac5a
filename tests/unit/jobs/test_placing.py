"""A graph traced in one place gives the same losses on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import PlacementError
from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import Cluster
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, Split
from oneflow.core.tensor_type import parse_type
from oneflow.jobs.placing import replace_placement
from oneflow.jobs.running import _given_plan, job_config, placed_graph
from oneflow.scheduler.compiler.pipeline import compile_graph

from .job_samples import Train, data, export, losses_here, losses_of


@pytest.mark.parametrize("options", [{}, {"dropout": 0.5}, {"norm": True}, {"pieces": 2}])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_losses_do_not_depend_on_the_number_of_ranks(
    tmp_path: Path, num_ranks: int, options: dict[str, Any]
) -> None:
    path = export(tmp_path / "a.job", Train(**options))
    expected = losses_here(Train(**options), data())
    np.testing.assert_allclose(losses_of(path, num_ranks), expected, rtol=2e-5)


def in_half_precision(fused: bool) -> Train:
    graph = Train()
    graph.config.enable_amp(True, dtype=flow.bfloat16)
    graph.config.enable_fused_model_update_cast(fused)
    return graph


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_job_has_the_half_floats_of_a_trained_graph(tmp_path: Path, num_ranks: int) -> None:
    """Up to date, though the parameters have changed since the graph was called."""
    found = []
    for fused in (False, True):
        graph = in_half_precision(fused)
        losses_here(graph, data(), 3)
        graph.model[0].weight.origin.data.mul_(0.5)
        path = export(tmp_path / f"{fused}.job", graph, steps=3)
        found.append(losses_of(path, num_ranks, 3))
    assert found[0] == found[1]
    with flow.jobs.load(path) as file:
        graphs = [placed_graph(file, num_ranks, "cpu") for _ in range(2)]
        config = job_config(file, graphs[0].num_pieces)
        plan = compile_graph(graphs[0], config, Cluster(num_ranks)).to_bytes()
        (tmp_path / "plan").write_bytes(plan)
        assert _given_plan(str(tmp_path / "plan"), graphs[1], num_ranks) == plan


def test_exporting_changes_nothing_for_the_script(tmp_path: Path) -> None:
    before = losses_here(Train(dropout=0.5), data())
    graph = Train(dropout=0.5)
    export(tmp_path / "a.job", graph)
    assert losses_here(graph, data()) == before


def test_a_graph_that_was_trained_goes_on_in_the_job(tmp_path: Path) -> None:
    expected = losses_here(Train(), data(), 6)
    graph = Train()
    losses_here(graph, data(), 3)
    x = data(epochs=0)
    path = export(tmp_path / "a.job", graph, steps=3, data=x)
    found = flow.jobs.verify(path)
    assert found.first_step == 3 and found.updates == {"0": 3}
    with flow.jobs.load(path) as file:
        np.testing.assert_allclose(file.rates["lr.0.0"], [0.15] * 1)
    assert losses_of(path, 1, 3)[0] < expected[0]


# ---- graphs with placements ----------------------------------------------------------------------


def graph_on(*places: Placement) -> LogicalGraph:
    graph = LogicalGraph("g")
    for i, place in enumerate(places):
        sbp = (Split(0),) * place.ndim if i == 0 else (BROADCAST,) * place.ndim
        node = graph.append(
            "input", [], [parse_type("float32[8, 2]")], place, {"name": f"lr.{i}.0"}
        )
        node.outputs[0].sbp = sbp
        graph.append("output", [node.outputs[0]], [], place, {"index": i})
    return graph


def test_placements_of_exactly_these_ranks_stay() -> None:
    graph = graph_on(Placement("cpu", [0, 1]), Placement("cpu", [2, 3]))
    replace_placement(graph, 4, "cuda")
    assert {n.placement.notation for n in graph} == {"cuda[0, 1]", "cuda[2, 3]"}


def test_one_placement_of_other_ranks_is_stretched_with_its_layouts() -> None:
    graph = graph_on(Placement("cpu", [0, 1]), Placement("cpu", [0, 1]))
    replace_placement(graph, 4, "cpu")
    assert {n.placement.notation for n in graph} == {"cpu[0, 1, 2, 3]"}
    assert [n.outputs[0].sbp for n in graph.of_kind("input")] == [(Split(0),), (BROADCAST,)]


@pytest.mark.parametrize(
    "places", [[Placement("cpu", [0]), Placement("cpu", [1])], [Placement("cpu", [[0, 1]])]]
)
def test_other_placements_are_refused(places: list[Placement]) -> None:
    with pytest.raises(PlacementError, match="runs on exactly 2 devices numbered from 0, not on 4"):
        replace_placement(graph_on(*places), 4, "cpu")
