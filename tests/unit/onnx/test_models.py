"""Small models of each kind agree with onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import oneflow as flow
from oneflow import nn

from .running import assert_same


class Residual(nn.Module):
    """ResNet's bottleneck, with groups and dilation as its relatives have them."""

    def __init__(self, groups: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=dilation, dilation=dilation, groups=groups),
            nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8),
        )  # fmt: skip

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return flow.relu(self.body(x) + x)


class Inverted(nn.Module):
    """MobileNet v3's block: depthwise convolution, squeeze and excitation, hard activations."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.Hardswish())
        self.depth = nn.Conv2d(16, 16, 5, stride=2, padding=2, groups=16)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU6(), nn.Conv2d(4, 16, 1),
            nn.Hardsigmoid(),
        )  # fmt: skip
        self.narrow = nn.Conv2d(16, 8, 1)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        x = self.depth(self.wide(x))
        out: flow.Tensor = self.narrow(x * self.squeeze(x))
        return out


class Shuffle(nn.Module):
    """ShuffleNet's: half of the channels, and channels in turn; DenseNet's and UNet's joins."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        left, right = x.chunk(2, dim=1)
        x = flow.cat([left, self.own(right)], dim=1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        small = self.up(nn.functional.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False))
        wide = nn.functional.interpolate(small, size=(h, w), mode="bilinear", align_corners=False)
        return flow.cat([x, wide, nn.functional.interpolate(small, size=(h, w))], dim=1)


class Windows(nn.Module):
    """Swin's shifted windows, with a bias by relative position."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.table = nn.Linear(8, 24), nn.Parameter(flow.randn(9, 2))
        places = flow.arange(4).reshape(2, 2)
        index = (places.reshape(-1, 1) + places.reshape(1, -1)).clamp(max=8)
        self.register_buffer("index", index)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        n = x.shape[0]
        x = flow.roll(x, shifts=(-1, -1), dims=(1, 2))
        x = x.view(n, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 8)
        q, k, v = self.qkv(x).reshape(-1, 4, 3, 2, 4).permute(2, 3, 0, 1, 4)
        bias = self.table[self.index.view(-1)].view(4, 4, 2).permute(2, 0, 1).unsqueeze(1)
        x = ((q * 0.5) @ k.transpose(-2, -1) + bias).softmax(-1) @ v
        x = x.permute(1, 2, 0, 3).reshape(n, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5)
        return flow.roll(x.reshape(n, 4, 4, 8), shifts=(1, 1), dims=(1, 2))


class Causal(nn.Module):
    """A GPT with causal attention, rotary positions and RMS norm, as Llama has them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(50, 16), nn.RMSNorm(16)
        self.qkv, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16)
        self.gate, self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def rotated(self, x: flow.Tensor) -> flow.Tensor:
        steps = flow.arange(x.shape[-2])[:, None] * flow.tensor([1.0, 0.1])
        cos, sin = (flow.cat([f(steps)] * 2, dim=-1) for f in (flow.cos, flow.sin))
        left, right = x.chunk(2, dim=-1)
        return x * cos + flow.cat([-right, left], dim=-1) * sin

    def forward(self, ids: flow.Tensor) -> flow.Tensor:
        x = self.words(ids)
        n, length, _ = x.shape
        parts = self.qkv(self.norm(x)).view(n, length, 3, 4, 4).permute(2, 0, 3, 1, 4)
        q, k, v = self.rotated(parts[0]), self.rotated(parts[1]), parts[2]
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, 16))
        x = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return x @ self.words.weight.T


class Recurrent(nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(5, 7, **options)

    def forward(self, x: flow.Tensor) -> Any:
        return self.layer(x)


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2)


Model = tuple[Callable[[], nn.Module], tuple[int, ...]]
MODELS: dict[str, Model] = {
    "bottleneck": (Residual, (2, 8, 9, 9)),
    "grouped": (lambda: Residual(groups=2), (2, 8, 9, 9)),
    "dilated": (lambda: Residual(dilation=2), (2, 8, 9, 9)),
    "inverted": (Inverted, (2, 8, 9, 9)),
    "shuffle": (Shuffle, (2, 8, 10, 10)),
    "windows": (Windows, (2, 4, 4, 8)),
    "transformer": (transformer, (2, 6, 16)),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU()), (2, 8, 5, 5)),
    "instance norm": (lambda: nn.InstanceNorm2d(8, affine=True), (2, 8, 5, 5)),
    "LSTM": (lambda: Recurrent("LSTM", num_layers=2, bidirectional=True), (6, 3, 5)),
    "LSTM with projection": (lambda: Recurrent("LSTM", proj_size=3), (6, 3, 5)),
    "GRU": (lambda: Recurrent("GRU", batch_first=True, bidirectional=True), (3, 6, 5)),
    "RNN": (lambda: Recurrent("RNN", nonlinearity="relu", bias=False), (6, 3, 5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_model_agrees_with_onnxruntime(name: str) -> None:
    make, shape = MODELS[name]
    assert_same(make(), flow.randn(*shape))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layer_is_one_operator_with_its_own_weights(kind: str) -> None:
    made = assert_same(Recurrent(kind), flow.randn(6, 3, 5))
    written = [node.op_type for node in made.graph.node]
    assert kind in written and "MatMul" not in written


@pytest.mark.parametrize("name", ["bottleneck", "inverted", "shuffle", "windows", "GRU"])
def test_batch_may_have_any_size(name: str) -> None:
    make, shape = MODELS[name]
    parameter = "input" if name == "group norm" else "x"
    others = [flow.randn(n, *shape[1:]) for n in (1, 5)]
    assert_same(make(), flow.randn(*shape), others=others, dynamic_axes={parameter: {0: "n"}})


def test_texts_may_have_any_length() -> None:
    def ids(*shape: int) -> flow.Tensor:
        return flow.randint(0, 50, shape)

    axes = {"ids": {0: "texts", 1: "length"}}
    assert_same(Causal(), ids(2, 6), others=[ids(1, 3), ids(3, 11)], dynamic_axes=axes)
    assert_same(transformer(), flow.randn(2, 6, 16), others=[flow.randn(3, 8, 16)],
                dynamic_axes={"src": {0: "texts", 1: "length"}})  # fmt: skip
