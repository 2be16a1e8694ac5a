"""The networks of the training benchmarks, written once for any library with PyTorch's names."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from vision_models import CLASSES, IMAGE_MODELS, IMAGES

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, GPT_BATCH = 96, 64, 128, 4, 4, 12
DIGITS_BATCH = 96


def mlp(lib: Any) -> Any:
    """64 -> 128 -> 128 -> 10, tanh. Input (96, 64)."""
    nn = lib.nn
    return nn.Sequential(
        nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10)
    )


def cnn(lib: Any) -> Any:
    """Two convolutions and two dense layers. Input (96, 1, 8, 8)."""
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def gpt(
    lib: Any,
    *,
    vocabulary: int = VOCABULARY,
    context: int = CONTEXT,
    width: int = WIDTH,
    heads: int = HEADS,
    layers: int = LAYERS,
    gelu: str = "none",
    by_head: bool = False,
) -> Any:
    """A GPT, of characters by default: 4 layers, 4 heads, width 128, context 64. Input (rows,
    context) token ids, output (rows * context, vocabulary). gelu: its form, "tanh" as GPT-2 has it.
    by_head: q, k and v of a head lie together, so that ranks can share out the heads (and a part of
    the weights on a rank makes fewer heads).
    """
    nn, F = lib.nn, lib.nn.functional

    class Attention(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            if by_head:
                parts = self.qkv(x).reshape(b, t, -1, 3, c // heads).permute(3, 0, 2, 1, 4)
                q, k, v = parts[0], parts[1], parts[2]
            else:
                q, k, v = (
                    p.reshape(b, t, heads, c // heads).permute(0, 2, 1, 3)
                    for p in self.qkv(x).split(width, dim=2)
                )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.permute(0, 2, 1, 3).reshape(b, t, -1))

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.attention = nn.LayerNorm(width), Attention()
            self.norm2 = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=gelu))

    class Gpt(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(vocabulary, width)
            self.place = nn.Embedding(context, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            self.register_buffer("places", lib.arange(context))

        def forward(self, ids: Any) -> Any:
            x = self.token(ids) + self.place(self.places)
            return self.head(self.norm(self.blocks(x))).reshape(-1, vocabulary)

    return Gpt()


def lstm(lib: Any) -> Any:
    """A language model of characters: two LSTMs of 128. Input (20, 50) token ids, output
    (20 * 50, vocabulary).
    """
    nn = lib.nn

    class Lstm(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(VOCABULARY, WIDTH)
            self.layers = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, ids: Any) -> Any:
            return self.head(self.layers(self.token(ids))[0]).reshape(-1, VOCABULARY)

    return Lstm()


MODELS = {
    "mlp": mlp,
    "cnn": cnn,
    "gpt": gpt,
    "gpt6x384": partial(gpt, layers=6, heads=6, width=384),
    "lstm": lstm,
    **IMAGE_MODELS,
}
TEXTS = {"gpt": (GPT_BATCH, CONTEXT), "gpt6x384": (GPT_BATCH, CONTEXT), "lstm": (20, 50)}
"""Rows and length of the batches of the models of characters."""


def batch(name: str, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Inputs and int64 labels of one step."""
    rng = np.random.default_rng(seed)
    if name in TEXTS:
        rows, length = TEXTS[name]
        ids = rng.integers(0, VOCABULARY, (rows, length + 1))
        return ids[:, :-1].copy(), ids[:, 1:].reshape(-1).copy()
    if name in IMAGES:
        rows, pixels = IMAGES[name]
        images = rng.standard_normal((rows, 3, pixels, pixels)).astype(np.float32)
        return images, rng.integers(0, CLASSES, rows)
    x = rng.standard_normal((DIGITS_BATCH, 64)).astype(np.float32)
    labels = rng.integers(0, 10, DIGITS_BATCH)
    return (x.reshape(-1, 1, 8, 8) if name == "cnn" else x), labels


def start_values(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The same starting weights for every library, by parameter name."""
    rng = np.random.default_rng(1)
    values = {}
    for name, parameter in sorted(model.named_parameters()):
        shape = tuple(parameter.shape)
        if name.endswith("bias"):
            values[name] = np.zeros(shape, np.float32)
        elif "norm" in name:
            values[name] = np.ones(shape, np.float32)
        else:
            fan_in = math.prod(shape[1:]) or 1
            values[name] = (rng.standard_normal(shape) / math.sqrt(fan_in) / 2).astype(np.float32)
    return values


def make_optimizer(lib: Any, name: str, model: Any) -> Any:
    if name.startswith("gpt"):
        return lib.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), weight_decay=0.01)
    rate = 1e-3 if name in IMAGES else 0.05  # small batches of noise: rounding grows with the steps
    return lib.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
