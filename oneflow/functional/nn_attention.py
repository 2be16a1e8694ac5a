"""Attention."""

from __future__ import annotations

import math

from oneflow.core.dtype import bool_
from oneflow.core.errors import ShapeError
from oneflow.functional.arithmetic import add, gt, mul
from oneflow.functional.elementwise import clamp, pick
from oneflow.functional.nn_activation import dropout, softmax
from oneflow.functional.promotion import as_type
from oneflow.functional.reduction import any
from oneflow.functional.shaping import repeat_interleave, tril
from oneflow.ops.matmul import matmul
from oneflow.ops.softmax import causal_softmax
from oneflow.tensor.alike import filled_like
from oneflow.tensor.tensor import Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key^T * scale + mask) @ value over the last two dims.

    query: (..., rows, d).  key: (..., columns, d).  value: (..., columns, e).  Returns (..., rows,
    e).
    attn_mask: bool (True: may be seen) or a float summand, broadcastable to (..., rows, columns);
    not with is_causal.
    A row that sees nothing gives zeros.
    is_causal: row i sees columns up to i.  scale: 1/sqrt(d) if None.
    enable_gqa: key and value may have fewer heads, in dim -3; each serves as many heads of the
    query, one after the other.
    Vaswani et al., "Attention is all you need", 2017.
    """
    if query.ndim < 2 or query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            f"scaled_dot_product_attention: query {query.meta} and key {key.meta} need equal last "
            "dims"
        )
    if enable_gqa:
        key, value = (_for_each_head(query, x) for x in (key, value))
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = matmul(query, key, transpose_b=True)
    if is_causal:
        if attn_mask is not None:
            raise ShapeError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
        if scores.shape[-2] != scores.shape[-1]:  # the fused op ends both sides at one position
            attn_mask = tril(as_type(filled_like(scores, 1), bool_))
    if is_causal and attn_mask is None:
        weights = causal_softmax(scores, scale=factor)
    else:
        weights = softmax(_masked(mul(scores, factor), attn_mask), dim=-1)
    if dropout_p > 0.0:
        weights = dropout(weights, dropout_p)
    out: Tensor = matmul(weights, value)
    if attn_mask is None or is_causal:
        return out
    return pick(_sees_any(attn_mask), out, 0.0)


def _for_each_head(query: Tensor, x: Tensor) -> Tensor:
    """Keys or values once for each head of the query."""
    times, left = divmod(query.shape[-3], x.shape[-3])
    if left:
        raise ShapeError(
            f"scaled_dot_product_attention: {query.shape[-3]} heads of the query are no multiple "
            f"of {x.shape[-3]} heads of key or value"
        )
    repeated: Tensor = repeat_interleave(x, times, dim=-3)
    return repeated if times > 1 else x


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores
    hidden = _hidden(scores)
    if mask.dtype.name == "bool":
        seen: Tensor = pick(mask, scores, hidden)
        return seen
    return add(scores, clamp(mask, min=hidden))


def _hidden(scores: Tensor) -> float:
    """The score of what is not to be seen: finite, so that a row without any other is no nan."""
    return -3e4 if scores.dtype.name == "float16" else -1e30


def _sees_any(mask: Tensor) -> Tensor:
    """True for each row of a mask, (..., rows, 1), that has something to see."""
    seen = mask if mask.dtype.name == "bool" else gt(mask, -math.inf)
    return any(seen, dim=-1, keepdim=True)
