"""Products by `cblas_sgemm` of a library in this process, a block of rows or columns at a time, so
that the project's threads share them; the library itself is to take one thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.gemm import Shapes, Sizes, Strides, items_of
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.program import Program, Values, at, cut, function_of, run

_ROW_MAJOR, _AS_IT_IS, _TURNED = 101, 111, 112
_BLOCK = 256
"""Rows or columns of a call: fixed, so that no sum depends on threads."""
_MOST_TASKS = 64
_WORK = 10
_NAMES = (
    "blocks", "inner", "rows", "columns", "m", "n", "k", "turned_a", "turned_b", "a_outer",
    "a_inner", "a_row", "pitch_a", "b_outer", "b_inner", "b_column", "pitch_b", "out_outer",
    "out_inner", "pitch", "sgemm", "begin", "end", "a", "b", "out",
)  # fmt: skip


@dataclass(frozen=True)
class Library:
    """A library that multiplies. sgemm: address of its `cblas_sgemm`. integer: the type of its
    sizes, i32 or i64."""

    name: str
    version: str
    sgemm: int
    integer: str

    def multiply(self, a: Array, b: Array, out: Array, *, one_thread: bool = False) -> bool:
        """out <- a @ b; whether it was done: one of the last two strides of each must be 1."""
        shapes = a.shape, b.shape, out.shape
        found = _plan(shapes, (a.strides, b.strides, out.strides))
        if found is None:
            return False
        numbers, pieces, work = found
        function = function_of(_write, self.integer)
        given = [data_address(x) for x in (a, b, out)]
        ends = [(0, pieces)] if one_thread else cut(pieces, work, _MOST_TASKS)
        tasks = [[*numbers, self.sgemm, begin, end, *given] for begin, end in ends]
        run(function, tasks)
        return True


def _write(integer: str) -> Program:
    p = Program(_NAMES)

    def of_piece(piece: Value, _: Values) -> None:
        item, block = piece // p["blocks"], piece % p["blocks"]
        outer, inner = item // p["inner"], item % p["inner"]
        a, b, out = (
            at(p[x], outer * p[f"{x}_outer"] + inner * p[f"{x}_inner"]) for x in ("a", "b", "out")
        )
        row, column = block * p["rows"], block * p["columns"]
        rows = p["rows"].compare("gt", 0).choose(p.least(p["m"] - row, p["rows"]), p["m"])
        columns = (
            p["columns"].compare("gt", 0).choose(p.least(p["n"] - column, p["columns"]), p["n"])
        )
        a, b = at(a, row * p["a_row"]), at(b, column * p["b_column"])
        out = at(out, row * p["pitch"] + column)

        def size(x: Value) -> tuple[str, str]:
            return integer, x.to(integer).name

        def pointer(x: Value) -> tuple[str, str]:
            return "ptr", p.pointer(x)

        one, nothing = (p.code.constant(x, "float").name for x in (1.0, 0.0))
        p.call_library(
            p["sgemm"],
            ("i32", str(_ROW_MAJOR)),
            ("i32", p["turned_a"].to("i32").name),
            ("i32", p["turned_b"].to("i32").name),
            *(size(x) for x in (rows, columns, p["k"])),
            ("float", one), pointer(a), size(p["pitch_a"]), pointer(b), size(p["pitch_b"]),
            ("float", nothing), pointer(out), size(p["pitch"]),
        )  # fmt: skip

    p.loop(p["begin"], p["end"], of_piece)
    return p


def _operand(rows: int, columns: int, row: int, column: int) -> tuple[int, int] | None:
    """(the word for its order, its pitch) of a matrix with these strides."""
    if column == 1 and row >= columns:
        return _AS_IT_IS, row
    if row == 1 and column >= rows:
        return _TURNED, column
    if rows == 1 and column == 1:
        return _AS_IT_IS, columns
    if columns == 1 and row == 1:
        return _TURNED, rows
    return None


@lru_cache(maxsize=1024)
def _plan(shapes: Shapes, nbytes: Strides) -> tuple[Sizes, int, int] | None:
    """Numbers of the program but the address of the library, pieces and work."""
    found = items_of(shapes, nbytes)
    if found is None:
        return None
    (outer, outers), (inner, inners), (a, b, out) = found
    (m, k), n = shapes[0][-2:], shapes[1][-1]
    of_a, of_b = _operand(m, k, *a), _operand(k, n, *b)
    if of_a is None or of_b is None or out[0] < n:
        return None
    rows = columns = 0
    blocks = 1
    if m >= n and m > _BLOCK:
        rows, blocks = _BLOCK, -(-m // _BLOCK)
    elif n > _BLOCK:
        columns, blocks = _BLOCK, -(-n // _BLOCK)
    (a_outer, b_outer, out_outer), (a_inner, b_inner, out_inner) = outers, inners
    numbers = (
        blocks, inner, rows, columns, m, n, k, of_a[0], of_b[0], a_outer, a_inner, a[0], of_a[1],
        b_outer, b_inner, b[1], of_b[1], out_outer, out_inner, out[0],
    )  # fmt: skip
    return numbers, outer * inner * blocks, outer * inner * m * n * k // _WORK
