"""Attention of upstream's inference functions, which name the order of dims of each tensor.

A layout is a text with a letter per dim: B batch, M position, H head, K element of a head. Letters
in parentheses are one dim: "BM(HK)"; a number among them says that so many tensors lie side by
side: "BM(H3K)" holds query, key and value of each head.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.functional.arithmetic import add, mul
from oneflow.functional.concat_split import cat, stack
from oneflow.functional.elementwise import masked_fill
from oneflow.functional.from_data import beside
from oneflow.functional.gather_scatter import index_select
from oneflow.functional.nn.attention import scaled_dot_product_attention
from oneflow.functional.promotion import as_type
from oneflow.functional.shaping import permute, reshape, unsqueeze
from oneflow.kernels.array import Array
from oneflow.ops import unary
from oneflow.tensor.tensor import Tensor

LAYOUTS = (
    *("BMHK", "BM(HK)", "MBHK", "MB(HK)", "BHMK"),
    *("BM(H2K)", "BM(H3K)", "MB(H2K)", "MB(H3K)"),
)
_ROWS = "(BM)"
"""Begin of the layouts in which sequences of different lengths lie one after the other."""


def _split(x: Tensor, layout: str, head_size: int | None, index: int = 0) -> Tensor:
    """x as (B, M, H, K). index: which of the tensors that lie side by side."""
    if layout.startswith(_ROWS):
        x, layout = unsqueeze(x, 0), "BM" + layout.removeprefix(_ROWS)
    if layout not in LAYOUTS:
        raise ArgumentError(
            f"the layout of an attention tensor is one of {LAYOUTS}, got {layout!r}"
        )
    order, _, packed = layout.partition("(")
    if packed:
        if head_size is None:
            raise ShapeError(f"a tensor of layout {layout} needs the size of a head")
        count = int(packed[1]) if packed[1].isdecimal() else 1
        x = reshape(x, (*x.meta.shape[:-1], -1, count, head_size)).select(-2, index)
        order += "HK"
    return permute(x, tuple(order.index(letter) for letter in "BMHK"))


def _joined(x: Tensor, layout: str) -> Tensor:
    """(B, M, H, K) in a layout."""
    if layout.startswith(_ROWS):
        return _joined(x, "BM" + layout.removeprefix(_ROWS)).select(0, 0)
    order, _, packed = layout.partition("(")
    x = permute(x, tuple("BMHK".index(letter) for letter in order + ("HK" if packed else "")))
    return reshape(x, (*x.meta.shape[:-2], -1)) if packed else x


def _hidden(rows: int, columns: int, kind: str, offset: int) -> Array | None:
    """Columns that a row must not see."""
    if kind == "none":
        return None
    if kind not in ("causal_from_top_left", "causal_from_bottom_right", "causal"):
        raise ArgumentError(f"attn_mask_type {kind!r} is unknown")
    shift = columns - rows if kind == "causal_from_bottom_right" else 0
    return np.arange(columns)[None, :] > np.arange(rows)[:, None] + shift + offset


Given = tuple[Tensor | None, str | None]
"""A tensor and its layout."""


def _three(
    query: tuple[Tensor, str], head_size: int | None, key: Given, value: Given
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as (B, M, H, K)."""
    q = _split(*query, head_size)
    size = q.meta.shape[-1]
    source, order = query[0] if key[0] is None else key[0], key[1] or query[1]
    k = _split(source, order, size, 1 if key[0] is None else 0)
    if value[0] is None:
        return q, k, _split(source, order, size, 2 if "3" in order else 1)
    return q, k, _split(value[0], value[1] or order, size)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, kind: str, offset: int,
    scale: float | None,
) -> Tensor:  # fmt: skip
    """Attention of (B, M, H, K)."""
    q, k, v = (permute(x, (0, 2, 1, 3)) for x in (q, k, v))
    hidden = _hidden(q.meta.shape[-2], k.meta.shape[-2], kind, offset)
    mask = bias
    if hidden is not None and bias is None:
        mask = beside(q, ~hidden)
    elif hidden is not None and bias is not None:
        mask = masked_fill(bias, beside(q, hidden), -math.inf)
    return permute(scaled_dot_product_attention(q, k, v, mask, scale=scale), (0, 2, 1, 3))


def fused_multi_head_attention_inference_v2(
    query: Tensor,
    query_layout: str = "BM(HK)",
    query_head_size: int | None = None,
    key: Tensor | None = None,
    key_layout: str | None = None,
    value: Tensor | None = None,
    value_layout: str | None = None,
    attn_bias: Tensor | None = None,
    attn_mask_type: str = "none",
    causal_diagonal_offset: int = 0,
    query_seq_start: Tensor | None = None,
    key_seq_start: Tensor | None = None,
    key_seq_len: Tensor | None = None,
    output_layout: str = "BM(HK)",
    scale: float | None = None,
    *,
    causal: bool | None = None,
    query_max_seq_len: int | None = None,
    key_max_seq_len: int | None = None,
) -> Tensor:
    """softmax(query @ key^T * scale + attn_bias) @ value for each head.

    key, value: None where the layout of the query (or key) holds them too.  causal: True for
    attn_mask_type "causal_from_top_left".

    Sequences of different lengths lie one after the other in layouts that begin with "(BM)":
    query_seq_start, key_seq_start (batch + 1,) say where each begins, the last number where the
    last one ends; key_seq_len (batch,): keys of each that count, all by default; attn_bias (batch,
    heads, longest query, longest key). The longest lengths are found out: query_max_seq_len,
    key_max_seq_len change nothing.
    """
    if query_seq_start is None and not (key_seq_start is None and key_seq_len is None):
        raise ArgumentError("key_seq_start and key_seq_len need query_seq_start")
    kind = "causal_from_top_left" if causal else attn_mask_type
    q, k, v = _three(
        (query, query_layout), query_head_size, (key, key_layout), (value, value_layout)
    )
    if query_seq_start is None:
        out = _attention(q, k, v, attn_bias, kind, causal_diagonal_offset, scale)
        return _joined(out, output_layout)
    begins = query_seq_start.tolist()
    others = begins if key_seq_start is None else key_seq_start.tolist()
    lengths = None if key_seq_len is None else key_seq_len.tolist()
    parts = []
    for i, (begin, end) in enumerate(pairwise(begins)):
        first, last = others[i : i + 2]
        last = last if lengths is None else first + lengths[i]
        own = q[:, begin:end], k[:, first:last], v[:, first:last]
        bias = None if attn_bias is None else attn_bias[i : i + 1, :, : end - begin, : last - first]
        parts.append(_attention(*own, bias, kind, causal_diagonal_offset, scale))
    return _joined(cat(parts, 1), output_layout)


def fused_multi_head_attention_inference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    causal: bool = False,
    query_hidden_slice_start: int = 0,
    query_hidden_slice_end: int = -1,
    key_hidden_slice_start: int = 0,
    key_hidden_slice_end: int = -1,
    value_hidden_slice_start: int = 0,
    value_hidden_slice_end: int = -1,
    attn_bias: Tensor | None = None,
    causal_diagonal_offset: int = 0,
) -> Tensor:
    """Attention of (B, M, heads * size) tensors, or of the given part of their last dim."""

    def part(x: Tensor, start: int, end: int) -> Tensor:
        stop = x.meta.shape[-1] if end == -1 else end
        return x.narrow(-1, start, stop - start)

    q = part(query, query_hidden_slice_start, query_hidden_slice_end)
    k = part(key, key_hidden_slice_start, key_hidden_slice_end)
    v = part(value, value_hidden_slice_start, value_hidden_slice_end)

    def heads(x: Tensor) -> Tensor:
        return reshape(x, (*x.meta.shape[:-1], num_heads, -1))

    return fused_multi_head_attention_inference_v2(
        heads(q),
        "BMHK",
        key=heads(k),
        value=heads(v),
        attn_bias=attn_bias,
        causal=causal,
        causal_diagonal_offset=causal_diagonal_offset,
    )


def fused_attention_concat_past_key_value(
    past_key: Tensor | None = None,
    past_key_layout: str = "BMHK",
    past_value: Tensor | None = None,
    past_value_layout: str = "BMHK",
    key: Tensor | None = None,
    key_layout: str = "BM(HK)",
    value: Tensor | None = None,
    value_layout: str = "BM(HK)",
    key_head_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Keys and values behind those of earlier positions, in the layouts of the latter."""
    if key is None:
        raise ArgumentError("fused_attention_concat_past_key_value needs a key")
    size = key_head_size
    if size is None and past_key is not None:
        size = past_key.meta.shape[-1]
    k = _split(key, key_layout, size, 1 if "3" in key_layout else 0)
    if value is None:
        v = _split(key, key_layout, size, 2 if "3" in key_layout else 1)
    else:
        v = _split(
            value, value_layout, size, 2 if "3" in value_layout else int("2" in value_layout)
        )
    if past_key is not None and past_value is not None:
        k = cat([_split(past_key, past_key_layout, size), k], 1)
        v = cat([_split(past_value, past_value_layout, size), v], 1)
    return _joined(k, past_key_layout), _joined(v, past_value_layout)


# ---- rotary embeddings ---------------------------------------------------------------------------


def _turned(x: Tensor, mode: str) -> Tensor:
    """Pairs (a, b) as (-b, a). mode: pairs are of the two halves ("plane") or neighbours
    ("interval").
    """
    shape = x.meta.shape
    half = shape[-1] // 2
    if mode == "plane":
        return cat([unary.neg(x.narrow(-1, half, half)), x.narrow(-1, 0, half)], -1)
    if mode != "interval":
        raise ArgumentError(f"fused_apply_rotary_emb: mode is 'plane' or 'interval', not {mode!r}")
    first, second = reshape(x, (*shape[:-1], half, 2)).unbind(-1)
    return reshape(stack([unary.neg(second), first], -1), shape)


def _angles(positions: Tensor, size: int, base: float, mode: str) -> Tensor:
    """positions * base^(-2 i / size) of each pair i, once for each of its elements."""
    powers = base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    powers = np.repeat(powers, 2) if mode == "interval" else np.concatenate([powers, powers])
    return mul(unsqueeze(positions, -1), beside(positions, powers.astype(np.float32)))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Tensor:
    return add(mul(x, cos), mul(_turned(x, mode), sin))


def fused_apply_rotary_emb(
    x: Tensor,
    *,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    position_ids: Tensor | None = None,
    x_layout: str = "BHMK",
    k_size: int | None = None,
    base: float = 1e4,
    rotary_size: int | None = None,
    mode: str = "plane",
    tensor_index: int | None = None,
    output_layout: str | None = None,
) -> Tensor:
    """Pairs of elements of each head turned by angles that grow with their position.

    cos, sin: (positions, size); from `base` if None.  position_ids: (B, 1, M), or (B, 2, M): the
    halves of rotary_size are then turned by a position of their own.  rotary_size: elements that
    are turned, all of them if None.
    """
    heads = _split(x, x_layout, k_size, tensor_index or 0)  # B M H K
    batch, count, _, width = heads.meta.shape
    turned = width if rotary_size is None else rotary_size
    if position_ids is None:
        ids = beside(x, np.arange(count).reshape(1, 1, count))
    else:
        ids = reshape(position_ids, (batch, -1, count))
    parts, size = [], turned // ids.meta.shape[1]
    for i in range(ids.meta.shape[1]):
        own = heads.narrow(-1, i * size, size)
        places = ids.select(1, i)
        if cos is not None and sin is not None:
            flat = reshape(places, (-1,))
            shape = (*places.meta.shape, 1, size)
            c = reshape(index_select(cos, 0, flat).narrow(-1, 0, size), shape)
            s = reshape(index_select(sin, 0, flat).narrow(-1, 0, size), shape)
        else:
            angles = unsqueeze(_angles(as_type(places, heads.meta.dtype), size, base, mode), 2)
            c, s = unary.cos(angles), unary.sin(angles)
        parts.append(_rotated(own, c, s, mode))
    if turned < width:
        parts.append(heads.narrow(-1, turned, width - turned))
    whole = cat(parts, -1) if len(parts) > 1 else parts[0]
    return _joined(whole, output_layout or x_layout)
