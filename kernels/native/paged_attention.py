"""Attention of rows over keys and values in blocks (oneflow/ops/attention.py), float32.

A piece of work is a row and a head of keys, which all heads that share it read together, four at a
time. Scores of all columns that the row sees lie on the stack; keys and values are read once, block
by block, and nothing behind the row's own token or before its window is.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.attention import MOST_COLUMNS, exponentiate
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import LANES
from oneflow.kernels.native.program import (
    FLOAT_NBYTES,
    INT_NBYTES,
    Program,
    Values,
    at,
    cut,
    function_of,
    run,
)

_MOST_TASKS = 64
_HEADS = 4
"""Heads whose scores are computed together."""
_SUMS = 8
"""Vectors that sums take."""


class Form(NamedTuple):
    """Facts of a call by which its program differs: d and e of the op, and its `block`; times:
    heads that share keys."""

    depth: int
    width: int
    times: int
    block: int


_ARRAYS = ("out", "q", "k", "v", "keys", "values", "tables", "lengths")


def attend(
    out: Array,
    q: Array,
    k: Array,
    v: Array,
    keys: Array,
    values: Array,
    tables: Array,
    lengths: Array,
    scale: float,
    window: int,
) -> bool:
    """See the op `paged_attention`, whose arrays these are. Returns whether it could take them:
    float32, without gaps. Else nothing was done."""
    arrays = (out, q, k, v, keys, values, tables, lengths)
    _, shared, block, width = values.shape
    rows, heads, depth = q.shape
    most = tables.shape[1]
    if any(a.dtype != np.float32 for a in arrays[:6]) or not 0 < most * block <= MOST_COLUMNS:
        return False
    if not all(a.flags.c_contiguous for a in arrays) or not out.size or not q.size:
        return False
    form = Form(depth, width, heads // shared, block)
    places = [data_address(a) for a in arrays]
    given = (shared, most, window, int(np.float32(scale).view(np.int32)), *places)
    run(function_of(_write_rows, form), [(0, rows, *given)])
    units, work = rows * shared, int(lengths.sum()) * shared * (depth + width)
    parts = cut(units, work * form.times, _MOST_TASKS)
    run(function_of(_attend, form), [(*part, *given) for part in parts])
    return True


def _program() -> Program:
    return Program(("begin", "end", "shared", "most", "window", "scale", *_ARRAYS))


def _write_rows(form: Form) -> Program:
    """Copy keys and values of rows `begin` to `end` to their places."""
    p = _program()

    def of_row(row: Value, _: Values) -> None:
        length = p.integer(p["lengths"] + row * INT_NBYTES)

        def write() -> None:
            column = length - 1
            block = _block_of(p, row, column // form.block)

            def of_head(head: Value) -> None:
                source = row * p["shared"] + head
                target = (block * p["shared"] + head) * form.block + column % form.block
                for name, cache, size in (("k", "keys", form.depth), ("v", "values", form.width)):
                    _copy(p, at(p[name], source * size), at(p[cache], target * size), size)

            p.each(p["shared"], of_head)

        p.when(length.compare("gt", 0), write)

    p.loop(p["begin"], p["end"], of_row)
    return p


def _block_of(p: Program, row: Value, index: Value) -> Value:
    """The number of a block of a row's sequence."""
    return p.integer(p["tables"] + (row * p["most"] + index) * INT_NBYTES)


def _copy(p: Program, source: Value, target: Value, size: int) -> None:
    for i in range(0, size, LANES):
        _put(p, _part(p, source, i, size), target, i, size)


def _part(p: Program, address: Value, first: int, size: int) -> Value:
    """The vector at `first` of `size` numbers, zeros behind the last."""
    if first + LANES <= size:
        return p.load(at(address, first), LANES)
    return p.load_first(p.number(size - first), at(address, first))


def _put(p: Program, value: Value, address: Value, first: int, size: int) -> None:
    if first + LANES <= size:
        p.store(value, at(address, first))
    else:
        p.store_first(p.number(size - first), value, at(address, first))


def _attend(form: Form) -> Program:
    """The outputs of pieces `begin` to `end`; see the top of this file."""
    p = _program()
    # Scores begin with the first block that is seen, and end with a whole vector behind the last.
    pitch = (p["most"] * form.block + 2 * LANES) & -LANES
    scores = p.memory(pitch * (_HEADS * FLOAT_NBYTES))

    def of_piece(piece: Value, _: Values) -> None:
        row, head = piece // p["shared"], piece % p["shared"]
        length = p.integer(p["lengths"] + row * INT_NBYTES)
        first = p.most(length - p["window"], 0)
        first = p["window"].compare("gt", 0).choose(first, first.like(0))
        own = piece * form.times
        some = (
            _Heads(p, form, row, head, own, heads, scores, pitch, first, length)
            for heads in (
                range(i, min(i + _HEADS, form.times)) for i in range(0, form.times, _HEADS)
            )
        )

        def attend() -> None:
            for one in some:
                one.write()

        def clear() -> None:
            p.zero(at(p["out"], own * form.width), p.number(form.times * form.width))

        p.either(length.compare("gt", 0), attend, clear)

    p.loop(p["begin"], p["end"], of_piece)
    return p


class _Heads:
    """The program for some heads of a row that share keys and values.

    own: the first head of q, over all rows.  heads: those, counted from it.  first, stop: columns
    that the row sees.
    """

    def __init__(
        self,
        p: Program,
        form: Form,
        row: Value,
        head: Value,
        own: Value,
        heads: range,
        scores: Value,
        pitch: Value,
        first: Value,
        stop: Value,
    ) -> None:
        self.p, self.form, self.row, self.head = p, form, row, head
        self.own, self.heads = own, heads
        self.scores, self.pitch = scores, pitch
        self.first, self.stop = first, stop

    def write(self) -> None:
        p, count = self.p, len(self.heads)
        scale = p["scale"].to("i32").bits("float")
        # Made here, where the code stands that uses them.
        self.lines = [at(self.scores, self.pitch * i) for i in range(count)]
        self.base = self.first // self.form.block * self.form.block
        self.last = (self.stop + (self.form.block - 1)) // self.form.block
        lowest = p.code.constant(-math.inf, "float")
        best = p.loop(
            self.first // self.form.block,
            self.last,
            partial(self._score, scale),
            carried=[lowest] * count,
        )
        end = self.stop - self.base
        inverse = []
        for line, highest in zip(self.lines, best, strict=True):
            p.store(lowest.splat(LANES), at(line, end))
            inverse.append(1.0 / exponentiate(p, line, highest, end))
        self._gather(inverse)

    def _place(self, name: str, block: Value, size: int) -> Value:
        """The address of the head's part of a block of the cache."""
        number = _block_of(self.p, self.row, block)
        places = (number * self.p["shared"] + self.head) * self.form.block
        return at(self.p[name], places * size)

    def _score(self, scale: Value, block: Value, best: Values) -> Values:
        """Scores of the columns of a block; the largest ones so far."""
        p, form, count = self.p, self.form, len(self.heads)
        keys = self._place("keys", block, form.depth)
        step = max(1, _SUMS // count)
        while form.block % step:
            step -= 1

        def columns(j: Value, best: Values) -> Values:
            sums = self._products(keys, j, step)
            for i, row in enumerate(sums):
                for s, total in enumerate(row):
                    column = block * form.block + j + s
                    is_seen = column.compare("lt", self.stop) & column.compare("ge", self.first)
                    score = is_seen.choose(total.folded() * scale, -math.inf)
                    p.store(score, at(self.lines[i], column - self.base))
                    best[i] = best[i].larger(score)
            return best

        return p.loop(0, p.number(form.block), columns, step=step, carried=best)

    def _products(self, keys: Value, first: Value, step: int) -> list[Values]:
        """Vectors whose sums are the products of each head with `step` keys."""
        p, depth = self.p, self.form.depth
        zero = p.code.constant(0.0, "float", LANES)
        sums = [[zero] * step for _ in self.heads]
        for vector in range(0, depth, LANES):
            own = [_part(p, at(p["q"], (self.own + h) * depth), vector, depth) for h in self.heads]
            for j in range(step):
                key = _part(p, at(keys, (first + j) * depth), vector, depth)
                for i, q in enumerate(own):
                    sums[i][j] = q.times_plus(key, sums[i][j])
        return sums

    def _gather(self, inverse: Values) -> None:
        """out <- probabilities @ values, some vectors of a row at a time."""
        p, width, count = self.p, self.form.width, len(self.heads)
        most = max(1, _SUMS // count)
        zero = p.code.constant(0.0, "float", LANES)
        for begin in range(0, width, most * LANES):
            firsts = list(range(begin, min(begin + most * LANES, width), LANES))
            sums = [zero] * (count * len(firsts))
            totals = p.loop(
                self.first // self.form.block,
                self.last,
                partial(self._weigh, firsts),
                carried=sums,
            )
            for k, total in enumerate(totals):
                i, c = divmod(k, len(firsts))
                target = at(p["out"], (self.own + self.heads[i]) * width)
                _put(p, total * inverse[i].splat(LANES), target, firsts[c], width)

    def _weigh(self, firsts: list[int], block: Value, sums: Values) -> Values:
        """Add a block's values times their probabilities."""
        p, form = self.p, self.form
        values = self._place("values", block, form.width)
        start = block * form.block
        low = p.most(self.first - start, 0)
        high = p.least(self.stop - start, form.block)

        def one(j: Value, sums: Values) -> Values:
            line = at(values, j * form.width)
            found = [_part(p, line, c, form.width) for c in firsts]
            made = []
            for i, scores in enumerate(self.lines):
                share = p.load(at(scores, start + j - self.base)).splat(LANES)
                for c, v in enumerate(found):
                    made.append(v.times_plus(share, sums[i * len(found) + c]))
            return made

        return p.loop(low, high, one, carried=sums)
