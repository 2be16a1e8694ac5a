"""Losses with margins, and likelihoods of distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

from oneflow.core.errors import ArgumentError, CallError, ShapeError
from oneflow.functional.arithmetic import add, div, mul, sub
from oneflow.functional.elementwise import clamp, masked_fill, pick
from oneflow.functional.gather_scatter import as_index, gather, within
from oneflow.functional.nn.layers import pairwise_distance
from oneflow.functional.promotion import as_float, as_type, together
from oneflow.functional.reduction import check_reduction, mean, reduced
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import reshape, unsqueeze
from oneflow.ops import binary, unary
from oneflow.ops.activation import logsigmoid
from oneflow.tensor.tensor import Tensor

Distance = Callable[[Tensor, Tensor], Tensor]


def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """Half the squared difference where it is below delta, linear beyond."""
    if delta <= 0:
        raise ArgumentError(
            f"huber_loss does not support non-positive values for delta, got {delta}"
        )
    gap = unary.abs(sub(input, target))
    is_outer = gap >= delta
    inner = mul(unary.square(masked_fill(gap, is_outer, 0.0)), 0.5)  # infinity times 0 is NaN
    loss = pick(is_outer, mul(sub(gap, 0.5 * delta), delta), inner)
    return reduced(loss if weight is None else mul(loss, weight), reduction)


def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target * input))."""
    return reduced(unary.log1p(unary.exp(unary.neg(mul(target, input)))), reduction)


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """input where the target is 1, max(0, margin - input) where it is -1."""
    far = masked_fill(clamp(sub(margin, input), min=0.0), target == 1, 0.0)
    near = masked_fill(input, target == -1, 0.0)
    return reduced(add(far, near), reduction)


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1."""
    if input1.meta.shape != input2.meta.shape and target.ndim + 1 != max(input1.ndim, input2.ndim):
        raise ShapeError(
            f"cosine_embedding_loss: {target.meta} does not fit {input1.meta} and {input2.meta}"
        )
    input1, input2 = as_float(input1), as_float(input2)
    dims = total(mul(input1, input2), -1)
    size1 = add(total(unary.square(input1), -1), 1e-12)
    size2 = add(total(unary.square(input2), -1), 1e-12)
    cosine = div(dims, unary.sqrt(mul(size1, size2)))
    near = masked_fill(sub(1, cosine), target != 1, 0.0)
    far = masked_fill(clamp(sub(cosine, margin), min=0.0), target != -1, 0.0)
    return reduced(add(near, far), reduction)


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """The negative logarithm of the normal density with mean `input` and variance `var`."""
    spread = var if isinstance(var, Tensor) else unary.full_like(input, value=float(var))
    if spread.meta.shape != input.meta.shape:
        if spread.meta.shape == input.meta.shape[:-1]:
            spread = unsqueeze(spread, -1)
        elif spread.meta.numel != 1 and (
            spread.ndim != input.ndim
            or any(n not in (1, m) for n, m in zip(spread.shape, input.shape, strict=True))
        ):
            raise ArgumentError(f"gaussian_nll_loss: var {spread.meta} is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(f"{reduction} is not valid")
    if spread._array is not None and spread._placement is None and bool((spread < 0).any()):
        raise ArgumentError("gaussian_nll_loss: var has negative entry/entries")
    held = add(spread, sub(clamp(spread.detach(), min=eps), spread.detach()))
    loss = mul(add(unary.log(held), div(unary.square(sub(input, target)), held)), 0.5)
    if full:
        loss = add(loss, 0.5 * math.log(2 * math.pi))
    return reduced(loss, reduction)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The negative logarithm of the Poisson probability, whose rate is exp(input) or input."""
    input, target = together(as_float(input), target)
    if log_input:
        loss = sub(unary.exp(input), mul(target, input))
    else:
        loss = sub(input, mul(target, unary.log(add(input, eps))))
    if full:
        stirling = add(sub(mul(target, unary.log(target)), target),
                       mul(unary.log(mul(target, 2 * math.pi)), 0.5))  # fmt: skip
        loss = add(loss, masked_fill(stirling, target <= 1, 0.0))
    return reduced(loss, reduction)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of max(0, margin - x[target] + x[class]) ** p."""
    if p not in (1, 2):
        raise ArgumentError(f"only p == 1 and p == 2 supported, got {p}")
    check_reduction(reduction)
    if weight is not None and weight.ndim != 1:
        raise ArgumentError(f"multi_margin_loss: weight must be one-dimensional, got {weight.meta}")
    x = reshape(input, (1, -1)) if input.ndim < 2 else input
    labels = reshape(target, (-1, 1))
    own = gather(x, 1, labels)
    gap = unary.relu(add(sub(x, own), margin))
    gap = gap if p == 1 else unary.square(gap)
    if weight is not None:
        gap = mul(gap, unsqueeze(gather(weight, 0, reshape(labels, (-1,))), 1))
    classes = x.meta.shape[1]
    is_own = labels == x.new_tensor(range(classes), dtype=labels.meta.dtype)
    loss = div(total(masked_fill(gap, is_own, 0.0), 1), classes)
    return reduced(loss if target.ndim else reshape(loss, ()), reduction)


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over pairs of a labelled and another class of max(0, 1 - x[label] + x[other]).

    target: labels, ended by -1.
    """
    check_reduction(reduction)
    x = reshape(input, (1, -1)) if input.ndim < 2 else input
    if not x.meta.shape[-1] or x.ndim != 2 or target.meta.numel != x.meta.numel:
        raise ShapeError(f"multilabel_margin_loss: {input.meta} and {target.meta} do not fit")
    count = x.meta.shape[1]
    labels = as_index(reshape(target, x.meta.shape))
    is_end = labels == -1
    labels = masked_fill(within(masked_fill(labels, is_end, 0), count, 1), is_end, -1)
    is_on = (as_type(labels < 0, labels.meta.dtype).cumsum(1)) == 0
    safe = masked_fill(labels, unary.logical_not(is_on), 0)
    numbers = x.new_tensor(range(count), dtype=labels.meta.dtype)
    is_label = ((unsqueeze(safe, -1) == numbers) & unsqueeze(is_on, -1)).any(1)
    gap = sub(unsqueeze(x, 1), unsqueeze(gather(x, 1, safe), 2))
    gap = unary.relu(add(gap, 1))
    kept = unsqueeze(is_on, 2) & unsqueeze(unary.logical_not(is_label), 1)
    loss = div(total(masked_fill(gap, unary.logical_not(kept), 0.0), (1, 2)), count)
    return reduced(loss if input.ndim > 1 else reshape(loss, ()), reduction)


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of the binary cross-entropy with logits."""
    good, bad = logsigmoid(input), logsigmoid(unary.neg(input))
    loss = unary.neg(add(mul(target, good), mul(sub(1, target), bad)))
    loss = loss if weight is None else mul(loss, weight)
    return reduced(mean(loss, -1), reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Distance | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, distance to positive - distance to negative + margin)."""
    if margin <= 0:
        raise ArgumentError(f"margin must be greater than 0, got {margin}")
    if any(not isinstance(x, Tensor) for x in (anchor, positive, negative)):
        raise CallError("triplet_margin_with_distance_loss() needs three tensors")
    measure: Distance = pairwise_distance if distance_function is None else distance_function
    near, far = measure(anchor, positive), measure(anchor, negative)
    if swap:
        far = binary.minimum(far, measure(positive, negative))
    return reduced(clamp(add(sub(near, far), margin), min=0.0), reduction)
