"""Samples of attention over a cache in blocks: sequences apart, in pieces, with windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .sample import Array, Sample, normal


def paged_attention(
    q: Array,
    k: Array,
    v: Array,
    keys: Array,
    values: Array,
    tables: Array,
    lengths: Array,
    *,
    scale: float,
    window: int = 0,
) -> tuple[Array, Array, Array]:
    """Row by row, over the tokens that it sees."""
    keys, values = keys.copy(), values.copy()
    block, times = keys.shape[2], q.shape[1] // k.shape[1]
    for i in np.flatnonzero(lengths):
        at = lengths[i] - 1
        place = tables[i, at // block]
        keys[place, :, at % block], values[place, :, at % block] = k[i], v[i]
    out = np.zeros((*q.shape[:2], v.shape[2]))
    for i in np.flatnonzero(lengths):
        seen = range(max(0, lengths[i] - window) if window else 0, lengths[i])
        places = [(tables[i, j // block], slice(None), j % block) for j in seen]
        for head in range(q.shape[1]):
            own = np.stack([keys[p][head // times] for p in places])
            scores = own @ q[i, head] * scale
            shares = np.exp(scores - scores.max())
            found = np.stack([values[p][head // times] for p in places])
            out[i, head] = shares / shares.sum() @ found
    return out, keys, values


def _call(
    heads: int, shared: int, depth: int, width: int, block: int, places: list[tuple[int, int]]
) -> tuple[Array, ...]:
    """Inputs for rows of (sequence, length); a sequence has four blocks, in no order."""
    rows, sequences, most = len(places), 1 + max(s for s, _ in places), 4
    blocks = np.random.default_rng(3).permutation(sequences * most + 1)
    tables = np.stack([blocks[s * most : (s + 1) * most] for s, _ in places]).astype(np.int64)
    return (
        normal(rows, heads, depth),
        normal(rows, shared, depth, seed=1),
        normal(rows, shared, width, seed=2),
        normal(len(blocks), shared, block, depth, seed=3),
        normal(len(blocks), shared, block, width, seed=4),
        tables,
        np.array([n for _, n in places], np.int64),
    )


def _samples() -> list[Sample]:
    apart, pieces = [(0, 5), (1, 16), (0, 0), (2, 1)], [(0, 9), (0, 10), (0, 11), (1, 3), (0, 0)]
    calls: list[tuple[tuple[Array, ...], dict[str, Any]]] = [
        (_call(4, 2, 8, 8, 4, apart), {"scale": 0.5}),
        (_call(4, 4, 12, 20, 4, pieces), {"scale": 0.25}),
        (_call(6, 2, 16, 16, 16, pieces), {"scale": 0.25, "window": 4}),
        (_call(2, 2, 5, 3, 8, [(0, 32), (1, 31), (1, 32)]), {"scale": 1.0, "window": 9}),
    ]
    return [
        Sample("paged_attention", inputs, attrs, paged_attention, wrt=()) for inputs, attrs in calls
    ]


PAGED_SAMPLES = _samples()
