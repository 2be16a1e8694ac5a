"""Dims of tensors without any: 0 and -1 are taken, others are refused, as in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import oneflow as flow
from oneflow.core.errors import PositionError

NAMES = [
    *("sum", "mean", "prod", "max", "min", "amax", "amin", "argmax", "argmin"),
    *("any", "all", "median", "mode", "logsumexp", "nansum", "softmax", "log_softmax"),
    *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "argsort", "flip"),
]


def asked(lib: Any, name: str, dim: int) -> bool:
    """Whether the call is taken."""
    dims = (dim,) if name == "flip" else dim
    try:
        getattr(lib, name)(lib.ones(()), dims)
    except (IndexError, PositionError):
        return False
    return True


@pytest.mark.parametrize("dim", [0, -1, 1, -2, 5])
@pytest.mark.parametrize("name", NAMES)
def test_dims_of_a_number(name: str, dim: int) -> None:
    assert asked(flow, name, dim) == asked(torch, name, dim) == (dim in (0, -1))
