"""Losses as layers. reduction: "mean", "sum", or "none" for one loss per element or row."""

from __future__ import annotations

import inspect
from typing import Any

from oneflow.core.errors import ArgumentError
from oneflow.functional.nn.ctc import Lengths, combined_margin_loss
from oneflow.functional.reduction import with_old_reduction
from oneflow.nn import functional as F
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor

REDUCTIONS = ("none", "mean", "sum")


class _Loss(Module):
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        init = vars(cls).get("__init__")
        if init is not None and "reduction" in inspect.signature(init).parameters:
            setattr(cls, "__init__", with_old_reduction(init))  # noqa: B010

    @with_old_reduction
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise ArgumentError(
                f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}"
            )
        self.reduction = reduction


class _WeightedLoss(_Loss):
    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class L1Loss(_Loss):
    """|x - target|."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.l1_loss(input, target, reduction=self.reduction)


class MSELoss(_Loss):
    """(x - target)²."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.mse_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """The smooth L1 loss, with d = |x - target|: d² / (2 beta) where d < beta, else d -
    beta / 2.
    """

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class KLDivLoss(_Loss):
    """target · (log target - x), x being log-probabilities; log_target: the target is too."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__("mean" if reduction == "batchmean" else reduction)
        self.reduction = reduction
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class CrossEntropyLoss(_WeightedLoss):
    """-log softmax(x)[target]; x: (n, classes, ...), target: class indices (n, ...).

    weight: of each class.  ignore_index: rows with this target do not count.  label_smoothing: this
    share of the target is spread over all classes.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, reduction)
        if not 0.0 <= label_smoothing <= 1.0:
            raise ArgumentError(
                f"label_smoothing must be between 0.0 and 1.0, got {label_smoothing}"
            )
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class NLLLoss(_WeightedLoss):
    """-x[target], x being log-probabilities (n, classes, ...)."""

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.nll_loss(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


class NLLLoss2d(NLLLoss):
    """`NLLLoss` under the name that it had for images."""


class BCELoss(_WeightedLoss):
    """-(target · log x + (1 - target) · log(1 - x)), x being probabilities."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.binary_cross_entropy(input, target, weight=self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_WeightedLoss):
    """BCELoss of sigmoid(x), computed without overflow. pos_weight: multiplies the first term."""

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.binary_cross_entropy_with_logits(
            input,
            target,
            weight=self.weight,
            reduction=self.reduction,
            pos_weight=self.pos_weight,
        )


class MarginRankingLoss(_Loss):
    """max(0, -target · (x1 - x2) + margin); target 1: x1 should be larger, -1: smaller."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Any:
        return F.margin_ranking_loss(
            input1, input2, target, margin=self.margin, reduction=self.reduction
        )


class TripletMarginLoss(_Loss):
    """max(0, |anchor - positive| - |anchor - negative| + margin) with p-norms.

    swap: the distance from positive to negative counts if it is the smaller.
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Any:
        return F.triplet_margin_loss(
            anchor,
            positive,
            negative,
            margin=self.margin,
            p=self.p,
            eps=self.eps,
            swap=self.swap,
            reduction=self.reduction,
        )


class CTCLoss(_Loss):
    """-log of the probability that the frames read as their targets: `F.ctc_loss`."""

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths
    ) -> Any:
        return F.ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            self.blank,
            self.reduction,
            self.zero_infinity,
        )


class CombinedMarginLoss(Module):
    """Cosines (N, C) of which that of the label becomes cos(m1 acos(x) + m2) - m3: the margins of
    SphereFace, ArcFace and CosFace.
    """

    def __init__(self, m1: float = 1.0, m2: float = 0.0, m3: float = 0.0) -> None:
        super().__init__()
        self.m1, self.m2, self.m3 = m1, m2, m3

    def forward(self, x: Tensor, label: Tensor) -> Any:
        return combined_margin_loss(x, label, self.m1, self.m2, self.m3)
