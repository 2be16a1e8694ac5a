"""Convolution windows ("columns") with the samples innermost: image (C, H, W, samples), columns
(C, kernel, positions, samples).

So every copy is of whole runs of samples, for any stride, dilation and padding, and a whole chunk
of samples is one matrix product. With the positions innermost, as in the arrays themselves, runs
would be as short as a row of the image. For 96 samples of 16 x 8 x 8 into 32 channels at stride 2,
one thread: columns 14 us, the product 120, the transposes on both sides 25.
"""

from __future__ import annotations

from collections.abc import Callable

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import LANES
from oneflow.kernels.native.program import Program, Values, at, cut, function_of, run
from oneflow.ops.conv import Sizes

_MOST_TASKS = 64
_AT_ONCE = 4
"""Vectors that are added to sums of their own: one sum would wait for itself."""
_COLUMN_NAMES = (
    "begin", "end", "kernel_h", "kernel_w", "out_h", "out_w", "height", "width", "n",
    "stride_h", "stride_w", "top", "left", "apart_h", "apart_w", "columns", "image",
)  # fmt: skip


def _runs(p: Program, c: Value, i: Value, visit: Callable[[Value, Value, Value], None]) -> None:
    """`visit(run of columns, run of the image, is there one?)` of a row of the window."""

    def of_column(j: Value) -> None:
        def of_row(a: Value) -> None:
            h = a * p["stride_h"] + i * p["apart_h"] - p["top"]

            def of_position(b: Value) -> None:
                w = b * p["stride_w"] + j * p["apart_w"] - p["left"]
                is_there = h.compare("ge", 0) & h.compare("lt", p["height"])
                is_there = is_there & w.compare("ge", 0) & w.compare("lt", p["width"])
                tap = (c * p["kernel_h"] + i) * p["kernel_w"] + j
                place = ((tap * p["out_h"] + a) * p["out_w"] + b) * p["n"]
                source = ((c * p["height"] + h) * p["width"] + w) * p["n"]
                visit(at(p["columns"], place), at(p["image"], source), is_there)

            p.each(p["out_w"], of_position)

        p.each(p["out_h"], of_row)

    p.each(p["kernel_w"], of_column)


def _write_to_columns() -> Program:
    p = Program(_COLUMN_NAMES)

    def visit(column: Value, image: Value, is_there: Value) -> None:
        def copy() -> None:
            def some(s: Value, _: Values) -> None:
                rest = p["n"] - s
                p.store_first(rest, p.load_first(rest, at(image, s)), at(column, s))

            p.loop(0, p["n"], some, step=LANES)

        p.either(is_there, copy, lambda: p.zero(column, p["n"]))

    def of_row(row: Value, _: Values) -> None:
        _runs(p, row // p["kernel_h"], row % p["kernel_h"], visit)

    p.loop(p["begin"], p["end"], of_row)
    return p


def _write_from_columns() -> Program:
    p = Program(_COLUMN_NAMES)

    def visit(column: Value, image: Value, is_there: Value) -> None:
        def add() -> None:
            def some(s: Value, _: Values) -> None:
                rest, here = p["n"] - s, at(image, s)
                p.store_first(
                    rest, p.load_first(rest, here) + p.load_first(rest, at(column, s)), here
                )

            p.loop(0, p["n"], some, step=LANES)

        p.when(is_there, add)

    def of_channel(c: Value, _: Values) -> None:
        size = p["height"] * p["width"] * p["n"]
        p.zero(at(p["image"], c * size), size)
        p.each(p["kernel_h"], lambda i: _runs(p, c, i, visit))

    p.loop(p["begin"], p["end"], of_channel)
    return p


def _run(
    write: Callable[[], Program], pieces: int, columns: Array, image: Array, stride: Sizes,
    padding: Sizes, dilation: Sizes,
) -> None:  # fmt: skip
    fixed = [*columns.shape[1:5], *image.shape[1:], *stride, *padding, *dilation]
    fixed += [data_address(columns), data_address(image)]
    parts = cut(pieces, columns.size, _MOST_TASKS)
    run(function_of(write), [[begin, end, *fixed] for begin, end in parts])


def to_columns(
    columns: Array, image: Array, stride: Sizes, padding: Sizes, dilation: Sizes
) -> None:
    """columns (C, KH, KW, OH, OW, n) <- image (C, H, W, n); zeros where a window leaves the image.

    stride, padding, dilation: pairs of integers.
    """
    pieces = columns.shape[0] * columns.shape[1]
    _run(_write_to_columns, pieces, columns, image, stride, padding, dilation)


def from_columns(
    image: Array, columns: Array, stride: Sizes, padding: Sizes, dilation: Sizes
) -> None:
    """The transpose of `to_columns`: every column is added where it came from. Threads share the
    channels, so sums have one order.
    """
    _run(_write_from_columns, columns.shape[0], columns, image, stride, padding, dilation)


def _write_channel_sums() -> Program:
    p = Program(("begin", "end", "samples", "channels", "positions", "out", "x"))
    zeros = p.code.constant(0.0, "float", LANES)

    def of_channel(c: Value, _: Values) -> None:
        def of_sample(n: Value, total: Values) -> Values:
            begin = at(p["x"], (n * p["channels"] + c) * p["positions"])
            whole = p["positions"] & -(_AT_ONCE * LANES)

            def many(k: Value, parts: Values) -> Values:
                places = (at(begin, k + i * LANES) for i in range(_AT_ONCE))
                return [a + p.load(b, LANES) for a, b in zip(parts, places, strict=True)]

            def some(k: Value, part: Values) -> Values:
                return [part[0] + p.load_first(p["positions"] - k, at(begin, k))]

            parts = p.loop(0, whole, many, step=_AT_ONCE * LANES, carried=[zeros] * _AT_ONCE)
            while len(parts) > 1:
                parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
            (part,) = p.loop(whole, p["positions"], some, step=LANES, carried=parts)
            return [total[0] + part.to("double")]

        start = p.code.constant(0.0, "double", LANES)
        (total,) = p.loop(0, p["samples"], of_sample, carried=[start])
        p.store(total.folded().to("float"), at(p["out"], c))

    p.loop(p["begin"], p["end"], of_channel)
    return p


def channel_sums(out: Array, x: Array) -> None:
    """out (C,) <- sums of x (N, C, positions) over the others; of samples in float64, because there
    may be very many.
    """
    fixed = [*x.shape, data_address(out), data_address(x)]
    parts = cut(x.shape[1], x.size, _MOST_TASKS)
    run(function_of(_write_channel_sums), [[begin, end, *fixed] for begin, end in parts])


def _write_transpose() -> Program:
    p = Program(("begin", "end", "rows", "columns", "width", "out", "x"))

    def of_block(block: Value, _: Values) -> None:
        first = block * p["width"]
        count = p.least(p["columns"] - first, p["width"])
        target, source = at(p["out"], first * p["rows"]), at(p["x"], first)
        shape, pitches = (p["rows"], count), (p["rows"], p["columns"])
        p.transpose(target, source, shape, pitches, rows_first=True)

    p.loop(p["begin"], p["end"], of_block)
    return p


def transpose(out: Array, x: Array) -> None:
    """out (columns, rows) <- x (rows, columns), both contiguous float32."""
    rows, columns = x.shape
    # Lines of the cache hold 16 floats, which long rows of x use at once. Long rows of out must do
    # with 8: 16 of them, a power of two apart, do not fit the cache together.
    width = 16 if columns >= rows else 8
    fixed = [rows, columns, width, data_address(out), data_address(x)]
    parts = cut(-(-columns // width), out.size, _MOST_TASKS)
    run(function_of(_write_transpose), [[begin, end, *fixed] for begin, end in parts])
