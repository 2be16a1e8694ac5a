"""Kernels of oneflow/ops/random.py.

The words come from counter-based Philox; the rest is NumPy in float64, a block at a time so that it
stays in the cache. One implementation serves every size: a shard must hold the same bits as the
whole. On another device than the CPU the values are made on the host and copied.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oneflow.core.errors import ArgumentError
from oneflow.core.rng import Rng
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel

BLOCK = 1 << 14


def _fill(xp: ArrayModule, out: Array, rng: Rng, make: Callable[[Array, Array], Array]) -> None:
    """out <- make(high, low) of the words of each block, cast to the dtype of `out`."""
    high, low = (w.reshape(-1) for w in rng.words(out.shape))
    is_host = isinstance(out, np.ndarray)
    host = out.reshape(-1) if is_host else np.empty(out.size, out.dtype)
    for first in range(0, host.size, BLOCK):
        part = slice(first, first + BLOCK)
        np.copyto(host[part], make(high[part], low[part]), casting="unsafe")
    if not is_host:
        out.set(host.reshape(out.shape))  # type: ignore[attr-defined]  # CuPy's


def unit(high: Array, low: Array) -> Array:
    """float64 in [0, 1) of 53 bits of two words: as `Rng.uniform`."""
    bits = (high.astype(np.uint64) << np.uint64(21)) ^ (low >> np.uint32(11))
    numbers: Array = bits.astype(np.float64) * 2.0**-53
    return numbers


@kernel("uniform")
def uniform(xp: ArrayModule, out: Array, *, low: float, high: float, rng: Rng, **_: object) -> None:
    # Rounding to a narrow dtype must not reach `high`.
    kind = out.dtype.type
    top = np.nextafter(kind(high), kind(low))

    def make(a: Array, b: Array) -> Array:
        made: Array = np.minimum((unit(a, b) * (high - low) + low).astype(kind), top)
        return made

    _fill(xp, out, rng, make)


@kernel("normal")
def normal(xp: ArrayModule, out: Array, *, mean: float, std: float, rng: Rng, **_: object) -> None:
    """Box and Muller, as `Rng.normal`."""

    def make(a: Array, b: Array) -> Array:
        radius = np.sqrt(-2.0 * np.log((a.astype(np.float64) + 1.0) * 2.0**-32))
        return radius * np.cos(b.astype(np.float64) * (2.0 * np.pi * 2.0**-32)) * std + mean

    _fill(xp, out, rng, make)


@kernel("randint")
def randint(xp: ArrayModule, out: Array, *, low: int, high: int, rng: Rng, **_: object) -> None:
    def make(a: Array, b: Array) -> Array:
        return (unit(a, b) * (high - low)).astype(np.int64) + low

    _fill(xp, out, rng, make)


@kernel("bernoulli")
def bernoulli(xp: ArrayModule, out: Array, p: Array, *, seed: int, rng: Rng) -> None:
    chances = p if isinstance(p, np.ndarray) else p.get()
    if not ((chances >= 0) & (chances <= 1)).all():
        raise ArgumentError("bernoulli: a probability is not in [0, 1]")
    words = rng.words(out.shape)
    drawn = unit(*words) < chances
    out[...] = drawn if isinstance(out, np.ndarray) else xp.asarray(drawn)


@kernel("randperm")
def randperm(xp: ArrayModule, out: Array, *, n: int, rng: Rng, **_: object) -> None:
    high, low = rng.words(out.shape)
    keys = (high.astype(np.uint64) << np.uint64(32)) | low
    order = np.argsort(keys, kind="stable")
    out[...] = order if isinstance(out, np.ndarray) else xp.asarray(order)
