"""Products of matrices of any strides, many at once: out <- a @ b (+ bias).

Numbers are float32, or pairs of bfloat16 that are neighbours along the inner dim (see
gemm_bfloat16.py), which the loops move like one float32.

As in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008): a tile of
the result stays in vector registers while the inner dim goes by. b is cut into panels of BLOCK
columns, a into tiles of a few rows; where it pays both are copied so that the innermost loop reads
them from one end to the other. b is copied once for all rows, or, where these are few, by chunks
that stay in the second cache until they are used. Small matrices are read where they lie.

A few rows by weights that lie row by row (a linear layer of a small batch) are left to `few_rows`.

The order of a sum depends on the shapes alone, not on threads.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from math import prod
from pathlib import Path

import numpy as np

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native import few_rows
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.operands import Form, of_item
from oneflow.kernels.native.product import BLOCK, LANES, REGISTERS, VECTORS
from oneflow.kernels.native.program import (
    FLOAT_NBYTES,
    SIDE,
    Program,
    Values,
    at,
    cut,
    function_of,
    run,
)

_DEPTH = 320
"""Elements of the inner dim in one pass."""

_UNROLLED = 2
_MOST_ROWS = 12 if REGISTERS == 32 else 6
"""Rows of a tile. Two more would fill 32 registers, and LLVM then spills sums in the unrolled loop:
65 instead of 105 GFLOP/s with AVX-512."""
_MOST_ROWS_IN_PLACE = 8
"""Rows of a tile that are read where they lie: the address of each takes a register."""
_LINE = 16
_LINE_NBYTES = _LINE * FLOAT_NBYTES
_MOST_TASKS = 64
_SMALL = 1 << 14
"""Work that is never shared."""
_WORK = 10
"""Multiplications that take as long as one element of the loops by which threads are counted."""

IN_PLACE, COPIED, ALONG, ACROSS, ANY = "in place", "copied", "along", "across", "any"
"""Ways to read an operand: where it lies, from a copy that was made before, or from one that is
made of what lies along the inner dim, across it, or with any strides."""


@cache
def _caches() -> tuple[int, int]:
    """Bytes of the first and the second cache of a core."""
    found = []
    for number, usual in ((0, 32), (2, 512)):
        try:
            text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{number}/size").read_text()
            found.append(int(text.strip().removesuffix("K")) << 10)
        except (OSError, ValueError):  # not Linux, or a machine that hides it
            found.append(usual << 10)
    return found[0], found[1]


# ---- tiles ---------------------------------------------------------------------------------------

_NAMES = (
    "blocks", "chunks", "inner", "tiles", "group", "big", "m", "n", "k", "passes", "a_outer",
    "a_inner", "a_row", "a_step", "b_outer", "b_inner", "b_row", "b_step", "out_outer", "out_inner",
    "pitch", "has_bias", "own_nbytes", "begin", "end", "bias", "a", "b", "out",
)  # fmt: skip


class _Writer:
    """The program that multiplies. Pieces of its work are blocks of tiles of an item by chunks of
    panels: a chunk of b stays in the second cache while the tiles go by, a group of tiles in the
    first while the panels do.

    rows: of a tile; the first `big` ones have one more, unless all are alike. vectors: of a panel.
    how_b: IN_PLACE, COPIED before, or how each piece copies its chunk. There is one pass if out
    holds bfloat16, which cannot take in the sums of several.
    """

    def __init__(
        self, form: Form, rows: int, is_even: bool, vectors: int, is_a_copied: bool, how_b: str
    ) -> None:
        self.form = form
        self.rows, self.is_even, self.vectors = rows, is_even, vectors
        self.is_a_copied, self.how_b, self.is_b_copied = is_a_copied, how_b, how_b != IN_PLACE
        self.p = p = Program(_NAMES, steps=True)
        self.own = p.memory(p["own_nbytes"])
        p.loop(p["begin"], p["end"], self._piece)

    def _piece(self, piece: Value, _: Values) -> None:
        p, block = self.p, self.vectors * LANES
        chunk, piece = piece % p["chunks"], piece // p["chunks"]
        item, piece = piece // p["blocks"], piece % p["blocks"]
        outer, inner = item // p["inner"], item % p["inner"]
        a, b, out = of_item(p, self.form, outer, inner)
        first, last = (p["tiles"] * (piece + i) // p["blocks"] for i in (0, 1))
        panels = (p["n"] + (block - 1)) // block
        left, right = (panels * (chunk + i) // p["chunks"] * block for i in (0, 1))
        right = p.least(right, p["n"])

        def one_pass(number: Value) -> None:
            begin = p["k"] * number // p["passes"]
            depth = p["k"] * (number + 1) // p["passes"] - begin

            if self.how_b not in (IN_PLACE, COPIED):

                def place(panel: Value) -> Values:
                    column = left + panel * BLOCK
                    source = at(b, begin * p["b_row"] + column * p["b_step"])
                    return [source, at(self.own, panel * BLOCK * depth), p["n"] - column]

                ends = p.number(0), (right - left + (BLOCK - 1)) // BLOCK
                _copy_panels(p, self.how_b, place, ends, depth)

            def of_group(tile: Value, _: Values) -> None:
                until = p.least(tile + p["group"], last)

                def of_panel(column: Value, body: Callable[[int, Values], None]) -> None:
                    if self.how_b == COPIED:
                        panel = at(b, column * p["k"] + begin * BLOCK)
                    elif self.is_b_copied:
                        panel = at(self.own, (column - left) * depth)
                    else:
                        panel = at(b, begin * p["b_row"] + column)

                    def of_tile(tile: Value, _: Values) -> None:
                        row = self._row(tile)
                        if self.is_a_copied:
                            own = at(a, begin * p["m"] + row * depth)
                        else:
                            own = at(a, begin * p["a_step"] + row * p["a_row"])
                        target = self.form.at(out, row * p["pitch"] + column)
                        places = [own, panel, target, at(p["bias"], column)]
                        self._by_rows(tile, lambda rows: body(rows, places))

                    p.loop(tile, until, of_tile)

                def some(vectors: int, rest: Value | None) -> Callable[[int, Values], None]:
                    return lambda rows, places: self._tile(
                        places, depth, number, (rows, vectors), rest
                    )

                def of_copy(column: Value, _: Values) -> None:
                    of_panel(column, some(VECTORS, None))

                def of_last_copy() -> None:
                    rest = right - whole

                    def last(vectors: int) -> None:
                        of_panel(whole, some(vectors, rest))

                    is_wide = rest.compare("gt", LANES)
                    p.either(is_wide, lambda: last(VECTORS), lambda: last(1))

                def of_whole(column: Value, _: Values) -> None:
                    of_panel(column, some(self.vectors, None))

                def of_rest(column: Value, _: Values) -> None:
                    of_panel(column, some(1, right - column))

                whole = left + ((right - left) // block * block)
                if self.is_b_copied:
                    p.loop(left, whole, of_copy, step=BLOCK)
                    p.when(whole.compare("lt", right), of_last_copy)
                else:
                    p.loop(left, whole, of_whole, step=block)
                    p.loop(whole, right, of_rest, step=LANES)

            p.loop(first, last, of_group, step=p["group"])

        p.each(p["passes"], one_pass)

    def _row(self, tile: Value) -> Value:
        """The first row of a tile."""
        row = tile * self.rows
        return row if self.is_even else row + self.p.least(tile, self.p["big"])

    def _by_rows(self, tile: Value, body: Callable[[int], None]) -> None:
        if self.is_even:
            body(self.rows)
            return
        is_big = tile.compare("lt", self.p["big"])
        self.p.either(is_big, lambda: body(self.rows + 1), lambda: body(self.rows))

    def _tile(
        self, places: Values, depth: Value, number: Value, sizes: tuple[int, int],
        rest: Value | None,
    ) -> None:  # fmt: skip
        """Write a tile of the result.

        places: of a, b, out and the bias. number: of the pass. sizes: rows, and vectors of columns.
        rest: columns that there are, None: all.
        """
        p, (rows, vectors) = self.p, sizes
        a, b, out, bias = places
        a_row, a_step = p["a_row"], p["a_step"]
        if self.is_a_copied:
            a_row, a_step = p.number(1), p.number(rows)
        b_row = p.number(BLOCK) if self.is_b_copied else p["b_row"]

        def load(address: Value, rest: Value | None = None) -> Values:
            places = [at(address, v * LANES) for v in range(vectors)]
            if rest is None:
                return [p.load(place, LANES) for place in places]
            return [p.load_first(rest - v * LANES, place) for v, place in enumerate(places)]

        def turn(some: int) -> Callable[[Value, Values], Values]:
            def body(_: Value, values: Values) -> Values:
                left, right, *sums = values
                for u in range(some):
                    columns = load(at(right, b_row * u), None if self.is_b_copied else rest)
                    for r in range(rows):
                        one = p.load(at(left, a_step * u + a_row * r)).splat(LANES)
                        for v in range(vectors):
                            i = r * vectors + v
                            sums[i] = self.form.added(one, columns[v], sums[i])
                return [at(left, a_step * some), at(right, b_row * some), *sums]

            return body

        lines = [self.form.at(out, p["pitch"] * r) for r in range(rows)]

        def zeros() -> Values:
            return [p.code.constant(0.0, "float", LANES)] * (rows * vectors)

        def made(rest: Value | None) -> Values:
            return [x for line in lines for x in load(line, rest)]

        def put(values: Values, rest: Value | None) -> None:
            for i, value in enumerate(values):
                r, v = divmod(i, vectors)
                target = self.form.at(lines[r], v * LANES)
                count = None if rest is None else rest - v * LANES
                self.form.store(p, value, target, count)

        for line in lines:  # they are written when the sums are done
            for v in range(0, vectors * LANES, _LINE):
                p.prefetch(self.form.at(line, v), writes=True)
        is_whole = None if rest is None else rest.compare("ge", vectors * LANES)

        def begun() -> Values:
            has_bias = p["has_bias"].compare("ne", 0)
            return p.chosen(has_bias, lambda: load(bias, rest) * rows, zeros)

        sums = (
            begun()
            if self.form.is_half
            else p.chosen(
                number.compare("eq", 0),
                begun,
                lambda: (
                    made(None)
                    if is_whole is None
                    else p.chosen(is_whole, lambda: made(None), lambda: made(rest))
                ),
            )
        )
        whole = depth & -_UNROLLED
        found = p.loop(0, whole, turn(_UNROLLED), step=_UNROLLED, carried=[a, b, *sums])
        found = p.loop(whole, depth, turn(1), carried=found)[2:]
        if is_whole is None:
            put(found, None)
        else:
            p.either(is_whole, lambda: put(found, None), lambda: put(found, rest))


def _write_tiles(
    form: Form, rows: int, is_even: bool, vectors: int, is_a_copied: bool, how_b: str
) -> Program:
    return _Writer(form, rows, is_even, vectors, is_a_copied, how_b).p


# ---- copies --------------------------------------------------------------------------------------

_STRIP = 16
"""Rows of memory that are copied side by side, so that their lines stay in the cache."""


def _copy_panels(
    p: Program, how: str, place: Callable[[Value], Values], ends: tuple[Value, Value], depth: Value
) -> None:
    """target[k][column] <- source[k * b_row + column * b_step] of panels. place: source, target and
    the number of columns from there on. ends: the first panel, and the one behind the last."""
    first, last = ends
    zero = p.number(0)

    def of_panel(panel: Value, start: Value, stop: Value) -> None:
        source, target, rest = place(panel)

        def in_rows() -> None:
            def row(k: Value, is_whole: bool) -> None:
                for v in range(VECTORS):
                    line = at(source, k * p["b_row"] + v * LANES)
                    count = rest - v * LANES
                    value = p.load(line, LANES) if is_whole else p.load_first(count, line)
                    p.store(value, at(target, k * BLOCK + v * LANES))

            def rows(is_whole: bool) -> None:
                p.loop(start, stop, lambda k, _: row(k, is_whole))

            p.either(rest.compare("ge", BLOCK), lambda: rows(True), lambda: rows(False))

        def line(column: Value) -> Value:
            """The begin of a column; behind the last one, of the last one again."""
            return at(source, p.least(column, rest - 1) * p["b_step"])

        def one_by_one(begin: Value) -> None:
            def of_step(k: Value, _: Values) -> None:
                def of_column(j: Value) -> None:
                    p.store(p.load(at(line(j), k * p["b_row"])), at(target, k * BLOCK + j))

                p.each(p.number(BLOCK), of_column)

            p.loop(begin, stop, of_step)

        def in_tiles() -> None:
            whole = stop & -SIDE

            def of_columns(j: Value, _: Values) -> None:
                lines = [line(j + i) for i in range(SIDE)]

                def of_steps(k: Value, _: Values) -> None:
                    targets = [at(target, (k + i) * BLOCK + j) for i in range(SIDE)]
                    p.tile([at(x, k) for x in lines], targets)

                p.loop(start, whole, of_steps, step=SIDE)

            p.loop(0, p.number(BLOCK), of_columns, step=SIDE)
            one_by_one(whole)

        if how == ACROSS:
            in_rows()
        elif how == ALONG:
            in_tiles()
        else:
            one_by_one(start)

    def of_strip(start: Value, _: Values) -> None:
        stop = p.least(start + _STRIP, depth)
        p.loop(first, last, lambda panel, _: of_panel(panel, start, stop))

    if how == ACROSS:
        p.loop(0, depth, of_strip, step=_STRIP)
    else:
        p.loop(first, last, lambda panel, _: of_panel(panel, zero, depth))


_A_NAMES = (
    "tiles", "inner", "big", "m", "k", "passes", "a_outer", "a_inner", "a_row", "a_step", "item",
    "begin", "end", "a", "copy",
)  # fmt: skip


def _write_copy_a(rows: int, is_even: bool, how: str) -> Program:
    """copy[item][pass][tile][k][rows] <- a: whole vectors, whose ends the next ones overwrite."""
    p = Program(_A_NAMES, steps=True)
    item = p["begin"] // p["tiles"]
    start_place = [item // p["inner"], item % p["inner"], p["begin"] % p["tiles"]]

    def following(place: Values) -> Values:
        """outer, inner and tile of the next piece; divisions take as long as a short copy."""
        outer, inner, tile = place[0], place[1], place[2] + 1
        is_next = tile.compare("eq", p["tiles"])
        tile = is_next.choose(p.number(0), tile)
        inner = is_next.choose(inner + 1, inner)
        is_next = inner.compare("eq", p["inner"])
        return [is_next.choose(outer + 1, outer), is_next.choose(p.number(0), inner), tile]

    def column(
        source: Value, own: Value, rows: int, k: Value, *, is_inside: bool, is_last: bool
    ) -> None:
        """Copy a column of the rows. is_inside: there is memory behind them. is_last: there is none
        behind the copy."""
        line = at(source, k * p["a_step"])
        for first in range(0, rows, LANES):
            count, target = p.number(rows - first), at(own, k * rows + first)
            place = at(line, first)
            some = p.load(place, LANES) if is_inside else p.load_first(count, place)
            p.store_first(count, some, target) if is_last else p.store(some, target)

    def steps(source: Value, own: Value, rows: int, k: Value, *, is_last: bool) -> None:
        zeros = p.code.constant(0.0, "float", SIDE)
        groups = []
        for first in range(0, rows, SIDE):
            last = min(rows, first + SIDE)
            lines = [p.load(at(source, p["a_row"] * r + k), SIDE) for r in range(first, last)]
            groups.append(p.turned([*lines, *[zeros] * (SIDE - len(lines))]))
        for j in range(SIDE):
            for g, group in enumerate(groups):
                target = at(own, (k + j) * rows + g * SIDE)
                if is_last:
                    p.store_first(p.number(rows - g * SIDE), group[j], target)
                else:
                    p.store(group[j], target)

    def single(source: Value, own: Value, rows: int, k: Value) -> None:
        for r in range(rows):
            value = p.load(at(source, p["a_row"] * r + k * p["a_step"]))
            p.store(value, at(own, k * rows + r))

    def of_strip(begin: Value, depth: Value, start: Value, stop: Value) -> None:
        """Elements start to stop of a pass, which begins at `begin`, of all tiles."""

        def of_tile(_: Value, place: Values) -> Values:
            outer, inner, tile = place
            item = outer * p["inner"] + inner
            row = tile * rows if is_even else tile * rows + p.least(tile, p["big"])
            line = at(p["a"], outer * p["a_outer"] + inner * p["a_inner"] + row * p["a_row"])
            source = at(line, begin * p["a_step"])
            own = at(p["copy"], item * p["item"] + begin * p["m"] + row * depth)

            def some(rows: int) -> None:
                def each(
                    start: Value, stop: Value, body: Callable[..., None], *, step: int = 1,
                    **options: bool,
                ) -> None:  # fmt: skip
                    def turn(k: Value, _: Values) -> None:
                        body(source, own, rows, k, **options)

                    p.loop(start, stop, turn, step=step)

                def columns(is_inside: bool) -> None:
                    free = p.most(start, p.least(stop, depth - LANES))
                    each(start, free, column, is_inside=is_inside, is_last=False)
                    each(free, stop, column, is_inside=is_inside, is_last=True)

                if how == ACROSS:
                    is_inside = (row + -(-rows // LANES) * LANES).compare("le", p["m"])
                    p.either(is_inside, lambda: columns(True), lambda: columns(False))
                elif how == ALONG:
                    whole = start + ((stop - start) & -SIDE)
                    last = p.most(start, p.least(whole, (depth & -SIDE) - SIDE))
                    each(start, last, steps, step=SIDE, is_last=False)
                    each(last, whole, steps, step=SIDE, is_last=True)
                    each(whole, stop, single)
                else:
                    each(start, stop, single)

            if is_even:
                some(rows)
            else:
                is_big = tile.compare("lt", p["big"])
                p.either(is_big, lambda: some(rows + 1), lambda: some(rows))
            return following(place)

        p.loop(p["begin"], p["end"], of_tile, carried=start_place)

    def of_pass(number: Value) -> None:
        begin = p["k"] * number // p["passes"]
        depth = p["k"] * (number + 1) // p["passes"] - begin
        if how != ACROSS:
            of_strip(begin, depth, p.number(0), depth)
            return

        def strip(start: Value, _: Values) -> None:
            of_strip(begin, depth, start, p.least(start + _STRIP, depth))

        p.loop(0, depth, strip, step=_STRIP)

    p.each(p["passes"], of_pass)
    return p


_B_NAMES = (
    "panels", "inner", "n", "k", "b_outer", "b_inner", "b_row", "b_step", "item", "begin", "end",
    "b", "copy",
)  # fmt: skip


def _write_copy_b(how: str) -> Program:
    """copy[item][panel][k][BLOCK] <- b. The columns behind the last one hold anything."""
    p = Program(_B_NAMES, steps=True)

    def place(piece: Value) -> Values:
        item, first = piece // p["panels"], piece % p["panels"] * BLOCK
        outer, inner = item // p["inner"], item % p["inner"]
        source = at(p["b"], outer * p["b_outer"] + inner * p["b_inner"] + first * p["b_step"])
        return [source, at(p["copy"], item * p["item"] + first * p["k"]), p["n"] - first]

    _copy_panels(p, how, place, (p["begin"], p["end"]), p["k"])
    return p


# ---- calls ---------------------------------------------------------------------------------------

_FEW_TILES = 2
"""Tiles of a for which copying b costs more than the gaps between its rows do."""
_SHALLOW = 16
"""Elements of the inner dim in a pass over b where it lies: so many rows of memory the processor
fetches ahead at once."""
_FEW_ELEMENTS = 1 << 13
"""Elements of b that stay in the first cache wherever they lie."""
_FEW_COLUMNS = 4 * BLOCK
"""Columns of b for which copying a costs more than its gaps do; twice as many if it lies along the
inner dim."""
_DOT_ROWS, _DEEP_DOT_ROWS, _DEEP = 24, 64, 256
"""Rows up to which products are sums along the inner dim; up to the second number from an inner dim
of the third on, beside which folding the vectors is little."""
_SHORT = 128
"""Elements of rows of a of which a tile stays in the first cache where it lies."""
_MOST_OWN_ROWS = 256
"""Rows up to which every piece copies its chunk of b, which would be copied again for more."""
_PIECE_ROWS, _MOST_PANELS = 48, 8
"""Sizes of a block of the result that one thread makes at once."""
_LEAST_ROWS = 4
"""Rows whose multiplications take as long as reading the weights."""
COPY_WORK = 2
"""Elements of a loop that take as long as the copy of one."""

Sizes = tuple[int, ...]
Shapes = tuple[Sizes, Sizes, Sizes]
Strides = tuple[Sizes, Sizes, Sizes]
Batch = tuple[int, Sizes]
"""A leading dim: its size, and the steps of a, b and out along it."""
Items = tuple[Batch, Batch, Strides]


@dataclass(frozen=True)
class Part:
    """A program and its numbers but begin, end and the addresses. work: see `cut`."""

    function: Callable[[object], int]
    numbers: Sizes
    pieces: int
    work: int

    @cached_property
    def is_small(self) -> bool:
        return self.pieces == 1 or self.work < _SMALL

    @cached_property
    def packed(self) -> bytes:
        return struct.pack(f"{len(self.numbers)}q", *self.numbers)


@dataclass(frozen=True)
class _Plan:
    """The programs for matrices of certain shapes and strides. sizes: of the copies."""

    multiply: Part
    copy_a: Part | None = None
    copy_b: Part | None = None
    size_a: int = 0
    size_b: int = 0


def batches(shape: Sizes, strides: Sequence[Sizes]) -> list[Batch] | None:
    """Sizes of the leading dims with the steps of the operands, neighbours joined where all
    operands go on evenly; None if more than two are left."""
    found: list[Batch] = []
    for size, *steps in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if found and all(a == b * size for a, b in zip(found[-1][1], steps, strict=True)):
            found[-1] = found[-1][0] * size, tuple(steps)
        else:
            found.append((size, tuple(steps)))
    if len(found) > 2:
        return None
    return [(1, (0,) * len(strides))] * (2 - len(found)) + found


def _lead_steps(shapes: Shapes, strides: Strides) -> list[Sizes]:
    """Steps of the operands along the leading dims of the result."""
    found = []
    for shape, steps in zip(shapes, strides, strict=True):
        missing = (0,) * (len(shapes[2]) - len(shape))
        own = zip(shape[:-2], steps[:-2], strict=True)
        found.append(missing + tuple(0 if size == 1 else step for size, step in own))
    return found


def items_of(shapes: Shapes, nbytes: Strides) -> Items | None:
    """The leading dims as two, with the steps of a, b and out along them, and the last two steps of
    these; None if this is no product of matrices that lie in whole floats."""
    if any(step % FLOAT_NBYTES for each in nbytes for step in each):
        return None
    a, b, out = (tuple(step // FLOAT_NBYTES for step in each) for each in nbytes)
    lead, n = shapes[2][:-2], shapes[2][-1]
    found = batches(lead, _lead_steps(shapes, (a, b, out)))
    if found is None or not all(map(prod, shapes)) or (out[-1] != 1 and n > 1):
        return None
    return found[0], found[1], (a[-2:], b[-2:], out[-2:])


@lru_cache(maxsize=4096)
def _plan(shapes: Shapes, nbytes: Strides, has_bias: bool, form: Form) -> _Plan | None:
    found = items_of(shapes, nbytes)
    if found is None:
        return None
    (m, k), n = shapes[0][-2:], shapes[1][-1]
    a, b, _ = found[2]
    is_along = b[0] == 1 and a[1] == 1 and k >= 2 * LANES
    is_few = m <= (_DEEP_DOT_ROWS if k >= _DEEP else _DOT_ROWS)
    plan = _dots_plan if is_along and is_few else _tiles_plan
    return plan(found, (m, n, k), has_bias, form)


def _work(count: int, m: int, n: int, k: int) -> int:
    """Work for `cut`: of a few rows the weights are read, at the pace of the memory."""
    return count * n * k * max(m, _LEAST_ROWS) // _WORK


def _dots_plan(items: Items, sizes: Sizes, has_bias: bool, form: Form) -> _Plan:
    (outer, outers), (inner, inners), (a, b, out) = items
    of_a, of_b, of_out = zip(outers, inners, strict=True)
    m, n, k = sizes
    chunks = -(-n // few_rows.CHUNK)
    numbers = (chunks, inner, m, n, k, *of_a, a[0], *of_b, b[1], *of_out, out[0])
    count = outer * inner
    function = function_of(few_rows.write, form, few_rows.rows_at_once(m), has_bias)
    return _Plan(Part(function, numbers, count * chunks, _work(count, m, n, k)))


def _how(along: int, across: int) -> str:
    """Return the way to copy an operand. along: its step along the inner dim."""
    return ALONG if along == 1 else ACROSS if across == 1 else ANY


def _tiles_plan(items: Items, sizes: Sizes, has_bias: bool, form: Form) -> _Plan:
    (outer, outers), (inner, inners), (a, b, out) = items
    of_a, of_b, of_out = zip(outers, inners, strict=True)
    (m, n, k), count = sizes, outer * inner
    is_a_short = a[1] == 1 and k <= _SHORT
    is_a_copied = n > _FEW_COLUMNS * (2 if a[1] == 1 else 1) and not is_a_short
    tiles = -(-m // (_MOST_ROWS if is_a_copied else min(_MOST_ROWS, _MOST_ROWS_IN_PLACE)))
    rows, big = divmod(m, tiles)
    is_even = big == 0
    is_b_small = k * n <= _FEW_ELEMENTS
    is_b_copied = b[1] != 1 or (tiles > _FEW_TILES and not is_b_small)
    depth = _DEPTH if is_b_copied or is_b_small else _SHALLOW if m > 1 else _SHALLOW // 2
    passes = 1 if form.is_half else -(-k // depth)
    depth = -(-k // passes)
    size_a = size_b = 0
    copy_a = copy_b = None
    if is_a_copied:
        size_a = m * k
        numbers: Sizes = (tiles, inner, big, m, k, passes, *of_a, a[0], a[1], size_a)
        function = function_of(_write_copy_a, rows, is_even, _how(a[1], a[0]))
        copy_a = Part(function, numbers, count * tiles, count * size_a * COPY_WORK)
        of_a = size_a * inner, size_a
    how_b = _how(b[0], b[1]) if is_b_copied else IN_PLACE
    if is_b_copied and m > _MOST_OWN_ROWS:
        panels = -(-n // BLOCK)
        size_b = panels * BLOCK * k
        numbers = (panels, inner, n, k, *of_b, b[0], b[1], size_b)
        function = function_of(_write_copy_b, how_b)
        copy_b = Part(function, numbers, count * panels, count * size_b * COPY_WORK)
        how_b = COPIED
        of_b = size_b * inner, size_b
    vectors = VECTORS
    if not is_b_copied:  # fewer rows leave registers for more columns
        vectors = max(VECTORS, _MOST_ROWS * VECTORS // (rows + (not is_even)))
    first, second = _caches()
    group = max(1, first // (_MOST_ROWS * depth * FLOAT_NBYTES))
    panels = -(-n // (vectors * LANES))
    width = max(1, second // 2 // (depth * FLOAT_NBYTES) // (vectors * LANES))
    width = min(width, _MOST_PANELS if is_b_copied else 2 * _MOST_PANELS)
    chunks = -(-panels // width)
    is_own = how_b not in (IN_PLACE, COPIED)
    blocks = 1 if is_own else max(1, m // _PIECE_ROWS)
    own = -(-panels // chunks) * BLOCK * depth * FLOAT_NBYTES if is_own else 0
    numbers = (
        blocks, chunks, inner, tiles, group, big, m, n, k, passes, *of_a, a[0], a[1], *of_b, b[0],
        b[1], *of_out, out[0], int(has_bias), own,
    )  # fmt: skip
    ways = rows, is_even, vectors, copy_a is not None, how_b
    function = function_of(_write_tiles, form, *ways)
    part = Part(function, numbers, count * blocks * chunks, _work(count, m, n, k))
    return _Plan(part, copy_a, copy_b, count * size_a, count * size_b)


class Scratch(threading.local):
    """Memory of a thread for copies."""

    def __init__(self) -> None:
        self.memory = np.empty(1 << 12, np.float32)

    def of(self, size: int) -> int:
        """Address of `size` floats, at the begin of a line of the cache: vectors across two lines
        take twice as long."""
        if self.memory.size < size + _LINE:
            self.memory = np.empty(size + _LINE, np.float32)
        return -(-data_address(self.memory) // _LINE_NBYTES) * _LINE_NBYTES


_scratch = Scratch()


_ends = struct.Struct("6q").pack
_copy_ends = struct.Struct("4q").pack


def do(part: Part, one_thread: bool, *addresses: int) -> None:
    if part.is_small or one_thread:
        pack = _copy_ends if len(addresses) == 2 else _ends
        part.function(part.packed + pack(0, part.pieces, *addresses))
        return
    tasks = [
        [*part.numbers, begin, end, *addresses]
        for begin, end in cut(part.pieces, part.work, _MOST_TASKS)
    ]
    run(part.function, tasks)


@dataclass(frozen=True)
class Operand:
    """A matrix or a stack of them in memory. nbytes: steps along the dims. memory: the array that
    must stay alive."""

    shape: Sizes
    nbytes: Sizes
    address: int
    memory: Array


FLOATS = Form()


def operand(x: Array) -> Operand:
    return Operand(x.shape, x.strides, data_address(x), x)


def multiply(
    a: Array, b: Array, out: Array, bias: Array | None = None, *, one_thread: bool = False
) -> bool:
    """out <- a @ b, with `bias` added to every row; whether it was done. Matrices of float32 or
    stacks of them, as `np.matmul` takes them, at least two dims each; `out` is neither of them.
    """
    return multiplied(operand(a), operand(b), operand(out), bias, FLOATS, one_thread=one_thread)


def multiplied(
    a: Operand, b: Operand, out: Operand, bias: Array | None, form: Form, *, one_thread: bool
) -> bool:
    """`multiply` of operands of any form. Steps of `out` are counted as if it held float32."""
    shapes = a.shape, b.shape, out.shape
    plan = _plan(shapes, (a.nbytes, b.nbytes, out.nbytes), bias is not None, form)
    if plan is None:
        return False
    of_a, of_b = a.address, b.address
    if plan.copy_a is not None or plan.copy_b is not None:
        memory = _scratch.of(plan.size_a + plan.size_b)
        if plan.copy_b is not None:
            do(plan.copy_b, one_thread, of_b, memory)
            of_b = memory
        if plan.copy_a is not None:
            place = memory + plan.size_b * FLOAT_NBYTES
            do(plan.copy_a, one_thread, of_a, place)
            of_a = place
    added = 0 if bias is None else data_address(bias)
    do(plan.multiply, one_thread, added, of_a, of_b, out.address)
    return True
