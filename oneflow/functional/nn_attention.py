"""Attention."""

from __future__ import annotations

import math

from oneflow.core.errors import ShapeError
from oneflow.functional.arithmetic import add, mul
from oneflow.functional.elementwise import pick
from oneflow.functional.nn_activation import dropout, softmax
from oneflow.ops.matmul import matmul
from oneflow.ops.softmax import causal_softmax
from oneflow.tensor.tensor import Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(query @ key^T * scale + mask) @ value over the last two dims.

    query: (..., rows, d).  key: (..., columns, d).  value: (..., columns, e).  Returns (..., rows,
    e).
    attn_mask: bool (True: may be seen) or a float summand, broadcastable to (..., rows, columns);
    not with is_causal.
    is_causal: row i sees columns up to i + columns - rows.  scale: 1/sqrt(d) if None.
    Vaswani et al., "Attention is all you need", 2017.
    """
    if query.ndim < 2 or query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            f"scaled_dot_product_attention: query {query.type} and key {key.type} need equal last "
            "dims"
        )
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = matmul(query, key, transpose_b=True)
    if is_causal:
        if attn_mask is not None:
            raise ShapeError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
        weights = causal_softmax(scores, scale=factor)
    else:
        weights = softmax(_masked(mul(scores, factor), attn_mask), dim=-1)
    if dropout_p > 0.0:
        weights = dropout(weights, dropout_p)
    out: Tensor = matmul(weights, value)
    return out


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores
    if mask.dtype.name == "bool":
        seen: Tensor = pick(mask, scores, -1e30)
        return seen
    return add(scores, mask)
