"""Products of a few rows by weights that lie row by row, at the pace of the memory.

Results are sums along the inner dim, and each weight is read once for several rows. A processor
fetches ahead where it is read on and on: columns that are taken at the same time lie far apart,
each at the begin of a stream of neighbours. Eight neighbours side by side, rows of 2 KB, came at
15 GB/s from a memory that four streams read at 27.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.operands import Form, of_item
from oneflow.kernels.native.product import LANES, REGISTERS
from oneflow.kernels.native.program import Program, Values, at

NAMES = (
    "chunks", "inner", "m", "n", "k", "a_outer", "a_inner", "a_row", "b_outer", "b_inner", "b_step",
    "out_outer", "out_inner", "pitch", "begin", "end", "bias", "a", "b", "out",
)  # fmt: skip
CHUNK = 128
"""Columns of a piece of work, a few pages of memory for each stream."""

_MOST_ROWS, _MOST_SUMS = (6, 24) if REGISTERS == 32 else (4, 12)
_MOST_STREAMS = 4


def rows_at_once(m: int) -> int:
    """Rows of which a weight is read once: more would leave too few streams, and the first cache
    would not hold them beside the weights."""
    return -(-m // -(-m // _MOST_ROWS))


def write(form: Form, rows: int, has_bias: bool) -> Program:
    """out[r][j] <- the sum over k of a[r][k] * b[j][k] (+ bias[j]), `rows` rows at once. Pieces are
    chunks of columns of an item. Behind the last row or column that one is repeated."""
    p = Program(NAMES, steps=True)
    streams = min(_MOST_STREAMS, _MOST_SUMS // rows)
    turns = max(1, LANES // (streams * rows))

    def of_piece(piece: Value, _: Values) -> None:
        item, chunk = piece // p["chunks"], piece % p["chunks"]
        outer, inner = item // p["inner"], item % p["inner"]
        a, b, out = of_item(p, form, outer, inner)
        left, right = (p["n"] * (chunk + i) // p["chunks"] for i in (0, 1))
        own = (right - left + (streams * turns - 1)) // (streams * turns) * turns

        def some(first: Value, row: Value, _: Values) -> None:
            found = [p.least(row + r, p["m"] - 1) for r in range(rows)]
            lines = [at(a, r * p["a_row"]) for r in found]
            columns: Values = []
            sums: Values = []
            for turn in range(turns):
                places = [p.least(first + own * s + turn, right - 1) for s in range(streams)]
                columns += places
                sums += _dots(p, form, lines, [at(b, j * p["b_step"]) for j in places])
            targets = [form.at(out, r * p["pitch"] + j) for j in columns for r in found]
            added = [p.load(at(p["bias"], j)) for j in columns for _ in found] if has_bias else []
            _put(p, form, sums, added, targets)

        def of_columns(first: Value, _: Values) -> None:
            p.loop(0, p["m"], partial(some, first), step=rows)

        p.loop(left, left + own, of_columns, step=turns)

    p.loop(p["begin"], p["end"], of_piece)
    return p


def _dots(p: Program, form: Form, lines: Values, columns: Values) -> Values:
    """The products of lines and columns, first those of all lines with the first column, each as
    a vector that is to be folded."""
    count = len(lines)
    steps = max(1, 8 // (count * len(columns)))

    def added(sums: Values, load: Callable[[Value], Value]) -> Values:
        found = list(sums)
        weights = [load(column) for column in columns]
        for r, line in enumerate(lines):
            x = load(line)
            for j, weight in enumerate(weights):
                found[j * count + r] = form.added(weight, x, found[j * count + r])
        return found

    def turn(some: int, k: Value, sums: Values) -> Values:
        for i in range(some):
            sums = added(sums, lambda x, i=i: p.load(at(x, k + i * LANES), LANES))  # type: ignore[misc]
        return sums

    sums = [p.code.constant(0.0, "float", LANES)] * (count * len(columns))
    most, whole = p["k"] & -(steps * LANES), p["k"] & -LANES
    sums = p.loop(0, most, partial(turn, steps), step=steps * LANES, carried=sums)
    if steps > 1:
        sums = p.loop(most, whole, partial(turn, 1), step=LANES, carried=sums)
    rest = p["k"] - whole
    return p.chosen(
        rest.compare("gt", 0),
        lambda: added(sums, lambda x: p.load_first(rest, at(x, whole))),
        lambda: sums,
    )


def _put(p: Program, form: Form, sums: Values, added: Values, targets: Values) -> None:
    """Fold as many sums together as a vector has lanes."""
    first = 0
    while first < len(sums):
        count = min(LANES, 1 << ((len(sums) - first).bit_length() - 1))
        made = p.folded(sums[first : first + count])
        for i in range(count):
            value = made.lane(i) if count > 1 else made
            value = value + added[first + i] if added else value
            form.store(p, value, targets[first + i])
        first += count
