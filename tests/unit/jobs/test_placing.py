"""A graph traced in one place gives the same losses on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import PlacementError
from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import Cluster, Overrides, Zero
from oneflow.core.placement import Placement
from oneflow.core.plan import Plan
from oneflow.core.sbp import BROADCAST, Split
from oneflow.core.tensor_type import parse_type
from oneflow.jobs.jobfile import JobFile
from oneflow.jobs.placing import replace_placement
from oneflow.jobs.plans import compile_plan
from oneflow.jobs.running import _given_plan, job_config, placed_graph
from oneflow.scheduler.compiler.pipeline import compile_graph

from .job_samples import Train, Words, data, export, losses_here, losses_of, sentences


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


# ---- settings of a submission --------------------------------------------------------------------


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job file without any layout."""
    path = tmp_path_factory.mktemp("words") / "a.job"
    return export(path, Words(), data=sentences(), steps=3)


def variables(path: Path, num_ranks: int, overrides: Overrides) -> dict[str, Any]:
    plan = Plan.from_bytes(compile_plan(path, num_ranks, "cpu", overrides=overrides))
    nodes = plan.graph.of_kind("variable")
    return {str(n.attrs["name"]): n.outputs[0] for n in nodes}


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_search_lays_out_the_variables_of_a_file(words: Path, num_ranks: int) -> None:
    asked = Overrides(auto_parallel=True)
    plain = variables(words, num_ranks, Overrides())
    assert {v.sbp for v in plain.values()} == {(BROADCAST,)}
    found = variables(words, num_ranks, asked)
    assert found.keys() == plain.keys()
    assert isinstance(found["head.weight"].sbp[0], Split)
    assert found["head.weight"].sbp == found["head.weight-exp_avg"].sbp
    expected = losses_of(words, 1, 3)
    np.testing.assert_allclose(losses_of(words, num_ranks, 3, asked), expected, rtol=1e-5)


def test_zero_splits_the_states_of_a_file(words: Path) -> None:
    asked = Overrides(zero=1)
    found = variables(words, 2, asked)
    assert found["head.weight"].sbp == (BROADCAST,)
    assert found["head.weight-exp_avg"].sbp == (Split(0),)
    expected = losses_of(words, 1, 3)
    np.testing.assert_allclose(losses_of(words, 2, 3, asked), expected, rtol=1e-5)
    with JobFile(words, overrides=asked) as file:
        assert file.description.config.zero == Zero(1, 1024, 1)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_deep_file_with_micro_batches_becomes_a_pipeline(tmp_path: Path, num_ranks: int) -> None:
    """A sum of the gradients of large layers takes longer than the stages of few rows wait."""

    class Deep(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            flow.manual_seed(5)
            self.model = nn.Sequential(
                *(m for _ in range(4) for m in (nn.Linear(256, 256), nn.Tanh()))
            )
            self.add_optimizer(flow.optim.AdamW(self.model.parameters(), lr=0.01))
            self.config.set_gradient_accumulation_steps(8)

        def build(self, x: Any) -> Any:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    x = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    rows = flow.jobs.data.arrays(x=x).batch(32).repeat()
    path = export(tmp_path / "a.job", Deep(), data=rows, steps=3)
    asked = Overrides(auto_parallel=True)
    found = variables(path, num_ranks, asked)
    places = {v.placement.rank_ids for v in found.values()}
    assert places == {2: {(0,), (1,)}, 4: {(0, 1), (2, 3)}}[num_ranks]
    assert {v.placement.rank_ids for v in variables(path, num_ranks, Overrides()).values()} == {
        tuple(range(num_ranks))
    }
    expected = losses_of(path, 1, 3)
    np.testing.assert_allclose(losses_of(path, num_ranks, 3, asked), expected, rtol=1e-5)
    plan = tmp_path / "plan"
    plan.write_bytes(compile_plan(path, num_ranks, "cpu", overrides=asked))
    with JobFile(path, overrides=asked) as file:
        assert _given_plan(str(plan), placed_graph(file, num_ranks, "cpu"), num_ranks)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_of_a_file_is_that_of_a_graph(tmp_path: Path, dtype: str) -> None:
    """Captured numbers that float16 does not have stay in float32, and so do results that the
    program computes in a block of its own.
    """

    class Masks(Train):
        def __init__(self, *, mixes: bool) -> None:
            super().__init__()
            self.__dict__["mask"] = flow.tensor([-1e30, 0.0, 0.0] * 2)
            half = flow.bfloat16 if dtype == "bfloat16" else flow.float16
            self.config.enable_amp(mixes, dtype=half)

        def build(self, x: Any, y: Any) -> Any:
            return super().build(x + self.mask * 0.0, y)

    class Chooses(Masks):
        def build(self, x: Any, y: Any) -> Any:
            with flow.autocast("cpu", enabled=False):
                return super().build(x, y)

    found = []
    for number, kind in enumerate((Masks, Chooses)):
        mixed, plain = (
            export(tmp_path / f"{number}{mixes}.job", kind(mixes=mixes)) for mixes in (True, False)
        )
        expected = losses_of(mixed, 2)
        assert np.isfinite(expected).all()
        assert losses_of(plain, 2, overrides=Overrides(amp=dtype)) == expected
        found.append((losses_of(plain, 2), expected))
    (plainly, mixed_ones), (chosen_plainly, chosen) = found
    assert plainly == chosen_plainly == chosen != mixed_ones


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
