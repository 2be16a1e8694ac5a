"""Schedules: published closed forms, torch where it is installed, and going on from a state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from oneflow.optim import SGD, lr_scheduler
from oneflow.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CosineDecayLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
    WarmUpLR,
)
from oneflow.tensor.tensor import wrap

STEPS = 30
BASE = 0.5


def sgd(*lrs: float) -> SGD:
    groups = [
        {"params": [wrap(np.zeros(2, np.float32), requires_grad=True)], "lr": lr}
        for lr in lrs or (BASE,)
    ]
    return SGD(groups)


def run(scheduler: Any, steps: int = STEPS) -> list[float]:
    """The rates in force at steps 0 ... steps - 1 of the first group."""
    rates = []
    for _ in range(steps):
        rates.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.step()
    return rates


def poly(step: int, length: int, end: float, power: float, cycle: bool) -> float:
    if cycle and step == 0:
        step = 1  # as in upstream
    if cycle:
        length *= max(1, -(-step // length))
    return (BASE - end) * (1 - min(step, length) / length) ** power + end


def restarts(step: int) -> float:
    """T_0 = 4, T_mult = 2, decay 0.5, eta_min 0.01: cycles begin at steps 0, 4, 12, 28."""
    start, length, top = next(
        (s, n, t)
        for s, n, t in ((28, 32, 1 / 8), (12, 16, 1 / 4), (4, 8, 1 / 2), (0, 4, 1))
        if step >= s
    )
    return 0.01 + (BASE * top - 0.01) * (1 + math.cos(math.pi * (step - start) / length)) / 2


CLOSED_FORMS = [
    (lambda o: StepLR(o, 7, 0.5), lambda t: BASE * 0.5 ** (t // 7)),
    (
        lambda o: MultiStepLR(o, [3, 10, 11], 0.1),
        lambda t: BASE * 0.1 ** sum(t >= m for m in (3, 10, 11)),
    ),
    (lambda o: ExponentialLR(o, 0.9), lambda t: BASE * 0.9**t),
    (lambda o: ConstantLR(o, 0.25, 6), lambda t: BASE * (0.25 if t < 6 else 1)),
    (lambda o: LinearLR(o, 0.2, 0.8, 10), lambda t: BASE * (0.2 + 0.06 * min(t, 10))),
    (
        lambda o: CosineDecayLR(o, 20, 0.1),
        lambda t: BASE * (0.9 * (1 + math.cos(math.pi * min(t, 20) / 20)) / 2 + 0.1),
    ),
    (
        lambda o: CosineAnnealingLR(o, 12, 0.05),
        lambda t: 0.05 + (BASE - 0.05) * (1 + math.cos(math.pi * t / 12)) / 2,
    ),
    (lambda o: CosineAnnealingWarmRestarts(o, 4, 2, 0.01, 0.5), restarts),
    (
        lambda o: CosineAnnealingWarmRestarts(o, 5, 1, 0.0, 1.0, restart_limit=2),
        lambda t: BASE * (1 + math.cos(math.pi * (t % 5) / 5)) / 2 if t < 10 else 0.0,
    ),
    (lambda o: PolynomialLR(o, 10, 0.01, 2.0), lambda t: poly(t, 10, 0.01, 2.0, False)),
    (
        lambda o: PolynomialLR(o, steps=10, end_learning_rate=0.01, power=2.0),
        lambda t: poly(t, 10, 0.01, 2.0, False),
    ),
    (lambda o: PolynomialLR(o, 10, 0.01, 2.0, True), lambda t: poly(t, 10, 0.01, 2.0, True)),
    (lambda o: LambdaLR(o, lambda t: 1 / (t + 1)), lambda t: BASE / (t + 1)),
    (lambda o: MultiplicativeLR(o, lambda t: t / (t + 1)), lambda t: BASE / (t + 1)),
    (
        lambda o: ChainedScheduler([ConstantLR(o, 0.1, 4), ExponentialLR(o, 0.9)]),
        lambda t: BASE * (0.1 if t < 4 else 1) * 0.9**t,
    ),
    (
        lambda o: SequentialLR(o, [ConstantLR(o, 0.1, 100), ExponentialLR(o, 0.9)], [5]),
        lambda t: BASE * (0.1 if t < 5 else 0.9**t),
    ),
    (
        lambda o: SequentialLR(o, [ConstantLR(o, 0.1, 100), ExponentialLR(o, 0.9)], [5], True),
        lambda t: BASE * (0.1 if t < 5 else 0.9 ** (t - 5)),
    ),
    (lambda o: WarmUpLR(o, 0.2, 8), lambda t: BASE * (0.2 + 0.1 * min(t, 8))),
    (lambda o: WarmUpLR(o, 0.2, 8, "constant"), lambda t: BASE * (0.2 if t < 8 else 1)),
    (
        lambda o: WarmUpLR(ExponentialLR(o, 0.9), 0.2, 8),
        lambda t: BASE * (0.2 + (0.9**8 - 0.2) * t / 8 if t < 8 else 0.9**t),
    ),
    (
        lambda o: WarmUpLR(ExponentialLR(o, 0.9), 0.2, 8, warmup_prefix=True),
        lambda t: BASE * (0.2 + 0.8 * t / 8 if t < 8 else 0.9 ** (t - 8)),
    ),
    (lambda o: WarmUpLR(StepLR(o, 3), 0.2, 0), lambda t: BASE * 0.1 ** (t // 3)),
]


@pytest.mark.parametrize(("make", "formula"), CLOSED_FORMS)
def test_rates_follow_the_closed_form(make: Any, formula: Any) -> None:
    scheduler = make(sgd())
    np.testing.assert_allclose(
        run(scheduler), [formula(t) for t in range(STEPS)], rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize(("make", "formula"), CLOSED_FORMS)
def test_get_lr_needs_no_stepping(make: Any, formula: Any) -> None:
    scheduler = make(sgd())
    for step in (17, 3, 29):
        assert scheduler.get_lr(BASE, step) == pytest.approx(formula(step))
        assert scheduler.group_lr(0, step) == pytest.approx(formula(step))


@pytest.mark.parametrize(("make", "formula"), CLOSED_FORMS)
def test_a_loaded_state_goes_on_where_it_was(make: Any, formula: Any) -> None:
    first = make(sgd())
    run(first, 9)
    second = make(sgd())
    second.load_state_dict(first.state_dict())
    second.step()
    assert second.get_last_lr() == [pytest.approx(formula(10))]


TORCH_PAIRS = [
    ("StepLR", {"step_size": 7, "gamma": 0.5}, {}),
    ("MultiStepLR", {"milestones": [3, 10]}, {}),
    ("ExponentialLR", {"gamma": 0.9}, {}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 6}, {}),
    ("LinearLR", {"start_factor": 0.2, "total_iters": 6}, {}),
    ("CosineAnnealingLR", {"T_max": 12, "eta_min": 0.05}, {}),
    ("CosineAnnealingWarmRestarts", {"T_0": 4, "T_mult": 2, "eta_min": 0.05}, {}),
    ("LambdaLR", {"lr_lambda": lambda t: 1 / (t + 1)}, {}),
    ("MultiplicativeLR", {"lr_lambda": lambda t: 0.95}, {}),
]


@pytest.mark.parametrize(("name", "kwargs", "_"), TORCH_PAIRS)
def test_rates_are_those_of_torch(name: str, kwargs: Any, _: Any) -> None:
    import torch

    other = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=BASE)
    theirs = getattr(torch.optim.lr_scheduler, name)(other, **kwargs)
    expected = []
    for _ in range(STEPS):
        expected.append(other.param_groups[0]["lr"])
        other.step()
        theirs.step()
    ours = run(getattr(lr_scheduler, name)(sgd(), **kwargs))
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


def test_plateau_reduces_after_patience_waits_and_keeps_the_bound() -> None:
    optimizer = sgd()
    scheduler = ReduceLROnPlateau(optimizer, patience=1, factor=0.1, cooldown=1, min_lr=0.01)
    rates = []
    for loss in (1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5):
        scheduler.step(loss)
        rates.append(optimizer.param_groups[0]["lr"])
    # bad steps: 3rd and 4th -> reduce; one of cooldown; two bad -> reduce to the bound
    np.testing.assert_allclose(rates, [0.5] * 3 + [0.05] * 3 + [0.01] * 4)


def test_plateau_is_that_of_torch() -> None:
    import torch

    losses = np.random.default_rng(0).normal(size=60).cumsum()
    for kwargs in ({}, {"mode": "max", "threshold_mode": "abs"}, {"cooldown": 3, "factor": 0.5}):
        theirs_optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=BASE)
        theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs_optimizer, patience=2, **kwargs)
        optimizer = sgd()
        ours = ReduceLROnPlateau(optimizer, patience=2, **kwargs)
        for loss in losses:
            theirs.step(loss)
            ours.step(loss)
            assert optimizer.param_groups[0]["lr"] == pytest.approx(
                theirs_optimizer.param_groups[0]["lr"]
            )


def test_groups_have_their_own_rates_functions_and_scales() -> None:
    optimizer = sgd(0.5, 0.1)
    optimizer.param_groups[1]["lr_scale"] = 2.0
    scheduler = LambdaLR(optimizer, [lambda t: 1.0, lambda t: 0.5**t])
    scheduler.step()
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.1]
    assert scheduler.group_lr(1, 1) == 0.05
    warm = WarmUpLR(scheduler, 0.5, 2)
    assert warm.group_lr(1, 2) == pytest.approx(0.1 * 0.25)


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match="takes decay_batch, or steps"):
        PolynomialLR(sgd(), 3, steps=3)
    with pytest.raises(TypeError, match="not an Optimizer"):
        StepLR(3, 1)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="initial_lr"):
        StepLR(sgd(), 1, last_step=3)
    with pytest.raises(ValueError, match="strictly increasing"):
        MultiStepLR(sgd(), [5, 5])
    with pytest.raises(ValueError, match="Expected 1 lr_lambdas"):
        LambdaLR(sgd(), [abs, abs])
    with pytest.raises(ValueError, match="one more than the number of milestones"):
        SequentialLR(sgd(), [], [])
    with pytest.raises(ValueError, match="linear"):
        WarmUpLR(sgd(), warmup_method="cubic")
    with pytest.raises(ValueError, match="same optimizer"):
        ChainedScheduler([StepLR(sgd(), 1), StepLR(sgd(), 1)])
