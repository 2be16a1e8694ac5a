"""Errors of public functions for arguments that are systematically wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from tests.parity.spoiled import FOREIGN, SPOILED, faults_in, samples

PARTS = 101
"""One call of this many is made here, most of the time for kernels of odd dtypes that nothing else
compiles; `python -m tests.parity.spoiled` makes all."""


def test_refusals_are_in_words_of_our_own() -> None:
    assert len(samples()) > 550 and len(SPOILED) % PARTS
    assert not (faults := faults_in(3, PARTS)), "\n".join(faults)


def test_words_of_others_are_known() -> None:
    for said in (
        "'numpy.int64' object is not iterable",
        "operands could not be broadcast together with shapes (2,) (3,)",
        "'NoneType' object has no attribute 'meta'",
        "zip() argument 2 is longer than argument 1",
    ):
        assert FOREIGN.search(said)
    assert not FOREIGN.search("exp(): argument 'input' (position 1) must be Tensor, not str")


def _as_numpys(value: Any, kind: type[np.generic]) -> Any:
    """Python's integers, in lists too, as NumPy's."""
    if type(value) is int and -100 < value < 100:
        return kind(value)
    if type(value) in (list, tuple):
        return type(value)(_as_numpys(v, kind) for v in value)
    return value


@pytest.mark.parametrize("kind", [np.int64, np.int8])
def test_numpys_integers_are_integers(kind: type[np.generic]) -> None:
    faults, asked = [], 0
    for sample in samples().values():
        args = _as_numpys(sample.args, kind)
        keywords = {key: _as_numpys(value, kind) for key, value in sample.keywords.items()}
        if repr((args, keywords)) == repr((sample.args, sample.keywords)):
            continue
        asked += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = sample.function(*sample.args, **sample.keywords)
            try:
                found = sample.function(*args, **keywords)
            except Exception as error:
                faults.append(f"{sample.name}: {type(error).__name__}: {error}")
                continue
        if sample.name == "tensor":
            continue  # of NumPy's dtype
        if isinstance(wanted, flow.Tensor) and found.meta != wanted.meta:
            faults.append(f"{sample.name}: {found.meta} instead of {wanted.meta}")
    assert not faults, "\n".join(faults)
    assert asked > 150


TWO = np.int64(2)

LAYERS: dict[str, Callable[[], Any]] = {
    "Conv2d": lambda: flow.nn.Conv2d(1, TWO, TWO, stride=TWO, padding=TWO)(flow.ones(1, 1, 8, 8)),
    "ConvTranspose2d": lambda: flow.nn.ConvTranspose2d(1, TWO, TWO)(flow.ones(1, 1, 4, 4)),
    "MaxPool2d": lambda: flow.nn.MaxPool2d(TWO)(flow.ones(1, 1, 4, 4)),
    "AvgPool1d": lambda: flow.nn.AvgPool1d(TWO)(flow.ones(1, 1, 4)),
    "AdaptiveAvgPool2d": lambda: flow.nn.AdaptiveAvgPool2d(TWO)(flow.ones(1, 1, 4, 4)),
    "ZeroPad2d": lambda: flow.nn.ZeroPad2d(TWO)(flow.ones(1, 1, 4, 4)),
    "LayerNorm": lambda: flow.nn.LayerNorm(TWO)(flow.ones(2, 2)),
    "GroupNorm": lambda: flow.nn.GroupNorm(TWO, TWO)(flow.ones(2, 2)),
    "BatchNorm1d": lambda: flow.nn.BatchNorm1d(TWO)(flow.ones(2, 2)),
    "Linear": lambda: flow.nn.Linear(TWO, TWO)(flow.ones(2, 2)),
    "Embedding": lambda: flow.nn.Embedding(TWO, TWO)(flow.tensor([1])),
    "LSTM": lambda: flow.nn.LSTM(TWO, TWO, TWO)(flow.ones(2, 2, 2))[0],
    "MultiheadAttention": lambda: flow.nn.MultiheadAttention(TWO, TWO)(*[flow.ones(2, 2, 2)] * 3)[
        0
    ],
    "PixelShuffle": lambda: flow.nn.PixelShuffle(TWO)(flow.ones(1, 4, 2, 2)),
    "Upsample": lambda: flow.nn.Upsample(scale_factor=TWO)(flow.ones(1, 1, 2, 2)),
    "Unfold": lambda: flow.nn.Unfold(TWO)(flow.ones(1, 1, 4, 4)),
    "Fold": lambda: flow.nn.Fold(TWO, TWO)(flow.ones(1, 4, 1)),
    "Flatten": lambda: flow.nn.Flatten(np.int64(1), TWO)(flow.ones(2, 2, 2)),
    "Unflatten": lambda: flow.nn.Unflatten(np.int64(1), (TWO, TWO))(flow.ones(2, 4)),
    "Softmax": lambda: flow.nn.Softmax(np.int64(1))(flow.ones(2, 2)),
    "new_zeros": lambda: flow.ones(1).new_zeros(TWO),
    "index": lambda: flow.ones(3)[TWO],
    "generator": lambda: flow.Generator().manual_seed(TWO),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_take_numpys_integers(name: str) -> None:
    assert LAYERS[name]() is not None
