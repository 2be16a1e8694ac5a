"""Schedules beside PyTorch's over 50 steps: rates, momenta, and states of either."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow.optim as ours
import oneflow.optim.swa_utils
from oneflow import nn
from oneflow.core.errors import GraphError
from oneflow.nn.parameter import Parameter
from oneflow.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR
from oneflow.tensor.tensor import wrap

theirs = torch.optim

STEPS = 50
RATES = (0.5, 0.1)


def _optimizer(lib: Any, name: str = "SGD", **kwargs: Any) -> Any:
    def param() -> Any:
        return Parameter(wrap(np.zeros(2))) if lib is ours else torch.zeros(2, requires_grad=True)

    groups = [{"params": [param()], "lr": lr} for lr in RATES]
    return getattr(lib, name)(groups, **kwargs)


SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "step": lambda s, o: s.StepLR(o, 7, 0.5),
    "multistep": lambda s, o: s.MultiStepLR(o, [3, 10, 40]),
    "constant": lambda s, o: s.ConstantLR(o, 0.25, 6),
    "linear": lambda s, o: s.LinearLR(o, 0.2, 0.7, 30),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.9),
    "polynomial": lambda s, o: s.PolynomialLR(o, total_iters=20, power=2.0),
    "polynomial, default": lambda s, o: s.PolynomialLR(o),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, 12, 0.05),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 4, 2, 0.05),
    "lambda": lambda s, o: s.LambdaLR(o, [lambda t: 1 / (t + 1), lambda t: 0.9**t]),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda t: 0.95),
    "triangular": lambda s, o: s.CyclicLR(o, 0.01, [1.0, 2.0], 7, 5),
    "triangular2": lambda s, o: s.CyclicLR(o, 0.01, 1.0, 8, mode="triangular2"),
    "exp_range": lambda s, o: s.CyclicLR(o, 0.01, 1.0, 8, mode="exp_range", gamma=0.97),
    "scale_fn": lambda s, o: s.CyclicLR(
        o, 0.01, 1.0, 8, scale_fn=lambda x: 1 / x, scale_mode="cycle", base_momentum=0.6
    ),
    "one cycle": lambda s, o: s.OneCycleLR(o, [1.0, 2.0], total_steps=STEPS),
    "one cycle, linear": lambda s, o: s.OneCycleLR(
        o, 1.0, epochs=10, steps_per_epoch=6, anneal_strategy="linear", pct_start=0.4
    ),
    "one cycle, three phases": lambda s, o: s.OneCycleLR(o, 1.0, STEPS, three_phase=True),
    "chained": lambda s, o: s.ChainedScheduler(
        [s.ConstantLR(o, 0.1, 4), s.LambdaLR(o, [lambda t: 0.9**t, lambda t: 0.8**t])]
        if s is ours.lr_scheduler
        else [s.ConstantLR(o, 0.1, 4), s.MultiplicativeLR(o, [lambda t: 0.9, lambda t: 0.8])]
    ),
    "sequential": lambda s, o: s.SequentialLR(
        o,
        [s.LinearLR(o, 0.1, total_iters=5), s.CosineAnnealingLR(o, 20), s.ExponentialLR(o, 0.9)],
        [5, 25],
        **({"interval_rescaling": True} if s is ours.lr_scheduler else {}),
    ),
    "averaging": lambda s, o: (
        oneflow.optim.swa_utils if s is ours.lr_scheduler else torch.optim.swa_utils
    ).SWALR(o, [0.05, 0.3], 20),
}


def _followed(lib: Any, name: str, optimizer: Any, schedule: Any, steps: int) -> list[Any]:
    """[rates of all groups, momenta] at each step."""
    seen = []
    for _ in range(steps):
        momenta = [g.get("betas", (g.get("momentum"),))[0] for g in optimizer.param_groups]
        assert schedule.get_last_lr() == [g["lr"] for g in optimizer.param_groups]
        seen.append([*schedule.get_last_lr(), *momenta])
        optimizer.step()
        schedule.step()
    return seen


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_torch(name: str, optimizer: str) -> None:
    kwargs = {"momentum": 0.7} if optimizer == "SGD" else {}
    followed = []
    for lib in (ours, theirs):
        made = _optimizer(lib, optimizer, **kwargs)
        schedule = SCHEDULES[name](lib.lr_scheduler, made)
        followed.append(_followed(lib, name, made, schedule, STEPS))
    np.testing.assert_allclose(*map(np.array, followed), rtol=1e-9, atol=1e-12)


OWN_STATE = ("chained", "sequential", "averaging")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [n for n in SCHEDULES if n not in OWN_STATE])
def test_torchs_states_are_taken(name: str) -> None:
    other, mine = _optimizer(theirs, momentum=0.9), _optimizer(ours, momentum=0.9)
    its = SCHEDULES[name](theirs.lr_scheduler, other)
    own = SCHEDULES[name](ours.lr_scheduler, mine)
    _followed(theirs, name, other, its, 9)
    saved = its.state_dict()
    own.load_state_dict(saved)
    assert own.last_epoch == its.last_epoch and own.state_dict()["_step_count"] == 10
    own.step()
    other.step()
    its.step()
    np.testing.assert_allclose(own.get_last_lr(), its.get_last_lr(), rtol=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_restarts_may_be_stepped_by_fractions() -> None:
    found = []
    for lib in (ours, theirs):
        schedule = lib.lr_scheduler.CosineAnnealingWarmRestarts(_optimizer(lib), 4)
        rates = []
        for epoch in (0.25, 0.5, 3.75, 4.25, 9.0):
            schedule.step(epoch)
            rates.append(schedule.get_last_lr())
        found.append((rates, schedule.last_epoch))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
    assert found[0][1] == found[1][1] == 9


def test_swa_rates_begin_where_another_schedule_left() -> None:
    found = []
    for lib, swa in ((ours, oneflow.optim.swa_utils), (theirs, torch.optim.swa_utils)):
        optimizer = _optimizer(lib)
        first = lib.lr_scheduler.ExponentialLR(optimizer, 0.9)
        second = swa.SWALR(optimizer, 0.05, 5, "linear")
        rates = []
        for step in range(15):
            optimizer.step()
            (second if step > 5 else first).step()
            rates.append([g["lr"] for g in optimizer.param_groups])
        found.append(rates)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"mode": "max", "threshold_mode": "abs"}, {"cooldown": 3, "min_lr": [0.1, 0.0]}],
)
def test_plateau_goes_on_from_torchs_state(kwargs: Any) -> None:
    losses = np.random.default_rng(0).normal(size=STEPS).cumsum()
    made = []
    for lib in (ours, theirs):
        optimizer = _optimizer(lib)
        made.append(lib.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, **kwargs))
    for loss in losses[:20]:
        made[1].step(loss)
    made[0].load_state_dict(made[1].state_dict())
    for mine, other in zip(*(m.optimizer.param_groups for m in made), strict=True):
        mine["lr"] = other["lr"]
    for loss in losses[20:]:
        for schedule in made:
            schedule.step(loss)
        assert made[0].get_last_lr() == pytest.approx(made[1].get_last_lr())
        assert made[0].num_bad_epochs == made[1].num_bad_epochs
    saved = made[0].state_dict()
    assert saved["last_epoch"] == STEPS and saved["best"] == made[1].best


class Halved(LRScheduler):
    """A schedule as people write them for PyTorch."""

    def get_lr(self) -> Any:  # type: ignore[override]
        return [base * 0.5**self.last_epoch for base in self.base_lrs]


def test_a_schedule_written_for_torch_runs() -> None:
    optimizer = _optimizer(ours)
    schedule = Halved(optimizer, last_epoch=-1)
    schedule.step()
    assert schedule.get_last_lr() == [0.25, 0.05]
    assert schedule.group_lr(1, 3) == pytest.approx(0.0125) and schedule.last_epoch == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SCHEDULES)
def test_get_lr_without_arguments_gives_all_rates(name: str) -> None:
    """PyTorch's form, by which packages ask schedules, and subclasses call their bases."""
    made, other = _optimizer(ours, momentum=0.7), _optimizer(theirs, momentum=0.7)
    schedule = SCHEDULES[name](ours.lr_scheduler, made)
    assert schedule.get_lr() == schedule.get_last_lr()

    class Asking(type(schedule)):  # type: ignore[misc]
        def get_lr(self) -> Any:
            return super().get_lr()

    schedule.__class__ = Asking
    found = _followed(ours, name, made, schedule, STEPS)
    wanted = _followed(theirs, name, other, SCHEDULES[name](theirs.lr_scheduler, other), STEPS)
    rates = [np.array(rows)[:, :2] for rows in (found, wanted)]
    np.testing.assert_allclose(*rates, rtol=1e-9, atol=1e-12)


def test_a_rate_that_is_a_tensor_is_filled() -> None:
    rate = wrap(np.array(0.5))
    optimizer = ours.SGD([Parameter(wrap(np.zeros(2)))], lr=rate)
    schedule = ours.lr_scheduler.ExponentialLR(optimizer, 0.5)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.25


def test_graphs_follow_the_momentum_where_they_can() -> None:
    model = nn.Linear(2, 2)

    class Train(nn.Graph):
        def __init__(self, schedule: Any) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer, lr_sch=schedule)

        def build(self, x: Any) -> Any:
            loss = self.model(x).sum()
            loss.backward()
            return loss

    optimizer = ours.RMSprop(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match="of RMSprop that it was traced with; give cycle_mom"):
        Train(OneCycleLR(optimizer, 1.0, 10))
    for optimizer, message in (
        (ours.Adam(model.parameters(), amsgrad=True), "does not follow a schedule of beta1"),
        (
            ours.SGD(model.parameters(), momentum=0.9, dampening=0.1, dampens_first=False),
            "only if the first update is dampened, too, or none is",
        ),
    ):
        with pytest.raises(GraphError, match=message):
            Train(OneCycleLR(optimizer, 1.0, 10))(wrap(np.ones((1, 2), np.float32)))
    optimizer = ours.SGD(model.parameters(), lr=0.1, momentum=0.9)
    graph = Train(OneCycleLR(optimizer, 1.0, 10, cycle_momentum=False))
    other = ours.SGD([Parameter(wrap(np.zeros(2)))], lr=0.1, momentum=0.9)
    expected = OneCycleLR(other, 1.0, 10, cycle_momentum=False)
    weight = model.weight.numpy().astype(np.float64)
    moved = np.zeros_like(weight)
    for _ in range(4):
        graph(wrap(np.ones((1, 2), np.float32)))
        moved = 0.9 * moved + 1.0
        weight = weight - expected.get_last_lr()[0] * moved
        expected.step()
    np.testing.assert_allclose(model.weight.numpy(), weight, rtol=1e-4)


def test_mistakes_are_named() -> None:
    plain = ours.Adagrad([Parameter(wrap(np.zeros(2)))])
    for make, message in (
        (lambda: CyclicLR(plain, 0.1, 1.0), "must support momentum"),
        (lambda: CyclicLR(plain, 0.1, 1.0, mode="round"), "mode 'round' is invalid"),
        (lambda: OneCycleLR(plain, 1.0), "total_steps OR"),
        (lambda: OneCycleLR(plain, 1.0, 0), "positive integer total_steps"),
        (lambda: OneCycleLR(plain, [1.0, 1.0], 3), "Expected 1 max_lrs, but got 2"),
        (lambda: OneCycleLR(plain, 1.0, 3, pct_start=2.0), "pct_start"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    schedule = OneCycleLR(plain, 1.0, 2, cycle_momentum=False)
    schedule.step()
    schedule.step()
    with pytest.raises(ValueError, match="Tried to step 3 times"):
        schedule.step()


@pytest.mark.parametrize("name", ["get_ema_avg_fn", "get_swa_avg_fn"])
@pytest.mark.parametrize("multi", [False, True])
def test_averages_are_those_of_torch(name: str, multi: bool) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 3, 2)).astype(np.float32)
    name = name.replace("avg_fn", "multi_avg_fn") if multi else name
    keyword = "multi_avg_fn" if multi else "avg_fn"
    found = []
    for swa, layer, tensor in (
        (oneflow.optim.swa_utils, nn.Linear(2, 3, bias=False), wrap),
        (torch.optim.swa_utils, torch.nn.Linear(2, 3, bias=False), torch.tensor),
    ):
        averaged = swa.AveragedModel(layer, **{keyword: getattr(swa, name)()})
        for value in values:
            layer.weight.data.copy_(tensor(value))
            averaged.update_parameters(layer)
        found.append(averaged.module.weight.detach().numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-7)
    with warnings.catch_warnings(), pytest.raises(ValueError, match="decay"):
        oneflow.optim.swa_utils.get_ema_avg_fn(1.5)
