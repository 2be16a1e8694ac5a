"""Maxima and means over windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from oneflow.nn import functional as F
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor

Size = int | tuple[int, ...]
OutputSize: TypeAlias = "int | Sequence[int | None] | None"


class _MaxPool(Module):
    """The largest element of each window; stride is the window's size unless given.

    return_indices: also where it is, as an index into the flattened spatial dims.  ceil_mode: a
    last window that reaches over the edge counts.  data_format: "channels_first", also None, or
    "channels_last".
    """

    pool: Any
    data_format: str | None = None

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
        data_format: str | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode
        self.data_format = data_format

    def forward(self, x: Tensor) -> Any:
        last = {} if self.data_format is None else {"data_format": self.data_format}
        return type(self).pool(
            x,
            self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            return_indices=self.return_indices,
            ceil_mode=self.ceil_mode,
            **last,
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    pool = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    pool = staticmethod(F.max_pool2d)


class AvgPool1d(Module):
    """The mean of each window; count_include_pad: padding counts as zeros."""

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, x: Tensor) -> Any:
        return F.avg_pool1d(
            x,
            self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(AvgPool1d):
    """The mean of each window; divisor_override: divides the sum instead of the number of elements,
    if not 0.
    """

    pool: Any = staticmethod(F.avg_pool2d)

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = 0,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.divisor_override = divisor_override or 0

    def forward(self, x: Tensor) -> Any:
        return type(self).pool(
            x,
            self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
            divisor_override=self.divisor_override,
        )


class _AdaptiveAvgPool(Module):
    """The mean of windows chosen so that the output has `output_size` elements along each spatial
    dim.
    """

    pool: Any
    data_format: str | None = None

    def __init__(self, output_size: OutputSize, data_format: str | None = None) -> None:
        super().__init__()
        self.output_size, self.data_format = output_size, data_format

    def forward(self, x: Tensor) -> Any:
        if self.data_format is None:
            return type(self).pool(x, self.output_size)
        return type(self).pool(x, self.output_size, data_format=self.data_format)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    __doc__ = _AdaptiveAvgPool.__doc__
    pool = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    __doc__ = _AdaptiveAvgPool.__doc__
    pool = staticmethod(F.adaptive_avg_pool2d)


class MaxPool3d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    pool = staticmethod(F.max_pool3d)


class AvgPool3d(AvgPool2d):
    __doc__ = AvgPool2d.__doc__
    pool = staticmethod(F.avg_pool3d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    __doc__ = _AdaptiveAvgPool.__doc__
    pool = staticmethod(F.adaptive_avg_pool3d)


class _AdaptiveMaxPool(Module):
    """The largest of windows chosen so that the output has `output_size` elements along each
    spatial dim; return_indices: also where it is.
    """

    pool: Any

    def __init__(
        self, output_size: int | tuple[int | None, ...], return_indices: bool = False
    ) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, x: Tensor) -> Any:
        return type(self).pool(x, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    __doc__ = _AdaptiveMaxPool.__doc__
    pool = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    __doc__ = _AdaptiveMaxPool.__doc__
    pool = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    __doc__ = _AdaptiveMaxPool.__doc__
    pool = staticmethod(F.adaptive_max_pool3d)


class _MaxUnpool(Module):
    """Zeros with the values at the places that a max pool of these windows has returned."""

    pool: Any

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding

    def forward(
        self, x: Tensor, indices: Tensor, output_size: tuple[int, ...] | None = None
    ) -> Any:
        return type(self).pool(x, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    __doc__ = _MaxUnpool.__doc__
    pool = staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    __doc__ = _MaxUnpool.__doc__
    pool = staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    __doc__ = _MaxUnpool.__doc__
    pool = staticmethod(F.max_unpool3d)
