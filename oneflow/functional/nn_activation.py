"""Activations, softmax and dropout."""

from __future__ import annotations

import math
from collections.abc import Callable

from oneflow.core.dtype import DTypeLike
from oneflow.core.sbp import all_broadcast
from oneflow.functional.arithmetic import add, div, mul, sub
from oneflow.functional.creation import ones, rand
from oneflow.functional.dims import one_dim
from oneflow.functional.elementwise import (
    clamp,
    clone,
    masked_fill,
    pick,
)
from oneflow.functional.joining import chunk
from oneflow.functional.random_state import Generator, next_seed
from oneflow.functional.reduction import argmax
from oneflow.functional.searching import one_hot
from oneflow.functional.shaping import movedim, transpose
from oneflow.ops import activation, compare, unary
from oneflow.ops import dropout as dropout_ops
from oneflow.ops import softmax as softmax_ops
from oneflow.ops.compare import logical_or
from oneflow.tensor.alike import Place, layout_of
from oneflow.tensor.inplace import before, check_writable, overwrite
from oneflow.tensor.tensor import Tensor


def _result(x: Tensor, new: Tensor, inplace: bool) -> Tensor:
    if not inplace:
        return new
    return overwrite(x, new)


def _before(x: Tensor, inplace: bool) -> Tensor:
    """Return what an activation is computed from: if it will be overwritten, an object that keeps
    its history.
    """
    if not inplace:
        return x
    check_writable(x)
    return before(x)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0)."""
    return _result(input, unary.relu(_before(input, inplace)), inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6)."""
    return hardtanh(input, 0.0, 6.0, inplace)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function of x; approximate: "none" or "tanh"."""
    return activation.gelu(input, approximate=approximate)


def fast_gelu(input: Tensor) -> Tensor:
    """`gelu` with the tanh approximation."""
    return gelu(input, "tanh")


def quick_gelu(input: Tensor) -> Tensor:
    """x * sigmoid(1.702 x)."""
    return mul(input, unary.sigmoid(mul(input, 1.702)))


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""
    return _result(input, unary.silu(_before(input, inplace)), inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x))."""
    x = _before(input, inplace)
    return _result(input, mul(x, unary.tanh(softplus(x))), inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where positive, else alpha (exp(x) - 1)."""
    return _result(input, unary.elu(_before(input, inplace), alpha=float(alpha)), inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where positive, else alpha (exp(x / alpha) - 1)."""
    x = _before(input, inplace)
    return _result(input, mul(unary.elu(div(x, alpha), alpha=1.0), alpha), inplace)


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """The self-normalising elu: Klambauer et al., 2017."""
    return _result(
        input, mul(unary.elu(_before(input, inplace), alpha=_SELU_ALPHA), _SELU_SCALE), inplace
    )


def leaky_relu(
    input: Tensor, negative_slope: float = 0.01, alpha: float | None = None, inplace: bool = False
) -> Tensor:
    """x where positive, else negative_slope * x."""
    slope = float(negative_slope if alpha is None else alpha)
    return _result(input, unary.leaky_relu(_before(input, inplace), alpha=slope), inplace)


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
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace=inplace)

    x = _before(input, inplace)
    drawn = rand(x.type.shape, dtype=x.type.dtype, **layout_of(x, no_partial=True))
    slope = add(mul(drawn, upper - lower), lower)
    return _result(
        input, pick(compare.scalar_compare(x, value=0, kind="ge"), x, mul(x, slope)), inplace
    )


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where positive, else weight * x; weight: one number, or one per channel (dim 1)."""
    if weight.numel() > 1 and input.ndim > 1:
        weight = weight.reshape(1, -1, *(1,) * (input.ndim - 2))
    elif not input.ndim:
        weight = weight.reshape(())
    return add(unary.relu(input), mul(weight, clamp(input, max=0.0)))


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """x, kept within [min_val, max_val]."""
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val {min_val} is greater than max_val {max_val}")
    if input.type.dtype.is_integer:
        min_val, max_val = int(min_val), int(max_val)
    return _result(input, clamp(_before(input, inplace), min_val, max_val), inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x / 6 + 1/2, 0), 1)."""
    x = _before(input, inplace)
    # The slope is 0 at the corners too: what is clamped there takes no part in the gradient.
    is_outside = logical_or(
        compare.scalar_compare(x, value=-3.0, kind="le"),
        compare.scalar_compare(x, value=3.0, kind="ge"),
    )
    kept = pick(is_outside, clamp(x.detach(), -3.0, 3.0), x)
    return _result(input, div(add(kept, 3.0), 6.0), inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * hardsigmoid(x)."""
    x = _before(input, inplace)
    # The slope is 0 at -3 and 1 at 3, as on the outer side of each corner.
    low = compare.scalar_compare(x, value=-3.0, kind="le")
    high = compare.scalar_compare(x, value=3.0, kind="ge")
    middle = div(mul(x, add(masked_fill(x, low, -3.0), 3.0)), 6.0)
    return _result(input, pick(high, x, masked_fill(middle, low, 0.0)), inplace)


def hardshrink(input: Tensor, lambd: float = 0.5, inplace: bool = False) -> Tensor:
    """0 where |x| <= lambd, else x."""
    x = _before(input, inplace)
    small = compare.scalar_compare(unary.abs(x), value=lambd, kind="le")
    return _result(input, masked_fill(x, small, 0.0), inplace)


def softshrink(
    input: Tensor, lambd: float = 0.5, alpha: float | None = None, inplace: bool = False
) -> Tensor:
    """x moved toward 0 by lambd, and 0 where |x| <= lambd."""
    bound = lambd if alpha is None else alpha
    x = _before(input, inplace)
    return _result(input, sub(x, clamp(x, -bound, bound)), inplace)


def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """x where x > threshold, else value."""
    return masked_fill(input, compare.scalar_compare(input, value=threshold, kind="le"), value)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta."""
    return unary.softplus(input, beta=float(beta), threshold=float(threshold))


def softsign(input: Tensor, inplace: bool = False) -> Tensor:
    """x / (1 + |x|)."""
    x = _before(input, inplace)
    return _result(input, div(x, add(unary.abs(x), 1)), inplace)


def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)), without overflow."""
    return unary.neg(
        softplus(unary.neg(input), 1.0, math.inf if input.type.dtype.bytes > 4 else 80.0)
    )


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along `dim` times the sigmoid of the second."""
    if input.type.shape[one_dim(dim, input.ndim, "glu")] % 2:
        raise ValueError(
            f"glu: Halving dimension must be even, but dim {dim} of {input.type} is odd"
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
    return transpose(op(transpose(x, at, -1)), at, -1)


def gumbel_softmax(
    logits: Tensor,
    tau: float = 1.0,
    hard: bool = False,
    dim: int = -1,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """softmax((logits + Gumbel noise) / tau); hard: one-hot, with the gradient of the soft
    result.
    """
    drawn = rand(
        logits.type.shape,
        dtype=logits.type.dtype,
        generator=generator,
        **layout_of(logits, no_partial=True),
    )
    noise = unary.neg(unary.log(clamp(unary.neg(unary.log(clamp(drawn, min=1e-20))), min=1e-20)))
    soft = softmax(div(add(logits, noise), tau), dim)
    if not hard:
        return soft
    at = one_dim(dim, logits.ndim, "gumbel_softmax")
    chosen = one_hot(argmax(soft, at), logits.type.shape[at]).to(soft.type.dtype)
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
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
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
    if input.ndim not in ndims:
        raise ValueError(
            f"channel dropout needs {' or '.join(map(str, ndims))} dims, got {input.type}"
        )
    if not training or p == 0:
        return input if inplace else clone(input)
    shape = input.type.shape
    outer = shape[:2] if input.ndim == max(ndims) else shape[:1]
    blank = ones(
        (*outer, *(1,) * (input.ndim - len(outer))), dtype=input.type.dtype, **_place(input)
    )
    return _result(input, mul(_before(input, inplace), dropout(blank, p)), inplace)


def _place(x: Tensor) -> Place:
    if x._placement is None:
        return {"device": x._device}
    return {"placement": x._placement, "sbp": all_broadcast(x._placement.ndim)}


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels of (N, C, L) or (C, L) are dropped."""
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
