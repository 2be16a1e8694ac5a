"""Attention of a few rows over many columns: a token beside a cache of keys and values.

The time is that of reading keys and values, so that each is read once for all heads that share it,
a few rows at a time. Columns behind the last one that any of the rows may see are not read at all:
of a cache of fixed length only the part that is filled. Scores of the rows lie on the stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native import llvm_math
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import LANES
from oneflow.kernels.native.program import (
    FLOAT_NBYTES,
    Program,
    Values,
    at,
    cut,
    function_of,
    run,
)
from oneflow.kernels.threads import LEAST_SHARED

MOST_COLUMNS = 1 << 15
"""Columns whose scores fit on the stack of a thread."""
_MOST_TASKS = 64
_BLOCK = 4
"""Rows whose scores are computed together."""
_SUMS = 8
"""Vectors that sums take."""
_BYTES = 8
"""Columns of a mask that are looked at together."""


class Form(NamedTuple):
    """Facts of a call by which its program differs.

    depth, width: of a key and a value.  times: heads that share one.  rows: of a head.  mask: ""
    for none, "?" of bool, "f" of float32.  is_dense: neighbours of a mask lie side by side.
    """

    depth: int
    width: int
    times: int
    rows: int
    mask: str
    is_dense: bool


_ARRAYS = ("out", "lse", "q", "k", "v")
_STEPS = (
    "out_n", "out_h", "out_r", "lse_n", "lse_h", "lse_r", "q_n", "q_h", "q_r",
    "k_n", "k_h", "k_r", "v_n", "v_h", "v_r",
)  # fmt: skip
_MASK_STEPS = ("mask_n", "mask_h", "mask_r", "mask_c")


def attend(
    out: Array, lse: Array, q: Array, k: Array, v: Array, mask: Array | None, scale: float
) -> bool:
    """See the op `attention`, whose arrays these are. Returns whether it could take them: float32
    with neighbours side by side, of at most 4 dims. Else nothing was done."""
    # Caches are cold where the weights of a model were just read, and so is Python: what follows
    # from shapes and strides is looked up.
    arrays = (out, lse, q, k, v) if mask is None else (out, lse, q, k, v, mask)
    kinds = out.dtype.char if mask is None else out.dtype.char + mask.dtype.char
    found = _plan(scale, kinds, *[x for a in arrays for x in (a.shape, a.strides)])
    if found is None:
        return False
    function, first, rest, units, work = found
    given = (*first, *map(data_address, arrays), *rest)
    parts = cut(units, work, _MOST_TASKS) if work >= LEAST_SHARED else [(0, units)]
    run(function, [(*part, *given) for part in parts])
    return True


Numbers = tuple[int, ...]


@lru_cache(maxsize=1024)
def _plan(
    scale: float, kinds: str, *places: Numbers
) -> tuple[Callable[[object], int], Numbers, Numbers, int, int] | None:
    """(program, its numbers before and after the addresses, heads of all samples that have keys of
    their own, elements to read) for shapes and strides; None if there is no program."""
    dtype, kind = kinds[0], kinds[1:]
    shapes, strides = places[::2], places[1::2]
    (q, k, v), ndim = shapes[2:5], len(shapes[2])
    if dtype != "f" or kind not in ("", "?", "f") or ndim > 4 or not 0 < k[-2] <= MOST_COLUMNS:
        return None
    if 0 in q or 0 in v or any(strides[i][-1] != FLOAT_NBYTES for i in (0, 2, 3, 4)):
        return None
    steps: list[int] = []
    for i, (shape, apart) in enumerate(zip(shapes, strides, strict=True)):
        dims = 3 if i == 1 else 4
        full = (0,) * (dims - len(apart)) + tuple(
            s if n > 1 or i < 5 else 0 for n, s in zip(shape, apart, strict=True)
        )
        steps += full if i == 5 else full[:3]
    heads = k[-3] if ndim > 2 else 1
    samples = q[0] if ndim > 3 else 1
    times = q[-3] // heads if ndim > 2 else 1
    form = Form(k[-1], v[-1], times, q[-2], kind, kind == "?" and steps[-1] == 1)
    first = (heads, k[-2], int(np.float32(scale).view(np.int32)))
    work = math.prod(k) + math.prod(v)
    return function_of(_write, form), first, tuple(steps), samples * heads, work


def _write(form: Form) -> Program:
    names = [*_ARRAYS, *_STEPS]
    if form.mask:
        names = [*_ARRAYS, "mask", *_STEPS, *_MASK_STEPS]
    p = Program(("begin", "end", "heads", "columns", "scale", *names))
    scale = p["scale"].to("i32").bits("float")
    pitch = (p["columns"] + 2 * LANES) & -LANES
    scores = p.memory(pitch * (_BLOCK * FLOAT_NBYTES))
    blocks = [
        [(g // form.rows, g % form.rows) for g in range(first, min(first + _BLOCK, count))]
        for count in (form.times * form.rows,)
        for first in range(0, count, _BLOCK)
    ]

    def of_head(unit: Value, _: Values) -> None:
        n, head = unit // p["heads"], unit % p["heads"]

        def place(name: str, h: Value, r: int = 0) -> Value:
            base = p[name] + n * p[f"{name}_n"] + h * p[f"{name}_h"]
            return base + p[f"{name}_r"] * r if r else base

        for block in blocks:
            own = [(head * form.times + h, r) for h, r in block]
            rows = {
                name: [place(name, *row) for row in own]
                for name in ("out", "lse", "q", *(["mask"] if form.mask else []))
            }
            lines = [at(scores, pitch * i) for i in range(len(block))]
            _Block(p, form, rows, lines, place("k", head), place("v", head), scale).write()

    p.loop(p["begin"], p["end"], of_head)
    return p


def exponentiate(p: Program, scores: Value, best: Value, stop: Value) -> Value:
    """scores <- exp(scores - best), in whole vectors up to `stop`; returns their sum."""

    def some(j: Value, total: Values) -> Values:
        made = llvm_math.exp(p.load(at(scores, j), LANES) - best.splat(LANES))
        p.store(made, at(scores, j))
        return [total[0] + made]

    zero = p.code.constant(0.0, "float", LANES)
    return p.loop(0, stop, some, step=LANES, carried=[zero])[0].folded()


class _Block:
    """The program for some rows that share keys and values.

    places: of the rows in each array.  scores: places of theirs.  keys, values: places of the head.
    """

    def __init__(
        self,
        p: Program,
        form: Form,
        places: dict[str, list[Value]],
        scores: list[Value],
        keys: Value,
        values: Value,
        scale: Value,
    ) -> None:
        self.p, self.form, self.places, self.scores = p, form, places, scores
        self.keys, self.values, self.scale = keys, values, scale
        self.count = len(scores)

    def write(self) -> None:
        p = self.p
        lowest = p.code.constant(-math.inf, "float")
        stop = self._last_seen() if self.form.mask == "?" else p["columns"]
        best = [lowest] * self.count
        step = max(1, _SUMS // self.count)
        whole = stop & -step
        best = p.loop(0, whole, partial(self._score, step), step=step, carried=best)
        best = p.loop(whole, stop, partial(self._score, 1), carried=best)
        for i in range(self.count):
            p.store(lowest.splat(LANES), at(self.scores[i], stop))
            highest = best[i].compare("eq", -math.inf).choose(best[i].like(0.0), best[i])
            total = exponentiate(p, self.scores[i], highest, stop)
            p.store(highest + llvm_math.log(total), self.places["lse"][i])
            best[i] = 1.0 / total.compare("eq", 0.0).choose(total.like(1.0), total)
        self._gather(stop, best)

    def _last_seen(self) -> Value:
        """The number of columns up to the last one that any row sees."""
        p, apart = self.p, self.p["mask_c"]

        def are_hidden(first: Value, kind: str) -> Value:
            seen = p.number(0)
            for row in self.places["mask"]:
                seen = seen | p.integers(row + first * apart, kind, 1).to("i64")
            return seen.compare("eq", 0)

        def back(step: int, kind: str) -> None:
            def more(stop: Values) -> Value:
                first = stop[0] - step
                return first.compare("ge", 0) & are_hidden(
                    first.compare("ge", 0).choose(first, first.like(0)), kind
                )

            stops[:] = p.repeat(stops, more, lambda stop: [stop[0] - step])

        stops = [p["columns"]]
        if self.form.is_dense:
            # Fewer columns than that are looked at one by one.
            wide = p["columns"].compare("ge", _BYTES)
            stops = [p["columns"] * wide.to("i64", signed=False)]
            back(_BYTES, "i64")
            stops = [wide.choose(stops[0], p["columns"])]
        back(1, "i8")
        return stops[0]

    def _score(self, step: int, first: Value, best: Values) -> Values:
        """Scores of `step` columns; their largest ones so far."""
        p = self.p
        zero = p.code.constant(0.0, "float", LANES)
        sums = [[zero] * step for _ in self.scores]
        keys = [self.keys + (first + j) * p["k_r"] for j in range(step)]
        for vector in range(0, self.form.depth, LANES):
            rest = self.form.depth - vector

            def part(address: Value, vector: int = vector, rest: int = rest) -> Value:
                if rest >= LANES:
                    return p.load(at(address, vector), LANES)
                return p.load_first(p.number(rest), at(address, vector))

            own = [part(q) for q in self.places["q"]]
            for j, key in enumerate(keys):
                k = part(key)
                for i, q in enumerate(own):
                    sums[i][j] = q.times_plus(k, sums[i][j])
        for i, row in enumerate(sums):
            for j, total in enumerate(row):
                score = self._masked(total.folded() * self.scale, i, first + j)
                p.store(score, at(self.scores[i], first + j))
                best[i] = best[i].larger(score)
        return best

    def _masked(self, score: Value, i: int, column: Value) -> Value:
        if not self.form.mask:
            return score
        place = self.places["mask"][i] + column * self.p["mask_c"]
        if self.form.mask == "f":
            return score + self.p.load(place)
        return self.p.integer(place, "i8").compare("ne", 0).choose(score, -math.inf)

    def _gather(self, stop: Value, inverse: Values) -> None:
        """out <- probabilities @ values, some vectors of a row at a time."""
        p, width = self.p, self.form.width
        most = max(1, _SUMS // self.count)
        zero = p.code.constant(0.0, "float", LANES)
        for begin in range(0, width, most * LANES):
            firsts = list(range(begin, min(begin + most * LANES, width), LANES))

            def some(j: Value, sums: Values, firsts: list[int] = firsts) -> Values:
                line = self.values + j * p["v_r"]
                found = [
                    p.load(at(line, c), LANES)
                    if c + LANES <= width
                    else p.load_first(p.number(width - c), at(line, c))
                    for c in firsts
                ]
                made = []
                for i, scores in enumerate(self.scores):
                    share = p.load(at(scores, j)).splat(LANES)
                    for c, v in enumerate(found):
                        made.append(v.times_plus(share, sums[i * len(found) + c]))
                return made

            totals = p.loop(0, stop, some, carried=[zero] * (self.count * len(firsts)))
            for k, total in enumerate(totals):
                i, c = divmod(k, len(firsts))
                target, made = at(self.places["out"][i], firsts[c]), total * inverse[i].splat(LANES)
                if firsts[c] + LANES <= width:
                    p.store(made, target)
                else:
                    p.store_first(p.number(width - firsts[c]), made, target)
