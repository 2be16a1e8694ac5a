"""Layers and functions of PyTorch that OneFlow has not, against torch in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import ShapeError
from oneflow.nn import functional as F
from tests.parity.values import compare, to_flow

WORDS = torch.tensor([3, 1, 4, 1, 5, 2, 0, 5])
OFFSETS = torch.tensor([0, 3, 3, 6])
ENDS = torch.tensor([0, 3, 3, 8])
FACTORS = torch.linspace(-1, 2, 8, dtype=torch.float64)
BAGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"mode": mode}, {"offsets": OFFSETS}) for mode in ("sum", "mean", "max")),
    *(({"mode": mode, "padding_idx": 5}, {"offsets": OFFSETS}) for mode in ("sum", "mean", "max")),
    ({"mode": "sum"}, {"offsets": OFFSETS, "per_sample_weights": FACTORS}),
    ({"mode": "mean", "include_last_offset": True}, {"offsets": ENDS}),
    *(({"mode": mode, "padding_idx": 1}, {}) for mode in ("sum", "mean", "max")),
    ({"mode": "sum"}, {"per_sample_weights": FACTORS.reshape(4, 2)}),
]


def twins(kind: str, *args: Any, **options: Any) -> tuple[Any, Any]:
    theirs = getattr(torch.nn, kind)(*args, **options).double()
    ours = getattr(nn, kind)(*args, **options).double()
    ours.load_state_dict(to_flow(theirs.state_dict()))
    return theirs, ours


def same_gradients(theirs: Any, ours: Any) -> None:
    for (name, a), b in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        compare(a.grad, b.grad, where=name)


@pytest.mark.parametrize(("options", "call"), BAGS, ids=str)
def test_bags_of_embeddings(options: Any, call: Any) -> None:
    theirs, ours = twins("EmbeddingBag", 6, 3, **options)
    words = WORDS if "offsets" in call else WORDS.reshape(4, 2)
    wanted, got = theirs(words, **call), ours(to_flow(words), **to_flow(call))
    compare(wanted, got, where="value")
    wanted.sin().sum().backward()
    got.sin().sum().backward()
    same_gradients(theirs, ours)


def test_bags_refuse_what_they_cannot_mean() -> None:
    weight = flow.ones(4, 2)
    with pytest.raises(ShapeError, match="without offsets or"):
        F.embedding_bag(flow.tensor([1, 2]), weight)
    with pytest.raises(ValueError, match="mode must be"):
        F.embedding_bag(flow.tensor([[1, 2]]), weight, mode="min")
    with pytest.raises(ValueError, match="for the mode 'sum'"):
        F.embedding_bag(flow.tensor([[1, 2]]), weight, per_sample_weights=flow.ones(1, 2))


@pytest.mark.parametrize("options", [{}, {"div_value": 2.0, "head_bias": True}], ids=str)
def test_softmax_of_rare_classes(options: Any, rng: np.random.Generator) -> None:
    theirs, ours = twins("AdaptiveLogSoftmaxWithLoss", 16, 20, [5, 12], **options)
    x = torch.tensor(rng.normal(size=(7, 16)))
    target = torch.tensor([0, 19, 4, 5, 11, 12, 3])
    wanted, got = theirs(x, target), ours(to_flow(x), to_flow(target))
    compare(tuple(wanted), tuple(got), where="value")
    wanted.loss.backward()
    got.loss.backward()
    same_gradients(theirs, ours)
    compare(theirs.log_prob(x), ours.log_prob(to_flow(x)), where="log_prob")
    compare(theirs.predict(x), ours.predict(to_flow(x)), where="predict")
    compare(theirs(x[0], target[0]).output, ours(to_flow(x[0]), to_flow(target[0])).output)
    with pytest.raises(ValueError, match="unique, positive"):
        nn.AdaptiveLogSoftmaxWithLoss(4, 10, [5, 5])


@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("LPPool1d", (2, 3), (2, 3, 9)),
        ("LPPool2d", (3.0, (2, 3), 2, True), (1, 2, 6, 7)),
        ("LPPool3d", (1, 2), (1, 2, 4, 4, 4)),
        ("Softmin", (1,), (2, 3)),
        ("Tanhshrink", (), (2, 3)),
        ("Unflatten", (1, (2, -1)), (3, 6)),
    ],
)
def test_small_layers(name: str, args: Any, shape: Any, rng: np.random.Generator) -> None:
    theirs, ours = getattr(torch.nn, name)(*args), getattr(nn, name)(*args)
    x = torch.tensor(abs(rng.normal(size=shape)), requires_grad=True)
    y = to_flow(x)
    wanted, got = theirs(x), ours(y)
    compare(wanted, got, where="value")
    wanted.sin().sum().backward()
    got.sin().sum().backward()
    compare(x.grad, y.grad, where="gradient")


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("FractionalMaxPool2d", {"kernel_size": 2, "output_size": (5, 6)}, (2, 3, 13, 16)),
        ("FractionalMaxPool2d", {"kernel_size": (2, 3), "output_ratio": 0.4}, (3, 12, 18)),
        ("FractionalMaxPool3d", {"kernel_size": 2, "output_size": (1, 4, 5)}, (2, 2, 4, 10, 13)),
    ],
)
def test_maxima_of_windows_at_given_places(
    name: str, options: Any, shape: Any, rng: np.random.Generator
) -> None:
    dims = int(name[-2])
    lead = shape[:2] if len(shape) == dims + 2 else (1, shape[0])
    samples = torch.tensor(rng.random((*lead, dims)))
    x = torch.tensor(rng.normal(size=shape), requires_grad=True)
    y = to_flow(x)
    options = {**options, "return_indices": True, "_random_samples": samples}
    wanted = getattr(torch.nn, name)(**options)(x)
    got = getattr(nn, name)(**to_flow(options))(y)
    compare(wanted, got, where="value and indices")
    wanted[0].sin().sum().backward()
    got[0].sin().sum().backward()
    compare(x.grad, y.grad, where="gradient")


def test_drawn_windows_cover_the_ends(rng: np.random.Generator) -> None:
    x = flow.tensor(np.arange(40.0).reshape(1, 1, 5, 8))
    pooled = nn.FractionalMaxPool2d(2, output_size=(3, 4))(x)
    assert pooled.shape == (1, 1, 3, 4) and pooled[0, 0, -1, -1].item() == 39
    with pytest.raises(ShapeError, match="do not fit"):
        F.fractional_max_pool2d(x, 3, output_size=(4, 4))


def test_saturating_dropout_keeps_mean_and_variance() -> None:
    flow.manual_seed(0)
    x = flow.randn(200, 50, 4)
    limit = -1.7580993408473766  # SELU of minus infinity
    saturated = (1 - 0.3) * limit / math.sqrt((1 - 0.3) * (1 + 0.3 * limit**2))
    for layer, kept_together in (
        (nn.AlphaDropout(0.3), False),
        (nn.FeatureAlphaDropout(0.3), True),
    ):
        out = layer(x)
        assert abs(out.mean().item()) < 0.05 and abs(out.var().item() - 1) < 0.05
        low = (abs(out - saturated) < 1e-5).float()
        assert abs(low.mean().item() - 0.3) < 0.02
        whole = low.mean(-1)
        assert bool(((whole == 0) | (whole == 1)).all()) is kept_together
        assert layer.eval()(x) is x


@pytest.mark.parametrize("name", ["relu", "selu", "elu", "celu", "hardtanh", "leaky_relu"])
def test_functions_that_write_into_their_argument(name: str) -> None:
    values = [-2.0, -0.5, 0.5, 2.0]
    x, y = flow.tensor(values), torch.tensor(values)
    assert getattr(F, f"{name}_")(x) is x
    getattr(torch.nn.functional, f"{name}_")(y)
    compare(y, x, where=name)
    z = flow.tensor(values)
    assert F.threshold_(z, 0.0, 7.0) is z and z.tolist() == [7.0, 7.0, 0.5, 2.0]
