"""Samples of attention: causal, masked by bools and by summands, with heads that share keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from .sample import Array, Sample, booleans, normal


def _weights(
    q: Array, k: Array, mask: tuple[Array, ...], scale: float, is_causal: bool
) -> tuple[Array, Array]:
    """Softmax of the scores, and the log of the sum of their exponentials."""
    scores = np.einsum("...id,...jd->...ij", q, k) * scale
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    for m in mask:
        scores = np.where(m, scores, -np.inf) if m.dtype == bool else scores + m
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(scores).sum(axis=-1))
    return np.exp(scores - np.where(np.isinf(lse), 0, lse)[..., None]), lse


def _each(q: Array, x: Array) -> Array:
    """k or v once for each head of q."""
    return x if q.ndim < 3 else np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3)


def attention(
    q: Array, k: Array, v: Array, *mask: Array, scale: float, is_causal: bool = False
) -> tuple[Array, Array]:
    weights, lse = _weights(q, _each(q, k), mask, scale, is_causal)
    return weights @ _each(q, v), lse


def attention_grad(
    d: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *mask: Array,
    scale: float,
    is_causal: bool = False,
) -> tuple[Array, ...]:
    """Gradients by the whole matrices; sums over heads that share k and v."""
    weights, _ = _weights(q, _each(q, k), mask, scale, is_causal)
    d_weights = d @ _each(q, v).swapaxes(-1, -2)
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True)) * scale
    found = d_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ d
    times = 1 if q.ndim < 3 else q.shape[-3] // k.shape[-3]
    wide = [x.reshape(*x.shape[:-3], -1, times, *x.shape[-2:]) if times > 1 else x for x in found]
    d_k, d_v = (x.sum(axis=-3) if times > 1 else x for x in wide)
    return d_scores @ _each(q, k), d_k, d_v


def _calls() -> list[tuple[tuple[Array, ...], dict[str, Any]]]:
    """Inputs and attrs of attention."""

    def heads(q: int, kv: int, rows: int, columns: int, d: int, e: int) -> tuple[Array, ...]:
        return (
            normal(2, q, rows, d),
            normal(2, kv, columns, d, seed=1),
            normal(2, kv, columns, e, seed=2),
        )

    small = heads(3, 3, 4, 6, 5, 3)
    seen = booleans(2, 1, 4, 6, seed=3)
    seen[0, 0, 1] = False  # a row that sees nothing
    summand = normal(3, 4, 6, seed=4)
    summand[1, 2, 3:] = -np.inf
    plain: dict[str, Any] = {"scale": 0.7}
    causal = {"scale": 0.5, "is_causal": True}
    return [
        (small, plain),
        (small, causal),
        ((*small, seen), plain),
        ((*small, summand), plain),
        ((*small, seen[0, 0, 0]), plain),
        (heads(4, 2, 3, 3, 4, 4), causal),
        (heads(6, 2, 3, 4, 2, 5), plain),
        ((normal(5, 4), normal(7, 4, seed=1), normal(7, 2, seed=2)), plain),
        ((normal(3, 5, 4), normal(3, 5, 4, seed=1), normal(3, 5, 4, seed=2)), causal),
    ]


def _samples() -> list[Sample]:
    result = []
    for inputs, attrs in _calls():
        whole = {"is_causal": False} | attrs
        wrt = tuple(i for i, x in enumerate(inputs) if np.isfinite(x).all() and x.dtype != bool)
        result.append(Sample("attention", inputs, attrs, attention, wrt=wrt, compared=(0,)))
        out, lse = attention(*inputs, **whole)
        given = (normal(*out.shape, seed=7), *inputs[:3], out, lse, *inputs[3:])
        result.append(Sample("attention_grad", given, attrs, attention_grad, wrt=()))
    inputs, attrs = _calls()[2]
    result.append(Sample("attention", inputs, attrs, attention, wrt=()))
    return result


ATTENTION_SAMPLES = _samples()
