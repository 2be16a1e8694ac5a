"""A parameter group that is added while a schedule runs, beside PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import oneflow as flow

SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "StepLR": lambda s, o: s.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [1, 3], 0.5),
    "ConstantLR": lambda s, o: s.ConstantLR(o, total_iters=3),
    "LinearLR": lambda s, o: s.LinearLR(o, total_iters=6),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 10, 0.01),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, total_iters=10),
    "ReduceLROnPlateau": lambda s, o: s.ReduceLROnPlateau(o, patience=0),
}


def _rates(library: Any, name: str, joins: int) -> list[list[float]]:
    """The rates of the steps after a second group has joined."""
    first, second = (library.nn.Parameter(library.ones(1)) for _ in range(2))
    optimizer = library.optim.SGD([first], lr=0.1, momentum=0.9)
    schedule = SCHEDULES[name](library.optim.lr_scheduler, optimizer)
    measured = [1.0] * (name == "ReduceLROnPlateau")
    found = []
    for step in range(6):
        if step == joins:
            optimizer.add_param_group({"params": [second], "lr": 1.0})
        optimizer.step()
        schedule.step(*measured)
        if step >= joins:
            found.append([float(group["lr"]) for group in optimizer.param_groups])
    return found


@pytest.mark.parametrize("joins", [0, 1, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_added_group_follows_the_schedule_as_in_pytorch(name: str, joins: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps without gradients
        expected = _rates(torch, name, joins)
    for got, wanted in zip(_rates(flow, name, joins), expected, strict=True):
        assert got == pytest.approx(wanted)


schedules = flow.optim.lr_scheduler
OTHERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: schedules.MultiplicativeLR(o, lambda step: 0.9),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 4),
    "CosineDecayLR": lambda o: schedules.CosineDecayLR(o, 8),
    "WarmupLR": lambda o: schedules.WarmupLR(schedules.ExponentialLR(o, 0.9), warmup_iters=2),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o, [schedules.ConstantLR(o, 0.5, 2), schedules.LambdaLR(o, lambda step: 0.9**step)], [2]
    ),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, 0.5, 2), schedules.LambdaLR(o, lambda step: 0.9**step)]
    ),
}


@pytest.mark.parametrize("joins", [1, 3])
@pytest.mark.parametrize("name", OTHERS)
def test_groups_of_equal_rates_stay_equal(name: str, joins: int) -> None:
    """PyTorch breaks off at these; here they go by the rule of the others."""
    optimizer = flow.optim.SGD([flow.nn.Parameter(flow.ones(1))], lr=0.1)
    schedule = OTHERS[name](optimizer)
    for step in range(6):
        if step == joins:
            rate = optimizer.param_groups[0]["lr"]
            optimizer.add_param_group({"params": [flow.nn.Parameter(flow.ones(1))], "lr": rate})
        optimizer.step()
        schedule.step()
        if step >= joins:
            one, other = (group["lr"] for group in optimizer.param_groups)
            assert other == pytest.approx(one)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: schedules.CyclicLR(o, 0.1, 1.0, 2, max_momentum=0.95),
        lambda o: schedules.OneCycleLR(o, 1.0, 8),
        lambda o: flow.optim.swa_utils.SWALR(o, 0.05, 4),
    ],
    ids=["CyclicLR", "OneCycleLR", "SWALR"],
)
def test_added_group_gets_the_ends_that_all_have(make: Callable[[Any], Any]) -> None:
    optimizer = flow.optim.SGD([flow.nn.Parameter(flow.ones(1))], lr=0.1, momentum=0.9)
    schedule = make(optimizer)
    schedule.step()
    rate = optimizer.param_groups[0]["lr"]
    optimizer.add_param_group({"params": [flow.nn.Parameter(flow.ones(1))], "lr": rate})
    for _ in range(5):
        optimizer.step()
        schedule.step()
        one, other = optimizer.param_groups
        assert other["lr"] == pytest.approx(one["lr"])
        assert other["momentum"] == pytest.approx(one["momentum"])


def test_values_given_by_group_are_asked_for() -> None:
    optimizer = flow.optim.SGD([flow.nn.Parameter(flow.ones(1))], lr=0.1)
    schedule = schedules.LambdaLR(optimizer, [lambda step: 0.5])
    optimizer.add_param_group({"params": [flow.nn.Parameter(flow.ones(1))], "lr": 1.0})
    with pytest.raises(ValueError, match="Expected 2 lr_lambdas, but got 1"):
        schedule.step()
    schedule.lr_lambdas.append(lambda step: 0.25)
    schedule.step()
    assert schedule.get_last_lr() == pytest.approx([0.05, 1.0])


def test_schedule_as_in_pytorch_gets_the_base_of_the_new_group() -> None:
    class Halving(schedules.LRScheduler):
        def get_lr(self) -> list[float]:  # type: ignore[override]
            return [base * 0.5**self.last_epoch for base in self.base_lrs]

    optimizer = flow.optim.SGD([flow.nn.Parameter(flow.ones(1))], lr=0.1)
    schedule = Halving(optimizer)
    optimizer.add_param_group({"params": [flow.nn.Parameter(flow.ones(1))], "lr": 1.0})
    schedule.step()
    assert schedule.get_last_lr() == pytest.approx([0.05, 0.5])


@pytest.mark.parametrize("epochs", [1.7, -1, None, "3"])
def test_swalr_refuses_epochs_that_are_no_count(epochs: Any) -> None:
    optimizer = flow.optim.SGD([flow.nn.Parameter(flow.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="anneal_epochs must be an integer"):
        flow.optim.swa_utils.SWALR(optimizer, 0.05, epochs)
