"""Attention."""

from __future__ import annotations

import math
from typing import Any

from oneflow.core.config import current_config
from oneflow.core.dtype import bool_, float32
from oneflow.core.errors import ShapeError
from oneflow.functional.arithmetic import add, gt, mul
from oneflow.functional.elementwise import clamp, pick
from oneflow.functional.nn.activation import dropout, softmax
from oneflow.functional.promotion import as_type
from oneflow.functional.reduction import any as any_of
from oneflow.functional.shaping import repeat_interleave, reshape, tril
from oneflow.ops.attention import FEW_ROWS, attention
from oneflow.ops.matmul import matmul
from oneflow.ops.softmax import causal_softmax
from oneflow.tensor.creation_like import filled_like
from oneflow.tensor.grad_mode import is_grad_enabled
from oneflow.tensor.tensor import Tensor, wrap_traced

LEAST_ROWS = 16
"""Rows of the query from which a GPU does without stored scores: its tiles hold as many at once."""


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
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    if enable_gqa:
        _check_heads(query, key)
    if is_causal and attn_mask is not None:
        raise ShapeError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    if not enable_gqa and query.ndim > 2:
        keys, values = _shared_heads(key), _shared_heads(value)
        if keys is not None and values is not None and keys.shape[-3] == values.shape[-3]:
            key, value, enable_gqa = keys, values, True
    if dropout_p <= 0.0 and _is_fused(query, key, value, attn_mask, enable_gqa, is_causal):
        masks = () if attn_mask is None else (attn_mask,)
        return attention(query, key, value, *masks, scale=factor, is_causal=is_causal)[0]
    if query.dtype.bytes == 2 and not query.is_cuda:
        q, k, v, mask = _in_float32(query, key, value, attn_mask)
        wide = scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)
        return as_type(wide, query.dtype)
    if enable_gqa:
        key, value = (_for_each_head(query, x) for x in (key, value))
    scores = matmul(query, key, transpose_b=True)
    if is_causal and scores.shape[-2] != scores.shape[-1]:  # the op ends both at one position
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


def _in_float32(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Half floats and their mask, wide: as halves the weights do not sum to 1."""
    return tuple([x if x is None or x.dtype is bool_ else as_type(x, float32) for x in tensors])


def _is_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    enable_gqa: bool,
    is_causal: bool,
) -> bool:
    """Is attention one op, which stores no scores, or several? ONEFLOW_ATTENTION says so, else the
    device: on a CPU the several are faster, but for a few float32 rows that need no gradient."""
    lead, shared = query.shape[:-2], key.shape[:-2]
    if enable_gqa:
        lead, shared = lead[:-1], shared[:-1]
    alike = lead == shared and key.shape[:-2] == value.shape[:-2] and query.ndim == key.ndim
    whole = (*query.shape[:-1], key.shape[-2])
    if mask is not None:
        fits = mask.ndim <= len(whole) and mask.dtype in (bool_, query.dtype)
        alike &= fits and all(
            n in (1, m) for n, m in zip(mask.shape[::-1], whole[::-1], strict=False)
        )
    asked = current_config().attention
    if asked != "auto":
        return alike and asked == "fused"
    if query.is_cuda:
        return alike and query.shape[-2] >= LEAST_ROWS
    needs_gradient = is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    is_short = query.shape[-2] <= FEW_ROWS and query.dtype is float32 and not is_causal
    return alike and is_short and not needs_gradient and query.meta.numel > 0


def _check_heads(query: Tensor, key: Tensor) -> None:
    if query.shape[-3] % key.shape[-3]:
        raise ShapeError(
            f"scaled_dot_product_attention: {query.shape[-3]} heads of the query are no multiple "
            f"of {key.shape[-3]} heads of key or value"
        )


def _for_each_head(query: Tensor, x: Tensor) -> Tensor:
    """Keys or values once for each head of the query."""
    times = query.shape[-3] // x.shape[-3]
    repeated: Tensor = repeat_interleave(x, times, dim=-3)
    return repeated if times > 1 else x


def _shared_heads(x: Tensor) -> Tensor | None:
    """The keys or values of which a traced tensor repeats each for some neighbouring heads, as
    programs do that compile: expanded along a new dim -3, then reshaped; None for any other."""
    node = getattr(x.value, "node", None)  # a tensor of one sample has a value of another kind
    if node is None or node.op != "reshape" or x._requires_grad or x.is_global:
        return None
    wide = node.inputs[0]
    if wide.node.op != "expand" or wide.type.ndim != x.ndim + 1:
        return None
    apart = wide.node.inputs[0]
    whole, shape = wide.type.shape, apart.type.shape
    merged = (*whole[:-4], whole[-4] * whole[-3], *whole[-2:])
    if shape != (*whole[:-3], 1, *whole[-2:]) or x.meta.shape != merged:
        return None
    return reshape(wrap_traced(apart, apart.type, device=x._device), (*whole[:-3], *whole[-2:]))


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores
    hidden = _hidden(scores)
    if mask.dtype.name == "bool":
        seen: Tensor = pick(mask, scores, hidden)
        return seen
    return add(scores, clamp(mask, min=hidden))


def _hidden(scores: Tensor) -> float:
    """The score of a hidden position: finite, so that a row without any other is no nan."""
    return -3e4 if scores.dtype.name == "float16" else -1e30


def _sees_any(mask: Tensor) -> Tensor:
    """True for each row of a mask, (..., rows, 1), that has something to see."""
    seen = mask if mask.dtype.name == "bool" else gt(mask, -math.inf)
    return any_of(seen, dim=-1, keepdim=True)
