"""Sums, largest and smallest numbers of float32 arrays along neighbouring dims.

The array is (outer, size, inner), of which `size` goes. Vectors of numbers are put together side by
side, rows of the innermost dim at the end their lanes. Sums are made of blocks and of chunks, whose
sums are added up again: no chain is longer than some hundred terms for each level. The order
depends on the shape alone, not on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.columns import channel_sums
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import LANES
from oneflow.kernels.native.program import Program, Values, at, cut, function_of, run

__all__ = ["channel_sums", "fits", "num_chunks", "reduce"]

SUM, LARGEST, SMALLEST = "sum", "largest", "smallest"
_START = {SUM: 0.0, LARGEST: float("-inf"), SMALLEST: float("inf")}
_TERMS = 32
"""Terms of a chain in a block."""
_CHUNK = 1 << 16
"""Elements of a chunk, whose result is put together with those of the others."""
_LEAST_ROWS = 64
_ALONG, _ACROSS = 8, 4
"""Vectors side by side, in a row and of several columns."""
_MOST_TASKS = 64


def _both(function: str, a: Value, b: Value) -> Value:
    if function == SUM:
        return a + b
    return a.larger(b) if function == LARGEST else a.smaller(b)


def _all(function: str, values: Values) -> Value:
    """Values put together, halves first."""
    while len(values) > 1:
        half = len(values) // 2
        pairs = zip(values[:half], values[half : 2 * half], strict=True)
        values = [_both(function, a, b) for a, b in pairs] + values[2 * half :]
    return values[0]


def _in_blocks(
    p: Program, function: str, count: Value, vectors: int, load: Callable[[Value, int], Value]
) -> Values:
    """`load(i, v)` put together for each v over i below `count`, in blocks of _TERMS."""
    start = p.code.constant(_START[function], "float", LANES)

    def turn(i: Value, sums: Values) -> Values:
        return [_both(function, x, load(i, v)) for v, x in enumerate(sums)]

    def of_block(first: Value, sums: Values) -> Values:
        own = p.loop(first, first + _TERMS, turn, carried=[start] * vectors)
        return [_both(function, a, b) for a, b in zip(sums, own, strict=True)]

    whole = count & -_TERMS
    sums = p.loop(0, whole, of_block, step=_TERMS, carried=[start] * vectors)
    own = p.loop(whole, count, turn, carried=[start] * vectors)
    return [_both(function, a, b) for a, b in zip(sums, own, strict=True)]


def _write_rows(function: str) -> Program:
    """out[row][chunk] <- x[row][of the chunk]."""
    p = Program(("begin", "end", "chunks", "size", "x", "out"))

    def of_piece(piece: Value, _: Values) -> None:
        row, chunk = piece // p["chunks"], piece % p["chunks"]
        start, stop = (p["size"] * (chunk + i) // p["chunks"] for i in (0, 1))
        line, count = at(p["x"], row * p["size"] + start), stop - start
        step = _ALONG * LANES
        wide = _in_blocks(
            p, function, count // step, _ALONG,
            lambda i, v: p.load(at(line, i * step + v * LANES), LANES),
        )  # fmt: skip
        sums, done = _all(function, wide), count // step * step

        def further(i: Value, carried: Values) -> Values:
            return [_both(function, carried[0], p.load(at(line, i), LANES))]

        whole = count & -LANES
        (sums,) = p.loop(done, whole, further, step=LANES, carried=[sums])
        rest = p.load_first(count - whole, at(line, whole), _START[function])
        found = _both(function, sums, rest)
        while found.lanes > 1:
            half = found.lanes // 2
            found = _both(function, found.part(0, half), found.part(half, half))
        p.store(found, at(p["out"], piece))

    p.loop(p["begin"], p["end"], of_piece)
    return p


def _write_columns(function: str) -> Program:
    """out[outer][chunk][column] <- x[outer][of the chunk][column]. Pieces are blocks of columns."""
    p = Program(("begin", "end", "blocks", "chunks", "size", "inner", "x", "out"))
    width = _ACROSS * LANES

    def of_piece(piece: Value, _: Values) -> None:
        item, first = piece // p["blocks"], piece % p["blocks"] * width
        outer, chunk = item // p["chunks"], item % p["chunks"]
        start, stop = (p["size"] * (chunk + i) // p["chunks"] for i in (0, 1))
        source = at(p["x"], (outer * p["size"] + start) * p["inner"] + first)
        target, rest = at(p["out"], item * p["inner"] + first), p["inner"] - first

        def some(is_whole: bool) -> None:
            def load(i: Value, v: int) -> Value:
                place = at(source, i * p["inner"] + v * LANES)
                return p.load(place, LANES) if is_whole else p.load_first(rest - v * LANES, place)

            found = _in_blocks(p, function, stop - start, _ACROSS, load)
            for v, value in enumerate(found):
                place = at(target, v * LANES)
                if is_whole:
                    p.store(value, place)
                else:
                    p.store_first(rest - v * LANES, value, place)

        p.either(rest.compare("ge", width), partial(some, True), partial(some, False))

    p.loop(p["begin"], p["end"], of_piece)
    return p


def num_chunks(size: int, inner: int) -> int:
    """Chunks of `size` whose results are put together in a second pass; 1: there is none."""
    rows = _CHUNK if inner == 1 else max(_LEAST_ROWS, _CHUNK // inner)
    return -(-size // rows)


def fits(inner: int) -> bool:
    """Whether rows fill vectors."""
    return inner == 1 or inner >= LANES


def reduce(function: str, out: Array, x: Array, sizes: tuple[int, int, int], work: Array) -> None:
    """out (outer, inner) <- the function of x (outer, size, inner), contiguous and not empty.
    work: (outer, `num_chunks`, inner) if there are several."""
    outer, size, inner = sizes
    chunks = num_chunks(size, inner)
    _pass(function, out if chunks == 1 else work, x, sizes, chunks)
    if chunks > 1:
        _pass(function, out, work, (outer, chunks, inner), 1)


def _pass(function: str, out: Array, x: Array, sizes: tuple[int, int, int], chunks: int) -> None:
    outer, size, inner = sizes
    if inner == 1:
        write, pieces, numbers = _write_rows, outer * chunks, [chunks, size]
    else:
        blocks = -(-inner // (_ACROSS * LANES))
        write, pieces = _write_columns, outer * chunks * blocks
        numbers = [blocks, chunks, size, inner]
    numbers += [data_address(x), data_address(out)]
    tasks = cut(pieces, outer * size * inner, _MOST_TASKS)
    run(function_of(write, function), [[begin, end, *numbers] for begin, end in tasks])
