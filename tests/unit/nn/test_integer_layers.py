"""Layers of 8-bit integers that are made of trained ones: their integers against NumPy's in
float64, their results against the layers with rounded numbers, PyTorch and graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import nn
from oneflow.compat.upstream import qat
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.nn.quantized import IntegerConv2d, IntegerLinear

KINDS: list[dict[str, Any]] = [
    {"weight_quant_per_layer": False},
    {"weight_quant_per_layer": True, "quantization_bit": 6},
    {"weight_quant_per_layer": False, "quantization_scheme": "affine"},
    {"quantization_formula": "cambricon"},
]


def _close(found: flow.Tensor, wanted: flow.Tensor) -> None:
    want = wanted.detach().numpy()
    np.testing.assert_allclose(found.numpy(), want, rtol=0, atol=3e-6 * np.abs(want).max())


def _seen(layer: Any, *shape: int) -> flow.Tensor:
    """Inputs, of which the layer has seen some in training."""
    flow.manual_seed(3)
    layer.train()
    for _ in range(3):
        layer(flow.randn(*shape) + 0.2)
    layer.eval()
    return flow.randn(*shape) * 1.2  # some beyond the extremes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "inputs", "outs"), [(2, 5, 3), (70, 250, 90), (1, 512, 64)])
def test_dense_layer_is_the_one_of_rounded_numbers(
    kind: dict[str, Any], rows: int, inputs: int, outs: int
) -> None:
    layer = nn.QatLinear(inputs, outs, **kind)
    x = _seen(layer, rows, inputs)
    _close(qat.convert(layer)(x), layer(x))


GEOMETRIES: list[tuple[tuple[int, int, Any], dict[str, Any], tuple[int, int]]] = [
    ((16, 24, 3), {"padding": 1}, (11, 12)),
    ((20, 18, (3, 2)), {"stride": (2, 1), "padding": (2, 1), "dilation": (2, 3)}, (14, 13)),
    ((32, 48, 1), {"bias": False}, (6, 5)),
    ((32, 32, 3), {"groups": 2, "padding": "same", "padding_mode": "reflect"}, (8, 20)),
    ((3, 8, 7), {"stride": 2, "padding": 3}, (24, 24)),
    ((24, 24, 3), {"groups": 24}, (9, 9)),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sizes", "options", "image"), GEOMETRIES)
def test_convolution_is_the_one_of_rounded_numbers(
    kind: dict[str, Any],
    sizes: tuple[int, int, Any],
    options: dict[str, Any],
    image: tuple[int, int],
) -> None:
    layer = nn.QatConv2d(*sizes, **options, **kind)
    x = _seen(layer, 2, sizes[0], *image)
    _close(qat.convert(layer)(x), layer(x))


@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
def test_integers_are_those_of_numpy(scheme: str) -> None:
    layer = nn.QatLinear(300, 70, False, quantization_scheme=scheme)
    x = _seen(layer, 33, 300)
    made: Any = qat.convert(layer)
    unit, zero = made.unit.numpy(), made.zero.numpy()
    q = np.clip(np.rint(x.numpy() / unit) + zero, made.low, made.high) - zero
    w = made.qweight.numpy()[:, :300].astype(np.float64) - made.zeros.numpy()[:, None]
    made.scales = flow.ones(70) / float(unit[0])  # so that no scale is left
    sums = q.astype(np.float64) @ w.T
    assert np.array_equal(np.rint(made(x).numpy().astype(np.float64)), sums)
    assert np.abs(sums).max() > 10_000
    low, high = w.min(), w.max()
    assert high - low > 200 and made.qweight.dtype is flow.int8


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_torch_multiplies_the_same_integers() -> None:
    layer = nn.QatLinear(64, 48, weight_quant_per_layer=False)
    x = _seen(layer, 20, 64)
    made: Any = qat.convert(layer)
    theirs = torch.quantize_per_tensor(
        torch.from_numpy(x.numpy()), float(made.unit), 0, torch.qint8
    ).int_repr()
    weight = torch.quantize_per_channel(
        torch.from_numpy(layer.weight.detach().numpy()),
        torch.from_numpy(made.scales.numpy()).double(),
        torch.zeros(48, dtype=torch.int64),
        0,
        torch.qint8,
    ).int_repr()
    assert np.array_equal(weight.numpy(), made.qweight.numpy())
    sums = torch._int_mm(theirs, weight.T.contiguous()).numpy()
    factor = made.unit.numpy() * made.scales.numpy()
    found = (made(x).numpy().astype(np.float64) - layer.bias.detach().numpy()) / factor
    np.testing.assert_array_equal(np.rint(found), sums)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.QatConv2d(3, 16, 3, padding=1, weight_quant_per_layer=False)
        self.body = nn.QatConv2d(16, 32, 3, stride=2, weight_quant_per_layer=False)
        self.head = nn.QatLinear(32, 4, weight_quant_per_layer=False)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        x = nn.functional.relu(self.body(nn.functional.relu(self.stem(x))))
        out: flow.Tensor = self.head(x.mean((2, 3)))
        return out


class _Graph(nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: flow.Tensor) -> Any:
        return self.model(x)


def _trained(rng: np.random.Generator) -> tuple[_Net, flow.Tensor, flow.Tensor]:
    """A net that tells which quarter of an image is bright."""
    flow.manual_seed(0)
    model = _Net()
    label = rng.integers(0, 4, 160)
    images = rng.normal(size=(160, 3, 12, 12)).astype(np.float32) * 0.3
    for i, k in enumerate(label):
        images[i, k % 3, :, :] += 1.0 if k < 3 else -1.0
    x, y = flow.tensor(images), flow.tensor(label)
    optimizer = flow.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(25):
        loss = nn.functional.cross_entropy(model(x[:128]), y[:128])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), x[128:], y[128:]


def test_a_trained_net_keeps_its_answers(rng: np.random.Generator) -> None:
    model, x, y = _trained(rng)
    made = qat.convert(model)
    kinds = [type(m) for m in made.modules()]
    assert kinds.count(IntegerConv2d) == 2 and kinds.count(IntegerLinear) == 1
    assert isinstance(model.head, nn.QatLinear)  # it is a copy
    rounded, whole = model(x), made(x)
    assert (rounded.argmax(1) == y).to(flow.float32).mean() > 0.9
    assert np.array_equal(rounded.argmax(1).numpy(), whole.argmax(1).numpy())
    # Sums of floats that differ in the last bit can round to another integer now and then.
    step = float(model.head.input_observer.moving_max) / 127
    np.testing.assert_allclose(whole.numpy(), rounded.detach().numpy(), atol=20 * step)
    np.testing.assert_allclose(_Graph(made)(x).numpy(), whole.numpy(), atol=20 * step)


def test_state_dict_carries_the_integers(rng: np.random.Generator) -> None:
    layers = [nn.QatLinear(20, 6, weight_quant_per_layer=False) for _ in range(2)]
    x = _seen(layers[0], 4, 20)
    _seen(layers[1], 4, 20)
    first, second = map(qat.convert, layers)
    second.load_state_dict(first.state_dict())
    assert np.array_equal(first(x).numpy(), second(x).numpy())


def test_layers_that_do_not_fit_are_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.QatLinear(3, 3))
    with pytest.raises(ArgumentError, match=r"1, a QatLinear, has seen no inputs"):
        qat.convert(model)
    kept = qat.convert(model, lambda module, name: False)
    assert isinstance(kept[1], nn.QatLinear)
    wide = nn.QatLinear(3, 3, quantization_bit=12)
    _seen(wide, 2, 3)
    with pytest.raises(ArgumentError, match="has 12 bits"):
        qat.convert(wide)
    cube = nn.QatConv3d(1, 1, 1)
    _seen(cube, 1, 1, 2, 2, 2)
    with pytest.raises(ArgumentError, match="QatConv3d, has no form with integers"):
        qat.convert(cube)
    uneven = nn.QatConv2d(1, 1, 2, padding="same")
    _seen(uneven, 1, 1, 4, 4)
    with pytest.raises(ArgumentError, match="ZeroPad2d"):
        qat.convert(uneven)
    positive = nn.QatLinear(3, 3, quantization_scheme="affine")
    positive(flow.ones(1, 3) + flow.rand(1, 3))
    with pytest.raises(ArgumentError, match="of one sign"):
        qat.convert(positive)
    long = nn.QatLinear(140_000, 1)
    _seen(long, 1, 140_000)
    with pytest.raises(ArgumentError, match="32 bits do not hold"):
        qat.convert(long)
    fits = nn.QatLinear(3, 3)
    _seen(fits, 2, 3)
    with pytest.raises(ShapeError, match=r"integer_linear: weight int8\[3, 16\] does not fit x"):
        qat.convert(fits)(flow.ones(2, 20))
