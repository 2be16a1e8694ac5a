"""Moves rows between ranks by an all_to_all of uneven sizes: in a plan, and eagerly.

Sizes travel with the rows, or ahead of them, and nothing else moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oneflow.boxing.boxes import Pull
from oneflow.boxing.collectives.base import Collectives
from oneflow.boxing.collectives.exchange import Exchange
from oneflow.core.graph import Node
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.exchange_rows import check_room, row_list
from oneflow.kernels.hardware import to_host


def span(sizes: Array, index: int) -> tuple[int, int]:
    """First and last + 1 of the rows for rank number `index`."""
    first = int(sizes[:index].sum())
    return first, first + int(sizes[index])


class RowMove:
    """One exchange of a plan on one rank, from the memory of all ranks to its own.

    sources: of each rank its sizes and arrays.  came, targets: arrays of this rank, number `index`.
    """

    def __init__(
        self,
        xp: ArrayModule,
        index: int,
        sources: Sequence[Sequence[Array]],
        came: Array,
        targets: Sequence[Array],
        node: Node,
    ) -> None:
        lead = node.attrs["lead"]
        self._xp, self._index, self._came = xp, index, came
        self._sizes = [of_rank[0] for of_rank in sources]
        self._rows = [[row_list(x, lead) for x in of_rank[1:]] for of_rank in sources]
        self._targets = [row_list(x, lead) for x in targets]
        self._is_padded = node.attrs["is_padded"]
        self._what = node.describe()

    def __call__(self) -> int:
        """Move the rows; returns the bytes that were read of others."""
        sizes = [to_host(x) for x in self._sizes]
        came = [int(x[self._index]) for x in sizes]
        check_room(len(self._targets[0]), came, self._what)
        at = nbytes = 0
        for rank, (told, rows, count) in enumerate(zip(sizes, self._rows, came, strict=True)):
            first, last = span(told, self._index)
            for source, target in zip(rows, self._targets, strict=True):
                target[at : at + count] = source[first:last]
            if rank != self._index:
                row_nbytes = sum(x.itemsize * x.shape[1] for x in rows)
                nbytes += count * row_nbytes + told.itemsize
            at += count
        if self._is_padded:
            for target in self._targets:
                target[at:] = 0
        self._came[...] = self._xp.asarray(came)
        return nbytes


def exchange_rows(
    group: Collectives,
    xp: ArrayModule,
    sizes: Array,
    sources: Sequence[Array],
    came: Array,
    targets: Sequence[Array],
    *,
    is_padded: bool = True,
    what: str = "exchange_rows",
) -> None:
    """Exchange rows between the ranks of a group. All of them call it.

    sizes: int64[ranks], how many rows of each source go to each rank, in order.  sources: (rows,
    elements of one); all have as many rows.  came: int64[ranks], written: rows from each rank.
    targets: (rows, elements of one), written. Raises PositionError on all ranks if one has no room.
    """
    told = np.append(to_host(sizes), len(targets[0]))
    every = to_host(group.all_gather(xp.asarray(told), what=f"sizes of {what}"))
    every = every.reshape(group.size, group.size + 1)
    matrix, rooms = every[:, :-1], every[:, -1].tolist()
    for room, of_rank in zip(rooms, matrix.T.tolist(), strict=True):  # all ranks fail alike
        check_room(room, of_rank, what)
    counts = matrix[:, group.index].tolist()
    came[...] = xp.asarray(counts)
    for source, target in zip(sources, targets, strict=True):
        exchange = _exchange(group.ranks, matrix, source.shape[1])
        flat = target.reshape(-1)
        group.transfer(what, xp.ascontiguousarray(source).reshape(-1), flat, exchange)
        if is_padded:
            target[sum(counts) :] = 0


def _exchange(ranks: tuple[int, ...], matrix: Array, width: int) -> Exchange:
    read, filled = matrix.cumsum(axis=1) * width, matrix.cumsum(axis=0) * width

    def pulls_of(rank: int) -> list[Pull]:
        to, found = ranks.index(rank), []
        for i, source in enumerate(ranks):
            count, last, end = (int(x[i, to]) for x in (matrix * width, read, filled))
            if count:
                own, into = slice(last - count, last), slice(end - count, end)
                found.append(Pull(source, (own,), (into,), False))
        return found

    return Exchange(ranks, pulls_of)
