"""The random numbers of the rows of a micro-batch whose rows lie on several ranks.

With a batch of 8 rows split over 2 ranks, piece 0 of 2 is rows 0, 1 of one rank and 4, 5 of the
other (scheduler/compiler/layout/pieces.py). Random numbers are those of a batch that lies on one
rank and is cut into rows 0 to 3 and 4 to 7. So each of the parts of a piece, one for each rank that
the rows are split over, draws as a part of the piece that it would be of there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from oneflow.core.graph import PIECE, LogicalGraph, Node
from oneflow.core.op import find_op, signatures
from oneflow.core.sbp import Split

ROWS = Split(0)


@dataclass(frozen=True)
class RandomRows:
    """The rows of a batch that draws follow.

    parts: into how many the rows of a piece are split. dims: draw -> the dim along which its result
    has the rows of the batch, for those that have them.
    """

    parts: int
    dims: dict[int, int]

    def spans(
        self, start: int, stop: int, size: int, piece: int, num_pieces: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """(first, end, piece it draws as, first there) of each run of rows start .. stop - 1 of
        `size` rows of a piece.
        """
        length = size // self.parts
        for part in range(start // length, math.ceil(stop / length)):
            source, place = divmod(part * num_pieces + piece, self.parts)
            first, end = max(start, part * length), min(stop, (part + 1) * length)
            yield first, end, source, place * length + first - part * length


def random_rows(graph: LogicalGraph) -> RandomRows:
    """Return the rows of a compiled graph. A draw and its gradient, which draws the same, have one
    dim.
    """
    pieces = [node for node in graph if node.op == "unpack"]
    parts = max((_row_parts(node) for node in pieces), default=1)
    dims: dict[int, int] = {}
    seen: set[int] = set()
    if parts > 1:
        for node in graph:
            if node.rate != PIECE or node.is_structural or not find_op(node.op).is_random:
                continue
            draw = int(node.attrs["seed"])
            dim = _rows_dim(node, pieces[0]) if draw not in seen else None
            seen.add(draw)
            if dim is not None:
                dims[draw] = dim
    return RandomRows(parts, dims)


def _row_parts(node: Node) -> int:
    value = node.outputs[0]
    return math.prod(n for _, n in _row_axes(node)) if value.type.ndim else 1


def _row_axes(node: Node) -> list[tuple[int, int]]:
    """(axis, size) of the axes of the hierarchy that the rows of a piece are split over."""
    value = node.outputs[0]
    sizes = enumerate(value.placement.hierarchy)
    return [(a, n) for a, n in sizes if value.sbp is not None and value.sbp[a] is ROWS]


def _rows_dim(node: Node, piece: Node) -> int | None:
    """The dim that is split where the batch is; else dim 0 if it has as many rows as a piece."""
    value, rows = node.outputs[0], piece.outputs[0].type.shape[0]
    if value.placement.hierarchy == piece.placement.hierarchy and value.sbp is not None:
        found = {value.sbp[axis] for axis, _ in _row_axes(piece)}
        if len(found) == 1 and isinstance(split := found.pop(), Split):
            size = value.type.shape[split.dim]
            return split.dim if size and size % rows == 0 else None
    is_batch = value.type.ndim > 0 and value.type.shape[0] == rows
    return 0 if is_batch and _has_rows(node) else None


def _has_rows(node: Node) -> bool:
    """Are the rows of its result made one by one?  Those of a random order are not."""
    types = tuple(v.type for v in node.inputs)
    return any(s.outputs[0] is ROWS for s in signatures(find_op(node.op), types, node.attrs))
