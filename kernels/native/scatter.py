"""Additions of rows at indices, as in the gradient of an embedding."""

from __future__ import annotations

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import BITS, Value
from oneflow.kernels.native.program import INT_NBYTES, Program, Values, cut, function_of, run

_ELEMENTS = {"float32": "float", "float64": "double"}
_LEAST_COLUMNS = 16
"""Columns for which a thread is worth waking."""


def _write_add_rows(element: str) -> Program:
    p = Program((
        "begin", "end", "before", "size", "after", "count", "offset", "target", "source", "index",
    ), element)  # fmt: skip
    nbytes, after = BITS[element] // 8, p["after"]

    def of_first(a: Value) -> None:
        def of_row(k: Value) -> None:
            row = p.integer(p["index"] + k * INT_NBYTES) - p["offset"]

            def add() -> None:
                to = p["target"] + (a * p["size"] + row) * after * nbytes
                begin = p["source"] + (a * p["count"] + k) * after * nbytes

                def some(j: Value, _: Values) -> None:
                    rest, here = p["end"] - j, to + j * nbytes
                    total = p.load_first(rest, here) + p.load_first(rest, begin + j * nbytes)
                    p.store_first(rest, total, here)

                p.loop(p["begin"], p["end"], some, step=p.lanes)

            p.when(row.compare("ge", 0) & row.compare("lt", p["size"]), add)

        p.each(p["count"], of_row)

    p.each(p["before"], of_first)
    return p


def add_rows(target: Array, source: Array, index: Array, offset: int) -> None:
    """target[a, index[k] - offset] += source[a, k] for every k, in order; indices outside are left
    out.

    target: (before, size, after), source: (before, len(index), after), both of float32 or of
    float64. index: int64. All contiguous. Threads share the columns of `after`, not the rows, so
    that equal indices never meet and sums have one order.
    """
    before, size, after = target.shape
    fixed = [before, size, after, index.size, offset]
    fixed += [data_address(a) for a in (target, source, index)]
    parts = cut(after, source.size, max(1, after // _LEAST_COLUMNS))
    function = function_of(_write_add_rows, _ELEMENTS[target.dtype.name])
    run(function, [[begin, end, *fixed] for begin, end in parts])
