"""Attention with several heads, projections included: `F.multi_head_attention_forward`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.functional.arithmetic import add, mul
from oneflow.functional.concat_split import cat, chunk, narrow
from oneflow.functional.elementwise import pick
from oneflow.functional.nn.activation import dropout, softmax
from oneflow.functional.nn.attention import scaled_dot_product_attention
from oneflow.functional.nn.layers import linear, pad
from oneflow.functional.promotion import as_type
from oneflow.functional.reduction import mean
from oneflow.functional.shaping import expand, permute, reshape, squeeze, transpose, unsqueeze
from oneflow.ops.matmul import matmul
from oneflow.tensor.creation_like import filled_like
from oneflow.tensor.tensor import Tensor

Three = tuple[Tensor, Tensor, Tensor]


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    batch_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of `num_heads` heads over projected queries, keys and values, projected back.

    query: (length, n, e), e = embed_dim_to_check; key, value: (sources, n, own size); with
    batch_first n comes first; without a batch n is absent.
    in_proj_weight: (3e, e), in_proj_bias: (3e,); or, with use_separate_proj_weight, q_, k_ and
    v_proj_weight: (e, size of its input).
    bias_k, bias_v: (1, 1, e), one more key and value; add_zero_attn: one more of zeros.
    static_k, static_v: (n * heads, sources, e / heads), in place of the projected ones.
    key_padding_mask: (n, sources), attn_mask: (length, sources) or (n * heads, length, sources);
    bools (True: not to be seen) or summands of the scores.
    is_causal: promises that attn_mask is the causal one, which must be given.
    Returns the result and, if need_weights, the weights (n, length, sources), averaged over heads,
    or (n, heads, length, sources); else None. Raises ShapeError, ValueError.
    """
    embed_dim = query.shape[-1]
    _check_sizes(query, key, value, embed_dim_to_check, num_heads)
    if is_causal and attn_mask is None:
        raise ArgumentError(
            "multi_head_attention_forward: is_causal needs attn_mask, the mask that it promises; "
            "make it with nn.Transformer.generate_square_subsequent_mask"
        )
    is_batched = query.ndim == 3
    query, key, value = _batch_first(query, key, value, batch_first)
    if not is_batched and key_padding_mask is not None:
        key_padding_mask = unsqueeze(key_padding_mask, 0)
    weights = _projections(
        in_proj_weight,
        (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None,
    )
    projected = _projected(query, key, value, weights, in_proj_bias)
    mask = _Mask.of(query, key, num_heads, attn_mask, key_padding_mask)
    if bias_k is not None and bias_v is not None:
        projected = (projected[0], _with(projected[1], bias_k), _with(projected[2], bias_v))
        mask.see_one_more()
    q, k, v = (_heads(x, num_heads) for x in projected)
    k, v = _static(k, static_k, "static_k"), _static(v, static_v, "static_v")
    if add_zero_attn:
        k, v = (cat([x, filled_like(narrow(x, 2, 0, 1), 0)], dim=2) for x in (k, v))
        mask.see_one_more()
    rate = dropout_p if training else 0.0
    seen: Tensor | None = None
    if need_weights:
        out, seen = _weighted(q, k, v, mask.summand(q), rate)
        seen = mean(seen, dim=1) if average_attn_weights else seen
    elif is_causal and key_padding_mask is None:
        out = scaled_dot_product_attention(q, k, v, None, rate, is_causal=True)
    else:
        out = scaled_dot_product_attention(q, k, v, mask.summand(q), rate)
    merged = reshape(permute(out, 0, 2, 1, 3), query.shape[0], query.shape[1], embed_dim)
    result = linear(merged, out_proj_weight, out_proj_bias)
    if not is_batched:
        return squeeze(result, 0), None if seen is None else squeeze(seen, 0)
    return (result if batch_first else transpose(result, 0, 1)), seen


def _check_sizes(query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_heads: int) -> None:
    if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
        raise ShapeError(
            f"multi_head_attention_forward: query {query.meta}, key {key.meta} and value "
            f"{value.meta} must all have 2 dims (no batch) or 3"
        )
    if query.shape[-1] != embed_dim or embed_dim % num_heads:
        raise ShapeError(
            f"multi_head_attention_forward: query {query.meta} needs a last dim of {embed_dim}, "
            f"a multiple of {num_heads} heads"
        )
    if key.shape[:-1] != value.shape[:-1]:
        raise ShapeError(
            f"multi_head_attention_forward: key {key.meta} and value {value.meta} differ in their "
            "batch or sequence"
        )


def _batch_first(query: Tensor, key: Tensor, value: Tensor, is_so: bool) -> Three:
    """All three as (n, length, size); one tensor given twice stays one."""
    if is_so and query.ndim == 3:
        return query, key, value

    def turned(x: Tensor) -> Tensor:
        return unsqueeze(x, 0) if x.ndim == 2 else transpose(x, 0, 1)

    q = turned(query)
    k = q if key is query else turned(key)
    return q, k, k if value is key else turned(value)


def _projections(
    together: Tensor | None, separate: tuple[Tensor | None, ...] | None
) -> Tensor | Three:
    """The one weight of all three projections, or the three."""
    if separate is None:
        if together is None:
            raise ArgumentError("multi_head_attention_forward: in_proj_weight is None")
        return together
    q, k, v = separate
    if q is None or k is None or v is None:
        raise ArgumentError(
            "multi_head_attention_forward: use_separate_proj_weight needs q_proj_weight, "
            "k_proj_weight and v_proj_weight"
        )
    return q, k, v


def _projected(
    query: Tensor, key: Tensor, value: Tensor, weights: Tensor | Three, bias: Tensor | None
) -> Three:
    if isinstance(weights, Tensor):
        if query is key and key is value:
            q, k, v = chunk(linear(query, weights, bias), 3, -1)
            return q, k, v
        wq, wk, wv = chunk(weights, 3)
    else:
        wq, wk, wv = weights
    bq, bk, bv = (None, None, None) if bias is None else chunk(bias, 3)
    return linear(query, wq, bq), linear(key, wk, bk), linear(value, wv, bv)


def _with(x: Tensor, one_more: Tensor) -> Tensor:
    """(n, sources, e) with a row (1, 1, e) more for each of the batch."""
    joined: Tensor = cat([x, expand(one_more, x.shape[0], 1, x.shape[2])], dim=1)
    return joined


def _heads(x: Tensor, num_heads: int) -> Tensor:
    """(n, length, e) as (n, heads, length, e / heads)."""
    n, length, size = x.shape
    cut = reshape(x, n, length, num_heads, size // num_heads)
    return permute(cut, 0, 2, 1, 3)


def _static(x: Tensor, given: Tensor | None, name: str) -> Tensor:
    if given is None:
        return x
    n, heads, _, size = x.shape
    if given.ndim != 3 or (given.shape[0], given.shape[2]) != (n * heads, size):
        raise ShapeError(
            f"multi_head_attention_forward: {name} {given.meta} must be (batch * heads = "
            f"{n * heads}, any, {size})"
        )
    return reshape(given, n, heads, given.shape[1], size)


class _Mask:
    """The two masks as summands that broadcast to (n, heads, length, sources); either may lack."""

    def __init__(self, parts: list[Tensor]) -> None:
        self.parts = parts

    @staticmethod
    def of(
        query: Tensor,
        key: Tensor,
        num_heads: int,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> _Mask:
        n, length, sources = query.shape[0], query.shape[1], key.shape[1]
        parts = []
        if attn_mask is not None:
            shapes: dict[tuple[int, ...], tuple[int, ...]] = {
                (length, sources): (1, 1, length, sources),
                (n * num_heads, length, sources): (n, num_heads, length, sources),
            }
            parts.append(_shaped(attn_mask, query, shapes, "attn_mask"))
        if key_padding_mask is not None:
            shapes = {(n, sources): (n, 1, 1, sources)}
            parts.append(_shaped(key_padding_mask, query, shapes, "key_padding_mask"))
        return _Mask(parts)

    def see_one_more(self) -> None:
        """Lets everybody see one more source, at the end."""
        self.parts = [pad(part, (0, 1)) for part in self.parts]

    def summand(self, scores_like: Tensor) -> Tensor | None:
        """Their sum, in the dtype of a tensor; None if there is no mask."""
        if not self.parts:
            return None
        both = self.parts[0] if len(self.parts) == 1 else add(*self.parts)
        return as_type(both, scores_like.meta.dtype)


def _shaped(
    mask: Tensor, like: Tensor, shapes: Mapping[tuple[int, ...], tuple[int, ...]], name: str
) -> Tensor:
    """A mask as summands, in the shape that belongs to its own."""
    wanted = shapes.get(tuple(mask.shape))
    if wanted is None:
        listed = " or ".join(str(shape) for shape in shapes)
        raise ShapeError(
            f"multi_head_attention_forward: {name} {mask.meta} must have the shape {listed}"
        )
    if mask.dtype.name != "bool" and not mask.dtype.is_floating_point:
        raise ArgumentError(
            f"multi_head_attention_forward: {name} {mask.meta} must hold bools or floating-point "
            "numbers"
        )
    summands = as_type(mask, like.meta.dtype)
    if mask.dtype.name == "bool":
        summands = pick(mask, -math.inf, filled_like(summands, 0))
    return reshape(summands, *wanted)


def _weighted(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rate: float
) -> tuple[Tensor, Tensor]:
    """Attention whose weights somebody wants to see; they are shown as dropout leaves them."""
    scores = matmul(mul(q, 1.0 / math.sqrt(q.shape[-1])), k, transpose_b=True)
    weights = softmax(scores if mask is None else add(scores, mask), dim=-1)
    if rate > 0.0:
        weights = dropout(weights, rate)
    return matmul(weights, v), weights
