"""Layers that change the resolution of images."""

from __future__ import annotations

from oneflow.functional.dims import Size
from oneflow.functional.nn.resize import Factors
from oneflow.nn import functional as F
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor


class PixelShuffle(Module):
    """(n, c · r · s, h, w) -> (n, c, h · r, w · s).

    upscale_factor: r and s; or h_upscale_factor and w_upscale_factor, one by one.
    """

    h_upscale_factor: int | None = None
    w_upscale_factor: int | None = None

    def __init__(
        self,
        upscale_factor: int | None = None,
        h_upscale_factor: int | None = None,
        w_upscale_factor: int | None = None,
    ) -> None:
        super().__init__()
        rows, columns = h_upscale_factor or upscale_factor, w_upscale_factor or upscale_factor
        if not rows or not columns or min(rows, columns) < 1:
            raise ValueError("The scale factor of height and width must larger than zero")
        self.upscale_factor = upscale_factor
        self.h_upscale_factor, self.w_upscale_factor = rows, columns

    def forward(self, x: Tensor) -> Tensor:
        rows = self.h_upscale_factor or self.upscale_factor
        columns = self.w_upscale_factor or self.upscale_factor
        assert rows is not None and columns is not None
        return F.pixel_shuffle(x, rows, columns)

    def extra_repr(self) -> str:
        if self.upscale_factor is not None:
            return f"upscale_factor={self.upscale_factor}"
        return f"h_upscale_factor={self.h_upscale_factor}, w_upscale_factor={self.w_upscale_factor}"


class Upsample(Module):
    """Resizes the spatial dims to `size` or by `scale_factor`.

    mode: nearest, linear, bilinear or trilinear.
    """

    def __init__(
        self,
        size: Size | None = None,
        scale_factor: Factors | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor = size, scale_factor
        self.mode, self.align_corners = mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(
            x,
            size=self.size,
            scale_factor=self.scale_factor,
            mode=self.mode,
            align_corners=self.align_corners,
            recompute_scale_factor=self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        what = f"size={self.size}" if self.size else f"scale_factor={self.scale_factor}"
        return f"{what}, mode={self.mode}"


class UpsamplingNearest2d(Upsample):
    """Upsample of images with mode nearest."""

    def __init__(self, size: Size | None = None, scale_factor: Factors | None = None) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Upsample of images with mode bilinear; the corner pixels stay corners."""

    def __init__(self, size: Size | None = None, scale_factor: Factors | None = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelUnshuffle(Module):
    """(N, C, H, W) -> (N, C · r², H / r, W / r), r being downscale_factor."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)


class ChannelShuffle(Module):
    """Channels of `groups` groups, one of each after the other."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)
