"""Layers: values against NumPy in float64, gradients against finite differences or torch."""

from __future__ import annotations

import inspect
import math
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

from oneflow import nn
from oneflow.core.errors import ShapeError
from oneflow.functional.random_state import Generator, manual_seed
from oneflow.nn import functional as F
from oneflow.tensor.tensor import Tensor, wrap
from tests.unit.ops.activation_samples import ACTIVATIONS, missing
from tests.unit.ops.activation_samples import LAYERS as MADE_LAYERS

RNG = np.random.default_rng(0)
Array = np.ndarray[Any, Any]


def t(array: Any, requires_grad: bool = False) -> Tensor:
    return wrap(np.asarray(array, np.float64), requires_grad=requires_grad)


def check_gradients(
    rng: np.random.Generator, module: Any, x: Array, *rest: Any, tolerance: float = 1e-5
) -> None:
    """The gradients of sum(module(x) * g) by x and all parameters, against central differences."""
    leaf = t(x, requires_grad=True)
    out = module(leaf, *rest)
    g = rng.normal(size=tuple(out.shape))
    out.backward(t(g))
    for holder in (leaf, *module.parameters()):
        array, grad = holder.detach().numpy(), holder.grad.numpy()
        for index in np.ndindex(array.shape):
            kept = array[index]
            sums = []
            for delta in (1e-5, -1e-5):
                array[index] = kept + delta
                sums.append(float((module(leaf, *rest).detach().numpy() * g).sum()))
            array[index] = kept
            slope = (sums[0] - sums[1]) / 2e-5
            assert abs(grad[index] - slope) <= tolerance * (1 + abs(slope)), (
                index,
                grad[index],
                slope,
            )


# ---- dense, embedding, shape -------------------------------------------------------------------


def test_linear_computes_and_starts_within_its_bounds(rng: np.random.Generator) -> None:
    layer = nn.Linear(6, 4).double()
    x = rng.normal(size=(2, 3, 6))
    expected = x @ layer.weight.numpy().T + layer.bias.numpy()
    np.testing.assert_allclose(layer(t(x)).detach().numpy(), expected, rtol=1e-12)
    bound = 1 / math.sqrt(6)
    for parameter in layer.parameters():
        assert (abs(parameter.numpy()) <= bound).all() and parameter.numpy().std() > 0
    assert repr(nn.Linear(6, 4, bias=False)) == "Linear(in_features=6, out_features=4, bias=False)"
    check_gradients(rng, nn.Linear(3, 2).double(), rng.normal(size=(4, 3)))


def test_embedding_reads_rows_and_leaves_the_padding_row() -> None:
    layer = nn.Embedding(5, 3, padding_idx=-1).double()
    assert layer.padding_idx == 4 and (layer.weight.numpy()[4] == 0).all()
    indices = wrap(np.array([[0, 4], [2, 0]]))
    np.testing.assert_array_equal(
        layer(indices).detach().numpy(), layer.weight.numpy()[indices.numpy()]
    )
    layer(indices).sum().backward()
    assert layer.weight.grad.numpy()[:, 0].tolist() == [2.0, 0.0, 1.0, 0.0, 0.0]
    table = nn.Embedding.from_pretrained(t(np.eye(3)))
    assert not table.weight.requires_grad and table(wrap(np.array([1]))).tolist() == [[0, 1, 0]]
    short = nn.Embedding(2, 4, max_norm=1.0, _weight=t(np.full((2, 4), 3.0)))
    np.testing.assert_allclose(short(wrap(np.array([0]))).detach().numpy(), 0.5, rtol=1e-6)
    with pytest.raises(ValueError, match="padding_idx"):
        nn.Embedding(5, 3, padding_idx=5)


def test_flatten_and_identity(rng: np.random.Generator) -> None:
    x = t(rng.normal(size=(2, 3, 4)))
    assert nn.Flatten()(x).shape == (2, 12) and nn.Flatten(0, 1)(x).shape == (6, 4)
    assert nn.Identity(3, a=4)(x) is x


# ---- convolutions and pooling ------------------------------------------------------------------


def convolve(x: Array, w: Array, stride: int, pad: int, dilation: int, groups: int) -> Array:
    """Straight from the definition; one spatial dim."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad)))
    n, out_channels = len(x), len(w)
    length = (x.shape[2] - dilation * (w.shape[2] - 1) - 1) // stride + 1
    out = np.zeros((n, out_channels, length))
    for o in range(out_channels):
        first = o // (out_channels // groups) * w.shape[1]
        for i in range(length):
            taps = i * stride + dilation * np.arange(w.shape[2])
            out[:, o, i] = (x[:, first : first + w.shape[1]][:, :, taps] * w[o]).sum((1, 2))
    return out


@pytest.mark.parametrize(
    ("stride", "pad", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 2), (1, 2, 2, 1)]
)
def test_conv1d_follows_the_definition(
    stride: int, pad: int, dilation: int, groups: int, rng: np.random.Generator
) -> None:
    layer = nn.Conv1d(4, 6, 3, stride, pad, dilation, groups, bias=False).double()
    x = rng.normal(size=(2, 4, 9))
    expected = convolve(x, layer.weight.numpy(), stride, pad, dilation, groups)
    np.testing.assert_allclose(layer(t(x)).detach().numpy(), expected, rtol=1e-10, atol=1e-12)


def test_conv2d_gradients_and_its_1d_case(rng: np.random.Generator) -> None:
    check_gradients(
        rng, nn.Conv2d(2, 3, (2, 3), (1, 2), (1, 0)).double(), rng.normal(size=(1, 2, 4, 5))
    )
    layer = nn.Conv2d(2, 3, (1, 3), bias=False).double()
    x = rng.normal(size=(2, 2, 1, 7))
    expected = convolve(x[:, :, 0], layer.weight.numpy()[:, :, 0], 1, 0, 1, 1)
    np.testing.assert_allclose(layer(t(x)).detach().numpy()[:, :, 0], expected, rtol=1e-10)


def test_padding_by_name_and_mode(rng: np.random.Generator) -> None:
    x = rng.normal(size=(1, 1, 6))
    for size, mode in ((3, "circular"), (4, "zeros"), (3, "reflect"), (3, "replicate")):
        layer = nn.Conv1d(1, 1, size, padding="same", padding_mode=mode, bias=False).double()
        total = size - 1
        numpy_mode = {"zeros": "constant", "circular": "wrap", "replicate": "edge"}.get(mode, mode)
        padded = np.pad(x, ((0, 0), (0, 0), (total // 2, total - total // 2)), numpy_mode)  # type: ignore[call-overload]
        expected = convolve(padded, layer.weight.numpy(), 1, 0, 1, 1)
        np.testing.assert_allclose(layer(t(x)).detach().numpy(), expected, rtol=1e-10)
    assert nn.Conv1d(1, 1, 3, padding="valid").double()(t(x)).shape == (1, 1, 4)
    for bad in (
        {"groups": 3},
        {"padding": "full"},
        {"padding": "same", "stride": 2},
        {"padding_mode": "x"},
    ):
        with pytest.raises(ValueError):
            nn.Conv1d(2, 2, 3, **bad)
    with pytest.raises(ValueError, match="kernel_size"):
        nn.Conv2d(1, 1, (1, 2, 3))


def test_transposed_convolution_is_the_gradient_of_a_convolution(rng: np.random.Generator) -> None:
    layer = nn.ConvTranspose2d(3, 2, 3, 2, 1, output_padding=1, bias=False).double()
    conv = nn.Conv2d(2, 3, 3, 2, 1, bias=False).double()
    conv.weight.data[...] = layer.weight.data
    x, y = t(rng.normal(size=(1, 2, 8, 8)), True), t(rng.normal(size=(1, 3, 4, 4)))
    conv(x).backward(y)
    np.testing.assert_allclose(layer(y).detach().numpy(), x.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_pools_take_the_largest_or_the_mean_of_windows(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 3, 4, 6))
    windows = x.reshape(2, 3, 2, 2, 3, 2)
    np.testing.assert_array_equal(nn.MaxPool2d(2)(t(x)).numpy(), windows.max((3, 5)))
    np.testing.assert_allclose(nn.AvgPool2d(2)(t(x)).numpy(), windows.mean((3, 5)), rtol=1e-12)
    np.testing.assert_allclose(
        nn.AvgPool2d(2, divisor_override=3)(t(x)).numpy(), windows.sum((3, 5)) / 3, rtol=1e-12
    )
    row = x[:, :, 0]
    np.testing.assert_array_equal(nn.MaxPool1d(3)(t(row)).numpy(), row.reshape(2, 3, 2, 3).max(3))
    np.testing.assert_allclose(nn.AvgPool1d(3)(t(row)).numpy(), row.reshape(2, 3, 2, 3).mean(3))
    values, indices = nn.MaxPool1d(3, return_indices=True)(t(row))
    np.testing.assert_array_equal(np.take_along_axis(row, indices.numpy(), 2), values.numpy())
    padded = nn.AvgPool1d(2, 2, 1, count_include_pad=False)(t(row)).numpy()
    np.testing.assert_allclose(padded[:, :, 0], row[:, :, 0])
    np.testing.assert_allclose(nn.AdaptiveAvgPool2d(1)(t(x)).numpy()[..., 0, 0], x.mean((2, 3)))
    uneven = nn.AdaptiveAvgPool1d(4)(t(row)).numpy()
    expected = [
        row[:, :, math.floor(i * 6 / 4) : math.ceil((i + 1) * 6 / 4)].mean(2) for i in range(4)
    ]
    np.testing.assert_allclose(uneven, np.stack(expected, 2))
    check_gradients(rng, nn.MaxPool2d(3, 2, 1), rng.normal(size=(1, 2, 5, 5)))
    check_gradients(rng, nn.AvgPool2d(3, 2, 1), rng.normal(size=(1, 2, 5, 5)))


# ---- normalisation -----------------------------------------------------------------------------


def standard(x: Array, axes: tuple[int, ...], eps: float = 1e-5) -> Array:
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    result: Array = (x - mean) / np.sqrt(var + eps)
    return result


def randomize(rng: np.random.Generator, module: Any) -> Any:
    module.double()
    for parameter in module.parameters():
        parameter.data[...] = rng.normal(size=parameter.shape)
    return module


def test_layer_rms_group_and_instance_norm(rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 4, 5))
    layer = randomize(rng, nn.LayerNorm((4, 5)))
    w, b = layer.weight.numpy(), layer.bias.numpy()
    np.testing.assert_allclose(layer(t(x)).detach().numpy(), standard(x, (1, 2)) * w + b, rtol=1e-9)
    plain = nn.LayerNorm(5, elementwise_affine=False)
    np.testing.assert_allclose(plain(t(x)).numpy(), standard(x, (2,)), rtol=1e-9)
    assert nn.LayerNorm(5, bias=False).bias is None
    rms = randomize(rng, nn.RMSNorm(5))
    expected = x / np.sqrt((x**2).mean(2, keepdims=True) + 1e-5) * rms.weight.numpy()
    np.testing.assert_allclose(rms(t(x)).detach().numpy(), expected, rtol=1e-9)
    group = randomize(rng, nn.GroupNorm(2, 4))
    expected = standard(x.reshape(3, 2, 10), (2,)).reshape(x.shape)
    expected = expected * group.weight.numpy()[:, None] + group.bias.numpy()[:, None]
    np.testing.assert_allclose(group(t(x)).detach().numpy(), expected, rtol=1e-9)
    instance = nn.InstanceNorm1d(4)
    np.testing.assert_allclose(instance(t(x)).numpy(), standard(x, (2,)), rtol=1e-9)
    np.testing.assert_allclose(instance(t(x[0])).numpy(), standard(x[0], (1,)), rtol=1e-9)
    for module in (
        randomize(rng, nn.LayerNorm(4)),
        randomize(rng, nn.RMSNorm(4)),
        randomize(rng, nn.GroupNorm(2, 4)),
    ):
        check_gradients(rng, module, rng.normal(size=(3, 4)), tolerance=1e-4)
    with pytest.raises(ValueError, match="divisible"):
        nn.GroupNorm(3, 4)


@pytest.mark.parametrize("momentum", [0.3, None])
def test_batch_norm_uses_the_batch_and_then_its_running_averages(
    momentum: float | None, rng: np.random.Generator
) -> None:
    layer = randomize(rng, nn.BatchNorm2d(3, momentum=momentum))
    w, b = layer.weight.numpy()[:, None, None], layer.bias.numpy()[:, None, None]
    mean, var = np.zeros(3), np.ones(3)
    for step in range(1, 4):
        x = rng.normal(size=(4, 3, 2, 2), loc=step)
        np.testing.assert_allclose(
            layer(t(x)).detach().numpy(), standard(x, (0, 2, 3)) * w + b, rtol=1e-8
        )
        share = 1 / step if momentum is None else momentum
        mean = (1 - share) * mean + share * x.mean((0, 2, 3))
        var = (1 - share) * var + share * x.var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-10)
    np.testing.assert_allclose(layer.running_var.numpy(), var, rtol=1e-10)
    assert layer.num_batches_tracked.item() == 3
    expected = (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + 1e-5) * w + b
    np.testing.assert_allclose(layer.eval()(t(x)).detach().numpy(), expected, rtol=1e-9)
    assert layer.num_batches_tracked.item() == 3


def test_batch_norm_without_statistics_and_its_gradients(rng: np.random.Generator) -> None:
    layer = nn.BatchNorm1d(3, affine=False, track_running_stats=False).eval()
    x = rng.normal(size=(5, 3))
    np.testing.assert_allclose(layer(t(x)).numpy(), standard(x, (0,)), rtol=1e-9)
    assert not list(layer.state_dict())
    check_gradients(
        rng, randomize(rng, nn.BatchNorm1d(2)), rng.normal(size=(4, 2, 3)), tolerance=1e-4
    )
    with pytest.raises(ShapeError, match="expected 4D input"):
        nn.BatchNorm2d(3)(t(x))


def test_fused_batch_norm_adds_and_rectifies(rng: np.random.Generator) -> None:
    x, other = rng.normal(size=(4, 3, 2, 2)), rng.normal(size=(4, 3, 2, 2))
    fused = nn.FusedBatchNorm2d(3).double()
    expected = np.maximum(standard(x, (0, 2, 3)) + other, 0)
    np.testing.assert_allclose(
        fused(t(x), t(other)).detach().numpy(), expected, rtol=1e-8, atol=1e-12
    )
    plain = np.maximum(standard(x, (0, 2, 3)), 0)
    np.testing.assert_allclose(fused(t(x)).detach().numpy(), plain, rtol=1e-8, atol=1e-12)


# ---- dropout -----------------------------------------------------------------------------------


def test_dropout_scales_what_it_keeps_and_does_nothing_in_eval_mode() -> None:
    layer = nn.Dropout(0.25)
    x = t(np.ones(10_000))
    out = layer(x).numpy()
    assert set(np.unique(out)) == {0.0, 1 / 0.75}
    assert abs((out == 0).mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 10_000)
    manual_seed(1)
    first = layer(x).numpy()
    manual_seed(1)
    np.testing.assert_array_equal(layer(x).numpy(), first)
    own = nn.Dropout(0.5, generator=Generator().manual_seed(2))
    again = nn.Dropout(0.5, generator=Generator().manual_seed(2))
    np.testing.assert_array_equal(own(x).numpy(), again(x).numpy())
    np.testing.assert_array_equal(layer.eval()(x).numpy(), x.numpy())
    with pytest.raises(ValueError, match="between 0 and 1"):
        nn.Dropout(1.5)


def test_channel_dropout_drops_whole_channels() -> None:
    for layer, shape in ((nn.Dropout1d(0.5), (4, 50, 3)), (nn.Dropout2d(0.5), (4, 50, 2, 2))):
        out = layer(t(np.ones(shape))).numpy().reshape(4, 50, -1)
        assert (out == out[:, :, :1]).all() and 0 < (out[:, :, 0] == 0).mean() < 1


# ---- activations -------------------------------------------------------------------------------

sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
softmax = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)  # noqa: E731
MADE = [  # a layer for each sample of a function that has one
    (getattr(nn, MADE_LAYERS[name])(*attrs.values()), partial(reference, **attrs))
    for name, attrs, reference in ACTIVATIONS
    if name in MADE_LAYERS
]
LAYERS = [
    *MADE,
    (nn.Softmax(-1), softmax),
    (nn.LogSoftmax(-1), lambda x: np.log(softmax(x))),
    (nn.GLU(), lambda x: x[..., :4] * sigmoid(x[..., 4:])),
    (nn.PReLU().double(), lambda x: np.where(x > 0, x, 0.25 * x)),
    (nn.RReLU(0.2, 0.4).eval(), lambda x: np.where(x > 0, x, 0.3 * x)),
]


def test_every_activation_has_a_sample() -> None:
    assert not missing()


@pytest.mark.parametrize(("module", "formula"), LAYERS, ids=lambda v: type(v).__name__)
def test_activation_values_and_gradients(
    module: Any, formula: Any, rng: np.random.Generator
) -> None:
    x = np.linspace(-4.1, 6.7, 24).reshape(3, 8)
    np.testing.assert_allclose(module(t(x)).detach().numpy(), formula(x), rtol=1e-7, atol=1e-9)
    check_gradients(rng, module, x, tolerance=1e-4)


def test_a_made_layer_has_the_parameters_and_defaults_of_its_function() -> None:
    assert str(inspect.signature(nn.Softplus)) == "(beta: 'float' = 1.0, threshold: 'float' = 20.0)"
    for first, second in ((nn.Softplus, F.softplus), (F.hardtanh, nn.Hardtanh)):
        (said, *one), (same, *other) = (f.__doc__.split("\n\n>>> ") for f in (first, second))
        assert said == same and len(one) == len(other) == 1 and one != other
    layer = nn.LeakyReLU(0.2)
    assert repr(layer) == "LeakyReLU(negative_slope=0.2)" and not layer.inplace
    layer.negative_slope = 0.5
    assert layer(t([-2.0])).tolist() == [-1.0]
    assert repr(pickle.loads(pickle.dumps(layer))) == repr(layer)
    assert nn.Hardtanh(min_value=-2.0).min_val == -2.0
    assert isinstance(type("Own", (nn.ReLU,), {})(), nn.ReLU)
    for wrong in (lambda: nn.Softplus(bta=1.0), lambda: nn.Threshold(0.1), lambda: nn.ReLU(1, 2)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match=r"min_val 2\.0 is greater"):
        nn.Hardtanh(2.0)


def test_activations_in_place_write_into_their_argument() -> None:
    for module in (nn.ReLU(True), nn.LeakyReLU(inplace=True), nn.Hardtanh(inplace=True)):
        x = t([-2.0, 3.0])
        expected = type(module)()(t([-2.0, 3.0])).tolist()
        assert module(x).tolist() == expected and x.tolist() == expected
        assert "inplace=True" in repr(module)


# ---- losses ------------------------------------------------------------------------------------


def log_softmax(x: Array, axis: int) -> Array:
    result: Array = x - np.log(np.exp(x).sum(axis, keepdims=True))
    return result


def test_cross_entropy_with_weights_smoothing_and_ignored_rows(rng: np.random.Generator) -> None:
    x, labels = rng.normal(size=(6, 4)), np.array([0, 3, 1, -100, 2, 2])
    weight = np.array([1.0, 2.0, 0.5, 3.0])
    logs, kept = log_softmax(x, 1), labels >= 0
    picked = np.where(kept, -logs[np.arange(6), labels.clip(0)], 0.0)
    each = np.where(kept, weight[labels.clip(0)], 0.0)
    smooth = np.where(kept, -(logs * weight).sum(1), 0.0) / 4
    y = wrap(labels)
    assert nn.CrossEntropyLoss()(t(x), y).item() == pytest.approx(picked.sum() / 5)
    weighted = nn.CrossEntropyLoss(t(weight), label_smoothing=0.2)
    expected = (0.8 * picked * each + 0.2 * smooth).sum() / each.sum()
    assert weighted(t(x), y).item() == pytest.approx(expected)
    rows = nn.CrossEntropyLoss(reduction="none")(t(x), y).numpy()
    np.testing.assert_allclose(rows, picked, rtol=1e-10)
    nll = nn.NLLLoss(t(weight), reduction="sum")(t(logs), y)
    assert nll.item() == pytest.approx((picked * each).sum())
    images = nn.CrossEntropyLoss()(t(x.reshape(3, 4, 2)), wrap(np.array([[0, 1], [2, 3], [1, 1]])))
    spread = log_softmax(x.reshape(3, 4, 2), 1)
    picks = [
        spread[i, c, j] for i, row in enumerate([[0, 1], [2, 3], [1, 1]]) for j, c in enumerate(row)
    ]
    assert images.item() == pytest.approx(-np.mean(picks))
    check_gradients(rng, weighted, x, y)
    with pytest.raises(ValueError, match="label_smoothing"):
        nn.CrossEntropyLoss(label_smoothing=2.0)
    with pytest.raises(ValueError, match="reduction"):
        nn.MSELoss("average")


P, Q = RNG.uniform(0.1, 0.9, (3, 4)), RNG.uniform(0.1, 0.9, (3, 4))
D = abs(P - Q)
LOSSES = [
    (nn.MSELoss, {}, (P - Q) ** 2),
    (nn.L1Loss, {}, D),
    (nn.SmoothL1Loss, {"beta": 0.3}, np.where(D < 0.3, D**2 / 0.6, D - 0.15)),
    (nn.BCELoss, {}, -(Q * np.log(P) + (1 - Q) * np.log(1 - P))),
    (nn.BCEWithLogitsLoss, {}, np.log1p(np.exp(P)) - Q * P),
    (nn.BCEWithLogitsLoss, {"pos_weight": t(np.arange(1.0, 5.0))},
     Q * np.arange(1.0, 5.0) * np.log1p(np.exp(-P)) + (1 - Q) * np.log1p(np.exp(P))),
    (nn.KLDivLoss, {}, Q * (np.log(Q) - P)),
    (nn.KLDivLoss, {"log_target": True}, np.exp(Q) * (Q - P)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "each"), LOSSES)
def test_elementwise_losses_and_their_reductions(
    kind: Any, options: Any, each: Array, rng: np.random.Generator
) -> None:
    none, mean, sums = (
        kind(reduction=r, **options)(t(P), t(Q)).numpy() for r in ("none", "mean", "sum")
    )
    np.testing.assert_allclose(none, each, rtol=1e-9)
    np.testing.assert_allclose([mean, sums], [each.mean(), each.sum()], rtol=1e-9)
    check_gradients(rng, kind(**options), P, t(Q))


def test_margins_and_distances(rng: np.random.Generator) -> None:
    ranking = nn.MarginRankingLoss(0.1)(t(P), t(Q), t(np.ones((3, 4))))
    assert ranking.item() == pytest.approx(np.maximum(0, Q - P + 0.1).mean())
    R = rng.uniform(size=(3, 4))
    near = np.linalg.norm(P - Q + 1e-6, axis=1)
    far = np.linalg.norm(P - R + 1e-6, axis=1)
    triplet = nn.TripletMarginLoss(0.5)(t(P), t(Q), t(R))
    assert triplet.item() == pytest.approx(np.maximum(0, near - far + 0.5).mean())
    np.testing.assert_allclose(nn.PairwiseDistance()(t(P), t(Q)).numpy(), near, rtol=1e-9)
    cosine = (P * Q).sum(1) / np.linalg.norm(P, axis=1) / np.linalg.norm(Q, axis=1)
    np.testing.assert_allclose(nn.CosineSimilarity()(t(P), t(Q)).numpy(), cosine, rtol=1e-9)


# ---- images ------------------------------------------------------------------------------------


def test_padding_layers_are_numpys_pad(rng: np.random.Generator) -> None:
    x = rng.normal(size=(1, 2, 4, 5))
    ends = ((0, 0), (0, 0), (3, 0), (1, 2))
    for layer, mode in (
        (nn.ZeroPad2d, "constant"), (nn.ReflectionPad2d, "reflect"), (nn.ReplicationPad2d, "edge"),
    ):  # fmt: skip
        np.testing.assert_array_equal(layer((1, 2, 3, 0))(t(x)).numpy(), np.pad(x, ends, mode))  # type: ignore[call-overload]
    np.testing.assert_array_equal(
        nn.ConstantPad1d(2, 7.0)(t(x[0])).numpy(),
        np.pad(x[0], ((0, 0), (0, 0), (2, 2)), constant_values=7.0),
    )


def test_upsampling_and_pixel_shuffle(rng: np.random.Generator) -> None:
    x = rng.normal(size=(1, 4, 2, 3))
    np.testing.assert_array_equal(
        nn.Upsample(scale_factor=2)(t(x)).numpy(), x.repeat(2, 2).repeat(2, 3)
    )
    corners = nn.UpsamplingBilinear2d(scale_factor=3)(t(x)).numpy()
    np.testing.assert_allclose(corners[..., ::5, ::8], x[..., ::1, ::2], rtol=1e-12)
    shuffled = nn.PixelShuffle(2)(t(x)).numpy()
    expected = x.reshape(1, 2, 2, 2, 3).transpose(0, 3, 1, 4, 2).reshape(1, 1, 4, 6)
    np.testing.assert_array_equal(shuffled, expected)
