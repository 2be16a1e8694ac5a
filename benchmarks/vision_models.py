"""Networks for images, written once for any library with PyTorch's names: their layers, sizes and
numbers of parameters are those of the papers; weights come from `models.start_values`.
"""

from __future__ import annotations

from typing import Any

CLASSES = 1000


def _conv_norm(
    nn: Any, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> tuple[Any, Any]:
    padding = (kernel - 1) // 2
    return (
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


def resnet(lib: Any, depths: tuple[int, ...], is_bottleneck: bool) -> Any:
    """He and others, 2015. Input (N, 3, 224, 224)."""
    nn, F = lib.nn, lib.nn.functional
    widen = 4 if is_bottleneck else 1

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            outputs = width * widen
            if is_bottleneck:
                sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
            else:
                sizes = [(inputs, width, 3, stride), (width, width, 3, 1)]
            pairs = [_conv_norm(nn, *size) for size in sizes]
            self.convs = nn.ModuleList([conv for conv, _ in pairs])
            self.norms = nn.ModuleList([norm for _, norm in pairs])
            self.down = None
            if stride != 1 or inputs != outputs:
                self.down, self.down_norm = _conv_norm(nn, inputs, outputs, 1, stride)

        def forward(self, x: Any) -> Any:
            y = x
            for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
                y = norm(conv(y))
                if i + 1 < len(self.convs):
                    y = F.relu(y)
            if self.down is not None:
                x = self.down_norm(self.down(x))
            return F.relu(y + x)

    class ResNet(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.stem_norm = _conv_norm(nn, 3, 64, 7, 2)
            blocks, inputs = [], 64
            for stage, depth in enumerate(depths):
                width = 64 << stage
                for i in range(depth):
                    blocks.append(Block(inputs, width, 2 if stage and not i else 1))
                    inputs = width * widen
            self.blocks = nn.Sequential(*blocks)
            self.head = nn.Linear(inputs, CLASSES)

        def forward(self, x: Any) -> Any:
            x = F.max_pool2d(F.relu(self.stem_norm(self.stem(x))), 3, 2, 1)
            return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))

    return ResNet()


# kernel, hidden and output channels, squeeze-and-excitation, hard swish (else ReLU), stride
_MOBILE: list[tuple[int, int, int, bool, bool, int]] = [
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
]  # fmt: skip


def mobilenet(lib: Any) -> Any:
    """MobileNet v3, large (Howard and others, 2019), without dropout. Input (N, 3, 224, 224)."""
    nn, F = lib.nn, lib.nn.functional

    class Excite(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, channels: int) -> None:
            super().__init__()
            inner = (channels // 4 + 7) // 8 * 8
            self.reduce = nn.Conv2d(channels, inner, 1)
            self.widen = nn.Conv2d(inner, channels, 1)

        def forward(self, x: Any) -> Any:
            mean = F.adaptive_avg_pool2d(x, 1)
            return x * F.hardsigmoid(self.widen(F.relu(self.reduce(mean))))

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(
            self, inputs: int, kernel: int, hidden: int, outputs: int, excites: bool,
            is_swish: bool, stride: int,
        ) -> None:  # fmt: skip
            super().__init__()
            self.act = F.hardswish if is_swish else F.relu
            self.is_added = stride == 1 and inputs == outputs
            self.up = None
            if hidden != inputs:
                self.up, self.up_norm = _conv_norm(nn, inputs, hidden, 1)
            self.deep, self.deep_norm = _conv_norm(nn, hidden, hidden, kernel, stride, hidden)
            self.excite = Excite(hidden) if excites else None
            self.down, self.down_norm = _conv_norm(nn, hidden, outputs, 1)

        def forward(self, x: Any) -> Any:
            y = x if self.up is None else self.act(self.up_norm(self.up(x)))
            y = self.act(self.deep_norm(self.deep(y)))
            if self.excite is not None:
                y = self.excite(y)
            y = self.down_norm(self.down(y))
            return x + y if self.is_added else y

    class MobileNet(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.stem_norm = _conv_norm(nn, 3, 16, 3, 2)
            blocks, inputs = [], 16
            for kernel, hidden, outputs, excites, is_swish, stride in _MOBILE:
                block = Block(inputs, kernel, hidden, outputs, excites, is_swish, stride)
                blocks.append(block)
                inputs = outputs
            self.blocks = nn.Sequential(*blocks)
            self.last, self.last_norm = _conv_norm(nn, inputs, 960, 1)
            self.wide, self.head = nn.Linear(960, 1280), nn.Linear(1280, CLASSES)

        def forward(self, x: Any) -> Any:
            x = self.blocks(F.hardswish(self.stem_norm(self.stem(x))))
            x = F.adaptive_avg_pool2d(F.hardswish(self.last_norm(self.last(x))), 1).flatten(1)
            return self.head(F.hardswish(self.wide(x)))

    return MobileNet()


def _mlp(nn: Any, width: int) -> Any:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def vit(lib: Any) -> Any:
    """ViT-S/16 (Dosovitskiy and others, 2020), mean of all tokens. Input (N, 3, 224, 224)."""
    nn, F = lib.nn, lib.nn.functional
    width, heads, tokens = 384, 6, 196

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = _mlp(nn, width)

        def forward(self, x: Any) -> Any:
            n, t, c = x.shape
            q, k, v = (
                part.reshape(n, t, heads, c // heads).permute(0, 2, 1, 3)
                for part in self.qkv(self.norm1(x)).split(width, dim=2)
            )
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + self.out(y.permute(0, 2, 1, 3).reshape(n, t, c))
            return x + self.mlp(self.norm2(x))

    class Vit(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, 16, 16)
            self.places = nn.Parameter(lib.zeros(1, tokens, width))
            self.blocks = nn.Sequential(*(Block() for _ in range(12)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).permute(0, 2, 1) + self.places
            return self.head(self.norm(self.blocks(x)).mean(1))

    return Vit()


def swin(lib: Any) -> Any:
    """Swin-T (Liu and others, 2021): windows of 7 x 7, every second block shifted by 3. Input
    (N, 3, 224, 224).
    """
    nn, F = lib.nn, lib.nn.functional
    side = 7
    shift = side // 2
    row = lib.arange(side)
    rows, columns = row.repeat_interleave(side), row.repeat(side)
    apart = (rows[:, None] - rows[None] + side - 1) * (2 * side - 1)
    apart = (apart + columns[:, None] - columns[None] + side - 1).reshape(-1)

    def to_windows(x: Any) -> Any:
        n, h, w, c = x.shape
        x = x.reshape(n, h // side, side, w // side, side, c).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, side * side, c)

    def mask_of(size: int) -> Any:
        """(windows, 1, tokens, tokens): -100 between tokens that the shift brought together."""
        place = lib.arange(size)
        region = (place >= size - side).to(lib.int64) + (place >= size - shift).to(lib.int64)
        regions = to_windows((region[:, None] * 3 + region[None]).reshape(1, size, size, 1))[..., 0]
        differs = (regions[:, None, :] != regions[:, :, None]).to(lib.float32)
        return (differs * -100.0)[:, None]

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, width: int, heads: int, size: int, is_shifted: bool) -> None:
            super().__init__()
            self.heads, self.shift = heads, shift if is_shifted and size > side else 0
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = _mlp(nn, width)
            self.table = nn.Parameter(lib.zeros((2 * side - 1) ** 2, heads))
            self.register_buffer("apart", apart)
            self.register_buffer("mask", mask_of(size) if self.shift else None)

        def attend(self, x: Any) -> Any:
            """x: (windows, tokens, width)."""
            count, t, c = x.shape
            q, k, v = (
                part.reshape(count, t, self.heads, c // self.heads).permute(0, 2, 1, 3)
                for part in self.qkv(x).split(c, dim=2)
            )
            bias = self.table[self.apart].reshape(t, t, self.heads).permute(2, 0, 1)[None]
            if self.shift:
                windows = self.mask.shape[0]
                bias = (self.mask + bias).repeat(count // windows, 1, 1, 1)
            scores = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1) + bias
            y = F.softmax(scores, dim=-1) @ v
            return self.out(y.permute(0, 2, 1, 3).reshape(count, t, c))

        def forward(self, x: Any) -> Any:
            n, h, w, c = x.shape
            y = self.norm1(x)
            if self.shift:
                y = lib.roll(y, (-self.shift, -self.shift), (1, 2))
            y = self.attend(to_windows(y)).reshape(n, h // side, w // side, side, side, c)
            y = y.permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
            if self.shift:
                y = lib.roll(y, (self.shift, self.shift), (1, 2))
            x = x + y
            return x + self.mlp(self.norm2(x))

    class Merge(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4 * width)
            self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

        def forward(self, x: Any) -> Any:
            n, h, w, c = x.shape
            x = x.reshape(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5)
            return self.reduce(self.norm(x.reshape(n, h // 2, w // 2, 4 * c)))

    class Swin(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            width, size = 96, 56
            self.patches, self.first_norm = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
            stages: list[Any] = []
            for stage, (depth, heads) in enumerate(((2, 3), (2, 6), (6, 12), (2, 24))):
                if stage:
                    stages.append(Merge(width))
                    width, size = 2 * width, size // 2
                stages += [Block(width, heads, size, bool(i % 2)) for i in range(depth)]
            self.stages = nn.Sequential(*stages)
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

        def forward(self, x: Any) -> Any:
            x = self.stages(self.first_norm(self.patches(x).permute(0, 2, 3, 1)))
            return self.head(self.norm(x).mean((1, 2)))

    return Swin()


def _resnet18(lib: Any) -> Any:
    return resnet(lib, (2, 2, 2, 2), is_bottleneck=False)


def _resnet50(lib: Any) -> Any:
    return resnet(lib, (3, 4, 6, 3), is_bottleneck=True)


IMAGE_MODELS = {
    "resnet18": _resnet18, "resnet18x96": _resnet18, "resnet50": _resnet50, "mobilenet": mobilenet,
    "vit": vit, "swin": swin,
}  # fmt: skip
IMAGES = {
    "resnet18": (8, 224), "resnet18x96": (8, 96), "resnet50": (4, 224), "mobilenet": (8, 224),
    "vit": (4, 224), "swin": (4, 224),
}  # fmt: skip
"""Number of the images of a batch, and their sides in pixels."""
