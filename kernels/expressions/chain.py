"""Steps of a sequence in one call: a matrix product and the compiled loop of a formula by turns.

A step of a small recurrent layer takes 10 to 20 us, and as much again is lost where Python makes
the views and calls of each step. The machine code here calls the two others by their addresses. The
loop reads the addresses of its operands out of array objects (loops.py): it gets stand-ins, of
which only these fields are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from oneflow.kernels.array import Array
from oneflow.kernels.expressions.binding import CompiledKernel
from oneflow.kernels.expressions.llvm_code import Code, Value
from oneflow.kernels.expressions.loops import ARRAY_DATA_AT, ARRAY_NBYTES
from oneflow.kernels.expressions.native import address_of, function_at
from oneflow.kernels.expressions.product import BLOCK, MOST_ROWS, product

_NUMBERS = (
    "count", "step", "table", "end", "product", "tiles", "rows", "blocks", "elements", "row",
    "packed_block", "out_row", "adds", "a", "a_move", "packed", "out", "out_move",
)  # fmt: skip
"""The first numbers of the list that the code takes; then address and move of every operand."""


def _text(operands: int, product_first: bool) -> str:
    """LLVM IR of `void f(int64 *numbers)`."""
    code = Code()
    code.label("entry")
    place = {name: i for i, name in enumerate(_NUMBERS)}

    def number(i: int) -> Value:
        at = code.let(f"getelementptr i64, ptr %numbers, i64 {i}", "ptr")
        return code.let(f"load i64, ptr {at.name}", "i64")

    n = {name: number(i) for name, i in place.items()}
    first = len(_NUMBERS)
    given = [(number(first + 2 * i), number(first + 2 * i + 1)) for i in range(operands)]
    objects = [code.let(f"alloca [{ARRAY_NBYTES} x i8], align 16", "ptr") for _ in given]
    fields = [
        code.let(f"getelementptr i8, ptr {o.name}, i64 {ARRAY_DATA_AT}", "ptr") for o in objects
    ]
    pointers = {
        name: code.let(f"inttoptr i64 {n[name].name} to ptr", "ptr")
        for name in ("step", "table", "product")
    }
    block = "entry"

    def loop(count: Value, body: Callable[[Value], None]) -> None:
        nonlocal block
        name = code.fresh("turn")
        before, counter, following = block, f"%i_{name}", f"%next_{name}"
        code.do(f"br label %{name}")
        code.label(name)
        at = len(code.lines)
        code.do("phi")  # written below, when the block that comes back is known
        block = name
        body(Value(code, counter, "i64"))
        code.do(f"{following} = add i64 {counter}, 1")
        code.lines[at] = f"  {counter} = phi i64 [ 0, %{before} ], [ {following}, %{block} ]"
        more = code.let(f"icmp slt i64 {following}, {count.name}", "i1")
        code.do(f"br i1 {more.name}, label %{name}, label %after_{name}")
        code.label(f"after_{name}")
        block = f"after_{name}"

    def multiply(turn: Value) -> None:
        a, out = n["a"] + turn * n["a_move"], n["out"] + turn * n["out_move"]

        def of_block(number: Value) -> None:
            def of_tile(tile: Value) -> None:
                begin = code.let(f"sdiv i64 {(n['rows'] * tile).name}, {n['tiles'].name}", "i64")
                end = code.let(
                    f"sdiv i64 {(n['rows'] * (tile + 1)).name}, {n['tiles'].name}", "i64"
                )
                target = out + (number * BLOCK + begin * n["out_row"]) * 4
                source = a + begin * n["row"] * 4
                weights = n["packed"] + number * n["packed_block"] * 4
                listed = [
                    code.let(f"inttoptr i64 {x.name} to ptr", "ptr")
                    for x in (target, source, weights)
                ]
                parts = [f"ptr {x.name}" for x in listed]
                # Rows; steps of a and b: one plane, one segment; counts; adds.
                integers = [(end - begin).name, n["row"].name, "0", "0", "1", "0", "0", str(BLOCK)]
                integers += [n["out_row"].name, "1", "1", n["elements"].name, n["adds"].name]
                parts += [f"i64 {x}" for x in integers]
                code.do(f"call void {pointers['product'].name}({', '.join(parts)})")

            loop(n["tiles"], of_tile)

        loop(n["blocks"], of_block)

    def step(turn: Value) -> None:
        for (address, move), field in zip(given, fields, strict=True):
            code.do(f"store i64 {(address + turn * move).name}, ptr {field.name}")
        parts = [f"ptr {o.name}" for o in objects]
        parts += [f"ptr {pointers['table'].name}", "i64 0", "i64 0", f"i64 {n['end'].name}"]
        code.let(f"call i32 {pointers['step'].name}({', '.join(parts)})", "i32")

    def turn(number: Value) -> None:
        for part in (multiply, step) if product_first else (step, multiply):
            part(number)

    loop(n["count"], turn)
    code.do("ret i32 0")
    lines = ["define i32 @KERNEL(ptr %numbers) nounwind {", *code.lines, "}"]
    return "\n".join([*code.declarations.values(), *lines, ""])


@cache
def _code(operands: int, product_first: bool) -> int:
    return address_of(_text(operands, product_first))


def padded(columns: int) -> int:
    """Columns of a product's result: the last block is written whole."""
    return -(-columns // BLOCK) * BLOCK


def packed_shape(elements: int, columns: int) -> tuple[int, int, int]:
    """Shape of what `pack` fills."""
    return padded(columns) // BLOCK, elements, BLOCK


def pack(packed: Array, b: Array) -> None:
    """packed <- b (elements, columns) in blocks of columns, zeros behind the last one."""
    elements, columns = b.shape
    whole = columns // BLOCK
    blocks = b[:, : whole * BLOCK].reshape(elements, whole, BLOCK)
    packed[:whole] = blocks.swapaxes(0, 1)
    if whole < len(packed):
        packed[whole] = 0
        packed[whole, :, : columns - whole * BLOCK] = b[:, whole * BLOCK :]


class Chain:
    """Turns of a product of `rows` rows and a loop over arrays with the strides of `operands`.

    product_first: else the loop comes first. adds: the product is added to what is there.
    """

    def __init__(
        self,
        kernel: CompiledKernel,
        operands: Sequence[Array],
        rows: int,
        product_first: bool,
        adds: bool,
    ) -> None:
        self.positions = kernel.positions
        step, self._table, end = kernel.fixed_call(operands)
        self._code = function_at(_code(len(self.positions), product_first))
        tiles = -(-rows // MOST_ROWS)
        self._first = [step, self._table.ctypes.data, end, product(), tiles, rows]
        self._adds = int(adds)

    def run(
        self,
        count: int,
        packed: Array,
        a: tuple[Array, Array],
        out: tuple[Array, Array],
        operands: Sequence[tuple[Array, Array]],
    ) -> None:
        """`count` turns. Pairs are of the first turn and the one after it; the products are
        out[:, columns] <- a times what was packed, the columns of the last block included.
        """
        blocks, elements, _ = packed.shape
        numbers = [count, *self._first, blocks, elements, a[0].strides[0] // 4]
        numbers += [elements * BLOCK, out[0].strides[0] // 4, self._adds]
        numbers += [*_moving(a), packed.ctypes.data, *_moving(out)]
        for i in self.positions:
            numbers += _moving(operands[i])
        table = np.array(numbers, np.int64)
        self._code(table.ctypes.data)


def _moving(pair: tuple[Array, Array]) -> tuple[int, int]:
    first, following = (int(x.__array_interface__["data"][0]) for x in pair)
    return first, following - first
