"""Weighted sums of neighbours along the middle dim of float32 arrays (before, places, behind).

Vectors go along `behind`. Where nothing is behind, blocks of rows are transposed first, and their
results back: so every way reads whole vectors. Threads share the places, or the blocks of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import LANES
from oneflow.kernels.native.program import (
    INT_NBYTES,
    Program,
    Values,
    at,
    cut,
    function_of,
    run,
)

if TYPE_CHECKING:
    from oneflow.kernels.neighbours import Neighbours

MOST_TASKS = 8
"""Threads, each with memory of its own."""

_NAMES = ("begin", "end", "memory", "old", "new", "behind", "first", "count", "share", "most",
          "out", "x")  # fmt: skip


def work_shape(old: int, new: int) -> tuple[int, int]:
    """Shape of the memory of all tasks, where nothing is behind the dim."""
    return MOST_TASKS, (old + new) * LANES


def is_narrow(before: int) -> bool:
    """Return whether there are too few rows for a block."""
    return before < LANES


class _Writer:
    def __init__(self) -> None:
        self.p = Program(_NAMES)

    def sums(self, source: Value, place: Value, pitch: Value | int, count: int,
             rest: Value | None) -> Values:  # fmt: skip
        """`count` neighbouring vectors of the sums of a place. source: of place 0. pitch: between
        places. rest: numbers that are there, of a vector that is not whole."""
        p = self.p
        first, many = (p.integer(p[n] + place * INT_NBYTES) for n in ("first", "count"))
        shares = at(p["share"], place * p["most"])
        zeros = p.code.constant(0.0, "float", LANES)

        def vectors(t: Value) -> Values:
            begin = at(source, (first + t) * pitch)
            places = [at(begin, v * LANES) for v in range(count)]
            if rest is not None:
                return [p.load_first(rest, place) for place in places]
            return [p.load(place, LANES) for place in places]

        def share(t: Value) -> Value:
            return p.load(at(shares, t)).splat(LANES)

        def start() -> Values:
            one = share(p.number(0))
            return [x * one for x in vectors(p.number(0))]  # of -0 alone, -0

        begun = p.chosen(many.compare("gt", 0), start, lambda: [zeros] * count)

        def of_tap(t: Value, totals: Values) -> Values:
            one = share(t)
            return [x.times_plus(one, s) for x, s in zip(vectors(t), totals, strict=True)]

        return p.loop(1, many, of_tap, carried=begun)


def _write_planes() -> Program:
    made = _Writer()
    p = made.p

    def of_line(line: Value, _: Values) -> None:
        b, place = line // p["new"], line % p["new"]
        source = at(p["x"], b * p["old"] * p["behind"])
        target = at(p["out"], line * p["behind"])
        whole = p["behind"] // LANES

        def some(first: Value, count: int) -> None:
            begin = at(source, first * LANES)
            found = made.sums(begin, place, p["behind"], count, None)
            for v, total in enumerate(found):
                p.store(total, at(target, (first + v) * LANES))

        p.vectors(whole, some, most=4)
        rest = p["behind"] - whole * LANES

        def last() -> None:
            (total,) = made.sums(at(source, whole * LANES), place, p["behind"], 1, rest)
            p.store_first(rest, total, at(target, whole * LANES))

        p.when(rest.compare("gt", 0), last)

    p.loop(p["begin"], p["end"], of_line)
    return p


def _write_rows() -> Program:
    """Blocks of rows, of which the last ends at the last row; `behind` is the number of rows."""
    made = _Writer()
    p = made.p
    lanes = p.number(LANES)
    read, results = p["memory"], at(p["memory"], p["old"] * LANES)

    def of_block(block: Value, _: Values) -> None:
        row = p.least(block * LANES, p["behind"] - LANES)
        p.transpose(read, at(p["x"], row * p["old"]), (lanes, p["old"]), (lanes, p["old"]))

        def of_place(place: Value) -> None:
            (total,) = made.sums(read, place, LANES, 1, None)
            p.store(total, at(results, place * LANES))

        p.each(p["new"], of_place)
        target = at(p["out"], row * p["new"])
        p.transpose(target, results, (p["new"], lanes), (p["new"], lanes))

    p.loop(p["begin"], p["end"], of_block)
    return p


def _write_picks() -> Program:
    """Rows of which each result is one number."""
    p = Program(_NAMES)

    def of_row(row: Value, _: Values) -> None:
        source, target = at(p["x"], row * p["old"]), at(p["out"], row * p["new"])

        def pick(j: Value) -> None:
            place = p.integer(p["first"] + j * INT_NBYTES)
            p.store(p.load(at(source, place)), at(target, j))

        p.each(p["new"], pick)

    p.loop(p["begin"], p["end"], of_row)
    return p


def blend(out: Array, x: Array, taps: Neighbours, memory: Array | None = None) -> None:
    """out (before, new, behind) <- sums of neighbours in x (before, old, behind), both contiguous.
    memory: of `work_shape`, if nothing is behind."""
    before, old, behind = x.shape
    new, most = taps.share.shape
    named = [data_address(a) for a in (taps.first, taps.count, taps.share)]
    work = x.size + out.size * (1 + most)
    if memory is None:
        fixed = [0, old, new, behind, *named, most, data_address(out), data_address(x)]
        parts = cut(before * new, work, MOST_TASKS * MOST_TASKS)
        run(function_of(_write_planes), [[*part, *fixed] for part in parts])
        return
    if new < old and taps.is_choice:
        fixed = [0, old, new, behind, *named, most, data_address(out), data_address(x)]
        parts = cut(before, work, MOST_TASKS * MOST_TASKS)
        run(function_of(_write_picks), [[*part, *fixed] for part in parts])
        return
    fixed = [old, new, before, *named, most, data_address(out), data_address(x)]
    tasks = zip(cut(-(-before // LANES), work, MOST_TASKS), memory, strict=False)
    run(function_of(_write_rows), [[*part, data_address(own), *fixed] for part, own in tasks])
