"""Averaged weights: plain means, statistics made anew, and the schedule that goes with them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from oneflow import nn
from oneflow.optim import SGD
from oneflow.optim.swa_utils import SWALR, AveragedModel, update_bn
from oneflow.tensor.tensor import wrap


def test_weights_are_the_mean_of_those_seen(rng: np.random.Generator) -> None:
    model = nn.Linear(2, 3)
    averaged = AveragedModel(model)
    seen = []
    for _ in range(3):
        model.weight.data[...] = rng.normal(size=(3, 2))
        seen.append(model.weight.numpy().copy())
        averaged.update_parameters(model)
    np.testing.assert_allclose(averaged.module.weight.numpy(), np.mean(seen, 0), rtol=1e-5)
    assert averaged.n_averaged.item() == 3
    x = wrap(np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(averaged(x).detach().numpy(), averaged.module(x).detach().numpy())


def test_another_mean_may_be_given() -> None:
    model = nn.Linear(1, 1, bias=False)
    averaged = AveragedModel(model, avg_fn=lambda own, new, count: own * 0.5 + new * 0.5)
    for value in (4.0, 8.0):
        model.weight.data[...] = value
        averaged.update_parameters(model)
    assert averaged.module.weight.item() == 6.0


def test_statistics_are_those_of_one_pass(rng: np.random.Generator) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2, momentum=0.3)).double().eval()
    data = rng.normal(size=(4, 5, 2), loc=3.0)
    update_bn([(wrap(x), None) for x in data], model)
    np.testing.assert_allclose(model[0].running_mean.numpy(), data.mean((0, 1)), rtol=1e-9)
    variances = data.var(1, ddof=1).mean(0)
    np.testing.assert_allclose(model[0].running_var.numpy(), variances, rtol=1e-9)
    assert model[0].momentum == 0.3 and not model.training


@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_rates_go_to_the_swa_rate(strategy: str) -> None:
    optimizer = SGD([wrap(np.zeros(1), requires_grad=True)], lr=0.5)
    schedule = SWALR(optimizer, 0.1, 4, strategy)
    for step in range(6):
        done = min(1.0, step / 4)
        done = (1 - math.cos(math.pi * done)) / 2 if strategy == "cos" else done
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 - 0.4 * done)
        schedule.step()
    with pytest.raises(ValueError, match="cos"):
        SWALR(optimizer, 0.1, anneal_strategy="step")
