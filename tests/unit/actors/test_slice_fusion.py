"""Heads of an attention that are concatenated as they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.actors import slice_fusion


class Heads(nn.Module):
    """Attention with two heads, of which queries, keys and values are one product."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        q, k, v = (p.reshape(-1, 5, 2, 4).permute(0, 2, 1, 3) for p in self.qkv(x).split(8, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.permute(0, 2, 1, 3).reshape(-1, 5, 8))


class Train(nn.Graph):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.01))

    def build(self, x: Any) -> Any:
        loss = self.model(x).square().sum()
        loss.backward()
        return loss


def model_and_batches(rows: int) -> tuple[Any, list[Any]]:
    flow.manual_seed(3)
    rng = np.random.default_rng(1)
    shape = 3, rows, 5, 8
    return Heads(), [flow.tensor(x, dtype=flow.float32) for x in rng.standard_normal(shape)]


def trained(rows: int) -> tuple[list[Any], list[str]]:
    """Weights after three steps, and the ops that ran and made something new."""
    model, batches = model_and_batches(rows)
    step: Any = Train(model)
    for x in batches:
        step(x)
    segments = step._spec.plans.now.job.bound.memory.segments.values()
    ops = [b.node.op for s in segments for b in s.nodes if b.node.outputs[0].id not in s.views]
    return [p.numpy() for p in model.parameters()], ops


def trained_eagerly(rows: int) -> list[Any]:
    model, batches = model_and_batches(rows)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.01)
    for x in batches:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    return [p.numpy() for p in model.parameters()]


@pytest.mark.parametrize("is_read_as_it_lies", [False, True])
def test_gradients_of_heads_are_concatenated_without_a_copy_of_each(
    is_read_as_it_lies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one reshape that is left is that of the attention's result, on a GPU as well."""
    kinds = ("cpu",) if is_read_as_it_lies else ()
    monkeypatch.setattr(slice_fusion, "READS_AS_THEY_LIE", kinds)
    rows = 3 + is_read_as_it_lies  # a plan that was bound before is bound already
    weights, ops = trained(rows)
    assert ops.count("concat") == 1
    assert ops.count("reshape") == (1 if is_read_as_it_lies else 4)
    for one, other in zip(weights, trained_eagerly(rows), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
