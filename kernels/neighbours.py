"""Dims whose places become sums of few neighbours, and the weights of the ways to resize one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cubic import cubic_weights


@lru_cache(maxsize=256)
def weights(
    old: int, size: int, mode: str, factor: float, align_corners: bool, antialias: bool
) -> Array:
    """Return the weights (old, size) of all places, in float64."""
    scale = _scale(old, size, factor, align_corners)
    if mode.startswith("nearest"):
        middle = 0.5 if mode == "nearest-exact" else 0.0
        return _nearest(old, size, scale, middle)
    if antialias:
        return _antialiased(old, size, scale, mode == "cubic")
    spots = np.arange(size) * scale
    if not align_corners:
        spots = (np.arange(size) + 0.5) * scale - 0.5
        spots = spots if mode == "cubic" else np.maximum(spots, 0.0)
    first = np.floor(spots).astype(np.int64)
    gap = spots - first
    found = np.zeros((old, size))
    for offset, share in cubic_weights(gap) if mode == "cubic" else ((0, 1 - gap), (1, gap)):
        np.add.at(found, (np.clip(first + offset, 0, old - 1), np.arange(size)), share)
    return found


def _scale(old: int, size: int, factor: float, align_corners: bool) -> float:
    """Old places per new one."""
    if align_corners:
        return (old - 1) / (size - 1) if size > 1 else 0.0
    return 1 / factor if factor else old / size


def _nearest(old: int, size: int, scale: float, middle: float) -> Array:
    """Weights of the nearest places. middle: 0.5 looks from the middle of each place, 0.0 from its
    beginning. The nearer of two depends on the rounding, which is PyTorch's."""
    spots = (np.arange(size, dtype=np.float32) + np.float32(middle)) * np.float32(scale)
    places = np.floor(spots).astype(np.int64)
    found = np.zeros((old, size))
    found[np.minimum(places, old - 1), np.arange(size)] = 1.0
    return found


def _antialiased(old: int, size: int, scale: float, cubic: bool) -> Array:
    """A triangle, or a cubic of slope -1/2, as wide as the places it covers, cut at the borders."""
    wide, reach = max(scale, 1.0), 2.0 if cubic else 1.0
    middle = scale * (np.arange(size) + 0.5)
    low = np.maximum((middle - reach * wide + 0.5).astype(np.int64), 0)
    high = np.minimum((middle + reach * wide + 0.5).astype(np.int64), old)
    place = np.arange(old)[:, None]
    far = np.abs((place - middle + 0.5) / wide)
    if cubic:
        near = (1.5 * far - 2.5) * far * far + 1
        found = np.where(far < 1, near, ((-0.5 * far + 2.5) * far - 4) * far + 2)
    else:
        found = 1 - far
    found = np.where((far < reach) & (place >= low) & (place < high), found, 0.0)
    normalized: Array = found / found.sum(0)
    return normalized


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Neighbours that places read: from `first` (size,) on, `count` (size,) of them; `share` (size,
    most of them) of each. is_choice: each place reads one neighbour, as it is."""

    first: Array
    count: Array
    share: Array
    is_choice: bool


def neighbours_of(table: Array, dtype: np.dtype[Any]) -> Neighbours:
    """Return the neighbours that a table (old, new) names: in each column, those between the first
    and the last that is not zero."""
    old, new = table.shape
    is_read = table != 0
    first = is_read.argmax(0)
    last = old - 1 - is_read[::-1].argmax(0)
    count = np.where(is_read.any(0), last - first + 1, 0)
    steps = np.arange(max(1, int(count.max(initial=0))))
    places = np.minimum(first[:, None] + steps, old - 1)
    share = np.where(steps < count[:, None], table[places, np.arange(new)[:, None]], 0.0)
    is_choice = share.shape[1] == 1 and bool((share == 1).all())
    return Neighbours(
        first.astype(np.int64), count.astype(np.int64), share.astype(dtype), is_choice
    )


@lru_cache(maxsize=256)
def neighbours(
    old: int, size: int, is_back: bool, dtype: np.dtype[Any], way: tuple[tuple[str, Any], ...]
) -> Neighbours:
    """Return those of a way to resize, or (is_back) of its gradient."""
    table = weights(old, size, **dict(way))
    return neighbours_of(table.T if is_back else table, dtype)


def resized(x: TensorType, dim: int, size: int) -> TensorType:
    """The type of x with another size of a dim."""
    return x.with_shape((*x.shape[:dim], size, *x.shape[dim + 1 :]))


def add_up(xp: ArrayModule, out: Array, x: Array, term: Array, dim: int, taps: Neighbours) -> None:
    """out <- x with the places of `dim` that sums of neighbours make. term: memory like out."""
    if not x.size or not out.size:
        out.fill(0)
        return
    beside = (-1, *(1 for _ in x.shape[dim + 1 :]))
    for t in range(taps.share.shape[1]):
        places = np.minimum(taps.first + t, x.shape[dim] - 1)
        term[...] = x[(slice(None),) * dim + (xp.asarray(places),)]
        term *= xp.asarray(taps.share[:, t]).reshape(beside)
        xp.copyto(term, 0, where=xp.asarray(t >= taps.count).reshape(beside))
        if t:
            out += term
        else:
            out[...] = term


# ---- passes over a dim ---------------------------------------------------------------------------


def blending() -> ModuleType:
    """Machine code for sums of neighbours; llvmlite takes a moment to import."""
    return import_module("oneflow.kernels.native.blending")


def has_work(shape: tuple[int, ...], dim: int) -> bool:
    """Return whether `blend_dim` needs memory: where nothing is behind the dim."""
    return prod(shape[dim + 1 :]) == 1


def blend_work(x: TensorType, dim: int, size: int) -> tuple[TensorType, ...]:
    """Types of the memory of `blend_dim`."""
    if not has_work(x.shape, dim):
        return ()
    if blending().is_narrow(prod(x.shape[:dim])):
        return (resized(x, dim, size),)
    return (x.with_shape(blending().work_shape(x.shape[dim], size)),)


def blend_dim(out: Array, x: Array, dim: int, taps: Neighbours, *work: Array) -> None:
    """out <- x with the places of `dim` that the taps make. work: of `blend_work`."""
    shape = prod(x.shape[:dim]), -1, prod(x.shape[dim + 1 :])
    if not x.size or not out.size:
        out.fill(0)
    elif work and blending().is_narrow(shape[0]):
        add_up(np, out, x, work[0], dim, taps)
    else:
        whole = np.ascontiguousarray(x)
        blending().blend(out.reshape(shape), whole.reshape(shape), taps, *work)
