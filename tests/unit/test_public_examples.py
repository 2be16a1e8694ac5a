"""The examples in docstrings show Python's output, and PyTorch computes the same."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import nn
from oneflow.api.examples import examples
from oneflow.nn import functional as F
from oneflow.surfaces import find, index

OURS = {"flow": flow, "nn": nn, "F": F}
THEIRS = {"flow": torch, "nn": torch.nn, "F": torch.nn.functional}
EXAMPLES = examples()
SPACES = sorted({space for space, _ in EXAMPLES})


def flat(value: object) -> list[object]:
    """The tensors and other values in a result, in order."""
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in flat(part)]
    return [value.detach().numpy() if hasattr(value, "detach") else value]


def test_there_are_enough() -> None:
    assert len(EXAMPLES) >= 460


@pytest.mark.parametrize("space", SPACES)
def test_an_example_shows_its_result(space: str) -> None:
    for (own, name), text in EXAMPLES.items():
        if own == space:
            call, _, shown = text.removeprefix(">>> ").partition("\n")
            flow.manual_seed(0)
            assert repr(eval(call, dict(OURS))) == shown, name


@pytest.mark.parametrize("space", SPACES)
def test_pytorch_computes_the_same(space: str) -> None:
    for (own, name), text in EXAMPLES.items():
        if own != space:
            continue
        call = re.match(r">>> (.*)", text)[1]
        ours = flat(eval(call, dict(OURS)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of functions it will take away
            theirs = flat(eval(call, dict(THEIRS)))
        assert len(ours) == len(theirs), name
        for a, b in zip(ours, theirs, strict=True):
            if isinstance(a, np.ndarray):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)
            elif not isinstance(a, nn.Module):
                assert a == b, name


@pytest.mark.parametrize("space", SPACES)
def test_the_docstring_has_the_example(space: str) -> None:
    for own, name in EXAMPLES:
        if own == space:
            assert name in index()[space], name
            assert f"{name}(" in (find(space, name).__doc__ or "").partition(">>> ")[2], name
