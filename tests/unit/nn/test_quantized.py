"""Layers with integers as weights: values, modes, gradients, files of other programs, and
the cost of rounding to a small language model."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import ArgumentError, CheckpointError
from oneflow.nn.quantized import (
    Embedding,
    Int4WeightOnlyConfig,
    Int8WeightOnlyConfig,
    Linear,
    load_quantized_,
    quantize_,
)
from oneflow.nn.quantized.quantize import Config

Array = np.ndarray[Any, Any]

CONFIGS: list[Config] = [Int8WeightOnlyConfig(), Int8WeightOnlyConfig(32), Int4WeightOnlyConfig(32)]


def _model() -> nn.Sequential:
    flow.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 48, bias=False))


def _values(layer: nn.Linear, config: Config) -> torch.Tensor:
    """The rounded weight, by torch's rounding to a scale and a zero point for each group."""
    weight = torch.from_numpy(layer.weight.numpy())
    rows, columns = weight.shape
    groups = weight.reshape(-1, config.group_size or columns)
    if config.bits == 8:
        scales, low, high = groups.abs().amax(1) / 127, -127, 127
    else:  # of either sign, such that the largest magnitude becomes -8
        largest = groups.gather(1, groups.abs().argmax(1, keepdim=True))
        turned, scales, low, high = -largest.sign(), largest[:, 0].abs() / 8, -8, 7
        groups = groups * turned
    zeros = torch.zeros(len(groups), dtype=torch.int32)
    rounded = torch.fake_quantize_per_channel_affine(groups, scales, zeros, 0, low, high)
    if config.bits == 4:
        rounded = rounded * turned
    return rounded.reshape(rows, columns)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_weights_are_rounded_as_torch_rounds(config: Config) -> None:
    model = _model()
    made = quantize_(copy.deepcopy(model), config)
    for i in (0, 2):
        layer, rounded = model[i], made.get_submodule(str(i))
        assert isinstance(layer, nn.Linear) and isinstance(rounded, Linear)
        np.testing.assert_allclose(
            rounded.dequantize().numpy(), _values(layer, config).numpy(), atol=1e-6
        )
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32))
    hidden = torch.relu(x @ _values(model[0], config).T + torch.from_numpy(model[0].bias.numpy()))
    want = hidden @ _values(model[2], config).T
    np.testing.assert_allclose(made(flow.from_numpy(x.numpy())).numpy(), want, atol=1e-5)


def test_zeros_constants_and_half_floats_are_rounded() -> None:
    layer = nn.Linear(64, 4)
    with flow.no_grad():
        layer.weight[0], layer.weight[1], layer.weight[2] = 0.0, 0.5, -0.25
    for config in CONFIGS:
        for dtype, error in ((flow.float32, 1e-7), (flow.bfloat16, 2e-3), (flow.float16, 3e-4)):
            kept = copy.deepcopy(layer).to(dtype)
            made = Linear.from_float(kept, config)
            assert made.scales.dtype is dtype
            found = made.dequantize().to(flow.float32).numpy()[:3]
            np.testing.assert_allclose(found, kept.weight.float().numpy()[:3], atol=error)
            assert made(flow.ones(2, 64, dtype=dtype)).dtype is dtype


def _by_graph(model: nn.Module) -> Callable[..., flow.Tensor]:
    graph: Callable[..., flow.Tensor] = nn.Graph.trace(model)
    return graph


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_graphs_and_compiled_functions_agree_with_eager(config: Config) -> None:
    model = quantize_(_model(), config).eval()
    x = flow.randn(2, 64)
    with flow.no_grad():
        want = model(x).numpy()
        for run in (_by_graph(model), flow.compile(model)):
            for _ in range(2):
                np.testing.assert_allclose(run(x).numpy(), want, atol=1e-6)


def test_adapters_learn_beside_integers_as_beside_their_floats() -> None:
    model = quantize_(_model(), Int4WeightOnlyConfig(32))
    layers = [model.get_submodule(str(i)) for i in (0, 2)]
    weights = [torch.from_numpy(layer.dequantize().numpy()) for layer in layers]
    down, up = flow.randn(64, 4).requires_grad_(), flow.randn(4, 160).requires_grad_()
    x = flow.randn(5, 64).requires_grad_()
    hidden = layers[0](x) + x @ down @ up
    (layers[1](hidden) ** 2).sum().backward()

    xs, a, b = (torch.from_numpy(t.detach().numpy()).requires_grad_() for t in (x, down, up))
    bias = torch.from_numpy(layers[0].bias.detach().numpy()).requires_grad_()
    out = (xs @ weights[0].T + bias + xs @ a @ b) @ weights[1].T
    grads = torch.autograd.grad((out**2).sum(), (xs, a, b, bias))
    for ours, theirs in zip((x, down, up, layers[0].bias), grads, strict=True):
        assert ours.grad is not None
        np.testing.assert_allclose(ours.grad.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-2)
    assert [name for name, _ in model.named_parameters()] == ["0.bias"]


def test_a_row_without_batch_has_the_gradient_of_a_batch_of_one() -> None:
    layer = Linear.from_float(nn.Linear(64, 8), CONFIGS[0])
    x = flow.randn(64).requires_grad_()
    layer(x).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), layer.dequantize().numpy().sum(0), atol=1e-5)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_state_dict_fills_a_new_layer(config: Config, tmp_path: Path) -> None:
    made = Linear.from_float(nn.Linear(64, 8), config)
    flow.save(made.state_dict(), str(tmp_path / "state"))
    fresh = Linear(64, 8, bits=config.bits, group_size=config.group_size)
    fresh.load_state_dict(flow.load(str(tmp_path / "state")))
    x = flow.randn(2, 64)
    np.testing.assert_array_equal(fresh(x).numpy(), made(x).numpy())
    assert made.state_dict()["qweight"].dtype is flow.uint8
    assert repr(fresh) == repr(made)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_rows_of_a_table(config: Config) -> None:
    table = nn.Embedding(10, 64)
    made = Embedding.from_float(table, config)
    ids = flow.tensor([[3, 9, 3], [0, 1, 2]])
    np.testing.assert_array_equal(made(ids).numpy(), made.dequantize().numpy()[ids.numpy()])
    np.testing.assert_allclose(made.dequantize().numpy(), table.weight.numpy(), atol=0.3)
    fresh = Embedding(10, 64, bits=config.bits, group_size=config.group_size)
    fresh.load_state_dict(made.state_dict())
    np.testing.assert_array_equal(fresh(ids).numpy(), made(ids).numpy())


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.again = self.first
        self.attention = nn.MultiheadAttention(32, 2)
        self.table = nn.Embedding(8, 32)


def test_each_layer_is_replaced_once_and_others_read_its_floats() -> None:
    """Attention multiplies by the weight of its last layer itself."""
    model, x = _Shared(), flow.randn(3, 1, 32)
    out = model.attention.out_proj
    floats = Linear.from_float(out, Int8WeightOnlyConfig()).dequantize()
    quantize_(model, Int8WeightOnlyConfig())
    assert isinstance(model.attention.get_submodule("out_proj"), Linear)
    found = model.attention(x, x, x)[0].numpy()
    assert isinstance(model.first, Linear) and model.first is model.again
    with flow.no_grad():
        out.weight.copy_(floats)
    model.attention.out_proj = out
    np.testing.assert_allclose(found, model.attention(x, x, x)[0].numpy(), atol=1e-6)
    assert isinstance(model.table, nn.Embedding)
    quantize_(model, Int8WeightOnlyConfig(), lambda module, name: name == "table")
    assert isinstance(model.table, Embedding)


def test_layers_that_cannot_be_rounded_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"quantize_: 2: pack: groups of 64 do not divide 160"):
        quantize_(_model(), Int4WeightOnlyConfig(64))
    with pytest.raises(ArgumentError, match="quantize_: 1 is a ReLU; filter_fn may choose"):
        quantize_(_model(), Int8WeightOnlyConfig(), lambda module, name: name == "1")
    with pytest.raises(ArgumentError, match=r"the model is itself a Linear.*from_float"):
        quantize_(nn.Linear(8, 8), Int8WeightOnlyConfig())
    with pytest.raises(ArgumentError, match="Linear: groups of 3 do not divide 9 inputs of 4 bits"):
        Linear(9, 4, bits=4, group_size=3)


# ---- files of other programs ---------------------------------------------------------------------


def _words(numbers: Array, bits: int) -> Array:
    """(rows, n) -> (rows, n * bits / 32): numbers into words one by one, the first lowest."""
    per_word = 32 // bits
    words = np.zeros((len(numbers), -(-numbers.shape[1] // per_word)), np.int64)
    for i in range(numbers.shape[1]):
        words[:, i // per_word] += numbers[:, i].astype(np.int64) << (bits * (i % per_word))
    return words.astype(np.uint32).view(np.int32)


def _drawn(outs: int, columns: int, group: int, bits: int, low: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng([outs, columns, group, bits])
    return {
        "q": rng.integers(0, 1 << bits, (outs, columns)),
        "z": rng.integers(low, 1 << bits, (outs, columns // group)),
        "s": rng.uniform(0.001, 0.01, (outs, columns // group)).astype(np.float16),
    }


def _floats(drawn: dict[str, Array], groups: Array) -> Array:
    """The weight by its definition, in float64."""
    q, z, s = (drawn[k].astype(np.float64) for k in "qzs")
    return (q - z[:, groups]) * s[:, groups]


def _awq(drawn: dict[str, Array], _: Array) -> dict[str, Array]:
    def packed(numbers: Array) -> Array:
        moved = numbers.reshape(len(numbers), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
        return _words(moved.reshape(numbers.shape), 4)

    weight, zeros = packed(drawn["q"].T), packed(drawn["z"].T)
    return {"qweight": weight, "qzeros": zeros, "scales": np.ascontiguousarray(drawn["s"].T)}


def _gptq(
    drawn: dict[str, Array], groups: Array, bits: int = 4, offset: int = 1
) -> dict[str, Array]:
    return {
        "qweight": np.ascontiguousarray(_words(drawn["q"], bits).T),
        "qzeros": _words(drawn["z"].T - offset, bits),
        "scales": np.ascontiguousarray(drawn["s"].T),
        "g_idx": groups.astype(np.int32),
    }


def _compressed(drawn: dict[str, Array], groups: Array, bits: int = 4) -> dict[str, Array]:
    """Both offsets are 2^(bits - 1), which leaves q and z as they are."""
    return {
        "weight_packed": _words(drawn["q"], bits),
        "weight_zero_point": np.ascontiguousarray(_words(drawn["z"].T, bits).T),
        "weight_scale": drawn["s"],
        "weight_shape": np.array(drawn["q"].shape),
    }


def _symmetric(drawn: dict[str, Array], groups: Array, bits: int = 4) -> dict[str, Array]:
    drawn["z"][:] = 1 << (bits - 1)
    parts = _compressed(drawn, groups, bits)
    del parts["weight_zero_point"]
    return parts


def _shuffled(drawn: dict[str, Array], groups: Array) -> dict[str, Array]:
    np.random.default_rng(0).shuffle(groups)
    return _gptq(drawn, groups)


FILES: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "awq": (_awq, 4, {"quant_method": "awq", "version": "gemm"}),
    "gptq": (_gptq, 4, {"quant_method": "gptq"}),
    "gptq, 8 bits": (lambda d, g: _gptq(d, g, 8), 8, {"quant_method": "gptq"}),
    "gptq, version 2": (
        lambda d, g: _gptq(d, g, 4, 0), 4,
        {"quant_method": "gptq", "checkpoint_format": "gptq_v2"},
    ),
    "gptq, ordered by activations": (_shuffled, 4, {"quant_method": "gptq", "desc_act": True}),
    "compressed": (
        _compressed, 4, {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    ),
    "compressed, symmetric": (_symmetric, 4, {}),
    "compressed, 8 bits": (lambda d, g: _compressed(d, g, 8), 8, {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_files_have_the_numbers_of_their_layout(kind: str, tmp_path: Path) -> None:
    write, bits, config = FILES[kind]
    group = 32
    model = nn.Sequential(nn.Linear(96, 40), nn.ReLU(), nn.Linear(40, 3))
    drawn = _drawn(40, 96, group, bits, low=1)
    groups = np.repeat(np.arange(3), group)
    parts = write(drawn, groups)
    rest = {"0.bias": np.arange(40, dtype=np.float32), "2.bias": np.ones(3, np.float32)}
    rest["2.weight"] = np.full((3, 40), 0.5, np.float32)
    file = {**{f"0.{name}": part for name, part in parts.items()}, **rest}
    safetensors.numpy.save_file(file, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))

    result = load_quantized_(model, tmp_path)
    assert not result.missing_keys and not result.unexpected_keys
    layer, want = model[0], _floats(drawn, groups)
    assert isinstance(layer, Linear) and layer.bits == bits
    np.testing.assert_array_equal(layer.dequantize().to(flow.float64).numpy(), want)
    x = np.random.default_rng(1).normal(size=(2, 96)).astype(np.float32)
    hidden = np.maximum(x @ want.T + rest["0.bias"], 0)
    expected = hidden @ rest["2.weight"].T + rest["2.bias"]
    np.testing.assert_allclose(model(flow.tensor(x)).numpy(), expected, rtol=1e-5)


def test_a_layer_of_odd_size_is_read_without_its_padding(tmp_path: Path) -> None:
    drawn = _drawn(5, 52, 52, 4)
    parts = _compressed(drawn, np.zeros(52, int))
    model = nn.Sequential(nn.Linear(52, 5, bias=False))
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({f"0.{name}": part for name, part in parts.items()}, path)
    load_quantized_(model, path)
    found = model.get_submodule("0").dequantize().to(flow.float64).numpy()
    np.testing.assert_array_equal(found, _floats(drawn, np.zeros(52, int)))


BROKEN: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"quant_method": "bitsandbytes"}, {}, "quant_method 'bitsandbytes'.*awq, gptq"),
    ({"quant_method": "awq", "version": "gemv"}, {}, "version 'gemv' of awq; can read gemm"),
    ({}, {"qweight": None}, "0: it has .*, but no qweight"),
    ({}, {"qzeros": None}, "0: it has .*, but no qzeros"),
    ({}, {"qweight": np.zeros((7, 5), np.int32)}, r"0: qweight \[7, 5\] and scales \[3, 40\]"),
    ({}, {"qweight": np.zeros((6, 40), np.int32)}, "0: 6 words hold 96 inputs with neither"),
]


@pytest.mark.parametrize(("config", "changes", "message"), BROKEN)
def test_files_that_cannot_be_read_say_why(
    config: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    parts = {**_awq(_drawn(40, 96, 32, 4), np.zeros(0)), **changes}
    file = {f"0.{name}": part for name, part in parts.items() if part is not None}
    safetensors.numpy.save_file(file, tmp_path / "a.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    model = nn.Sequential(nn.Linear(96, 40, bias=False))
    with pytest.raises(CheckpointError, match=f"load_quantized_: .*{message}"):
        load_quantized_(model, tmp_path)


def test_a_folder_must_fit_the_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no \*.safetensors"):
        load_quantized_(_model(), tmp_path)
    parts = _awq(_drawn(40, 96, 32, 4), np.zeros(0))
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({f"5.{name}": part for name, part in parts.items()}, path)
    with pytest.raises(CheckpointError, match="the model has no layers 5"):
        load_quantized_(_model(), path)
    safetensors.numpy.save_file({f"1.{name}": part for name, part in parts.items()}, path)
    with pytest.raises(CheckpointError, match="1 has packed weights, but is a ReLU"):
        load_quantized_(_model(), path)
    safetensors.numpy.save_file({f"0.{name}": part for name, part in parts.items()}, path)
    with pytest.raises(CheckpointError, match="0 has 39 outputs, the file 40"):
        load_quantized_(nn.Sequential(nn.Linear(96, 39)), path)


# ---- a small language model ----------------------------------------------------------------------

CONTEXT = 48


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (part.reshape(*x.shape[:2], 2, -1).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(*x.shape))
        out: flow.Tensor = x + self.down(nn.functional.gelu(self.up(self.between(x))))
        return out


class _LanguageModel(nn.Module):
    def __init__(self, width: int, letters: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(letters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(_Block(width), _Block(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, ids: flow.Tensor) -> flow.Tensor:
        """The mean loss of each next letter. ids: (rows, at most CONTEXT + 1)."""
        x = self.table(ids[:, :-1]) + self.places(flow.arange(ids.shape[1] - 1))
        scores = self.head(self.norm(self.blocks(x)))
        rows = scores.reshape(-1, scores.shape[-1])
        return nn.functional.cross_entropy(rows, ids[:, 1:].reshape(-1))


def _trained(width: int, steps: int) -> tuple[_LanguageModel, flow.Tensor]:
    """A model of the letters of this repository's pages, and text that it has not seen."""
    docs = Path(__file__).parents[3] / "docs"
    text = "".join((docs / name).read_text() for name in ("RUNTIME.md", "GPU.md", "CLUSTER.md"))
    letters = sorted(set(text))
    ids = np.array([letters.index(letter) for letter in text])
    held = len(ids) * 9 // 10
    flow.manual_seed(0)
    model, rng = _LanguageModel(width, len(letters)), np.random.default_rng(0)
    optimizer = flow.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(steps):
        starts = rng.integers(0, held - CONTEXT, (8, 1))
        model(flow.tensor(ids[starts + np.arange(CONTEXT + 1)])).backward()
        optimizer.step()
        optimizer.zero_grad()
    starts = np.arange(held, len(ids) - CONTEXT - 1, CONTEXT)[:, None]
    return model, flow.tensor(ids[starts + np.arange(CONTEXT + 1)])


@pytest.mark.parametrize(
    ("width", "steps"), [(64, 60), pytest.param(128, 300, marks=pytest.mark.slow)]
)
def test_rounding_leaves_the_perplexity_of_a_language_model(width: int, steps: int) -> None:
    model, unseen = _trained(width, steps)

    def perplexities(model: Any) -> Any:
        """Perplexities of many rows in a product, and of eight, which have kernels of their own."""
        few = [float(model(row[None, :9])) for row in unseen]
        losses = np.array([float(model(unseen)), np.mean(few)])
        return np.exp(losses)

    with flow.no_grad():
        whole = perplexities(model)
        assert whole[0] < 25  # one of 93 letters, before it has learned
        configs: dict[Config, float] = {Int8WeightOnlyConfig(): 0.005}
        configs |= {Int4WeightOnlyConfig(g): 0.03 for g in (32, 64, 128) if width % g == 0}
        for config, limit in configs.items():
            rounded = quantize_(copy.deepcopy(model), config)
            assert (np.abs(perplexities(rounded) / whole - 1) < limit).all(), config
