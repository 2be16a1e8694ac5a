"""Small models of the kinds of the ONNX model zoo, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Of(nn.Module):
    """A module whose forward is a function of itself and the input."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.function = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.parts, x)


def conv(i: int, o: int, k: int = 3, **options: Any) -> nn.Module:
    options = {"padding": k // 2, "bias": False} | options
    return nn.Sequential(nn.Conv2d(i, o, k, **options), nn.BatchNorm2d(o), nn.ReLU())


def alexnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2), nn.ReLU(), nn.LocalResponseNorm(5),
        nn.MaxPool2d(3, 2), nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(8, 4),
    )  # fmt: skip


def squeezenet() -> nn.Module:
    def fire(p: Any, x: torch.Tensor) -> torch.Tensor:
        x = p["squeeze"](x)
        return p["last"](torch.cat([p["one"](x), p["three"](x)], 1)).mean((2, 3))

    return Of(fire, squeeze=conv(3, 4, 1), one=conv(4, 6, 1), three=conv(4, 6), last=conv(12, 5, 1))


def inception() -> nn.Module:
    def branches(p: Any, x: torch.Tensor) -> torch.Tensor:
        pooled = F.avg_pool2d(x, 3, stride=1, padding=1)
        tall = p["tall"](p["wide"](x))
        return torch.cat([p["one"](x), tall, p["pool"](pooled), F.max_pool2d(x, 3, 1, 1)], 1)

    return Of(
        branches, one=conv(3, 4, 1), wide=conv(3, 4, 1), pool=conv(3, 2, 1),
        tall=nn.Conv2d(4, 4, (1, 7), padding=(0, 3)),
    )  # fmt: skip


def shufflenet() -> nn.Module:
    def shuffled(p: Any, x: torch.Tensor) -> torch.Tensor:
        left, right = p["first"](x).chunk(2, 1)
        x = torch.cat([left, p["own"](right)], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)

    return Of(shuffled, first=conv(3, 8), own=conv(4, 4, groups=4))


def mobilenet() -> nn.Module:
    def block(p: Any, x: torch.Tensor) -> torch.Tensor:
        x = p["depth"](F.hardswish(p["wide"](x)))
        return x * F.hardsigmoid(p["gate"](F.adaptive_avg_pool2d(x, 1)))

    return Of(
        block, wide=nn.Conv2d(3, 8, 1), depth=conv(8, 8, 5, groups=8, stride=2),
        gate=nn.Conv2d(8, 8, 1),
    )  # fmt: skip


def unet() -> nn.Module:
    def run(p: Any, x: torch.Tensor) -> torch.Tensor:
        top = F.silu(p["norm"](p["down"](x)))
        low = p["low"](F.max_pool2d(top, 2))
        up = p["up"](low) + F.interpolate(low, scale_factor=2.0, mode="nearest")
        return p["last"](torch.cat([top, up], 1))

    return Of(
        run, down=nn.Conv2d(3, 8, 3, padding=1), norm=nn.GroupNorm(2, 8), low=conv(8, 8),
        up=nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, output_padding=1), last=conv(16, 2, 1),
    )  # fmt: skip


def convnext() -> nn.Module:
    def block(p: Any, x: torch.Tensor) -> torch.Tensor:
        y = p["depth"](x).permute(0, 2, 3, 1)
        y = p["narrow"](F.gelu(p["wide"](p["norm"](y))))
        return x + y.permute(0, 3, 1, 2)

    return Of(
        block, depth=nn.Conv2d(8, 8, 7, padding=3, groups=8), norm=nn.LayerNorm(8, eps=1e-6),
        wide=nn.Linear(8, 16), narrow=nn.Linear(16, 8),
    )  # fmt: skip


def attention(p: Any, x: torch.Tensor, is_causal: bool) -> torch.Tensor:
    n, length, width = x.shape
    parts = p["qkv"](x).view(n, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
    seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=is_causal)
    x = x + p["out"](seen.transpose(1, 2).reshape(n, length, width))
    return p["norm"](x + F.gelu(p["mlp"](x), approximate="tanh"))


def parts_of(width: int) -> dict[str, nn.Module]:
    return {
        "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width),
        "norm": nn.LayerNorm(width), "mlp": nn.Linear(width, width),
    }  # fmt: skip


def vit() -> nn.Module:
    def run(p: Any, x: torch.Tensor) -> torch.Tensor:
        x = p["patch"](x).flatten(2).transpose(1, 2)
        x = torch.cat([p["token"].weight.expand(x.shape[0], -1, -1), x], 1)
        return attention(p, x, False)[:, 0]

    return Of(run, patch=nn.Conv2d(3, 16, 4, 4), token=nn.Embedding(1, 16), **parts_of(16))


def gpt() -> nn.Module:
    def run(p: Any, ids: torch.Tensor) -> torch.Tensor:
        x = p["words"](ids) + p["places"](torch.arange(ids.shape[1]))
        return attention(p, x, True) @ p["words"].weight.T

    return Of(run, words=nn.Embedding(50, 16), places=nn.Embedding(8, 16), **parts_of(16))


def bert() -> nn.Module:
    def run(p: Any, ids: torch.Tensor) -> torch.Tensor:
        x = p["words"](ids) + p["kinds"](torch.zeros_like(ids))
        mask = (ids != 0)[:, None, None].float()
        scores = x @ x.transpose(1, 2) / 4.0 + (1.0 - mask[:, 0]) * -1e4
        return torch.tanh(p["out"](torch.softmax(scores, -1) @ x)[:, 0])

    return Of(run, words=nn.Embedding(50, 16), kinds=nn.Embedding(2, 16), out=nn.Linear(16, 16))


def detector() -> nn.Module:
    """A head of YOLO: offsets of a grid, scales of anchors, and the best of them."""

    def run(p: Any, x: torch.Tensor) -> Any:
        x = p["head"](x)
        n, _, h, w = x.shape
        xy, size, score = x.view(n, 2, 6, h, w).permute(0, 1, 3, 4, 2).split([2, 2, 2], 4)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        center = (xy.sigmoid() * 2 - 0.5 + torch.stack([xs, ys], -1)) * 8.0
        boxes = torch.cat([center, (size.sigmoid() * 2) ** 2, score.sigmoid()], -1).view(n, -1, 6)
        best, index = boxes[..., 4].topk(3)
        return best, boxes.gather(1, index[..., None].expand(-1, -1, 6)), boxes.clamp(0.0, 20.0)

    return Of(run, head=nn.Conv2d(3, 12, 3, stride=2, padding=1))


def recurrent(kind: str) -> nn.Module:
    return Of(lambda p, x: p["layer"](x)[0],
              layer=getattr(nn, kind)(5, 6, num_layers=2, bidirectional=True))  # fmt: skip


def super_resolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2), nn.PReLU())


def functions() -> nn.Module:
    def run(_: Any, x: torch.Tensor) -> Any:
        flat = x.reshape(x.shape[0], -1)
        return (
            torch.cumsum(flat, 1), torch.where(flat > 0, flat.exp(), -flat), flat.argmax(1),
            F.pad(x, (1, 2, 0, 1), mode="reflect"), F.leaky_relu(flat).std(1),
            x.flip(2).abs().log1p(),
            torch.einsum("nchw,ndhw->ncd", x, x), torch.tril(flat @ flat.T), flat.norm(dim=1),
            x[:, ::2, 1:-1], F.one_hot(flat.argmax(1), flat.shape[1]), torch.floor(x) % 3.0,
        )  # fmt: skip

    return Of(run)


def upsampled() -> nn.Module:
    def run(_: Any, x: torch.Tensor) -> Any:
        return [
            F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
            F.interpolate(x, size=(11, 5), mode="bilinear", align_corners=True),
            F.interpolate(x, scale_factor=2.0, mode="bicubic", align_corners=False),
        ]

    return Of(run)


IMAGE, TEXT, SEQUENCE = (2, 3, 12, 12), (2, 7), (6, 2, 5)
Model = tuple[Callable[[], nn.Module], tuple[int, ...]]
MODELS: dict[str, Model] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(7, 9), nn.ELU(), nn.Linear(9, 3), nn.Softmax(1)), TEXT),
    "LeNet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(96, 4)
        ),
        IMAGE,
    ),
    "AlexNet": (alexnet, IMAGE),
    "VGG": (lambda: nn.Sequential(conv(3, 8), conv(8, 8), nn.MaxPool2d(2), nn.Flatten(),
                                  nn.Linear(288, 4)), IMAGE),
    "ResNet": (lambda: Of(lambda p, x: F.relu(p["short"](x) + p["b"](p["a"](x))),
                          a=conv(3, 8, stride=2), b=conv(8, 8), short=conv(3, 8, 1, stride=2)),
               IMAGE),
    "DenseNet": (lambda: Of(lambda p, x: torch.cat([x, p["a"](x), p["b"](p["a"](x))], 1),
                            a=conv(3, 4), b=conv(4, 4, dilation=2, padding=2)), IMAGE),
    "SqueezeNet": (squeezenet, IMAGE),
    "Inception": (inception, IMAGE),
    "ShuffleNet": (shufflenet, IMAGE),
    "MobileNet v3": (mobilenet, IMAGE),
    "UNet": (unet, IMAGE),
    "ConvNeXt": (convnext, (2, 8, 9, 9)),
    "ViT": (vit, IMAGE),
    "GPT": (gpt, TEXT),
    "BERT": (bert, TEXT),
    "YOLO": (detector, IMAGE),
    "LSTM": (lambda: recurrent("LSTM"), SEQUENCE),
    "GRU": (lambda: recurrent("GRU"), SEQUENCE),
    "RNN": (lambda: recurrent("RNN"), SEQUENCE),
    "super-resolution": (super_resolution, IMAGE),
    "instance norm": (lambda: nn.Sequential(nn.InstanceNorm2d(3, affine=True), nn.SELU()), IMAGE),
    "functions": (functions, IMAGE),
    "resizing": (upsampled, IMAGE),
}  # fmt: skip
