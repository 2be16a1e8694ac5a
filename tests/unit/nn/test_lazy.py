"""Lazy layers take their number of features from the first call or from a state dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import nn
from tests.parity.values import compare, to_flow

CASES: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "LazyLinear": ((4,), (2, 3)),
    "LazyConv1d": ((4, 3, 2, 1, 1, 2), (2, 6, 9)),
    "LazyConv2d": ((4, 3), (2, 3, 5, 5)),
    "LazyConv3d": ((2, 2, 1, 0, 1, 1, False), (1, 3, 3, 3, 3)),
    "LazyConvTranspose1d": ((4, 3, 2, 1, 1, 2), (2, 6, 5)),
    "LazyConvTranspose2d": ((4, 3), (2, 3, 5, 5)),
    "LazyConvTranspose3d": ((2, 2), (1, 3, 2, 2, 2)),
    "LazyBatchNorm1d": ((), (4, 3)),
    "LazyBatchNorm2d": ((1e-3, None), (2, 3, 2, 2)),
    "LazyBatchNorm3d": ((1e-5, 0.1, False), (2, 3, 2, 2, 2)),
    "LazyInstanceNorm1d": ((), (2, 3, 4)),
    "LazyInstanceNorm2d": ((1e-5, 0.1, True, False), (2, 3, 4, 4)),
    "LazyInstanceNorm3d": ((), (2, 3, 2, 2, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_call_gives_shapes(name: str, rng: np.random.Generator) -> None:
    args, shape = CASES[name]
    x = torch.tensor(rng.normal(size=shape))
    theirs, ours = (getattr(lib, name)(*args).double() for lib in (torch.nn, nn))
    assert ours.has_uninitialized_params() == theirs.has_uninitialized_params()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs(x)
    ours(to_flow(x))
    assert type(ours).__name__ == type(theirs).__name__ == name.removeprefix("Lazy")
    assert [(n, tuple(p.shape)) for n, p in ours.named_parameters()] == [
        (n, tuple(p.shape)) for n, p in theirs.named_parameters()
    ]
    assert all(type(p) is nn.Parameter for p in ours.parameters())
    ours.load_state_dict(to_flow(theirs.state_dict()))
    compare(theirs(x), ours(to_flow(x)), where=name)
    assert f"{shape[1]}, " in repr(ours)


@pytest.mark.parametrize("name", CASES)
def test_a_state_dict_gives_shapes(name: str, rng: np.random.Generator) -> None:
    args, shape = CASES[name]
    x = flow.tensor(rng.normal(size=shape))
    source, made = (getattr(nn, name)(*args).double() for _ in range(2))
    source(x)
    made.load_state_dict(source.state_dict())
    compare(torch.tensor(source(x).detach().numpy()), made(x), where=name)
    assert type(made) is type(source)


def test_a_parameter_without_a_shape_says_so() -> None:
    layer = nn.LazyLinear(3, dtype=flow.float64)
    assert isinstance(layer.weight, nn.UninitializedParameter) and layer.weight.requires_grad
    with pytest.raises(RuntimeError, match="call the lazy layer once"):
        layer.weight.shape  # noqa: B018
    model = nn.Sequential(layer, nn.Tanh(), nn.LazyLinear(2))
    parameters = list(model.parameters())
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    loss = model.double()(flow.ones(2, 5, dtype=flow.float64)).sum()
    loss.backward()
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert all(p.grad is not None and p.dtype is flow.float64 for p in parameters)
    before = parameters[2].numpy().copy()
    optimizer.step()
    assert (parameters[2].numpy() != before).any()
