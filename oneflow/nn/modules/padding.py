"""Layers that put numbers around the spatial dims."""

from __future__ import annotations

from typing import ClassVar

from oneflow.nn import functional as F
from oneflow.nn.common_types import per_dim
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor


class _Pad(Module):
    """The common part of all paddings.

    padding: one number for all ends, or (before, after) of the last dim, the one before, ...
    """

    dims: ClassVar[int]
    mode: ClassVar[str] = "constant"
    value: float = 0.0

    def __init__(self, padding: int | tuple[int, ...]) -> None:
        super().__init__()
        self.padding = per_dim(padding, 2 * self.dims, "padding")

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.padding, mode=self.mode, value=self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    __doc__ = _Pad.__doc__

    def __init__(self, padding: int | tuple[int, ...], value: float = 0) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    __doc__ = _Pad.__doc__
    dims = 1


class ConstantPad2d(_ConstantPad):
    __doc__ = _Pad.__doc__
    dims = 2


class ConstantPad3d(_ConstantPad):
    __doc__ = _Pad.__doc__
    dims = 3


class ZeroPad2d(_Pad):
    __doc__ = _Pad.__doc__
    dims = 2


class ReflectionPad1d(_Pad):
    __doc__ = _Pad.__doc__
    dims, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    __doc__ = _Pad.__doc__
    dims, mode = 2, "reflect"


class ReplicationPad1d(_Pad):
    __doc__ = _Pad.__doc__
    dims, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    __doc__ = _Pad.__doc__
    dims, mode = 2, "replicate"


class ZeroPad1d(_Pad):
    __doc__ = _Pad.__doc__
    dims = 1


class ZeroPad3d(_Pad):
    __doc__ = _Pad.__doc__
    dims = 3


class ReflectionPad3d(_Pad):
    __doc__ = _Pad.__doc__
    dims, mode = 3, "reflect"


class ReplicationPad3d(_Pad):
    __doc__ = _Pad.__doc__
    dims, mode = 3, "replicate"


class CircularPad1d(_Pad):
    __doc__ = _Pad.__doc__
    dims: ClassVar[int] = 1
    mode: ClassVar[str] = "circular"


class CircularPad2d(CircularPad1d):
    __doc__ = _Pad.__doc__
    dims = 2


class CircularPad3d(CircularPad1d):
    __doc__ = _Pad.__doc__
    dims = 3
