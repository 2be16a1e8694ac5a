"""Calls of random kernels in a segment: where their generators are in each step and piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from oneflow.actors.clock import StepClock
from oneflow.actors.random_rows import RandomRows
from oneflow.boxing.bound_op import BoundOp
from oneflow.core.draws import DrawnSeed, is_drawn_once
from oneflow.core.graph import PIECE, Node
from oneflow.core.op import operand_names
from oneflow.core.rng import Rng
from oneflow.kernels.array import Array


class _Part(NamedTuple):
    """Rows first .. end - 1 of a rank's part of a draw, drawn as part of piece `source`, where they
    lie at `starts`. `end` < 0: all of it.
    """

    first: int
    end: int
    source: int
    starts: tuple[int, ...]


class RandomCall:
    """A random kernel that draws in every step and piece the numbers it would draw eagerly.

    Its outputs, inputs and workspace are shaped alike, but for inputs that are broadcast, or it has
    no inputs.

    acts: acts so far, in a list of one, whichever slots they used.
    reads_seed: its kernel can read the seed on the GPU.
    """

    __slots__ = (
        "_acts", "_arrays", "_box", "_dim", "_draw", "_function", "_is_piece",
        "_lacks_row", "_num_outputs", "_rank", "_rows", "_shape", "clock", "reads_seed",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        node: Node,
        call: BoundOp,
        arrays: tuple[Any, ...],
        clock: StepClock,
        acts: list[int],
        rows: RandomRows,
    ) -> None:
        self._function, self._arrays = function, arrays
        self.clock, self._acts, self._rows = clock, acts, rows
        self._draw = int(call.attrs["seed"])
        self._dim = rows.dims.get(self._draw)
        self._box = call.out_boxes[0]
        self._shape = call.whole_shape
        self._num_outputs = len(node.outputs)
        self._lacks_row = _which_lack_row(call, len(arrays))
        self._is_piece = node.rate == PIECE and not is_drawn_once(self._draw)
        self._rank = min(node.placement.rank_ids)
        self.reads_seed = bool(getattr(call.function, "reads_seed", False))

    @property
    def differs_by_piece(self) -> bool:
        """Do pieces differ in more than the seeds of a recording?"""
        return self._dim is not None and self._is_piece and self.clock.num_pieces > 1

    def __call__(self) -> None:
        self.run(self.begin_act())

    def begin_act(self) -> int:
        """The piece of the next act, which begins."""
        piece = 0
        if self._is_piece:
            piece = self._acts[0] % self.clock.num_pieces
            self._acts[0] += 1
        return piece

    def run(self, piece: int, seeds: Iterator[Array] | None = None) -> None:
        """seeds: arrays on the GPU that hold those of `seeds_of`; None: of the step of now."""
        for first, end, source, starts in self._parts(piece):
            if seeds is None:
                rng = Rng(self._seed(source), self._shape, starts)
            else:
                rng = Rng(0, self._shape, starts, next(seeds))
            if end < 0:
                self._function(*self._arrays, rng=rng)
            else:
                self._draw_rows(first, end, rng)

    def seeds_of(self, piece: int) -> list[DrawnSeed]:
        """The seeds that an act of a piece asks for, in that order."""
        of_act = -1 if self._is_piece and self._dim is None else None
        return [
            DrawnSeed(self._draw, self._rank, part.source if of_act is None else of_act)
            for part in self._parts(piece)
        ]

    def _parts(self, piece: int) -> list[_Part]:
        starts, dim = self._box.starts, self._dim
        if dim is None:
            return [_Part(0, -1, piece, starts)]
        first, end, size = starts[dim], self._box.stops[dim], self._shape[dim]
        spans = self._rows.spans(first, end, size, piece, self.clock.num_pieces)
        return [
            _Part(a - first, b - first, source, (*starts[:dim], start, *starts[dim + 1 :]))
            for a, b, source, start in spans
        ]

    def _seed(self, piece: int) -> int:
        clock = self.clock
        return clock.randomness.seed(self._draw, piece, clock.num_pieces, self._rank)

    def _draw_rows(self, first: int, end: int, rng: Rng) -> None:
        """Rows first .. end - 1 of this rank's part."""
        dim = self._dim or 0
        if (first, end) == (0, self._box.shape[dim]):
            self._function(*self._arrays, rng=rng)
            return
        size, parts = self._box.shape[dim], []
        for x, is_short in zip(self._arrays, self._lacks_row, strict=True):
            own = dim if is_short else dim + x.ndim - len(self._shape)
            has_rows = 0 <= own < x.ndim and x.shape[own] == size
            part = (*(slice(None),) * own, slice(first, end))
            parts.append(x[part] if has_rows else x)
        if dim == 0:
            self._function(*parts, rng=rng)
            return
        made = [x.copy() for x in parts]  # kernels write what has no gaps
        self._function(*made, rng=rng)
        for x, new in zip(parts[: self._num_outputs], made, strict=False):
            x[...] = new


def _which_lack_row(call: BoundOp, count: int) -> tuple[bool, ...]:
    """Tell which of the first `count` arrays of a call, outputs first, have one element per row."""
    per_row = call.op.rows(call.attrs)
    outs = [t.ndim < len(call.whole_shape) for t in call.out_types]
    ins = [n in per_row for n in operand_names(call.op, len(call.in_types))]
    return (*outs, *ins, *(False,) * (count - len(outs) - len(ins)))
