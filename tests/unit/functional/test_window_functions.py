"""Windows of signals, and functions that answer for numbers no formula gives, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import ArgumentError, AutogradError, CallError
from tests.parity.values import compare

NAMES = ("bartlett", "blackman", "cosine", "exponential", "gaussian", "hamming", "hann", "kaiser",
         "nuttall")  # fmt: skip
LENGTHS = (0, 1, 2, 7)


@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_windows_agree_with_torch(name: str, sym: bool) -> None:
    for length in LENGTHS:
        theirs = getattr(torch.signal.windows, name)(length, sym=sym, dtype=torch.float64)
        ours = getattr(flow.signal.windows, name)(length, sym=sym, dtype=flow.float64)
        compare(theirs, ours)


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", "kaiser"])
def test_older_windows_agree_with_torch(name: str) -> None:
    for length in LENGTHS:
        for periodic in (True, False):
            theirs = getattr(torch, f"{name}_window")(length, periodic)
            compare(theirs, getattr(flow, f"{name}_window")(length, periodic))


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("exponential", {"tau": 2.5, "center": 1.0, "sym": False}),
        ("gaussian", {"std": 0.7}),
        ("kaiser", {"beta": 3.0}),
        ("general_hamming", {"alpha": 0.6}),
        ("general_cosine", {"a": [0.5, 0.3, 0.2]}),
    ],
)
def test_shapes_of_windows_agree_with_torch(name: str, keywords: dict[str, Any]) -> None:
    for length in (1, 6):
        theirs = getattr(torch.signal.windows, name)(length, **keywords)
        compare(theirs, getattr(flow.signal.windows, name)(length, **keywords))


def test_windows_that_do_not_exist_are_refused() -> None:
    windows = flow.signal.windows
    with pytest.raises(ArgumentError, match="non-negative window length, got M=-1"):
        windows.hann(-1)
    with pytest.raises(ArgumentError, match="float32 or float64"):
        windows.hann(3, dtype=flow.int64)
    with pytest.raises(ArgumentError, match="Tau must be positive"):
        windows.exponential(3, tau=0)
    with pytest.raises(ArgumentError, match="Center must be None"):
        windows.exponential(3, center=1)
    with pytest.raises(ArgumentError, match="Standard deviation must be positive"):
        windows.gaussian(3, std=0)
    with pytest.raises(ArgumentError, match="beta must be non-negative"):
        windows.kaiser(3, beta=-1)
    with pytest.raises(CallError, match="must be a list/tuple"):
        windows.general_cosine(3, a=0.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="cannot be empty"):
        windows.general_cosine(3, a=[])


@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_incomplete_gamma_functions_agree_with_torch(name: str) -> None:
    ends = [0.0, 0.3, 1.0, 9.0, 300.0, -1.0, np.inf]
    a, x = np.meshgrid(ends, ends)
    theirs = getattr(torch, name)(torch.tensor(a), torch.tensor(x))
    compare(theirs, getattr(flow, name)(flow.tensor(a), flow.tensor(x)))


def test_a_gradient_for_the_first_argument_of_igamma_is_refused() -> None:
    a, x = (flow.tensor([v], requires_grad=True) for v in (1.0, 2.0))
    with pytest.raises(AutogradError, match="the derivative of igamma for its first argument"):
        flow.igamma(a, x).backward()
    flow.igamma(a.detach(), x).backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.exp([-2.0]), rtol=1e-6)


@pytest.mark.parametrize("kind", ["chebyshev_polynomial_t", "shifted_chebyshev_polynomial_w",
                                  "hermite_polynomial_h", "laguerre_polynomial_l"])  # fmt: skip
def test_polynomials_take_tensors_and_numbers(kind: str, rng: np.random.Generator) -> None:
    x, n = rng.normal(size=(3, 1)), np.array([0, 1, 4, -2])
    theirs, ours = (getattr(m.special, kind) for m in (torch, flow))
    compare(theirs(torch.tensor(x), torch.tensor(n)), ours(flow.tensor(x), flow.tensor(n)))
    compare(theirs(torch.tensor(x), 3), ours(flow.tensor(x), 3))
    compare(theirs(0.5, torch.tensor(n)), ours(0.5, flow.tensor(n)))
