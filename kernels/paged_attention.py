"""Attention over a cache of keys and values in blocks: block after block, for all rows at once."""

from __future__ import annotations

import math

import numpy as np

from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel


def _workspace(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """One block of keys and of values for each row."""
    q, _k, _v, keys, values, *_ = ins
    return tuple(t.with_shape((q.shape[0], *t.shape[1:])) for t in (keys, values))


@kernel("paged_attention", workspace=_workspace)
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
        from oneflow.kernels.expressions.paged_attention import attend

        if attend(out, q, k, v, keys, values, tables, lengths, scale, window):
            return
    rows, heads, depth = q.shape
    _blocks, shared, block, width = values.shape
    _write(xp, keys, values, k, v, tables, lengths)
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
