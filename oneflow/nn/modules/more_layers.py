"""Layers that PyTorch has and OneFlow has not, over functions of the same names."""

from __future__ import annotations

from typing import ClassVar

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.functional.creation import empty
from oneflow.functional.nn_more_loss import Distance
from oneflow.nn import functional as F
from oneflow.nn import init
from oneflow.nn.module import Module
from oneflow.nn.modules.loss import _Loss, _WeightedLoss
from oneflow.nn.modules.padding import _Pad
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import Tensor

# ---- losses --------------------------------------------------------------------------------------


class HuberLoss(_Loss):
    """Half the squared difference where it is below delta, linear beyond."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(input, target, self.reduction, self.delta)


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target · x)); targets are 1 or -1."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.soft_margin_loss(input, target, self.reduction)


class HingeEmbeddingLoss(_Loss):
    """x where the target is 1, max(0, margin - x) where it is -1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.hinge_embedding_loss(input, target, self.margin, self.reduction)


class CosineEmbeddingLoss(_Loss):
    """1 - cos of the angle of two vectors where the target is 1, max(0, cos - margin) else."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class GaussianNLLLoss(_Loss):
    """-log of the density of a normal distribution with the mean x and the variance `var`.

    full: with the constant.  eps: the least variance.
    """

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        return F.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class PoissonNLLLoss(_Loss):
    """-log of the probability of counts under a Poisson distribution of the rate exp(x), or x.

    log_input: x is the logarithm of the rate.  full: with Stirling's term.
    """

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: float = 1e-8,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        return F.poisson_nll_loss(
            log_input, target, self.log_input, self.full, eps=self.eps, reduction=self.reduction
        )


class MultiMarginLoss(_WeightedLoss):
    """The mean over other classes of max(0, margin - x[label] + x[class])^p."""

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, reduction)
        self.p, self.margin = p, margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multi_margin_loss(
            input, target, self.p, self.margin, self.weight, reduction=self.reduction
        )


class MultiLabelMarginLoss(_Loss):
    """Margins between the labels of a sample, whose list -1 ends, and all other classes."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)


class MultiLabelSoftMarginLoss(_WeightedLoss):
    """Binary cross entropy of each class, whose mean is taken."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_soft_margin_loss(input, target, self.weight, reduction=self.reduction)


class TripletMarginWithDistanceLoss(_Loss):
    """max(0, distance(anchor, positive) - distance(anchor, negative) + margin)."""

    def __init__(
        self,
        *,
        distance_function: Distance | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.distance_function, self.margin, self.swap = distance_function, margin, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )


# ---- other layers --------------------------------------------------------------------------------


class Bilinear(Module):
    """x1 @ weight[k] @ x2 + bias[k] for each output k; weight: (outputs, inputs1, inputs2)."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ArgumentError(f"in1_features must be > 0, but got {in1_features}")
        shape = (out_features, in1_features, in2_features)
        self.weight = Parameter(empty(shape, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty(shape[:1], device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight and the bias anew."""
        bound = self.weight.shape[1] ** -0.5
        for part in self.parameters():
            init.uniform_(part, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)


class LocalResponseNorm(Module):
    """Each element divided by the mean square of `size` channels around it, to a power."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)


class Softmax2d(Module):
    """Softmax over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: expected input to be 3D or 4D, got {input.meta}")
        return F.softmax(input, -3)


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


# ---- paddings ------------------------------------------------------------------------------------


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
