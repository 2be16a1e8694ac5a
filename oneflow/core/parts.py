"""The geometry of an op that picks, places or reorders positions, as its declaration gives it.

slice, flip, roll, pad, concat and the like have no SBP signature that keeps such a dim split: the
parts of the result that the ranks hold are not balanced. Their member `parts` (core/op.py) says
instead which positions of the result the elements of any shard are. From that boxing/parts.py works
out the reads of each rank, so that each element moves at most once to each rank that wants it, and
not at all to where it is already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oneflow.core.op import Box
from oneflow.core.operand import Attr

Index = tuple[slice, ...]
"""Part of an array, of NumPy's kind; () is all of it."""


def bare(box: Box) -> Box:
    """The same positions without the mark of the first summand: equal for all holders."""
    return Box(box.starts, box.stops)


def whole(box: Box) -> Index:
    """All of a shard."""
    return ()


@dataclass(frozen=True)
class Part:
    """The share of one input in the result.

    held: box of a shard of the input -> the positions of the result that its elements are.
    cut: box of that shard -> those elements, as a part of the shard's array.
    """

    input: int
    held: Callable[[Box], Box] = bare
    cut: Callable[[Box], Index] = whole


@dataclass(frozen=True)
class Parts:
    """The way an op runs on parts. Positions are those of the result, unless `wanted` says
    otherwise.

    dims: of input `lead`, whose layout the result takes over: the op runs on parts where that
    input is split along one of them.
    parts: those that the inputs give, in the order in which they are moved.
    fill: the value of elements that no part gives; None if there are none.
    base: the input whose shard the result starts as; None: it starts as `fill`.
    of_sums: false if the op must not run on partial sums.
    wanted, into: box of a shard of the result -> the positions that it takes from the parts, and
    where in the shard they stand.
    """

    dims: tuple[int, ...]
    parts: tuple[Part, ...]
    lead: int = 0
    fill: Attr = None
    base: int | None = None
    of_sums: bool = True
    wanted: Callable[[Box], Box] = bare
    into: Callable[[Box], Index] = whole


def placed(by: Sequence[int], box: Box) -> Box:
    """The positions of a box that is moved, by `by[d]` along dim d."""
    return Box(
        tuple(a + s for a, s in zip(box.starts, by, strict=True)),
        tuple(b + s for b, s in zip(box.stops, by, strict=True)),
    )


def clipped(box: Box, region: Box) -> Box:
    """The part of `box` in `region`; without elements if they do not meet."""
    starts = tuple(map(max, box.starts, region.starts))
    stops = tuple(map(min, box.stops, region.stops))
    return Box(starts, tuple(map(max, starts, stops)))
