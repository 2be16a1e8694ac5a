"""Layers that shift and scale to mean 0 and variance 1: over features, groups of channels, or the
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike, int64
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.core.spelling import DefaultNumber
from oneflow.functional.creation import empty, ones, zeros
from oneflow.nn import functional as F
from oneflow.nn import init
from oneflow.nn.common_types import one_or_more
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.creation_like import Kind
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    return one_or_more(normalized_shape, "normalized_shape")


class LayerNorm(Module):
    """(x - mean) / √(variance + eps) · weight + bias over the last dims, whose sizes are
    normalized_shape.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-05,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine

        def parameter() -> Parameter:
            return Parameter(empty(self.normalized_shape, device=device, dtype=dtype))

        self.register_parameter("weight", parameter() if elementwise_affine else None)
        self.register_parameter("bias", parameter() if elementwise_affine and bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight 1, bias 0."""
        _reset_affine(self)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


def _register_affine(module: Module, size: int, weight: bool, bias: bool, where: Kind) -> None:
    """The parameters `weight` and `bias`, one number per channel; None where there is none."""
    for name, exists in (("weight", weight), ("bias", bias)):
        module.register_parameter(name, Parameter(empty((size,), **where)) if exists else None)


def _register_statistics(module: Module, size: int, tracks: bool, where: Kind) -> None:
    """The buffers of running averages; None where there are none."""
    module.register_buffer("running_mean", zeros((size,), **where) if tracks else None)
    module.register_buffer("running_var", ones((size,), **where) if tracks else None)
    if tracks:
        register_count(module, where["device"])
    else:
        module.register_buffer("num_batches_tracked", None)


def register_count(module: Module, device: DeviceLike | None) -> None:
    """The buffer that counts batches."""
    module.register_buffer("num_batches_tracked", zeros((), dtype=int64, device=device))


def _reset_statistics(module: Module) -> None:
    if module.running_mean is not None:
        init.zeros_(module.running_mean)
        init.ones_(module.running_var)
        init.zeros_(module.num_batches_tracked)


def _reset_affine(module: Module) -> None:
    if module.weight is not None:
        init.ones_(module.weight)
    if module.bias is not None:
        init.zeros_(module.bias)


RMS_EPS = DefaultNumber(1e-5)


class RMSNorm(Module):
    """x / √(mean of squares + eps) · weight over the last dims, of sizes normalized_shape.

    eps: None for that of the dtype, as is the default under the mock of PyTorch.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = RMS_EPS,
        elementwise_affine: bool = True,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps.given() if isinstance(eps, DefaultNumber) else eps
        self.elementwise_affine = elementwise_affine
        weight = (
            Parameter(empty(self.normalized_shape, device=device, dtype=dtype))
            if elementwise_affine
            else None
        )
        self.register_parameter("weight", weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class RMSLayerNorm(RMSNorm):
    """RMSNorm over the last dim, of size hidden_size."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__(hidden_size, eps)


class GroupNorm(Module):
    """Channels (dim 1) in num_groups groups, each normalised over itself and the spatial dims;
    weight per channel.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-05,
        affine: bool = True,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_groups <= 0 or num_channels % num_groups:
            raise ArgumentError(
                f"num_channels must be divisible by num_groups, got {num_channels} and {num_groups}"
            )
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine

        where: Kind = {"device": device, "dtype": dtype}
        _register_affine(self, num_channels, affine, affine and bias, where)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight 1, bias 0."""
        _reset_affine(self)

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class _BatchNorm(Module):
    """Each channel (dim 1) shifted and scaled by mean and variance of the batch; in eval mode, by
    running averages.

    momentum: weight of the newest batch in the averages, None for the plain mean of all batches so
    far.
    track_running_stats: keep averages at all.
    """

    ndims: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        where: Kind = {"device": device, "dtype": dtype}
        _register_affine(self, num_features, affine, affine and bias, where)
        _register_statistics(self, num_features, track_running_stats, where)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Means 0, variances 1, no batch seen."""
        _reset_statistics(self)

    def reset_parameters(self) -> None:
        """weight 1, bias 0, and no statistics."""
        self.reset_running_stats()
        _reset_affine(self)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in self.ndims:
            wanted = " or ".join(f"{n}D" for n in self.ndims)
            raise ShapeError(f"expected {wanted} input (got {x.ndim}D input {x.meta})")
        return self._normalized(x)

    def _normalized(self, x: Tensor) -> Tensor:
        uses_batch = self.training or self.running_mean is None
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            uses_batch,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
            num_batches=self._count(),
        )

    def _count(self) -> Tensor | None:
        """Counts the batch. With momentum None that is done where it is averaged: the count."""
        batches: Tensor | None = self.num_batches_tracked
        if not self.training or batches is None:
            return None
        if self.momentum is None:
            return batches
        with no_grad():
            batches.add_(1)
        return None

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    ndims = (2, 3)


class BatchNorm2d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    ndims = (4,)


class BatchNorm3d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    ndims = (5,)


class _FusedBatchNorm(_BatchNorm):
    """relu(batch norm of x + addend); addend: of the shape of x, or None."""

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        out = super().forward(x)
        return F.relu(out if addend is None else out + addend)


class FusedBatchNorm1d(_FusedBatchNorm):
    __doc__ = _FusedBatchNorm.__doc__
    ndims = (2, 3)


class FusedBatchNorm2d(_FusedBatchNorm):
    __doc__ = _FusedBatchNorm.__doc__
    ndims = (4,)


class FusedBatchNorm3d(_FusedBatchNorm):
    __doc__ = _FusedBatchNorm.__doc__
    ndims = (5,)


class _InstanceNorm(Module):
    """Each channel of each sample shifted and scaled by its own mean and variance.

    track_running_stats: keep averages over the samples, moved by `momentum`, and use them in eval
    mode.
    """

    ndims: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        where: Kind = {"device": device, "dtype": dtype}
        _register_affine(self, num_features, affine, affine and bias, where)
        _register_statistics(self, num_features, track_running_stats, where)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Means 0, variances 1."""
        _reset_statistics(self)

    def reset_parameters(self) -> None:
        """weight 1, bias 0, and no statistics."""
        self.reset_running_stats()
        _reset_affine(self)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in self.ndims:
            wanted = " or ".join(f"{n}D" for n in self.ndims)
            raise ShapeError(f"expected {wanted} input (got {x.ndim}D input {x.meta})")
        single = x.ndim == min(self.ndims)
        out: Tensor = F.instance_norm(
            x.unsqueeze(0) if single else x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            self.momentum,
            self.eps,
        )
        squeezed: Tensor = out.squeeze(0) if single else out
        return squeezed

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class InstanceNorm1d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    ndims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    ndims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    ndims = (4, 5)


class LocalResponseNorm(Module):
    """Each element divided by the mean square of `size` channels around it, to a power."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)
