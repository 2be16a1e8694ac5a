"""Attention on a CPU, one head after the other, whose scores alone are stored; and over a cache in
blocks, block after block, for all rows at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from oneflow.core.dtype import bool_, float32
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cpu_products import multiply
from oneflow.kernels.registry import kernel
from oneflow.ops.attention import FEW_ROWS

Index = tuple[int, ...]


@cache
def _programs() -> Any:
    """The modules of the compiled forms, which load a compiler."""
    from oneflow.kernels.native import attention, paged_attention

    return SimpleNamespace(attention=attention, paged_attention=paged_attention)


def _wide(q: TensorType, *shape: int) -> TensorType:
    dtype = q.dtype if q.dtype.bytes >= 4 else float32
    return TensorType(shape, dtype)


def _workspace(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Scores of a head, which of them are hidden; q, k, v and out of the head, in float32."""
    q, k, v = ins[:3]
    scores = (q.shape[-2], k.shape[-2])
    hidden = TensorType(scores, bool_)
    parts = (*(t.shape[-2:] for t in (q, k, v)), (q.shape[-2], v.shape[-1]))
    return _wide(q, *scores), hidden, *(_wide(q, *shape) for shape in parts)


def _grad_workspace(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Those of the forward pass; gradients of scores, output, q, k and v of a head."""
    d_out, q, k, v = ins[:4]
    scores = _wide(q, q.shape[-2], k.shape[-2])
    parts = (d_out.shape[-2:], *(t.shape[-2:] for t in (q, k, v)))
    return *_workspace((q, k, v), attrs), scores, *(_wide(q, *shape) for shape in parts)


def heads(q: Array, k: Array) -> Iterator[tuple[Index, Index, bool]]:
    """The index of each head of q, that of its k and v, and whether it is the first with those."""
    times = q.shape[-3] // k.shape[-3] if q.ndim > 2 and k.shape[-3] else 1
    for index in np.ndindex(q.shape[:-2]):
        shared = (*index[:-1], index[-1] // times) if index else ()
        yield index, shared, not index or index[-1] % times == 0


def _score(
    s: Array,
    hidden: Array,
    q: Array,
    k: Array,
    mask: Array | None,
    scale: float,
    is_causal: bool,
) -> None:
    """s <- scale * q @ k^T + mask, -inf where nothing is to be seen."""
    multiply(q, k.T, s)
    s *= s.dtype.type(scale)
    if is_causal:
        rows, columns = (np.arange(n) for n in s.shape)
        np.greater(columns[None, :], rows[:, None], out=hidden)
    elif mask is None:
        return
    elif mask.dtype == np.bool_:
        np.logical_not(mask, out=hidden)
    else:
        s += mask
        return
    np.copyto(s, -math.inf, where=hidden)


def _masks(mask: tuple[Array, ...], q: Array, k: Array) -> Array | None:
    """The mask over every head, as a view."""
    whole = (*q.shape[:-1], k.shape[-2])
    return np.broadcast_to(mask[0], whole) if mask else None


def _softmax(s: Array) -> tuple[Array, Array]:
    """s <- exp(s - best); (best, sum) of each row, which may see nothing."""
    best = s.max(axis=-1, initial=-math.inf)
    best[np.isneginf(best)] = 0
    s -= best[:, None]
    np.exp(s, out=s)
    return best, s.sum(axis=-1)


@kernel("attention", device="cpu", workspace=_workspace)
def attention(
    xp: ArrayModule,
    out: Array,
    lse: Array,
    q: Array,
    k: Array,
    v: Array,
    *rest: Array,
    scale: float,
    is_causal: bool,
) -> None:
    *mask, s, hidden, wide_q, wide_k, wide_v, wide_out = rest
    if not is_causal and len(s) <= FEW_ROWS:
        own = mask[0] if mask else None
        if _programs().attention.attend(out, lse, q, k, v, own, scale):
            return
    masks = _masks(tuple(mask), q, k)
    for at, shared, _ in heads(q, k):
        wide_q[...], wide_k[...], wide_v[...] = q[at], k[shared], v[shared]
        _score(s, hidden, wide_q, wide_k, None if masks is None else masks[at], scale, is_causal)
        best, total = _softmax(s)
        lse[at] = best + np.log(total)
        total[total == 0] = 1
        multiply(s, wide_v, wide_out)
        wide_out /= total[:, None]
        out[at] = wide_out


@kernel("attention_grad", device="cpu", workspace=_grad_workspace)
def attention_grad(
    xp: ArrayModule,
    d_q: Array,
    d_k: Array,
    d_v: Array,
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *rest: Array,
    scale: float,
    is_causal: bool,
) -> None:
    *mask, p, hidden, wide_q, wide_k, wide_v, _, d_s, wide_d, own_q, own_k, own_v = rest
    masks = _masks(tuple(mask), q, k)
    d_k[...], d_v[...] = 0, 0
    for at, shared, is_first in heads(q, k):
        wide_q[...], wide_k[...], wide_v[...] = q[at], k[shared], v[shared]
        wide_d[...] = d_out[at]
        _score(p, hidden, wide_q, wide_k, None if masks is None else masks[at], scale, is_causal)
        # `lse` is as good as its dtype is: half a bit of a bfloat16 is 3 % of a probability.
        _, total = _softmax(p)
        total[total == 0] = 1
        p /= total[:, None]
        multiply(wide_d, wide_v.T, d_s)
        # Not the sum of d_out * out, which is as good as the rounded output is.
        d_s -= np.einsum("ij,ij->i", d_s, p)[:, None]
        d_s *= p
        d_s *= d_s.dtype.type(scale)
        multiply(d_s, wide_k, own_q)
        d_q[at] = own_q
        if is_first:
            own_k[...], own_v[...] = 0, 0
        multiply(d_s.T, wide_q, wide_k)
        multiply(p.T, wide_d, wide_v)
        own_k += wide_k
        own_v += wide_v
        d_k[shared], d_v[shared] = own_k, own_v


# ---- over a cache in blocks ----------------------------------------------------------------------


def _page_workspace(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """One block of keys and of values for each row."""
    q, _k, _v, keys, values, *_ = ins
    return tuple(t.with_shape((q.shape[0], *t.shape[1:])) for t in (keys, values))


@kernel("paged_attention", workspace=_page_workspace)
def paged_attention(
    xp: ArrayModule,
    out: Array,
    new_keys: Array,
    new_values: Array,
    q: Array,
    k: Array,
    v: Array,
    keys: Array,
    values: Array,
    tables: Array,
    lengths: Array,
    own_keys: Array,
    own_values: Array,
    *,
    scale: float,
    window: int,
) -> None:
    """new_keys and new_values are the memory of keys and values."""
    if isinstance(q, np.ndarray) and q.dtype == np.float32:
        cache = (keys, values, tables, lengths)
        if _programs().paged_attention.attend(out, q, k, v, *cache, scale, window):
            return
    rows, heads, depth = q.shape
    _blocks, shared, block, width = values.shape
    _write(xp, keys, values, k, v, tables, lengths)
    if not heads:  # a rank of more ranks than there are heads
        return
    wide = xp.float64 if q.dtype == xp.float64 else xp.float32
    grouped = q.reshape(rows, shared, heads // shared, depth).astype(wide) * wide(scale)
    best = xp.full(grouped.shape[:3], -math.inf, wide)
    total = xp.zeros(grouped.shape[:3], wide)
    made = xp.zeros((*grouped.shape[:3], width), wide)
    places, first = xp.arange(block), _first_seen(xp, lengths, window)
    for i in range(tables.shape[1]):
        xp.take(keys, tables[:, i], axis=0, out=own_keys)
        xp.take(values, tables[:, i], axis=0, out=own_values)
        at = places + i * block
        seen = (at < lengths[:, None]) & (at >= first[:, None])
        hidden = ~seen[:, None, None, :]
        scores = xp.matmul(grouped, own_keys.astype(wide).swapaxes(2, 3))
        scores = xp.where(hidden, wide(-math.inf), scores)
        # What nobody sees may be anything, even not a number, which times zero stays one.
        visible = xp.where(seen[:, None, :, None], own_values, own_values.dtype.type(0))
        higher = xp.maximum(best, scores.max(axis=-1))
        anchor = xp.where(xp.isneginf(higher), wide(0), higher)
        shares = xp.exp(scores - anchor[..., None])
        kept = xp.exp(xp.where(xp.isneginf(best), wide(-math.inf), best - anchor))
        total = total * kept + shares.sum(axis=-1)
        made = made * kept[..., None] + xp.matmul(shares, visible.astype(wide))
        best = higher
    total[total == 0] = 1
    out[...] = (made / total[..., None]).reshape(out.shape)


def _write(
    xp: ArrayModule, keys: Array, values: Array, k: Array, v: Array, tables: Array, lengths: Array
) -> None:
    block = keys.shape[2]
    places = xp.maximum(lengths - 1, 0)
    blocks = xp.take_along_axis(tables, (places // block)[:, None], axis=1)[:, 0]
    rows = xp.flatnonzero(lengths)
    blocks, places = blocks[rows], places[rows] % block
    keys[blocks, :, places] = k[rows]
    values[blocks, :, places] = v[rows]


def _first_seen(xp: ArrayModule, lengths: Array, window: int) -> Array:
    found: Array = xp.maximum(lengths - window, 0) if window else xp.zeros_like(lengths)
    return found
