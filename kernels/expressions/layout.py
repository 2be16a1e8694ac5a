"""The moves of a call's arrays along their common dims, with as few dims as possible."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.kernels.expressions.loops import CONTIGUOUS, SAME, STRIDED


class Layout:
    """The moves of a call's arrays along collapsed dims. shapes: of outputs, then inputs.

    Dims next to each other along which every array moves alike become one. strides: of each array
    in bytes, 0 where it is broadcast.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: list[tuple[int, ...]],
        itemsizes: list[int],
        keep_last: bool,
    ) -> None:
        dims = [d for d, n in enumerate(shape) if n != 1 or (keep_last and d == len(shape) - 1)]
        sizes = [shape[d] for d in dims]
        moves = [[s[d] for d in dims] for s in strides]
        d = len(sizes) - 2
        while d >= 0:
            is_row = keep_last and d == len(sizes) - 2
            if not is_row and all(m[d] == m[d + 1] * sizes[d + 1] for m in moves):
                sizes[d] *= sizes.pop(d + 1)
                for m in moves:
                    m.pop(d)
            d -= 1
        least = 2 if keep_last else 1
        while len(sizes) < least:
            sizes.insert(0, 1)
            for m in moves:
                m.insert(0, 0)
        self.sizes, self.moves = sizes, moves
        self.depth = len(sizes)
        self.inner = [
            SAME if m[-1] == 0 else CONTIGUOUS if m[-1] == size else STRIDED
            for m, size in zip(moves, itemsizes, strict=True)
        ]

    def table(self, index: tuple[int, list[int]] | None = None) -> np.ndarray[Any, Any]:
        numbers = [*self.sizes, *(n for m in self.moves for n in m)]
        if index is not None:
            numbers += [index[0], *index[1]]
        return np.array(numbers, np.int64)


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def broadcast_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], whole: tuple[int, ...]
) -> tuple[int, ...]:
    """Strides over `whole`, 0 where the array is broadcast."""
    missing = len(whole) - len(shape)
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
