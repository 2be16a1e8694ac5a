"""Answers that code inside `nn.Graph.build` gets of its tensors: the same as eager code, on any
layout.

A transformer layer is written as model libraries write them: it asks its tensors for layout and
placement, and moves them by the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn

ROWS, WIDTH, HEADS, TOKENS = 8, 8, 2, 4
RNG = np.random.default_rng(4)
X = RNG.normal(size=(ROWS, TOKENS, WIDTH)).astype(np.float32)

Seen = list[tuple[str, Any]]


class Compute(nn.Graph):
    def __init__(self, function: Any, model: Any = None) -> None:
        super().__init__()
        self.function = function
        if model is not None:
            self.model = model

    def build(self, *args: Any) -> Any:
        return self.function(*args)


class Layer(nn.Module):
    """Attention and a feed-forward part, cut by columns and then by rows."""

    def __init__(self, placement: Any, along: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.placement, self.along = placement, along
        whole, columns, rows = (along(flow.sbp.broadcast, s) for s in _of_weights())
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.to_global(placement, whole)
        self.qkv.to_global(placement, columns)
        self.out.to_global(placement, rows)
        self.seen: Seen = []

    def note(self, name: str, x: Any) -> Any:
        said = (tuple(x.sbp), x.placement, x.shape, x.is_global, x.is_local, x.stride())
        self.seen.append((name, said))
        return x

    def forward(self, x: Any) -> Any:
        split, whole = flow.sbp.split, flow.sbp.broadcast
        x = x.to_global(placement=self.placement, sbp=self.along(split(0), whole))
        hidden = self.note("norm", self.norm(x))
        hidden = hidden.to_global(grad_sbp=hidden.sbp)
        qkv = self.note("qkv", self.qkv(hidden))
        qkv = qkv.view(ROWS, TOKENS, HEADS, 3 * WIDTH // HEADS).permute(0, 2, 1, 3)
        query, key, value = flow.chunk(self.note("permuted", qkv), 3, dim=-1)
        scores = self.note("scores", flow.matmul(query, key, transpose_b=True))
        mask = flow.ones(TOKENS, TOKENS, placement=scores.placement, sbp=self.along(whole, whole))
        scores = scores.masked_fill(flow.tril(mask) == 0, -1e4)
        context = flow.matmul(F.softmax(scores, dim=-1), value)
        context = self.note("context", context).transpose(1, 2).flatten(2)
        summed = self.note("out", self.out(context))
        summed = summed.to_global(placement=summed.placement, sbp=x.sbp)
        zeros = flow.zeros(summed.shape, placement=summed.placement, sbp=summed.sbp)
        result = self.note("result", x + summed + zeros)
        self.note("taken", result[1:5])
        self.note("like", flow.zeros_like(result))
        return result


def _of_weights() -> tuple[Any, Any, Any]:
    """Layouts of a module's parameters along the axis of tensor parallelism."""
    return flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)


def transformer_layer(hierarchy: Any) -> None:
    """hierarchy: of the ranks: a row of data-parallel ones, or a grid of these by tensor-parallel
    ones.
    """
    placement = flow.placement("cpu", np.arange(np.prod(hierarchy)).reshape(hierarchy))
    is_grid = len(hierarchy) == 2

    def along(data: Any, tensor: Any) -> Any:
        return (data, tensor) if is_grid else data

    layer = Layer(placement, along)
    whole = along(flow.sbp.broadcast, flow.sbp.broadcast)
    x = flow.tensor(X, placement=placement, sbp=whole)
    expected = layer(x)
    eager, layer.seen = layer.seen, []
    graph = Compute(lambda x: graph.model(x), layer)
    got = graph(x)
    for (name, wanted), (same, found) in zip(eager, layer.seen, strict=True):
        assert name == same and wanted == found, f"{name}: {wanted} eagerly, {found} in the graph"
    assert got.sbp == expected.sbp, (got.sbp, expected.sbp)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), 1e-5, 1e-5)


def moves_alone() -> None:
    """Graphs that hand through, move or reshape arguments and caught tensors."""
    size = flow.env.get_world_size()
    everyone, first = flow.placement("cpu", list(range(size))), flow.placement("cpu", [0])
    caught = flow.tensor(X[0], placement=everyone, sbp=flow.sbp.split(0))
    functions: list[Any] = [
        lambda x: x,
        lambda x: caught,
        lambda x: x.reshape(ROWS, -1),
        lambda x: x.transpose(1, 2),
        lambda x: x.split(3, dim=1)[1],
        lambda x: x.to_global(sbp=flow.sbp.broadcast),
        lambda x: caught.to_global(placement=first),
    ]
    for sbp in (flow.sbp.split(0), flow.sbp.broadcast, flow.sbp.partial_sum):
        x = flow.tensor(X, placement=everyone, sbp=sbp)
        for i, function in enumerate(functions):
            got, expected = Compute(function)(x), function(x)
            assert (got.placement, got.sbp) == (expected.placement, expected.sbp), (i, sbp)
            whole = got.to_global(everyone, flow.sbp.broadcast).numpy()
            want = expected.to_global(everyone, flow.sbp.broadcast).numpy()
            np.testing.assert_array_equal(whole, want)
