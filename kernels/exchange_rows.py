"""Kernels of oneflow/ops/exchange_rows.py on arrays that hold all parts; on as many ranks as there
are parts boxing/rows.py moves the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from oneflow.core.errors import PositionError
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import to_host
from oneflow.kernels.registry import kernel


def row_list(x: Array, lead: int) -> Array:
    """A view (rows, elements of one) of an array whose first dims list rows."""
    view: Array = x.reshape(math.prod(x.shape[:lead]), math.prod(x.shape[lead:]))
    return view


def parts_of(xp: ArrayModule, x: Array, count: int, lead: int) -> list[Array]:
    """The row lists of `count` balanced parts of an array."""
    if count == 1:
        return [row_list(x, lead)]
    return [row_list(part, lead) for part in xp.array_split(x, count)]


def check_room(room: int, came: Sequence[int], what: str) -> None:
    """Raises PositionError if more rows came than there is room for."""
    if min(came) < 0 or sum(came) > room:
        raise PositionError(
            f"{what}: {list(came)} rows came from the parts, but there is room for {room}: the "
            "result must have more rows"
        )


@kernel("exchange_rows")
def exchange_rows(
    xp: ArrayModule, *arrays: Array, num_parts: int, lead: int, rows: int, is_padded: bool
) -> None:
    half = len(arrays) // 2
    came, outs, sizes, xs = arrays[0], arrays[1:half], arrays[half], arrays[half + 1 :]
    counts = to_host(sizes).reshape(num_parts, num_parts)
    came[...] = xp.asarray(counts.T.reshape(-1))
    ends = counts.cumsum(axis=1)
    for x, out in zip(xs, outs, strict=True):
        sources, targets = parts_of(xp, x, num_parts, lead), parts_of(xp, out, num_parts, lead)
        for to, target in enumerate(targets):
            check_room(len(target), counts[:, to].tolist(), "exchange_rows")
            at = 0
            for source, end, count in zip(sources, ends[:, to], counts[:, to], strict=True):
                target[at : at + count] = source[end - count : end]
                at += count
            if is_padded:
                target[at:] = 0


@kernel("pack_rows")
def pack_rows(xp: ArrayModule, *arrays: Array, num_parts: int, lead: int) -> None:
    half = len(arrays) // 2
    outs, (sizes, *xs) = arrays[:half], arrays[half:]
    outs[0][...] = sizes
    counts = to_host(sizes).reshape(-1, num_parts).sum(axis=1)
    for x, out in zip(xs, outs[1:], strict=True):
        sources, targets = (parts_of(xp, a, counts.size, lead) for a in (x, out))
        for source, target, count in zip(sources, targets, counts, strict=True):
            target[:count] = source[:count]
