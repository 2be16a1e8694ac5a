"""Layers of pools by powers, and of maxima of windows whose places are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from oneflow.functional.dims import Size
from oneflow.nn import functional as F
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor


class _LPPool(Module):
    """(sum of x^norm_type)^(1 / norm_type) of each window.  stride: the window's size if None."""

    function: ClassVar[Any]

    def __init__(
        self,
        norm_type: float,
        kernel_size: Size,
        stride: Size | None = None,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        pooled: Tensor = type(self).function(
            input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode
        )
        return pooled

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPool):
    __doc__ = _LPPool.__doc__
    function = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    __doc__ = _LPPool.__doc__
    function = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    __doc__ = _LPPool.__doc__
    function = staticmethod(F.lp_pool3d)


class _FractionalMaxPool(Module):
    """Maxima of windows a drawn step apart: output_size of them, or output_ratio of the size."""

    function: ClassVar[Any]

    def __init__(
        self,
        kernel_size: Size,
        output_size: Size | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
        super().__init__()
        if (output_size is None) == (output_ratio is None):
            raise ValueError(f"{self._get_name()} needs either output_size or output_ratio")
        ratios = (output_ratio,) if isinstance(output_ratio, float) else output_ratio
        if ratios is not None and not all(0 < r < 1 for r in ratios):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {output_ratio})")
        self.kernel_size, self.return_indices = kernel_size, return_indices
        self.output_size, self.output_ratio = output_size, output_ratio
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input: Tensor) -> Any:
        return type(self).function(
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            self._random_samples,
        )


class FractionalMaxPool2d(_FractionalMaxPool):
    __doc__ = _FractionalMaxPool.__doc__
    function = staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPool):
    __doc__ = _FractionalMaxPool.__doc__
    function = staticmethod(F.fractional_max_pool3d)
