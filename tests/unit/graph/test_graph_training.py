"""Training in a graph: losses and weights of the same training run eagerly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.core.errors import OneFlowError
from oneflow.optim import SGD, Adam, AdamW
from oneflow.optim.lr_scheduler import CosineAnnealingLR, StepLR, WarmUpLR

STEPS = 6
RNG = np.random.default_rng(0)
X = [RNG.normal(size=(8, 6)).astype(np.float32) for _ in range(STEPS)]
Y = [RNG.integers(0, 3, 8) for _ in range(STEPS)]


def make_model(drop: float = 0.0, norm: bool = True) -> nn.Sequential:
    """No bias before the norm: its gradient is 0 but for rounding, which Adam would blow up."""
    flow.manual_seed(0)
    middle = nn.BatchNorm1d(10) if norm else nn.Identity()
    return nn.Sequential(
        nn.Linear(6, 10, bias=False), middle, nn.ReLU(), nn.Dropout(drop), nn.Linear(10, 3)
    )


class Train(nn.Graph):
    def __init__(self, model: Any, *optimizers: Any, pieces: int = 1) -> None:
        super().__init__()
        self.model = model
        for optimizer, schedule in optimizers:
            self.add_optimizer(optimizer, lr_sch=schedule)
        self.config.set_gradient_accumulation_steps(pieces)

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Predict(nn.Graph):
    def __init__(self, model: Any, pieces: int = 1) -> None:
        super().__init__()
        self.model = model
        self.config.set_gradient_accumulation_steps(pieces)

    def build(self, x: Any) -> Any:
        return self.model(x)


def graph_step(graph: Any, i: int) -> float:
    return float(graph(flow.tensor(X[i]), flow.tensor(Y[i])).numpy().mean())


def eager_step(model: Any, i: int, *optimizers: Any) -> float:
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = F.cross_entropy(model(flow.tensor(X[i])), flow.tensor(Y[i]))
    loss.backward()
    for optimizer in optimizers:
        optimizer.clip_grad()
        optimizer.step()
    return float(loss.item())


def assert_same_state(model: Any, expected: Any) -> None:
    theirs = expected.state_dict()
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(
            value.numpy(), theirs[name].numpy(), rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_a_training_and_an_evaluation_graph_share_one_module() -> None:
    model, expected = make_model(), make_model()
    optimizer, other = (SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, expected))
    graph, evaluation = Train(model, (optimizer, None)), Predict(model)
    weight = model[0].weight
    for i in range(4):
        model.train(), expected.train()
        assert graph_step(graph, i) == pytest.approx(eager_step(expected, i, other), rel=1e-5)
        model.eval(), expected.eval()
        found, wanted = evaluation(flow.tensor(X[5])), expected(flow.tensor(X[5]))
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)
    assert_same_state(model, expected)
    assert model[1].num_batches_tracked.item() == 4
    assert model[0].weight is weight and weight.grad is None


def test_every_micro_batch_is_counted() -> None:
    model = make_model()
    graph = Train(model, (SGD(model.parameters(), lr=0.1), None), pieces=4)
    for i in range(2):
        graph_step(graph, i)
    assert model[1].num_batches_tracked.item() == 8


@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_groups_clipping_and_schedules(pieces: int) -> None:
    def make(model: Any) -> Any:
        first, *rest = model.parameters()
        clip = {"clip_grad_max_norm": 0.05, "clip_grad_norm_type": 2.0}
        groups = [{"params": [first], "lr": 0.1, **clip}, {"params": rest, "lr": 0.05}]
        optimizer = AdamW(groups, weight_decay=0.1)
        cosine = CosineAnnealingLR(optimizer, T_max=STEPS - 1)
        return optimizer, WarmUpLR(cosine, warmup_factor=0.1, warmup_iters=2)

    model, expected = make_model(norm=False), make_model(norm=False)
    graph = Train(model, make(model), pieces=pieces)
    optimizer, schedule = make(expected)
    for i in range(STEPS):
        loss = eager_step(expected, i, optimizer)
        schedule.step()
        assert graph_step(graph, i) == pytest.approx(loss, rel=1e-5)
    assert_same_state(model, expected)


def test_several_optimizers_with_schedules_of_their_own() -> None:
    def make(model: Any) -> Any:
        first = SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1)
        return (first, StepLR(first, 2, gamma=0.5)), (Adam(model[4].parameters(), lr=0.01), None)

    model, expected = make_model(), make_model()
    graph = Train(model, *make(model))
    (first, schedule), (second, _) = make(expected)
    for i in range(STEPS):
        loss = eager_step(expected, i, first, second)
        schedule.step()
        assert graph_step(graph, i) == pytest.approx(loss, rel=1e-5)
    assert_same_state(model, expected)


def test_graph_and_eager_steps_of_one_optimizer_take_turns() -> None:
    """Gradients of eager steps do not leak into the graph, and Adam's step is counted on."""
    model, expected = make_model(), make_model()
    optimizer, other = Adam(model.parameters(), lr=0.05), Adam(expected.parameters(), lr=0.05)
    graph = Train(model, (optimizer, None))
    for i in range(STEPS):
        step = graph_step(graph, i) if i in (1, 2, 4) else eager_step(model, i, optimizer)
        assert step == pytest.approx(eager_step(expected, i, other), rel=1e-5)
    assert optimizer.state["step"] == STEPS
    assert_same_state(model, expected)


def test_a_gradient_from_before_stays_what_it_was() -> None:
    model = make_model()
    eager_step(model, 0)
    before = [p.grad.numpy().copy() for p in model.parameters()]
    graph_step(Train(model, (SGD(model.parameters(), lr=0.1), None)), 1)
    for p, grad in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), grad)


def test_no_grad_around_the_call_changes_nothing() -> None:
    model, expected = make_model(), make_model()
    graph = Train(model, (SGD(model.parameters(), lr=0.1), None))
    optimizer = SGD(expected.parameters(), lr=0.1)
    for i in range(3):
        with flow.no_grad():
            loss = graph_step(graph, i)
        assert loss == pytest.approx(eager_step(expected, i, optimizer), rel=1e-5)
    assert flow.is_grad_enabled()


def test_frozen_and_unused_parameters_stay() -> None:
    model, unused = make_model(), nn.Linear(2, 2)
    model.add_module("unused", unused)
    model.forward = lambda x: nn.Sequential(*list(model)[:5])(x)
    model[0].weight.requires_grad_(False)
    kept = [p.numpy().copy() for p in (model[0].weight, *unused.parameters())]
    graph_step(Train(model, (SGD(model.parameters(), lr=0.1), None)), 0)
    for p, value in zip((model[0].weight, *unused.parameters()), kept, strict=True):
        np.testing.assert_array_equal(p.numpy(), value)
        assert p.grad is None


def test_one_module_in_two_places_has_one_weight() -> None:
    layer, expected = nn.Linear(6, 6), nn.Linear(6, 6)
    expected.load_state_dict(layer.state_dict())
    optimizer = SGD(expected.parameters(), lr=0.1)

    class Twice(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = layer
            self.add_optimizer(SGD(layer.parameters(), lr=0.1))

        def build(self, x: Any) -> Any:
            loss = self.second(flow.tanh(self.first(x))).sum()
            loss.backward()
            return loss

    graph = Twice()
    for x in X[:3]:
        optimizer.zero_grad()
        loss = expected(flow.tanh(expected(flow.tensor(x)))).sum()
        loss.backward()
        optimizer.step()
        assert graph(flow.tensor(x)).item() == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("place", ["before", "between", "after"])
def test_gradients_are_cleared_in_build_as_outside(place: str) -> None:
    """A loop that clears them first trains alike; one that clears them last updates with zeros."""
    layer, expected = nn.Linear(6, 6), nn.Linear(6, 6)
    expected.load_state_dict(layer.state_dict())
    both = [SGD(x.parameters(), lr=0.1) for x in (layer, expected)]

    def loss_of(model: Any, optimizer: Any, x: Any) -> Any:
        if place == "before":
            optimizer.zero_grad()
        model(x).square().sum().backward()
        if place == "between":
            optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        if place == "after":
            optimizer.zero_grad()
        return loss

    class Clears(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer
            self.add_optimizer(both[0])

        def build(self, x: Any) -> Any:
            return loss_of(self.layer, both[0], x)

    graph = Clears()
    for x in X[:3]:
        both[1].zero_grad()
        loss = loss_of(expected, both[1], flow.tensor(x))
        both[1].step()
        assert graph(flow.tensor(x)).item() == pytest.approx(loss.item(), rel=1e-5)


def test_results_do_not_depend_on_how_ops_are_ordered() -> None:
    losses = []
    for mode in ("Disable", "SpeedFirst", "MemoryFirst", "OverlapCpuGpu", "DelayShortGpu"):
        model = make_model()
        graph = Train(model, (SGD(model.parameters(), lr=0.1), None), pieces=2)
        graph.config.enable_straighten_algorithm(mode)
        losses.append([graph_step(graph, i) for i in range(3)])
    assert all(other == losses[0] for other in losses)


def test_weights_before_and_after_the_update() -> None:
    layer = nn.Linear(6, 3)

    class Shows(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer
            self.add_optimizer(SGD(layer.parameters(), lr=1.0))

        def build(self, x: Any) -> Any:
            loss = self.layer(x).sum()
            loss.backward()
            return self.layer.weight, self.layer.weight.grad

    before = layer.weight.numpy().copy()
    weight, grad = Shows()(flow.tensor(X[0]))
    np.testing.assert_allclose(grad.numpy(), np.tile(X[0].sum(0), (3, 1)), rtol=1e-5)
    np.testing.assert_allclose(weight.numpy(), before - grad.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(weight.numpy(), layer.weight.numpy())


# ---- dropout -------------------------------------------------------------------------------------


def test_no_dropout_after_eval() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).eval()
    out = Predict(model)(flow.tensor(X[0]))
    np.testing.assert_array_equal(out.numpy(), model[0](flow.tensor(X[0])).numpy())


# ---- states --------------------------------------------------------------------------------------


def through_a_file(folder: Path) -> Callable[[Any], Any]:
    def keep(state: Any) -> Any:
        flow.save(state, folder / "state")
        return flow.load(folder / "state")

    return keep


@pytest.mark.parametrize("kept", ["in memory", "in a file"])
def test_a_resumed_training_gives_the_same_bits(kept: str, tmp_path: Path) -> None:
    keep = copy.deepcopy if kept == "in memory" else through_a_file(tmp_path)

    def make() -> Train:
        model = make_model(drop=0.3)
        optimizer = Adam(model.parameters(), lr=0.05)
        schedule = CosineAnnealingLR(optimizer, T_max=STEPS)
        return Train(model, (optimizer, schedule))

    graph = make()
    losses = [graph_step(graph, i) for i in range(3)]
    state = keep(graph.state_dict())
    losses += [graph_step(graph, i) for i in range(3, STEPS)]
    again = make()
    again.load_state_dict(state)
    assert [graph_step(again, i) for i in range(3, STEPS)] == losses[3:]
    assert again.state_dict()["System-Train-TrainStep"].item() == STEPS
    with pytest.raises(OneFlowError, match="before the graph's first call"):
        again.load_state_dict(state)


OLD_NAMES = {
    "Adam": {"exp_avg": "m", "exp_avg_sq": "v", "max_exp_avg_sq": "max_v"},
    "SGD": {"momentum_buffer": "momentum"},
    "Adadelta": {"square_avg": "square_avgs", "acc_delta": "acc_deltas"},
    "RMSprop": {"square_avg": "mean_square", "grad_avg": "mean_gradient"},
}
OLD_OPTIONS: dict[str, dict[str, Any]] = {
    "Adam": {"amsgrad": True},
    "SGD": {"momentum": 0.9},
    "RMSprop": {"centered": True},
}


@pytest.mark.parametrize("name", OLD_NAMES)
def test_states_under_the_names_of_oneflow_are_read(name: str) -> None:
    def make() -> Train:
        model = make_model()
        kind = getattr(flow.optim, name)
        return Train(model, (kind(model.parameters(), **OLD_OPTIONS.get(name, {})), None))

    first, second = make(), make()
    graph_step(first, 0)
    state = first.state_dict()
    old = {}
    for key, value in state.items():
        variable, dash, kept = key.rpartition("-")
        old[f"{variable}{dash}{OLD_NAMES[name].get(kept, kept)}"] = value
    assert set(old) != set(state)
    second.load_state_dict(old)
    assert graph_step(second, 1) == graph_step(first, 1)


def test_what_a_state_holds() -> None:
    model = make_model()
    graph = Train(model, (Adam(model.parameters(), lr=0.1), None))
    state = graph.state_dict()
    assert list(state["model"]) == list(model.state_dict())
    assert state["model.4.bias-exp_avg"].shape == (3,)
    assert state["System-Train-TrainStep"].dtype is flow.int64
    assert tuple(state["System-Train-TrainStep"].shape) == (1,)
    del state["model.4.bias-exp_avg"]
    state["more"] = flow.zeros(1)
    with pytest.raises(OneFlowError, match=r"missing \['model.4.bias-exp_avg'\], unexpected \['mo"):
        graph.load_state_dict(state)
    graph.load_state_dict(state, strict=False)


# ---- refusals ------------------------------------------------------------------------------------


def test_optimizers_that_do_not_fit() -> None:
    model, stranger = make_model(), nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="lr_scheduler doesn't match optimizer"):
        Train(model, (optimizer, StepLR(SGD(model.parameters(), lr=0.1), 1)))
    with pytest.raises(ValueError, match=r"model\.0\.weight is already bound to another optimizer"):
        Train(model, (optimizer, None), (SGD(model.parameters(), lr=0.1), None))
    with pytest.raises(ValueError, match=r"is not in the corresponding nn\.Graph/nn\.Module"):
        graph_step(Train(model, (SGD(stranger.parameters(), lr=0.1), None)), 0)
    with pytest.raises(TypeError, match="takes an Optimizer"):
        Train(model, ("sgd", None))
    graph = Train(model, (optimizer, None))
    assert graph.training and not Predict(model).training
    graph_step(graph, 0)
    with pytest.raises(OneFlowError, match="compiled already"):
        graph.add_optimizer(optimizer)


def test_only_a_scalar_has_a_backward_pass() -> None:
    model = make_model()

    class Vector(Train):
        def build(self, x: Any, y: Any) -> Any:
            self.model(x).backward()

    with pytest.raises(OneFlowError, match="only for scalar outputs"):
        graph_step(Vector(model, (SGD(model.parameters(), lr=0.1), None)), 0)
    assert all(p.grad is None for p in model.parameters())


def test_the_gradient_of_a_change_of_hierarchy_comes_back_in_the_old_one() -> None:
    line, grid = flow.placement("cpu", [0]), flow.placement("cpu", [[0]])
    broadcast = flow.sbp.broadcast
    w = flow.nn.Parameter(flow.ones(3, 3, placement=line, sbp=broadcast))

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.holder = flow.nn.Module()
            self.holder.w = w
            self.add_optimizer(flow.optim.SGD([w], lr=0.1))

        def build(self, x: flow.Tensor) -> flow.Tensor:
            y = (x @ self.holder.w).to_global(grid, [broadcast, broadcast])
            loss = y.square().sum()
            loss.backward()
            return loss

    x = np.arange(6, dtype=np.float64).reshape(2, 3)
    loss = Train()(flow.tensor(x.astype(np.float32), placement=line, sbp=broadcast))
    y = x @ np.ones((3, 3))
    np.testing.assert_allclose(loss.numpy(), np.square(y).sum(), rtol=1e-6)
    np.testing.assert_allclose(w.numpy(), 1 - 0.1 * x.T @ (2 * y), rtol=1e-5)


def test_a_sparse_optimizer_says_that_gradients_are_dense() -> None:
    model = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match=r"is_sparse=True\) changes nothing here"):
        nn.Graph().add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1), is_sparse=True)
