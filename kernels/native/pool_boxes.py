"""Means of the cells of boxes in float32 images, one channel after another (kernels/pool.py).

A box first makes one line of each row of its cells, over all its columns in vectors; the cells are
sums over neighbours in these lines. Threads share the channels, so that no two write to one plane
of a gradient, and its sums have one order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

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
    from oneflow.kernels.pool import Taps

MOST_TASKS = 8
"""Threads, each with lines of its own."""

_NAMES = (
    "begin", "end", "lines", "boxes", "channels", "height", "width", "rows", "columns", "pitch",
    "first_y", "count_y", "share_y", "taps_y", "first_x", "count_x", "share_x", "taps_x", "left",
    "wide", "images", "x", "out",
)  # fmt: skip


def lines_shape(rows: int, width: int) -> tuple[int, int]:
    """Shape of the lines of every task."""
    return MOST_TASKS, rows * _pitch(width)


def _pitch(width: int) -> int:
    return -(-width // LANES) * LANES


class _Cells:
    """One side of the cells of a box: where cell i finds its pixels, and their shares."""

    def __init__(self, p: Program, dim: str, box: Value, cells: Value) -> None:
        self._p, self._dim, self._before = p, dim, box * cells

    def find(self, i: Value) -> tuple[Value, Value, Value]:
        """Return the first pixel of cell i, the number of its pixels, the address of the shares."""
        p, dim, place = self._p, self._dim, self._before + i
        first, count = (p.integer(p[f"{n}_{dim}"] + place * INT_NBYTES) for n in ("first", "count"))
        return first, count, at(p[f"share_{dim}"], place * p[f"taps_{dim}"])


class _Box:
    """Box r in channel c: its cells, and the plane and the results that belong to them."""

    def __init__(self, p: Program, r: Value, c: Value) -> None:
        self.p = p
        self.rows, self.columns = _Cells(p, "y", r, p["rows"]), _Cells(p, "x", r, p["columns"])
        self.left, self.wide = (p.integer(p[n] + r * INT_NBYTES) for n in ("left", "wide"))
        image = p.integer(p["images"] + r * INT_NBYTES)
        size = p["height"] * p["width"]
        self.plane = at(p["x"], (image * p["channels"] + c) * size)
        self.out = at(p["out"], (r * p["channels"] + c) * p["rows"] * p["columns"])

    def line(self, i: Value) -> Value:
        return at(self.p["lines"], i * self.p["pitch"])

    def pixels(self, y: Value, v: Value) -> Value:
        """Address of pixel v of the box in row y of the plane."""
        return at(self.plane, y * self.p["width"] + self.left + v)

    def result(self, i: Value, j: Value) -> Value:
        return at(self.out, i * self.p["columns"] + j)


def _of_boxes(write: Callable[[_Box], None]) -> Program:
    p = Program(_NAMES)

    def of_channel(c: Value, _: Values) -> None:
        p.each(p["boxes"], lambda r: write(_Box(p, r, c)))

    p.loop(p["begin"], p["end"], of_channel)
    return p


def _write_means() -> Program:
    def of_box(box: _Box) -> None:
        p = box.p

        def line(i: Value) -> None:
            first, count, shares = box.rows.find(i)

            def some(v: Value, _: Values) -> None:
                def of_tap(k: Value, total: Values) -> Values:
                    share = p.load(at(shares, k)).splat(LANES)
                    pixels = p.load_first(box.wide - v, box.pixels(first + k, v))
                    return [share.times_plus(pixels, total[0])]

                zeros = p.code.constant(0.0, "float", LANES)
                (total,) = p.loop(0, count, of_tap, carried=[zeros])
                p.store(total, at(box.line(i), v))

            p.loop(0, box.wide, some, step=LANES)

        def cell(j: Value) -> None:
            first, count, shares = box.columns.find(j)
            begin = first - box.left

            def of_row(i: Value) -> None:
                source = at(box.line(i), begin)

                def of_tap(k: Value, total: Values) -> Values:
                    return [p.load(at(shares, k)).times_plus(p.load(at(source, k)), total[0])]

                zero = p.code.constant(0.0, "float")
                (total,) = p.loop(0, count, of_tap, carried=[zero])
                p.store(total, box.result(i, j))

            p.each(p["rows"], of_row)

        p.each(p["rows"], line)
        p.each(p["columns"], cell)

    return _of_boxes(of_box)


def _write_shares() -> Program:
    def of_box(box: _Box) -> None:
        p = box.p

        def clear(i: Value) -> None:
            zeros = p.code.constant(0.0, "float", LANES)
            p.loop(0, box.wide, lambda v, _: p.store(zeros, at(box.line(i), v)), step=LANES)

        def cell(j: Value) -> None:
            first, count, shares = box.columns.find(j)
            begin = first - box.left

            def of_row(i: Value) -> None:
                given, target = p.load(box.result(i, j)), at(box.line(i), begin)

                def of_tap(k: Value) -> None:
                    here = at(target, k)
                    p.store(p.load(at(shares, k)).times_plus(given, p.load(here)), here)

                p.each(count, of_tap)

            p.each(p["rows"], of_row)

        def line(i: Value) -> None:
            first, count, shares = box.rows.find(i)

            def of_tap(k: Value) -> None:
                share = p.load(at(shares, k)).splat(LANES)

                def some(v: Value, _: Values) -> None:
                    rest, here = box.wide - v, box.pixels(first + k, v)
                    part = p.load(at(box.line(i), v), LANES)
                    p.store_first(rest, share.times_plus(part, p.load_first(rest, here)), here)

                p.loop(0, box.wide, some, step=LANES)

            p.each(count, of_tap)

        p.each(p["rows"], clear)
        p.each(p["columns"], cell)
        p.each(p["rows"], line)

    return _of_boxes(of_box)


def _run(
    write: Callable[[], Program],
    x: Array,
    out: Array,
    images: Array,
    taps: list[Taps],
    lines: Array,
) -> None:
    _, channels, height, width = x.shape
    left, wide = taps[1].spans()
    sides: list[int] = []
    for side in taps:
        sides += [data_address(a) for a in (side.first, side.count, side.share)]
        sides.append(side.share.shape[2])
    fixed = [len(out), channels, height, width, *out.shape[2:], _pitch(width), *sides]
    fixed += [data_address(a) for a in (left, wide, images, x, out)]
    function = function_of(write)
    parts = cut(channels, max(x.size, out.size), MOST_TASKS)
    run(function, [[*part, data_address(lines[k]), *fixed] for k, part in enumerate(parts)])


def means(out: Array, x: Array, images: Array, taps: list[Taps], lines: Array) -> None:
    """out (R, C, rows, columns) <- the means of the cells in x (N, C, H, W). All contiguous."""
    _run(_write_means, x, out, images, taps, lines)


def spread(d_x: Array, d_out: Array, images: Array, taps: list[Taps], lines: Array) -> None:
    """d_x (N, C, H, W) <- the shares of d_out (R, C, rows, columns) in the pixels of the boxes."""
    d_x[...] = np.float32(0)
    _run(_write_shares, d_x, d_out, images, taps, lines)
