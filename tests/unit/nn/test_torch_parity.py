"""Whole models, trained a few steps from the same weights, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oneflow import nn, optim
from oneflow.tensor.tensor import wrap

RNG = np.random.default_rng(0)
STEPS = 4


def mlp(lib: Any) -> Any:
    return lib.Sequential(lib.Linear(6, 8), lib.LayerNorm(8), lib.GELU(), lib.Linear(8, 3))


def cnn(lib: Any) -> Any:
    return lib.Sequential(
        lib.Conv2d(2, 4, 3, padding=1, bias=False),
        lib.BatchNorm2d(4),
        lib.ReLU(),
        lib.MaxPool2d(2),
        lib.Conv2d(4, 6, 3, 2, 1, groups=2),
        lib.GroupNorm(3, 6),
        lib.SiLU(),
        lib.AdaptiveAvgPool2d(1),
        lib.Flatten(),
        lib.Linear(6, 3),
    )


def words(lib: Any) -> Any:
    return lib.Sequential(lib.Embedding(9, 5, padding_idx=2), lib.Flatten(), lib.Linear(20, 3))


CASES = [
    (mlp, RNG.normal(size=(STEPS, 7, 6)), "AdamW"),
    (cnn, RNG.normal(size=(STEPS, 5, 2, 8, 8)), "SGD"),
    (words, RNG.integers(0, 9, size=(STEPS, 6, 4)), "Adam"),
]


@pytest.mark.parametrize(("make", "inputs", "name"), CASES)
def test_training_gives_the_same_losses_and_weights(
    make: Any, inputs: Any, name: str, rng: np.random.Generator
) -> None:
    theirs, ours = make(torch.nn).double(), make(nn).double()
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    options = {"lr": 0.05, "momentum": 0.9} if name == "SGD" else {"lr": 0.05, "weight_decay": 0.1}
    their_optimizer = getattr(torch.optim, name)(theirs.parameters(), **options)
    our_optimizer = getattr(optim, name)(ours.parameters(), **options)
    labels = rng.integers(0, 3, size=(STEPS, inputs.shape[1]))
    for x, y in zip(inputs, labels, strict=True):
        their_optimizer.zero_grad()
        their_loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)(
            theirs(torch.tensor(x)), torch.tensor(y)
        )
        their_loss.backward()
        their_optimizer.step()
        our_optimizer.zero_grad()
        our_loss = nn.CrossEntropyLoss(label_smoothing=0.1)(ours(wrap(x)), wrap(y))
        our_loss.backward()
        our_optimizer.step()
        assert our_loss.item() == pytest.approx(their_loss.item(), rel=1e-6)
    state = ours.state_dict()
    assert list(state) == list(theirs.state_dict())
    for key, value in theirs.state_dict().items():
        np.testing.assert_allclose(
            state[key].numpy(), value.numpy(), rtol=1e-4, atol=1e-6, err_msg=key
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda lib: lib.Linear(300, 200),
        lambda lib: lib.Conv2d(30, 40, 3),
        lambda lib: lib.ConvTranspose2d(40, 30, 3),
        lambda lib: lib.Embedding(200, 100),
    ],
)
def test_first_values_have_the_spread_of_torchs(make: Any) -> None:
    theirs, ours = make(torch.nn).state_dict(), make(nn).state_dict()
    for name, value in theirs.items():
        a, b = ours[name].numpy(), value.numpy()
        assert abs(a).max() == pytest.approx(abs(b).max(), rel=0.25)
        if a.size > 1000:
            assert a.std() == pytest.approx(b.std(), rel=0.05)
