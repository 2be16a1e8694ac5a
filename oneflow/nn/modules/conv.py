"""Convolutions over one to three spatial dims, and their transposes."""

from __future__ import annotations

from typing import ClassVar

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import ArgumentError
from oneflow.functional.creation import empty
from oneflow.nn import functional as F
from oneflow.nn.common_types import per_dim
from oneflow.nn.module import Module
from oneflow.nn.modules.linear import reset_weight_and_bias
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import Tensor

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _Conv(Module):
    """x (n, in_channels, spatial...) -> (n, out_channels, spatial...).

    weight: (out_channels, in_channels / groups, window...).  padding: of both ends of each spatial
    dim, or "valid" (none) or "same" (the output is as large as the input; stride 1 only).
    padding_mode: the values there.
    """

    dims: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self._check(in_channels, out_channels, groups, padding_mode)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_dim(kernel_size, self.dims, "kernel_size")
        self.stride = per_dim(stride, self.dims, "stride")
        self.dilation = per_dim(dilation, self.dims, "dilation")
        self.padding_mode = padding_mode
        self.padding = (
            padding if isinstance(padding, str) else per_dim(padding, self.dims, "padding")
        )
        self._padded_ends()  # raises for what cannot be
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(empty(shape, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty((out_channels,), device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    @staticmethod
    def _check(in_channels: int, out_channels: int, groups: int, padding_mode: str) -> None:
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if groups <= 0 or channels % groups:
                raise ArgumentError(
                    f"{name} must be divisible by groups, got {channels} and {groups}"
                )
        if padding_mode not in PADDING_MODES:
            raise ArgumentError(
                f"padding_mode must be one of {PADDING_MODES}, got {padding_mode!r}"
            )

    def _padded_ends(self) -> list[tuple[int, int]]:
        """(before, after) of each spatial dim."""
        if not isinstance(self.padding, str):
            return [(p, p) for p in self.padding]
        if self.padding == "valid":
            return [(0, 0)] * self.dims
        if self.padding != "same":
            raise ArgumentError(f"padding must be numbers, 'same' or 'valid', got {self.padding!r}")
        if any(s != 1 for s in self.stride):
            raise ArgumentError("padding='same' is not supported for strided convolutions")
        totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]

    def reset_parameters(self) -> None:
        """Draws new first values: uniform within 1/√fan_in."""
        reset_weight_and_bias(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, self.weight)

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        pairs = self._padded_ends()
        padding = tuple(before for before, _ in pairs)
        if self.padding_mode != "zeros" or any(a != b for a, b in pairs):
            # the last spatial dim comes first in the arguments of pad
            ends = [n for pair in reversed(pairs) for n in pair]
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            x, padding = F.pad(x, ends, mode=mode), (0,) * self.dims
        convolve = (F.conv1d, F.conv2d, F.conv3d)[self.dims - 1]
        return convolve(x, weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}", f"kernel_size={self.kernel_size}"]
        parts.append(f"stride={self.stride}")
        if self.padding != (0,) * self.dims:
            parts.append(f"padding={self.padding!r}")
        if self.dilation != (1,) * self.dims:
            parts.append(f"dilation={self.dilation}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.padding_mode != "zeros":
            parts.append(f"padding_mode={self.padding_mode}")
        return ", ".join(parts)


class Conv1d(_Conv):
    __doc__ = _Conv.__doc__
    dims = 1


class Conv2d(_Conv):
    __doc__ = _Conv.__doc__
    dims = 2


class Conv3d(_Conv):
    __doc__ = _Conv.__doc__
    dims = 3


class _ConvTranspose(Module):
    """x (n, in_channels, spatial...) -> (n, out_channels, spatial...), as a convolution's gradient.

    weight: (in_channels, out_channels / groups, window...).  padding: cut off both ends of the
    output.  output_padding: added to one end, to choose among sizes that a convolution maps to one.
    """

    dims: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, ...] = 1,
        padding_mode: str = "zeros",
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        _Conv._check(in_channels, out_channels, groups, padding_mode)
        if padding_mode != "zeros":
            raise ArgumentError(
                f'Only "zeros" padding mode is supported here, got {padding_mode!r}'
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_dim(kernel_size, self.dims, "kernel_size")
        self.stride = per_dim(stride, self.dims, "stride")
        self.padding = per_dim(padding, self.dims, "padding")
        self.output_padding = per_dim(output_padding, self.dims, "output_padding")
        self.dilation = per_dim(dilation, self.dims, "dilation")
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        self.weight = Parameter(empty(shape, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty((out_channels,), device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new first values: uniform within 1/√fan_in."""
        reset_weight_and_bias(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.dims - 1]
        return convolve(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
        )

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}"
        )


class ConvTranspose1d(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    dims = 1


class ConvTranspose2d(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    dims = 2


class ConvTranspose3d(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    dims = 3
