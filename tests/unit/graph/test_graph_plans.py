"""Plans of graphs: made in two steps, for several shapes, shared, saved and loaded again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.actors.job import Job
from oneflow.core.errors import ConfigError, GraphError
from oneflow.graph import compiling
from oneflow.optim import Adam
from oneflow.optim.lr_scheduler import StepLR


def make_model() -> nn.Sequential:
    flow.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))


class Train(nn.Graph):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        optimizer = Adam(model.parameters(), lr=0.05)
        self.add_optimizer(optimizer, lr_sch=StepLR(optimizer, 2, gamma=0.5))

    def build(self, x: Any, *, scale: float = 1.0) -> Any:
        out = self.model(x) * scale
        loss = F.mse_loss(out, x[:, :2])
        loss.backward()
        return {"loss": loss, "parts": (out, [None, "kept", 2.5])}


class AnyShape(Train):
    @nn.Graph.with_dynamic_input_shape(size=2)
    def __init__(self, model: Any) -> None:
        super().__init__(model)


def batch(rng: np.random.Generator, rows: int = 6) -> Any:
    return flow.tensor(rng.standard_normal((rows, 4)).astype(np.float32))


def refuses_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("it was traced or compiled")

    monkeypatch.setattr(compiling, "trace_chosen", fail)
    monkeypatch.setattr(compiling, "compile_and_bind", fail)


# ---- in two steps --------------------------------------------------------------------------------


def test_the_first_call_in_two_steps(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = batch(rng)
    whole, halves = Train(make_model()), Train(make_model())
    with pytest.raises(GraphError, match="call build_graph of Train_"):
        halves.finish_compile_and_init_runtime()
    halves.build_graph(x)
    assert not halves.is_compiled
    halves.finish_compile_and_init_runtime()
    assert halves.is_compiled
    with pytest.raises(GraphError, match="is compiled already"):
        halves.build_graph(x)
    flow.manual_seed(0)
    wanted = whole(x)["loss"].item()
    refuses_to_compile(monkeypatch)
    flow.manual_seed(0)
    assert halves(x)["loss"].item() == wanted


def test_names_inside_of_upstreams_graph_are_answered(rng: np.random.Generator) -> None:
    """The names that onediff reads: variables, modules, tensors."""
    graph: Any = Train(make_model())
    assert graph._c_nn_graph.get_runtime_var_states() == ([], [])
    graph(batch(rng))
    names, tensors = graph._c_nn_graph.get_runtime_var_states()
    assert "model.0.weight" in names
    assert tensors[names.index("model.0.weight")] is graph.model[0].weight.origin
    assert list(graph._blocks) == ["model"]
    assert next(graph._state()) is graph.model[0].weight.origin
    assert graph._dynamic_input_graph_cache is None


# ---- several shapes ------------------------------------------------------------------------------


def test_a_graph_for_any_shape_has_one_set_of_variables(rng: np.random.Generator) -> None:
    """Each step has the learning rate, the draws and Adam's count of its number."""
    model, expected = make_model(), make_model()
    graph = AnyShape(model)
    optimizer = Adam(expected.parameters(), lr=0.05)
    schedule = StepLR(optimizer, 2, gamma=0.5)
    data = [batch(rng, rows) for rows in (6, 4, 6, 5, 6, 4, 5)]
    state = flow.get_rng_state()
    found = [graph(x)["loss"].item() for x in data]
    flow.set_rng_state(state)
    for x, loss in zip(data, found, strict=True):
        optimizer.zero_grad()
        wanted = F.mse_loss(expected(x), x[:, :2])
        wanted.backward()
        optimizer.step()
        schedule.step()
        assert loss == pytest.approx(wanted.item(), rel=1e-5)
    assert graph.state_dict()["System-Train-TrainStep"].item() == len(data)


def test_plans_that_were_not_used_go_but_the_first(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph: Any = AnyShape(make_model())
    for rows in (3, 4, 5):  # of two that are kept, 3 is the first
        graph(batch(rng, rows))
    assert len(graph._spec.plans) == 2
    refuses_to_compile(monkeypatch)
    graph(batch(rng, 3))
    graph(batch(rng, 5))
    with pytest.raises(AssertionError, match="traced or compiled"):
        graph(batch(rng, 4))
    graph(batch(rng, 5))
    cache = graph._dynamic_input_graph_cache
    assert cache is graph._spec.plans
    cache.enable_shared(True)
    with pytest.raises(ConfigError, match="always work on the same variables"):
        cache.enable_shared(False)
    with pytest.raises(ConfigError, match="always work on the same variables"):
        nn.Graph.with_dynamic_input_shape(enable_shared=False)
    cache.set_cache_size(1)
    with pytest.raises(ValueError, match="set_cache_size: size must be at least 1"):
        cache.set_cache_size(0)
    monkeypatch.undo()
    graph(batch(rng, 6))
    assert len(graph._spec.plans) == 2  # the newest, and the first
    with pytest.raises(ValueError, match="size must be at least 1"):
        nn.Graph.with_dynamic_input_shape(size=0)


def test_two_graphs_share_modules_and_optimizers(rng: np.random.Generator) -> None:
    first, second = Train(make_model()), Train(make_model())
    first.enable_shared()
    x = batch(rng)
    for _ in range(3):
        first(x)
    first.enable_shared(False)
    with pytest.raises(GraphError, match="is not to be shared"):
        second.share_from(first)
    first.enable_shared()
    second.share_from(first)
    before = first.model[0].weight.numpy().copy()
    second(x)
    assert second.model[0].weight.origin is first.model[0].weight.origin
    assert np.abs(first.model[0].weight.numpy() - before).max() > 1e-4
    assert second.state_dict()["System-Train-TrainStep"].item() == 4
    assert second._spec.optimizers[0].optim.state["step"] == 4
    with pytest.raises(GraphError, match="is compiled already"):
        second.share_from(first)
    with pytest.raises(TypeError, match="takes a Graph, got Sequential"):
        Train(make_model()).share_from(make_model())
    with pytest.raises(GraphError, match="has no model"):
        Train(make_model()).share_from(nn.Graph.trace(lambda a: a))


# ---- saved and loaded ----------------------------------------------------------------------------


def kept(state: Any, folder: Path) -> Any:
    return state


def through_a_file(state: Any, folder: Path) -> Any:
    flow.save(state, folder / "graph")
    return flow.load(folder / "graph")


@pytest.mark.parametrize("keep", [kept, through_a_file])
def test_a_loaded_plan_goes_on_with_the_same_bits(
    keep: Callable[..., Any], rng: np.random.Generator, monkeypatch: Any, tmp_path: Path
) -> None:
    data = [batch(rng) for _ in range(5)]
    graph = Train(make_model())
    for x in data[:3]:
        graph(x, scale=0.5)
    random = flow.get_rng_state()
    state = keep(graph.runtime_state_dict(with_eager=True), tmp_path)
    held = {k: flow.tensor(v.numpy()) for k, v in state["variables"].items()}
    state["variables"] = held  # as they are now: the graph goes on
    wanted = [graph(x, scale=0.5) for x in data[3:]]
    again = Train(make_model())
    refuses_to_compile(monkeypatch)
    again.load_runtime_state_dict(state)
    flow.set_rng_state(random)
    for x, expected in zip(data[3:], wanted, strict=True):
        found = again(x, scale=0.5)
        assert found["loss"].item() == expected["loss"].item()
        np.testing.assert_array_equal(found["parts"][0].numpy(), expected["parts"][0].numpy())
        assert found["parts"][1] == [None, "kept", 2.5]
    theirs = graph.model.state_dict()
    for key, value in again.model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), theirs[key].numpy())
    with pytest.raises(GraphError, match=r"was 0\.5; now it is 0\.25"):
        again(data[0], scale=0.25)
    assert again.state_dict()["System-Train-TrainStep"].item() == 5
    assert "OPERATOR" in repr(again)


class Adds(nn.Graph):
    """Reads a tensor that belongs to no module."""

    def __init__(self, more: Any) -> None:
        super().__init__()
        self.more = lambda: more

    def build(self, x: Any) -> Any:
        return x + self.more()


def test_values_of_modules_are_in_the_state_only_if_asked_for(rng: np.random.Generator) -> None:
    graph, x = Train(make_model()), batch(rng)
    for _ in range(3):
        graph(x)
    state = graph.runtime_state_dict()
    modules = set(dict(graph.model.named_parameters("model")))
    modules |= set(dict(graph.model.named_buffers("model")))
    assert modules.isdisjoint(state["variables"])
    assert "model.0.weight-exp_avg" in state["variables"]
    assert modules < set(graph.runtime_state_dict(with_eager=True)["variables"])
    again = Train(make_model())
    kept = again.model[0].weight.numpy().copy()
    again.load_runtime_state_dict(state)
    np.testing.assert_array_equal(again.model[0].weight.numpy(), kept)
    means = [g.state_dict()["model.0.weight-exp_avg"].numpy() for g in (graph, again)]
    np.testing.assert_array_equal(*means)
    with pytest.raises(GraphError, match=r"the plan reads model\.0\.weight, .*with_eager=True"):
        nn.Graph().load_runtime_state_dict(state)


@dataclass
class Made:
    """Outputs of a graph."""

    sample: Any
    name: str = "none"


class Shapes(nn.Graph):
    @nn.Graph.with_dynamic_input_shape()
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(5, 2)

    def build(self, x: Any, *, factor: float) -> Any:
        return Made(self.model(x) * factor, name="made")


def test_plans_of_all_shapes_are_in_the_state(monkeypatch: Any, tmp_path: Path) -> None:
    graph = Shapes()
    inputs = [flow.ones(rows, 5) for rows in (2, 3, 2)]
    wanted = [graph(x, factor=0.5).sample.numpy() for x in inputs]
    assert len(graph.runtime_state_dict()) == 2  # a state for each shape, by its graph's name
    assert all("outputs_original" in one for one in graph.runtime_state_dict().values())
    state = through_a_file(graph.runtime_state_dict(with_eager=True), tmp_path)
    with pytest.raises(GraphError, match="plans for 2 shapes of inputs"):
        nn.Graph().load_runtime_state_dict(state)
    again = Shapes()
    refuses_to_compile(monkeypatch)
    again.load_runtime_state_dict(state)
    for x, expected in zip(inputs, wanted, strict=True):
        found = again(x, factor=0.5)
        assert type(found) is Made and found.name == "made"
        np.testing.assert_array_equal(found.sample.numpy(), expected)
    monkeypatch.delattr(f"{__name__}.Made")
    with pytest.raises(GraphError, match=r"Made, which is no dataclass of this program"):
        Shapes().load_runtime_state_dict(state)


def test_captured_tensors_and_global_ones_are_in_the_state() -> None:
    here = flow.placement("cpu", [0]), flow.sbp.broadcast
    for put in (lambda x: x, lambda x: x.to_global(*here)):
        graph = Adds(put(flow.ones(3) * 2.0))
        x = put(flow.ones(3))
        graph(x)
        again = Adds(put(flow.zeros(3)))
        again.load_runtime_state_dict(graph.runtime_state_dict(), warmup_with_run=True)
        out = again(x)
        np.testing.assert_array_equal(out.numpy(), [3.0, 3.0, 3.0])
        assert out.is_global == x.is_global
        assert again._spec.plans.steps_done == 1 + 1


@pytest.mark.parametrize(
    ("build", "runs"),
    [(lambda x: x.relu(), 1), (lambda x: x + flow.randn(3), 0), (lambda x: x.add_(1), 1)],
)
def test_a_loaded_plan_warms_up_if_it_draws_nothing(
    monkeypatch: Any, build: Any, runs: int
) -> None:
    graph, x = nn.Graph.trace(build), flow.full((3,), 2.0)
    flow.manual_seed(1)
    wanted = graph(x).numpy()
    state = graph.runtime_state_dict()
    called = []
    run = Job.run
    monkeypatch.setattr(Job, "run", lambda job, feeds: called.append(0) or run(job, feeds))
    for asked in (False, True):
        again = nn.Graph.trace(build)
        again.load_runtime_state_dict(state, warmup_with_run=asked)
        assert len(called) == runs * asked
    flow.manual_seed(1)
    np.testing.assert_array_equal(again(flow.full((3,), 2.0)).numpy(), wanted)
    assert again._spec.plans.steps_done == 2


def test_states_that_do_not_fit(rng: np.random.Generator) -> None:
    graph = Train(make_model())
    with pytest.raises(GraphError, match="is not compiled; call it first"):
        graph.runtime_state_dict()
    graph(batch(rng))
    state = graph.runtime_state_dict()
    with pytest.raises(GraphError, match="before the graph's first call"):
        graph.load_runtime_state_dict(state)
    with pytest.raises(GraphError, match="no state of a compiled graph of format 3"):
        Train(make_model()).load_runtime_state_dict(graph.state_dict())
    other = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
    with pytest.raises(GraphError, match=r"model\.0\.weight is float32\[8, 5\]"):
        Train(other).load_runtime_state_dict(state)
    moved = nn.Graph.runtime_state_dict_to(state, "cpu")
    again = Train(make_model())
    again.enable_save_runtime_state_dict()
    again.load_runtime_state_dict(moved)
    assert again.is_compiled
