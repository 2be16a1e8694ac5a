"""Layers that change the resolution of images."""

from __future__ import annotations

from oneflow.functional.dims import Size
from oneflow.functional.nn_resizing import Factors
from oneflow.nn import functional as F
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor


class PixelShuffle(Module):
    """(n, c · r², h, w) -> (n, c, h · r, w · r), r being upscale_factor."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


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
    ) -> None:
        super().__init__()
        self.size, self.scale_factor = size, scale_factor
        self.mode, self.align_corners = mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(
            x,
            size=self.size,
            scale_factor=self.scale_factor,
            mode=self.mode,
            align_corners=self.align_corners,
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
