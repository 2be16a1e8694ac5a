"""Prints of tensors: as PyTorch prints the same values, with our own parts behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.tensor.number_text import PrintOptions, array_text

ALONE = flow.placement("cpu", [0])
RANDOM = np.random.default_rng(0)
VALUES: list[Any] = [
    np.float32([0.5, 0.25]),
    np.float32([1, 2]),
    np.float32([0, 0]),
    np.float32(2.5),
    np.int64(3),
    np.array([True, False]),
    np.float32([1e-9, 1]),
    np.float32([1.5, 20000]),
    np.float32([1, 20000]),
    np.float32([1e9]),
    np.float32([np.nan, np.inf, 1]),
    np.float32([np.nan]),
    np.array([1 + 2j, 3.5 - 1j], np.complex64),
    np.int8([-5, 100]),
    np.arange(40) * 1.5,
    np.arange(2000),
    np.zeros((40, 40), bool),
    RANDOM.standard_normal((2, 3, 4)),
    RANDOM.standard_normal((12, 13, 14)),
    RANDOM.standard_normal((2, 700)),
    RANDOM.standard_normal((30, 40)).astype(np.float32),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"precision": 2},
    {"sci_mode": False},
    {"profile": "short"},
    {"linewidth": 40},
    {"threshold": 10, "edgeitems": 2},
]


@pytest.fixture(autouse=True)
def default_options() -> Iterator[None]:
    yield
    flow.set_printoptions(profile="default")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_numbers_look_as_in_torch(options: dict[str, Any]) -> None:
    import torch

    flow.set_printoptions(**options)
    torch.set_printoptions(**options)
    try:
        for values in VALUES:
            theirs = re.sub(r",\s*dtype=torch\.\w+", "", repr(torch.tensor(values)))
            ours = re.sub(r",\s*dtype=oneflow\.\w+", "", repr(flow.tensor(values)))
            assert ours == theirs
    finally:
        torch.set_printoptions(profile="default")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: flow.tensor([1.0, 2.5]), "tensor([1.0000, 2.5000], dtype=oneflow.float32)"),
        (lambda: flow.tensor(True), "tensor(True, dtype=oneflow.bool)"),
        (lambda: flow.ones(0, 3), "tensor([], size=(0, 3), dtype=oneflow.float32)"),
        (
            lambda: flow.tensor([1.5], dtype=flow.bfloat16),
            "tensor([1.5000], dtype=oneflow.bfloat16)",
        ),
        (
            lambda: flow.arange(5000),
            "tensor([   0,    1,    2,  ..., 4997, 4998, 4999], dtype=oneflow.int64)",
        ),
        (
            lambda: flow.ones(1, requires_grad=True),
            "tensor([1.], dtype=oneflow.float32, requires_grad=True)",
        ),
        (
            lambda: flow.ones(1, requires_grad=True) + flow.ones(1),
            "tensor([2.], dtype=oneflow.float32, grad_fn=<add_backward>)",
        ),
        (
            lambda: flow.ones(1, placement=ALONE, sbp=flow.sbp.broadcast, requires_grad=True),
            'tensor([1.], placement=oneflow.placement(type="cpu", ranks=[0]), '
            "sbp=(oneflow.sbp.broadcast,), dtype=oneflow.float32, requires_grad=True)",
        ),
    ],
)
def test_what_follows_the_numbers(made: Any, text: str) -> None:
    assert re.sub(r"\n +", " ", repr(made())) == text


def test_the_middle_of_a_large_tensor_is_neither_read_nor_shown(rng: np.random.Generator) -> None:
    whole = rng.standard_normal((50, 60)).astype(np.float32)
    edges = whole[np.ix_([0, 1, 2, 47, 48, 49], [0, 1, 2, 57, 58, 59])]
    text = array_text(edges, (50, 60), PrintOptions(), 7)
    for sbp in (flow.sbp.split(1), flow.sbp.partial_sum):
        x = flow.tensor(whole, placement=ALONE, sbp=sbp)
        assert repr(x).startswith(f"tensor({text},")
    assert repr(flow.tensor(whole)).startswith(f"tensor({text},")
    assert text.count("...") == 7


def test_a_value_of_a_graph_shows_no_numbers() -> None:
    texts: list[str] = []

    class Look(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            texts.append(repr(x))
            return x + 1

    Look()(flow.ones(2))
    assert texts == ["tensor(..., is_lazy='True', size=(2,), dtype=oneflow.float32)"]


def test_an_unknown_profile_changes_nothing() -> None:
    before = repr(flow.arange(2000) / 3)
    flow.set_printoptions(profile="long")
    assert repr(flow.arange(2000) / 3) == before
