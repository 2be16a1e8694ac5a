"""Kernels of oneflow/ops/random.py.

The words come from counter-based Philox; the rest is NumPy in float64, a block at a time so that it
stays in the cache. One implementation serves every size: a shard must hold the same bits as the
whole. On another device than the CPU the values are made on the host and copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from oneflow.core.draws import mix_seed
from oneflow.core.errors import ArgumentError
from oneflow.core.rng import Rng, philox
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import device_of, to_host
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
        device_of(out).copy(out, host.reshape(out.shape))


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
        return _box_muller(a, b) * std + mean

    _fill(xp, out, rng, make)


@kernel("randint")
def randint(xp: ArrayModule, out: Array, *, low: int, high: int, rng: Rng, **_: object) -> None:
    def make(a: Array, b: Array) -> Array:
        return (unit(a, b) * (high - low)).astype(np.int64) + low

    _fill(xp, out, rng, make)


@kernel("bernoulli")
def bernoulli(xp: ArrayModule, out: Array, p: Array, *, seed: int, rng: Rng) -> None:
    chances = to_host(p)
    if not ((chances >= 0) & (chances <= 1)).all():
        raise ArgumentError("bernoulli: a probability is not in [0, 1]")
    words = rng.words(out.shape)
    drawn = unit(*words) < chances
    device_of(out).copy(out, drawn)


@kernel("randperm")
def randperm(xp: ArrayModule, out: Array, *, n: int, rng: Rng, **_: object) -> None:
    high, low = rng.words(out.shape)
    keys = (high.astype(np.uint64) << np.uint64(32)) | low
    order = np.argsort(keys, kind="stable")
    device_of(out).copy(out, order)


# ---- numbers that are tried until they fit -------------------------------------------------------

Words = Callable[[int], tuple[Array, Array]]
"""Two words for each place that is tried; other ones for each number that is given."""

Attempt = tuple[Array, Array]
"""Values, and which of them are kept."""


def _on_host(x: Array) -> Array:
    """Elements of an array as float64 in one row, on the host."""
    host = to_host(x)
    return host.astype(np.float64).reshape(-1)


def _store(out: Array, values: Array) -> None:
    kept = values.astype(out.dtype).reshape(out.shape)
    device_of(out).copy(out, kept)


def _open_unit(high: Array, low: Array) -> Array:
    """float64 in (0, 1)."""
    return unit(high, low) + 2.0**-54


def _box_muller(high: Array, low: Array) -> Array:
    radius = np.sqrt(-2.0 * np.log((high.astype(np.float64) + 1.0) * 2.0**-32))
    turned: Array = radius * np.cos(low.astype(np.float64) * (2.0 * np.pi * 2.0**-32))
    return turned


def _tried(rng: Rng, shape: tuple[int, ...], attempt: Callable[[Array, Words], Attempt]) -> Array:
    """float64 numbers of a shape in one row: attempt(places, words) makes those at `places`, anew
    until it keeps them. Each depends on the seed and its global index alone.
    """
    index = rng.indices(shape).reshape(-1)
    result = np.empty(index.size)
    todo, turn = np.arange(index.size), 0
    while todo.size:
        places = index[todo]

        def words(which: int, turn: int = turn, places: Array = places) -> tuple[Array, Array]:
            return philox(mix_seed(rng.seed, turn, which), places)

        values, is_kept = attempt(todo, words)
        result[todo[is_kept]] = values[is_kept]
        todo, turn = todo[~is_kept], turn + 1
    return result


@kernel("standard_gamma")
def standard_gamma(xp: ArrayModule, out: Array, p: Array, *, seed: int, rng: Rng) -> None:
    """Marsaglia and Tsang, ACM Trans. Math. Softw. 26(3), 2000. A shape below 1 is drawn as the
    next larger one, times a power of a uniform number.
    """
    shape = _on_host(p)
    if not (np.isfinite(shape) & (shape > 0)).all():
        raise ArgumentError("standard_gamma: a shape is not a positive number")
    d = shape + (shape < 1) - 1 / 3
    c = 1 / np.sqrt(9 * d)

    def attempt(at: Array, words: Words) -> Attempt:
        x, u = _box_muller(*words(0)), _open_unit(*words(1))
        cube = (1 + c[at] * x) ** 3
        with np.errstate(invalid="ignore", divide="ignore"):
            fits = np.log(u) < 0.5 * x * x + d[at] * (1 - cube + np.log(cube))
        power = np.where(shape[at] < 1, _open_unit(*words(2)) ** (1 / shape[at]), 1.0)
        return d[at] * cube * power, (cube > 0) & fits

    drawn = _tried(rng, out.shape, attempt)
    _store(out, np.maximum(drawn, float(np.finfo(out.dtype).tiny)))


_SMALL_MEAN = 10.0
"""Mean from which Poisson numbers are tried; below, the distribution is summed up to a uniform
number."""


@kernel("poisson")
def poisson(xp: ArrayModule, out: Array, p: Array, *, seed: int, rng: Rng) -> None:
    """Inversion for small means, else Hoermann's PTRS, Insurance: Math. Econ. 12(1), 1993."""
    mean = _on_host(p)
    if not (np.isfinite(mean) & (mean >= 0)).all():
        raise ArgumentError("poisson: a mean is negative or not finite")

    def attempt(at: Array, words: Words) -> Attempt:
        many = mean[at]
        u, v = _open_unit(*words(0)), _open_unit(*words(1))
        is_small = many < _SMALL_MEAN
        values, is_kept = _transformed(np.maximum(many, _SMALL_MEAN), u - 0.5, v)
        values[is_small] = _inverted(many[is_small], u[is_small])
        return values, is_kept | is_small

    _store(out, _tried(rng, out.shape, attempt))


def _inverted(mean: Array, u: Array) -> Array:
    """The smallest number up to which the distribution has the share u."""
    count, share = np.zeros_like(mean), np.exp(-mean)
    total = share.copy()
    while (is_short := (total < u) & (share > 0)).any():
        count += is_short
        share = np.where(is_short, share * mean / np.maximum(count, 1), share)
        total += np.where(is_short, share, 0)
    return count


def _transformed(mean: Array, u: Array, v: Array) -> Attempt:
    b = 0.931 + 2.53 * np.sqrt(mean)
    a = -0.059 + 0.02483 * b
    scale = 1.1239 + 1.1328 / (b - 3.4)
    gap = 0.5 - np.abs(u)
    count = np.floor((2 * a / gap + b) * u + mean + 0.43)
    is_clear = (gap >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    is_out = (count < 0) | ((gap < 0.013) & (v > gap))
    logs = np.array([math.lgamma(k + 1) for k in np.maximum(count, 0)])
    chance = -mean + count * np.log(mean) - logs
    return count, ~is_out & (is_clear | (np.log(v * scale / (a / gap**2 + b)) <= chance))


# ---- derivative of gamma numbers by their shape --------------------------------------------------

_TERMS = 400
_NODES = 128


@kernel("standard_gamma_grad")
def standard_gamma_grad(xp: ArrayModule, out: Array, a: Array, x: Array) -> None:
    """-(dP/da) / (dP/dx) of the regularised lower incomplete gamma function P(a, x): by its series
    where x is small, else by an integral over the larger or smaller numbers, which together give 0.
    """
    shape, place = _on_host(a), _on_host(x)
    found = np.empty_like(shape)
    is_near = (place <= 3) | ((place < shape) & (shape <= 100))
    is_low = ~is_near & (place < shape)
    is_high = ~is_near & ~is_low
    for where, formula in ((is_near, _series), (is_low, _below), (is_high, _above)):
        if where.any():
            found[where] = formula(shape[where], place[where])
    _store(out, found)


def _digamma(a: Array) -> Array:
    value, z = np.zeros_like(a), a.copy()
    for _ in range(8):
        value -= 1 / z
        z += 1
    square = 1 / (z * z)
    rest = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    result: Array = value + np.log(z) - 0.5 / z - rest
    return result


def _series(a: Array, x: Array) -> Array:
    psi, term, total = _digamma(a) + 1 / a, x / a, np.zeros_like(a)
    for n in range(1, _TERMS):
        total -= term * (np.log(x) - psi)
        psi = psi + 1 / (a + n)
        term = term * x / (a + n)
    return total


def _nodes() -> tuple[Array, Array]:
    """Places and weights of Gauss and Legendre over [0, 1], as columns."""
    places, weights = np.polynomial.legendre.leggauss(_NODES)
    return (places[:, None] + 1) / 2, weights[:, None] / 2


def _above(a: Array, x: Array) -> Array:
    places, weights = _nodes()
    reach = np.minimum(40 + 12 * np.sqrt(x), 45 / np.maximum(1 - (a - 1) / x, 1e-9) + 1)
    more = places * reach
    density = np.exp((a - 1) * np.log1p(more / x) - more)
    result: Array = (weights * (np.log(x + more) - _digamma(a)) * density).sum(0) * reach
    return result


def _below(a: Array, x: Array) -> Array:
    """The integral over the smaller places, x exp(-w), by w."""
    places, weights = _nodes()
    reach = np.minimum(12 / np.sqrt(x), 45 / np.maximum(a - x, 1e-9))
    w = places * reach
    density = np.exp(x * -np.expm1(-w) - a * w)
    total = (weights * (np.log(x) - w - _digamma(a)) * density).sum(0) * reach * x
    result: Array = -total
    return result
