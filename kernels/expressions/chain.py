"""Steps of a sequence in one call: a matrix product and the compiled loop of a formula by turns.

A step of a small recurrent layer takes 10 to 20 us, and as much again is lost where Python makes
the views and calls of each step. The machine code here calls the two others by their addresses. The
loop reads the addresses of its operands out of array objects (loops.py): it gets stand-ins, of
which only these fields are there.
"""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.kernels.array import DATA_AT, Array, data_address
from oneflow.kernels.expressions.binding import CompiledKernel
from oneflow.kernels.expressions.loops import ARRAY_NBYTES
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import BLOCK, MOST_ROWS, product
from oneflow.kernels.native.program import FLOAT_NBYTES, Program, Values, function_of, run

_NUMBERS = (
    "count", "step", "table", "end", "product", "tiles", "rows", "blocks", "elements", "row",
    "packed_block", "out_row", "adds", "a", "a_move", "packed", "out", "out_move",
)  # fmt: skip
"""The first numbers of the list that the code takes; then address and move of every operand."""


def _write(operands: int, product_first: bool) -> Program:
    moving = [f"{name}{i}" for i in range(operands) for name in ("operand", "move")]
    p = Program([*_NUMBERS, *moving])
    objects = [p.memory(ARRAY_NBYTES) for _ in range(operands)]

    def multiply(turn: Value) -> None:
        a, out = p["a"] + turn * p["a_move"], p["out"] + turn * p["out_move"]

        def of_block(number: Value, _: Values) -> None:
            def of_tile(tile: Value, _: Values) -> None:
                begin = p["rows"] * tile // p["tiles"]
                end = p["rows"] * (tile + 1) // p["tiles"]
                target = out + (number * BLOCK + begin * p["out_row"]) * FLOAT_NBYTES
                source = a + begin * p["row"] * FLOAT_NBYTES
                weights = p["packed"] + number * p["packed_block"] * FLOAT_NBYTES
                # Rows; steps of a and b: one plane, one segment; counts; adds.
                integers = [end - begin, p["row"], *map(p.number, (0, 0, 1, 0, 0, BLOCK))]
                integers += [p["out_row"], p.number(1), p.number(1), p["elements"], p["adds"]]
                p.call(p["product"], [target, source, weights], integers)

            p.loop(0, p["tiles"], of_tile)

        p.loop(0, p["blocks"], of_block)

    def step(turn: Value) -> None:
        for i, array in enumerate(objects):
            p.store(p[f"operand{i}"] + turn * p[f"move{i}"], array + DATA_AT)
        p.call(p["step"], [*objects, p["table"]], [p.number(0), p.number(0), p["end"]])

    def of_turn(number: Value, _: Values) -> None:
        for part in (multiply, step) if product_first else (step, multiply):
            part(number)

    p.loop(0, p["count"], of_turn)
    return p


def padded(columns: int) -> int:
    """Columns of a product's result: the last block is written whole."""
    return -(-columns // BLOCK) * BLOCK


def packed_shape(elements: int, columns: int) -> tuple[int, int, int]:
    """Shape of the array that `pack` fills."""
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

    product_first: else the loop comes first. adds: the product is added to the result.
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
        self._code = function_of(_write, len(self.positions), product_first)
        tiles = -(-rows // MOST_ROWS)
        self._first = [step, data_address(self._table), end, product(), tiles, rows]
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
        out[:, columns] <- a times the packed matrix, the columns of the last block included.
        """
        blocks, elements, _ = packed.shape
        numbers = [count, *self._first, blocks, elements, a[0].strides[0] // 4]
        numbers += [elements * BLOCK, out[0].strides[0] // 4, self._adds]
        numbers += [*_moving(a), data_address(packed), *_moving(out)]
        for i in self.positions:
            numbers += _moving(operands[i])
        run(self._code, [numbers])


def _moving(pair: tuple[Array, Array]) -> tuple[int, int]:
    first, following = map(data_address, pair)
    return first, following - first
