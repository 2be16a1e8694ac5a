"""Observers, fake quantization and quantization-aware convolutions, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import ArgumentError, ShapeError
from tests.parity.values import compare, to_flow


def numbers(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.normal(size=shape).astype(np.float32)) + 0.3


@pytest.mark.parametrize("per_layer", [True, False])
def test_symmetric_rounding_is_that_of_torch(rng: np.random.Generator, per_layer: bool) -> None:
    x = numbers(rng, 4, 3, 5)
    scale, zero = flow.nn.MinMaxObserver(per_layer_quantization=per_layer)(to_flow(x))
    rows = x.reshape(1 if per_layer else 4, -1)
    compare(rows.abs().amax(1) / 127, scale)
    assert not zero.any()
    given = to_flow(x).requires_grad_()
    out = flow.nn.FakeQuantization()(given, scale, zero)
    if per_layer:
        wanted = torch.fake_quantize_per_tensor_affine(x, float(scale), 0, -128, 127)
    else:
        zeros = torch.zeros(4, dtype=torch.int32)
        wanted = torch.fake_quantize_per_channel_affine(
            x, rows.abs().amax(1) / 127, zeros, 0, -128, 127
        )
    compare(wanted, out.detach())
    out.sum().backward()
    assert (given.grad == 1).all()


@pytest.mark.parametrize("bits", [8, 5])
def test_affine_rounding_is_that_of_torch(rng: np.random.Generator, bits: int) -> None:
    x = numbers(rng, 4, 6)
    kind = {"quantization_bit": bits, "quantization_scheme": "affine"}
    scale, zero = flow.nn.MinMaxObserver(**kind)(to_flow(x))
    unit = (x.max() - x.min()) / (2**bits - 1)
    compare(unit.reshape(1), scale)
    compare(-torch.round(x.min() / unit).reshape(1), zero)
    args = (float(scale), int(zero), 0, 2**bits - 1)
    compare(
        torch.fake_quantize_per_tensor_affine(x, *args),
        flow.nn.FakeQuantization(**kind)(to_flow(x), scale, zero),
    )
    whole = flow.nn.Quantization(**kind)(to_flow(x), scale, zero)
    compare(torch.clamp(torch.round(x / unit) - torch.round(x.min() / unit), 0, 2**bits - 1), whole)


def test_scale_may_be_a_power_of_two(rng: np.random.Generator) -> None:
    x = numbers(rng, 4, 6)
    kind = {"quantization_formula": "cambricon"}
    scale, zero = flow.nn.MinMaxObserver(**kind)(to_flow(x))
    power = torch.floor(torch.log2(x.abs().max())) - 6
    assert scale.item() == power.item() and zero.item() == 0
    rounded = torch.clamp(torch.round(x / 2**power), -127, 127)
    compare(rounded, flow.nn.Quantization(**kind)(to_flow(x), scale, zero))
    compare(rounded * 2**power, flow.nn.FakeQuantization(**kind)(to_flow(x), scale, zero))


def test_running_extremes_stop_where_they_are_told(rng: np.random.Generator) -> None:
    observer = flow.nn.MovingAverageMinMaxObserver(2, quantization_scheme="affine", momentum=0.9)
    low = high = None
    for step in range(1, 4):
        x = numbers(rng, 3, 4)
        if step <= 2:
            low = x.min() if low is None else 0.9 * low + 0.1 * x.min()
            high = x.max() if high is None else 0.9 * high + 0.1 * x.max()
        scale, _ = observer(to_flow(x), flow.tensor([step]))
        compare(((high - low) / 255).reshape(1), scale)
    compare([low.reshape(1), high.reshape(1)], [observer.moving_min, observer.moving_max])
    observer.eval()(flow.ones(2, 2) * 100, flow.tensor([1]))
    compare(high.reshape(1), observer.moving_max)
    observer.reset_running_stats()
    assert not observer.moving_max.any()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolution_takes_rounded_inputs_and_weights(rng: np.random.Generator, dims: int) -> None:
    layer = getattr(flow.nn, f"QatConv{dims}d")(2, 4, 3, padding=1, weight_quant_per_layer=False)
    x = numbers(rng, 2, 2, *(5,) * dims)
    out = layer(to_flow(x))
    out.sum().backward()
    weight = torch.from_numpy(layer.weight.detach().numpy())
    scales = weight.reshape(4, -1).abs().amax(1) / 127
    zeros = torch.zeros(4, dtype=torch.int32)
    w = torch.fake_quantize_per_channel_affine(weight, scales, zeros, 0, -128, 127).requires_grad_()
    y = torch.fake_quantize_per_tensor_affine(x, float(x.abs().max() / 127), 0, -128, 127)
    bias = torch.from_numpy(layer.bias.detach().numpy())
    wanted = getattr(torch.nn.functional, f"conv{dims}d")(y, w, bias, padding=1)
    compare(wanted.detach(), out.detach())
    wanted.sum().backward()
    compare(w.grad, layer.weight.grad)
    assert layer.current_train_step.item() == 1


def test_kinds_that_do_not_exist_are_refused() -> None:
    for keywords in (
        {"quantization_formula": "none"},
        {"quantization_scheme": "odd"},
        {"quantization_bit": 1},
    ):
        with pytest.raises(ValueError, match="quantization"):
            flow.nn.Quantization(**keywords)
    scale = flow.ones(3)
    with pytest.raises(ValueError, match="slice of dim 0"):
        flow.nn.Quantization()(flow.ones(2, 2), scale, scale)


@pytest.mark.parametrize("as_tensors", [True, False])
def test_levels_of_one_scale_are_those_of_torch(rng: np.random.Generator, as_tensors: bool) -> None:
    x = numbers(rng, 4, 6) * 2
    given, theirs = to_flow(x).requires_grad_(), x.clone().requires_grad_()
    if as_tensors:
        wanted = torch.fake_quantize_per_tensor_affine(
            theirs, torch.tensor(0.1), torch.tensor(5, dtype=torch.int32), 0, 31
        )
        scale, zero = flow.tensor(0.1), flow.tensor(5, dtype=flow.int32)
        out = flow.fake_quantize_per_tensor_affine(given, scale, zero, 0, 31)
    else:
        wanted = torch.fake_quantize_per_tensor_affine(theirs, 0.1, 5, 0, 31)
        out = flow.fake_quantize_per_tensor_affine(given, 0.1, 5, quant_min=0, quant_max=31)
    d_out = numbers(rng, 4, 6)
    wanted.backward(d_out)
    out.backward(to_flow(d_out))
    compare(wanted.detach(), out.detach())
    compare(theirs.grad, given.grad)
    assert 0 < np.count_nonzero(given.grad.numpy()) < 24  # some were cut off


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_levels_of_each_channel_are_those_of_torch(rng: np.random.Generator, axis: int) -> None:
    x = numbers(rng, 3, 3, 3) * 2
    scales, zeros = torch.tensor([0.1, 0.2, 0.05]), torch.tensor([0, -3, 4], dtype=torch.int32)
    given, theirs = to_flow(x).requires_grad_(), x.clone().requires_grad_()
    wanted = torch.fake_quantize_per_channel_affine(theirs, scales, zeros, axis % 3, -8, 7)
    out = flow.fake_quantize_per_channel_affine(given, to_flow(scales), to_flow(zeros), axis, -8, 7)
    d_out = numbers(rng, 3, 3, 3)
    wanted.backward(d_out)
    out.backward(to_flow(d_out))
    compare(wanted.detach(), out.detach())
    compare(theirs.grad, given.grad)


def test_levels_without_a_range_and_scales_of_another_shape_are_refused() -> None:
    x = flow.ones(2, 3)
    with pytest.raises(ArgumentError, match="above quant_max"):
        flow.fake_quantize_per_tensor_affine(x, 0.1, 0, 5, 4)
    with pytest.raises(ShapeError, match="needs 3 scales"):
        flow.fake_quantize_per_channel_affine(x, flow.ones(2), flow.zeros(2), 1, 0, 5)
    with pytest.raises(ShapeError, match="one number each"):
        flow.fake_quantize_per_tensor_affine(x, flow.ones(2), 0, 0, 5)
