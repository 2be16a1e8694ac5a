"""Sizes as NumPy arrays, lists of NumPy integers and of 0-d tensors, and flow.Size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn

FORMS: dict[str, Callable[[list[int]], Any]] = {
    "array": np.array,
    "NumPy integers": lambda given: tuple(map(np.int32, given)),
    "Size": flow.Size,
    "tensors": lambda given: list(map(flow.tensor, given)),
}
X = flow.ones(2, 3, 8, 8)
CALLS: dict[str, Callable[[Any], Any]] = {
    "LayerNorm": lambda s: nn.LayerNorm(s([8]))(X),
    "RMSNorm": lambda s: nn.RMSNorm(s([8, 8]))(X),
    "Conv2d": lambda s: nn.Conv2d(3, 4, s([3, 3]), s([1, 2]), s([1, 1]), s([1, 1]))(X),
    "ConvTranspose2d": lambda s: nn.ConvTranspose2d(3, 4, s([3, 3]), output_padding=s([0, 0]))(X),
    "MaxPool2d": lambda s: nn.MaxPool2d(s([2, 2]), stride=s([2, 1]))(X),
    "AvgPool2d": lambda s: nn.AvgPool2d(s([2, 2]))(X),
    "AdaptiveAvgPool2d": lambda s: nn.AdaptiveAvgPool2d(s([2, 3]))(X),
    "AdaptiveMaxPool2d": lambda s: nn.AdaptiveMaxPool2d(s([2, 3]))(X),
    "Upsample": lambda s: nn.Upsample(size=s([4, 4]))(X),
    "Unflatten": lambda s: nn.Unflatten(1, s([3, 1]))(X),
    "Fold": lambda s: nn.Fold(s([4, 4]), s([2, 2]))(flow.ones(1, 12, 9)),
    "Unfold": lambda s: nn.Unfold(s([2, 2]))(X),
    "ZeroPad2d": lambda s: nn.ZeroPad2d(s([1, 1, 1, 1]))(X),
    "ConstantPad2d": lambda s: nn.ConstantPad2d(s([1, 1, 1, 1]), 0.0)(X),
    "ReflectionPad2d": lambda s: nn.ReflectionPad2d(s([1, 1, 1, 1]))(X),
    "F.layer_norm": lambda s: F.layer_norm(X, s([8])),
    "F.interpolate": lambda s: F.interpolate(X, size=s([4, 4])),
    "F.pad": lambda s: F.pad(X, s([1, 1])),
    "fft.fft2": lambda s: flow.fft.fft2(X, s=s([4, 4])),
    "zeros": lambda s: flow.zeros(s([2, 3])),
    "reshape": lambda s: X.reshape(s([2, -1])),
    "view": lambda s: X.view(s([2, -1])),
    "expand": lambda s: X[:, :1].expand(s([2, 5, 8, 8])),
    "permute": lambda s: X.permute(s([0, 2, 3, 1])),
    "repeat": lambda s: X.repeat(s([1, 2, 1, 1])),
    "sum": lambda s: X.sum(s([0, 1])),
    "split": lambda s: X.split(s([1, 2]), 1)[0],
    "as_strided": lambda s: X.as_strided(s([2, 3]), s([3, 1])),
    "randint": lambda s: flow.randint(0, 5, s([2, 3])),
}


NO_ARRAYS = ("MaxPool2d", "AvgPool2d", "zeros", "view", "sum", "randint")
"""PyTorch takes none here, either."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CALLS)
def test_sizes_are_taken_in_every_form(name: str, form: str) -> None:
    if form == "array" and name in NO_ARRAYS:
        with pytest.raises((TypeError, ValueError)):
            CALLS[name](FORMS[form])
        return
    made, wanted = (CALLS[name](kind) for kind in (FORMS[form], tuple))
    assert made.shape == wanted.shape
    assert all(type(n) is int for n in made.shape)
