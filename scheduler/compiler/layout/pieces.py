"""The rows that make a piece when the rows of a step lie on several ranks.

`unpack` and `pack` cut and join each rank's own rows, so nothing moves. With a batch of 8 rows
split over 2 ranks, piece 0 of 2 then is rows 0, 1 of rank 0 and 4, 5 of rank 1, which `pack`
undoes. That is right as long as all inputs are cut alike: labels that every rank holds whole would
be cut into rows 0 to 3 and 4 to 7. So rows stay split only if they are split into equally many
parts in all inputs, and evenly; otherwise every input is first gathered along dim 0.
"""

from __future__ import annotations

import math

from oneflow.core.graph import LogicalGraph, Value
from oneflow.core.sbp import BROADCAST, NdSbp, Split
from oneflow.core.tensor_type import TensorType

ROWS = Split(0)


def row_parts(nd_sbp: NdSbp, hierarchy: tuple[int, ...]) -> int:
    """Return the number of parts into which dim 0 is cut."""
    return math.prod(n for s, n in zip(nd_sbp, hierarchy, strict=True) if s is ROWS)


def gathers_rows(before: NdSbp | None, after: NdSbp) -> bool:
    """Is `after` the layout before, but with whole rows?  before: None if not known."""
    if before is None:
        return ROWS not in after
    return after == rows_gathered(before)


def rows_gathered(nd_sbp: NdSbp) -> NdSbp:
    """The same layout with whole rows."""
    return tuple(BROADCAST if s is ROWS else s for s in nd_sbp)


def rows_may_stay_split(graph: LogicalGraph) -> bool:
    """True if all inputs of unpack nodes are known to have their rows split evenly into the same
    number of parts."""
    parts = set()
    for node in graph:
        if node.op == "unpack":
            value = node.inputs[0]
            if value.sbp is None:
                return False
            count = row_parts(value.sbp, value.placement.hierarchy)
            if value.type.shape[0] % (count * graph.num_pieces):
                return False
            parts.add(count)
    return len(parts) <= 1


def packed_layout(
    value: Value, nd_sbp: NdSbp, piece: Value | None, of_piece: NdSbp | None
) -> NdSbp:
    """Return how `value`, which lies as `nd_sbp`, must lie before `pack` so that its rows come out
    in the order of the batch.

    piece, of_piece: the result of an unpack in the same graph, if there is one, and how it lies; a
    value with as many rows as it is taken for rows of the batch and lies as it does along dim 0;
    any other is whole along dim 0.
    """
    if value.type.ndim == 0:
        return nd_sbp
    rows: NdSbp = (BROADCAST,) * len(nd_sbp)
    if piece is not None and of_piece is not None and _is_batch(value, piece):
        rows = of_piece
    return tuple(
        ROWS if r is ROWS else BROADCAST if s is ROWS else s
        for s, r in zip(nd_sbp, rows, strict=True)
    )


def _is_batch(value: Value, piece: Value) -> bool:
    same_grid = value.placement.hierarchy == piece.placement.hierarchy
    return same_grid and value.type.shape[0] == piece.type.shape[0]


def packed_type(type: TensorType, num_pieces: int) -> TensorType:
    """Scalars are stacked to (num_pieces,), others concatenated along dim 0."""
    if type.ndim == 0:
        return type.with_shape((num_pieces,))
    return type.with_shape((num_pieces * type.shape[0], *type.shape[1:]))
