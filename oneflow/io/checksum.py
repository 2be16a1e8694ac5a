"""A checksum of a tensor that does not depend on how the tensor is cut.

The sum, modulo 2**64, of every element's bits times an odd weight for each of its coordinates in
the whole. The sums of disjoint parts add up to the sum of their union: ranks that each read other
bytes than those that one rank wrote can still say together whether all bytes are the right ones.
As weights are odd, a change of one element is always found; of several, unless they cancel by
chance. It finds damage, not forgery. After the multilinear family of Carter and Wegman, J. Comput.
Syst. Sci. 22(3), 1981.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from oneflow.kernels.array import Array

MODULUS = 1 << 64
_BLOCK = 1 << 16  # elements worked on at once: they and their weights stay in the cache
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32, 16: np.uint32}


def checksum(part: Array, starts: Sequence[int]) -> int:
    """Return the checksum of a part of a tensor, in 0..2**64-1. starts: where the part begins in
    the whole.

    Words are of at most 32 bits, so that two flips of a highest bit do not cancel.
    """
    words = _words(part)
    return _sum(words, (*starts, *(0,) * (words.ndim - len(starts))))


def _words(part: Array) -> Array:
    """The bits as unsigned integers; of elements beyond 4 bytes along one more dim."""
    word = np.dtype(_WORDS[part.dtype.itemsize])
    if part.dtype.itemsize == word.itemsize:
        return part.view(word) if part.ndim else part.reshape(1).view(word)
    flat = part if part.flags.c_contiguous else np.ascontiguousarray(part)
    count = part.dtype.itemsize // word.itemsize
    words: Array = flat.reshape(-1).view(word).reshape(*part.shape, count)
    return words


def _sum(words: Array, starts: tuple[int, ...]) -> int:
    if not words.size:
        return 0
    if words.size > _BLOCK:
        return _sum_of_blocks(words, starts)
    rest = words.astype(np.uint64)
    for dim in reversed(range(words.ndim)):
        weights = _weights(dim, starts[dim], starts[dim] + words.shape[dim])
        rest = np.einsum("...i,i->...", rest, weights)
    return int(rest)


def _sum_of_blocks(words: Array, starts: tuple[int, ...]) -> int:
    dim = next(d for d, n in enumerate(words.shape) if n > 1)
    step = max(1, words.shape[dim] * _BLOCK // words.size)
    total = 0
    for at in range(0, words.shape[dim], step):
        block = words[(slice(None),) * dim + (slice(at, at + step),)]
        shifted = (*starts[:dim], starts[dim] + at, *starts[dim + 1 :])
        total += _sum(block, shifted)
    return total % MODULUS


@lru_cache(maxsize=64)
def _weights(dim: int, start: int, stop: int) -> Array:
    """Odd, and the same for a coordinate wherever it is asked for: a table times the page's own."""
    pages = range(start // _BLOCK, -(-stop // _BLOCK))
    table = _table(dim)
    parts = []
    for page in pages:
        first, last = max(start - page * _BLOCK, 0), min(stop - page * _BLOCK, _BLOCK)
        parts.append(table[first:last] * _mixed(np.array([page], np.uint64), dim + 64))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@lru_cache(maxsize=8)
def _table(dim: int) -> Array:
    return _mixed(np.arange(_BLOCK, dtype=np.uint64), dim)


def _mixed(numbers: Array, stream: int) -> Array:
    """Odd pseudo-random numbers: SplitMix64 of Steele, Lea and Flood, OOPSLA 2014."""
    z = numbers + np.uint64((stream * 0xD1342543DE82EF95 + 1) % MODULUS)
    z = z * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    odd: Array = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    return odd
