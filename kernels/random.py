"""Kernels of oneflow/ops/random.py.

The words come from counter-based Philox; the rest is NumPy in float64, a block at a time so that it
stays in the cache. One implementation serves every size: a shard must hold the same bits as the
whole. On another device than the CPU the values are made on the host and copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.core.rng import Rng
from oneflow.kernels.registry import kernel

Array = Any
BLOCK = 1 << 14


def _fill(xp: Any, out: Array, rng: Rng, make: Callable[[Array, Array], Array]) -> None:
    """out <- make(high, low) of the words of each block, cast to the dtype of `out`."""
    high, low = (w.reshape(-1) for w in rng.words(out.shape))
    is_host = isinstance(out, np.ndarray)
    host = out.reshape(-1) if is_host else np.empty(out.size, out.dtype)
    for first in range(0, host.size, BLOCK):
        part = slice(first, first + BLOCK)
        np.copyto(host[part], make(high[part], low[part]), casting="unsafe")
    if not is_host:
        out.set(host.reshape(out.shape))


def unit(high: Array, low: Array) -> Array:
    """float64 in [0, 1) of 53 bits of two words: as `Rng.uniform`."""
    bits = (high.astype(np.uint64) << np.uint64(21)) ^ (low >> np.uint32(11))
    return bits.astype(np.float64) * 2.0**-53


@kernel("uniform")
def uniform(xp: Any, out: Array, *, low: float, high: float, rng: Rng, **source: Any) -> None:
    # Rounding to a narrow dtype must not reach `high`.
    kind = out.dtype.type
    top = np.nextafter(kind(high), kind(low))

    def make(a: Array, b: Array) -> Array:
        return np.minimum((unit(a, b) * (high - low) + low).astype(kind), top)

    _fill(xp, out, rng, make)


@kernel("normal")
def normal(xp: Any, out: Array, *, mean: float, std: float, rng: Rng, **source: Any) -> None:
    """Box and Muller, as `Rng.normal`."""

    def make(a: Array, b: Array) -> Array:
        radius = np.sqrt(-2.0 * np.log((a.astype(np.float64) + 1.0) * 2.0**-32))
        return radius * np.cos(b.astype(np.float64) * (2.0 * np.pi * 2.0**-32)) * std + mean

    _fill(xp, out, rng, make)


@kernel("randint")
def randint(xp: Any, out: Array, *, low: int, high: int, rng: Rng, **source: Any) -> None:
    def make(a: Array, b: Array) -> Array:
        return (unit(a, b) * (high - low)).astype(np.int64) + low

    _fill(xp, out, rng, make)


@kernel("bernoulli")
def bernoulli(xp: Any, out: Array, p: Array, *, seed: int, rng: Rng) -> None:
    chances = p if isinstance(p, np.ndarray) else p.get()
    words = rng.words(out.shape)
    drawn = unit(*words) < chances
    out[...] = drawn if isinstance(out, np.ndarray) else xp.asarray(drawn)


@kernel("randperm")
def randperm(xp: Any, out: Array, *, n: int, rng: Rng, **source: Any) -> None:
    high, low = rng.words(out.shape)
    keys = (high.astype(np.uint64) << np.uint64(32)) | low
    order = np.argsort(keys, kind="stable")
    out[...] = order if isinstance(out, np.ndarray) else xp.asarray(order)
