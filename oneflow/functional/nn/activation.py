"""Activations, softmax and dropout."""

from __future__ import annotations

import math
from collections.abc import Callable

from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.functional.arithmetic import add, div, mul, sub
from oneflow.functional.concat_split import chunk
from oneflow.functional.creation import ones, rand
from oneflow.functional.dims import one_dim
from oneflow.functional.elementwise import (
    clamp,
    masked_fill,
    pick,
)
from oneflow.functional.promotion import rounded_once
from oneflow.functional.random_state import Generator, next_seed
from oneflow.functional.reduction import argmax
from oneflow.functional.shaping import movedim, reshape, transpose
from oneflow.functional.sort_and_search import one_hot
from oneflow.ops import activation, compare, unary
from oneflow.ops import dropout as dropout_ops
from oneflow.ops import softmax as softmax_ops
from oneflow.tensor.creation_like import Place, layout_of
from oneflow.tensor.inplace import before, check_writable, overwrite
from oneflow.tensor.tensor import Tensor


def _result(x: Tensor, new: Tensor, inplace: bool) -> Tensor:
    if not inplace:
        return new
    return overwrite(x, new)


def _before(x: Tensor, inplace: bool) -> Tensor:
    """Return the input of an activation: if it will be overwritten, an object that keeps its
    history.
    """
    if not inplace:
        return x
    check_writable(x)
    return before(x)


def fast_gelu(input: Tensor) -> Tensor:
    """`gelu` with the tanh approximation."""
    return activation.gelu(input, approximate="tanh")


def rrelu(
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """leaky_relu with a slope drawn from [lower, upper) per element in training, their mean
    otherwise.
    """
    if lower > upper:
        raise ArgumentError(
            "rrelu: Lower bound should be less than or equal to the upper bound, got "
            f"{lower} and {upper}"
        )
    if not training:
        x = _before(input, inplace)
        return _result(input, activation.leaky_relu(x, negative_slope=(lower + upper) / 2), inplace)

    x = _before(input, inplace)
    drawn = rand(x.meta.shape, dtype=x.meta.dtype, **layout_of(x, no_partial=True))
    slope = add(mul(drawn, upper - lower), lower)
    return _result(
        input, pick(compare.scalar_compare(x, value=0, kind="ge"), x, mul(x, slope)), inplace
    )


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where positive, else weight * x; weight: one number, or one per channel (dim 1)."""
    if weight.ndim > 1:
        raise ShapeError(f"prelu: Expected `weight` to be a scalar or 1D tensor, got {weight.meta}")
    if weight.numel() > 1 and input.ndim > 1:
        weight = weight.reshape(1, -1, *(1,) * (input.ndim - 2))
    elif not input.ndim:
        weight = weight.reshape(())
    # What is positive sends no gradient to the weight, not 0 times an infinite one.
    is_positive = compare.scalar_compare(input, value=0, kind="gt")
    slope = mul(weight, clamp(input, max=0.0))
    return add(unary.relu(input), masked_fill(slope, is_positive, 0))


@rounded_once
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along `dim` times the sigmoid of the second."""
    if not input.ndim:
        raise ShapeError(
            f"glu does not support scalars because halving size must be even, got {input.meta}"
        )
    if input.meta.shape[one_dim(dim, input.ndim, "glu")] % 2:
        raise ArgumentError(
            f"glu: Halving dimension must be even, but dimension {dim} is size "
            f"{input.meta.shape[dim]}: {input.meta}"
        )
    a, b = chunk(input, 2, dim)
    return mul(a, unary.sigmoid(b))


def _default_softmax_dim(ndim: int) -> int:
    return 0 if ndim in (0, 1, 3) else 1


def softmax(input: Tensor, dim: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`."""
    return _along(softmax_ops.softmax, "softmax", input, dim, dtype)


def log_softmax(input: Tensor, dim: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """log(softmax(x)), without overflow."""
    return _along(softmax_ops.log_softmax, "log_softmax", input, dim, dtype)


def softmin(input: Tensor, dim: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """softmax(-x)."""
    return softmax(unary.neg(input), dim, dtype)


def _along(
    op: Callable[[Tensor], Tensor], name: str, x: Tensor, dim: int | None, dtype: DTypeLike | None
) -> Tensor:
    """The ops work on the last dim."""
    if dtype is not None:
        x = x.to(dtype)
    at = one_dim(_default_softmax_dim(x.ndim) if dim is None else dim, x.ndim, name)
    if not x.ndim:
        return op(x.reshape(1)).reshape(())
    if at == x.ndim - 1:
        return op(x)
    return transpose(op(transpose(x, at, -1)), at, -1).contiguous()


def gumbel_softmax(
    logits: Tensor,
    tau: float | Tensor = 1.0,
    dim: int = -1,
    hard: bool = False,
    *,
    eps: float = 1e-10,
    generator: Generator | None = None,
) -> Tensor:
    """softmax((logits + Gumbel noise) / tau); hard: one-hot, with the gradient of the soft
    result. eps: accepted.

    As in PyTorch, the third argument may be `hard`: a bool there is no dim.
    """
    if isinstance(dim, bool):
        return gumbel_softmax(logits, tau, hard=dim, generator=generator)
    drawn = rand(
        logits.meta.shape,
        dtype=logits.meta.dtype,
        generator=generator,
        **layout_of(logits, no_partial=True),
    )
    noise = unary.neg(unary.log(clamp(unary.neg(unary.log(clamp(drawn, min=1e-20))), min=1e-20)))
    soft = softmax(div(add(logits, noise), tau), dim)
    if not hard:
        return soft
    at = one_dim(dim, logits.ndim, "gumbel_softmax")
    chosen = one_hot(argmax(soft, at), logits.meta.shape[at]).to(soft.meta.dtype)
    return add(sub(_transpose_last(chosen, at), soft.detach()), soft)


def _transpose_last(x: Tensor, dim: int) -> Tensor:
    """The last dim moved to place `dim`."""
    return movedim(x, -1, dim)


def dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    generator: Generator | None = None,
    *,
    addend: Tensor | None = None,
) -> Tensor:
    """Each element is 0 with probability p, else scaled by 1 / (1 - p); not in training: as it is.
    addend: added after.
    """
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"dropout probability has to be between 0 and 1, but got {p}")
    x = _before(input, inplace)
    out = (
        x
        if not training or p == 0
        else dropout_ops.dropout(x, p=float(p), seed=next_seed(generator))
    )
    if addend is not None:
        out = add(out, addend)
    if out is x and not inplace:
        return input
    return input if out is x else _result(input, out, inplace)


def _channel_dropout(
    input: Tensor, p: float, training: bool, inplace: bool, ndims: tuple[int, ...]
) -> Tensor:
    """Drop channels; of fewer or more dims than a layer is for, those after the second go together,
    as in PyTorch.
    """
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        is_batch = inplace or ndims == (3, 4) or input.ndim == max(ndims)
        return input if is_batch else reshape(input, input.meta.shape)
    shape = input.meta.shape
    outer = shape[:1] if input.ndim == min(ndims) else shape[:2]
    blank = ones(
        (*outer, *(1,) * (input.ndim - len(outer))), dtype=input.meta.dtype, **_place(input)
    )
    return _result(input, mul(_before(input, inplace), dropout(blank, p)), inplace)


def _place(x: Tensor) -> Place:
    return layout_of(x, no_partial=True, ndim=0)


_SATURATED = -1.7580993408473766
"""SELU of minus infinity, which dropped elements become."""


def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Each element saturates with probability p; scale and shift keep mean 0 and variance 1."""
    return _alpha_dropout(input, p, training, inplace, input.meta.shape)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """`alpha_dropout` of whole channels of (N, C, ...)."""
    shape = (*input.meta.shape[:2], *(1,) * (input.ndim - 2))
    return _alpha_dropout(input, p, training, inplace, shape)


def _alpha_dropout(
    input: Tensor, p: float, training: bool, inplace: bool, shape: tuple[int, ...]
) -> Tensor:
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    x = _before(input, inplace)
    place = layout_of(x, no_partial=True) if shape == x.meta.shape else _place(x)
    drawn = dropout(ones(shape, dtype=x.meta.dtype, **place), p)
    kept = mul(drawn, 1.0 - p)
    scale = 1.0 / math.sqrt((1.0 - p) * (1.0 + p * _SATURATED**2)) if p < 1 else 0.0
    shift = -p * scale * _SATURATED
    dropped = mul(sub(1.0, kept), scale * _SATURATED)
    return _result(input, add(add(mul(mul(x, kept), scale), dropped), shift), inplace)


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels of (N, C, L) or (C, L) are dropped."""
    if input.ndim not in (2, 3):
        raise ArgumentError(f"dropout1d needs 2 or 3 dims, got {input.meta}")
    return _channel_dropout(input, p, training, inplace, (2, 3))


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels of (N, C, H, W) or (C, H, W) are dropped."""
    return _channel_dropout(input, p, training, inplace, (3, 4))


def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels of (N, C, D, H, W) or (C, D, H, W) are dropped."""
    return _channel_dropout(input, p, training, inplace, (4, 5))
