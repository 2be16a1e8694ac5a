"""Every module trains in a graph as it does eagerly: same outputs, losses, states and draws, to the
last bit, since the same kernels run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from tests.unit.ops.activation_samples import ACTIVATIONS, LAYERS

RNG = np.random.default_rng(0)
SHAPES = [(4, 6), (4, 6, 8), (4, 6, 8, 8), (2, 4, 4, 6, 6)]
FLAT, ROW, PLANE, SPACE = (RNG.standard_normal(s).astype(np.float32) for s in SHAPES)
OTHER = RNG.standard_normal((4, 6)).astype(np.float32)
CHANCES = RNG.random((4, 6)).astype(np.float32)
CLASSES, WORDS = RNG.integers(0, 6, 4), RNG.integers(0, 10, (4, 3))
SIGNS = np.sign(RNG.standard_normal((2, 4))).astype(np.float32)
Make = Callable[[], nn.Module]

CASES: list[tuple[Make, tuple[Any, ...]]] = [
    *((partial(getattr(nn, LAYERS[name]), *attrs.values()), (FLAT,))
      for name, attrs, _ in ACTIVATIONS if name in LAYERS),
    *((make, (FLAT,)) for make in (
        nn.PReLU, nn.GLU, nn.RReLU, nn.Flatten, nn.Dropout, nn.Identity,
    )),
    (lambda: nn.Softmax(-1), (FLAT,)),
    (lambda: nn.LogSoftmax(-1), (FLAT,)),
    (lambda: nn.Linear(6, 3), (FLAT,)),
    (lambda: nn.Conv1d(6, 4, 3), (ROW,)),
    (lambda: nn.Conv2d(6, 4, 3), (PLANE,)),
    (lambda: nn.Conv3d(4, 4, 3), (SPACE,)),
    (lambda: nn.ConvTranspose2d(6, 4, 3), (PLANE,)),
    (lambda: nn.BatchNorm1d(6), (FLAT,)),
    (lambda: nn.BatchNorm1d(6, momentum=None), (FLAT,)),
    (lambda: nn.BatchNorm2d(6, track_running_stats=False), (PLANE,)),
    (lambda: nn.BatchNorm3d(4), (SPACE,)),
    (lambda: nn.InstanceNorm2d(6), (PLANE,)),
    (lambda: nn.LayerNorm(6), (FLAT,)),
    (lambda: nn.GroupNorm(2, 6), (PLANE,)),
    (lambda: nn.RMSNorm(6), (FLAT,)),
    (lambda: nn.MaxPool2d(2), (PLANE,)),
    (lambda: nn.AvgPool2d(2), (PLANE,)),
    (lambda: nn.AdaptiveAvgPool2d(2), (PLANE,)),
    (lambda: nn.Dropout2d(0.4), (PLANE,)),
    (lambda: nn.ReflectionPad2d(2), (PLANE,)),
    (lambda: nn.ReplicationPad2d(2), (PLANE,)),
    (lambda: nn.UpsamplingBilinear2d(scale_factor=2), (PLANE,)),
    (lambda: nn.LSTM(8, 5, num_layers=2, dropout=0.3, bidirectional=True), (ROW,)),
    (lambda: nn.GRU(8, 5), (ROW,)),
    (lambda: nn.RNN(8, 5), (ROW,)),
    (lambda: nn.LSTMCell(6, 5), (FLAT,)),
    (lambda: nn.Embedding(10, 6, padding_idx=0), (WORDS,)),
    (lambda: nn.Embedding(10, 6, max_norm=1.0), (WORDS,)),
    (lambda: nn.MultiheadAttention(8, 2, 0.3, batch_first=True), (ROW, ROW, ROW)),
    (lambda: nn.TransformerEncoderLayer(8, 2, 5, norm_first=True), (ROW,)),
    (lambda: nn.Transformer(8, 2, 1, 1, 5), (ROW, ROW[:3].copy())),
    (nn.CosineSimilarity, (FLAT, OTHER)),
    (nn.PairwiseDistance, (FLAT, OTHER)),
    *((make, (FLAT, OTHER)) for make in (nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss)),
    (nn.CrossEntropyLoss, (FLAT, CLASSES)),
    (nn.NLLLoss, (FLAT, CLASSES)),
    (nn.BCELoss, (CHANCES, CHANCES[::-1].copy())),
    (nn.BCEWithLogitsLoss, (FLAT, CHANCES)),
    (nn.KLDivLoss, (FLAT, CHANCES)),
    (nn.MarginRankingLoss, (FLAT[:, 0].copy(), OTHER[:, 0].copy(), SIGNS[0])),
    (nn.TripletMarginLoss, (FLAT, OTHER, CHANCES)),
]  # fmt: skip


class Scaled(nn.Module):
    """Gives modules without parameters, and their inputs, a gradient."""

    def __init__(self, module: nn.Module, x: Any) -> None:
        super().__init__()
        self.module = module
        self.scale = nn.Parameter(flow.ones(*x.shape)) if x.dtype == np.float32 else None

    def forward(self, x: Any, *others: Any) -> Any:
        out = self.module(x if self.scale is None else x * self.scale, *others)
        while isinstance(out, tuple):
            out = out[0]
        return out, out.sin().mean()


class Train(nn.Graph):
    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, *inputs: Any) -> Any:
        out, loss = self.model(*inputs)
        loss.backward()
        return out, loss


def run(make: Make, arrays: tuple[Any, ...], in_graph: bool) -> list[Any]:
    flow.manual_seed(1)
    model = Scaled(make(), arrays[0])
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    graph, found = Train(model, optimizer), []
    for _ in range(3):
        inputs = [flow.tensor(a) for a in arrays]
        if in_graph:
            out, loss = graph(*inputs)
        else:
            optimizer.zero_grad()
            out, loss = model(*inputs)
            loss.backward()
            optimizer.step()
        found += [out.numpy().copy(), loss.numpy().copy()]
    return [*found, *(v.numpy() for v in model.state_dict().values()), flow.rand(2).numpy()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[0]()).__name__)
def test_a_graph_and_eager_code_give_the_same_bits(case: Any) -> None:
    for found, wanted in zip(run(*case, True), run(*case, False), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_layers_of_a_graph_do_not_share_scratch_memory_of_their_steps() -> None:
    """Takes sizes that no other test has, so that the graph is the first to bind the kernel."""
    case = (lambda: nn.LSTM(8, 7, num_layers=2)), (ROW,)
    for found, wanted in zip(run(*case, True), run(*case, False), strict=True):
        np.testing.assert_array_equal(found, wanted)
