"""Tensors made like others, and numbers and places that their makers refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import nn


@pytest.mark.parametrize("name", ["zeros", "ones", "empty"])
def test_new_tensors_without_a_size_have_the_shape_of_the_given_one(name: str) -> None:
    place = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.split(0)}
    for x in (flow.ones(2, 3, dtype=flow.int32), flow.rand(2, 3, **place)):
        for made in (getattr(x, f"new_{name}")(), getattr(flow, f"new_{name}")(x)):
            assert (made.shape, made.dtype, made.is_global) == (x.shape, x.dtype, x.is_global)
            assert not x.is_global or made.sbp == x.sbp
    assert getattr(flow.ones(2), f"new_{name}")(()).shape == ()


@pytest.mark.parametrize("make", [flow.rand, flow.randn])
def test_random_numbers_of_integer_dtypes_are_not_implemented(make: Callable[..., Any]) -> None:
    for dtype in (flow.int32, flow.uint8, flow.bool):
        for kind in (NotImplementedError, TypeError, RuntimeError):
            with pytest.raises(kind, match="not implemented for"):
                make(2, dtype=dtype)


def test_a_padding_row_that_the_table_lacks() -> None:
    for index in (10, -11):
        for kind in (AssertionError, ValueError):
            with pytest.raises(kind, match="Padding_idx must be within num_embeddings"):
                nn.Embedding(10, 3, padding_idx=index)
    last = nn.Embedding(10, 3, padding_idx=-1)
    np.testing.assert_array_equal(last.weight[9].detach().numpy(), np.zeros(3))


@pytest.mark.parametrize("dtype", [flow.bool, flow.int32, flow.uint8])
def test_a_condition_chooses_between_two_tensors(dtype: Any) -> None:
    condition, x = flow.tensor([0, 1], dtype=dtype), flow.tensor([0.5, 1.5])
    np.testing.assert_array_equal(condition.where(x, flow.ones(2)).numpy(), [1.0, 1.5])
    np.testing.assert_array_equal(condition.where(2.0, 3.0).numpy(), [3.0, 2.0])
    whole = flow.tensor([4, 5])
    np.testing.assert_array_equal(whole.where(whole > 4, 0 * whole).numpy(), [0, 5])


@pytest.mark.parametrize("shape", [(0,), (5, 0, 7), (2, 0), (0, 3)])
def test_strides_of_empty_tensors_are_those_of_pytorch(shape: tuple[int, ...]) -> None:
    wanted = torch.zeros(shape).stride()
    place = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.broadcast}
    for x in (flow.zeros(shape), flow.zeros(shape, **place), flow.zeros(shape, device="meta")):
        assert x.stride() == wanted
