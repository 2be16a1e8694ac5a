"""Recurrent layers called with their weights, beside PyTorch's functions of the same names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import CallError

KINDS = {
    "lstm": (torch.nn.LSTM, {}),
    "gru": (torch.nn.GRU, {}),
    "rnn_tanh": (torch.nn.RNN, {}),
    "rnn_relu": (torch.nn.RNN, {"nonlinearity": "relu"}),
}


def to_flow(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return flow.from_numpy(x.detach().numpy())
    return [to_flow(item) for item in x] if isinstance(x, list | tuple) else x


def agree(own: Any, other: Any) -> None:
    assert len(own) == len(other)
    for a, b in zip(own, other, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_whole_and_packed_sequences(name: str, bias: bool) -> None:
    torch.manual_seed(1)
    kind, options = KINDS[name]
    layer = kind(3, 4, 2, bias=bias, bidirectional=True, **options)
    weights = [w.detach() for w in layer._flat_weights]
    state = torch.randn(4, 2, 4)
    hx: Any = (state, torch.randn(4, 2, 4)) if name == "lstm" else state
    x, theirs, ours = torch.randn(2, 5, 3), getattr(torch, name), getattr(flow._C, name)
    rest = (bias, 2, 0.0, False, True)
    agree(ours(to_flow(x), to_flow(hx), to_flow(weights), *rest, True),
          theirs(x, hx, weights, *rest, True))  # fmt: skip
    data, sizes = torch._pack_padded_sequence(x, torch.tensor([5, 3]), True)
    own_data, own_sizes = flow._C.pack_padded_sequence(to_flow(x), flow.tensor([5, 3]), True)
    assert own_sizes.tolist() == sizes.tolist()
    agree([own_data], [data])
    agree(ours(own_data, own_sizes, to_flow(hx), to_flow(weights), *rest),
          theirs(data, sizes, hx, weights, *rest))  # fmt: skip


def test_arguments_that_are_missing_are_named() -> None:
    x, state = flow.zeros(2, 1, 3), flow.zeros(1, 1, 4)
    with pytest.raises(CallError, match=r"gru: the arguments are .input, hx, params"):
        flow.gru(x, state, [])
    with pytest.raises(CallError, match="4 weights are needed, got 0"):
        flow.gru(x, state, [], True, 1, 0.0, False, False, False)
