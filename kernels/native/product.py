"""Products of a few rows by a few vectors of columns, whose sums stay in vector registers.

The innermost loop of convolutions that gather no windows (direct.py): the operands lie
where they lie, with steps between them, so that a window of an image is a row like any other.
LLVM's vectorizer does not find this loop; written with vectors of its own it runs at 80 to 90 % of
the processor's peak (180 of 210 GF/s with AVX-512).
"""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm
from llvmlite import ir

from oneflow.kernels.native.machine_code import address_of


def _registers() -> tuple[int, int]:
    """(floats of a vector register, number of vector registers) of this processor."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 32
    if features.get("avx2"):
        return 8, 16
    return 4, 32 if llvm.get_default_triple().startswith("aarch64") else 16


LANES, REGISTERS = _registers()
VECTORS = 2
BLOCK = VECTORS * LANES
"""Columns of a product."""

MOST_ROWS = (REGISTERS - VECTORS - 2) // VECTORS
"""Rows of a product: the sums, one row of columns and a number fill the registers. Two vectors and
14 rows read 128 bytes of columns for 28 multiplications; four vectors and 6 rows read twice as
much, more than the second cache delivers."""

Values = list[ir.Value]
Steps = list[tuple[ir.Value, ir.Value]]
"""Steps of a and b in every loop."""

_FLOAT, _INT = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_FAST = ("contract",)  # rounded once, where the processor can


class _Loops:
    """Code of one product with `rows` rows.

    a_steps, b_steps: between planes, segments and elements. a_row, out_row: between rows.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        rows: int,
        pointers: Values,
        a_row: ir.Value,
        out_row: ir.Value,
        steps: Steps,
    ) -> None:
        self.builder, self.rows, self.steps = builder, rows, steps
        self.a, self.b, self.out = pointers
        self.a_row, self.out_row = a_row, out_row

    def _at(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.gep(pointer, [index])

    def _vector(self, pointer: ir.Value, number: int) -> ir.Value:
        start = self._at(pointer, ir.Constant(_INT, number * LANES))
        return self.builder.bitcast(start, _VECTOR.as_pointer())

    def _load(self, pointer: ir.Value, number: int) -> ir.Value:
        value = self.builder.load(self._vector(pointer, number))
        value.align = 4
        return value

    def write(self, counts: Values, adds: ir.Value, done: ir.Block) -> None:
        """Write the loops over planes, segments and elements, then jump to `done`."""
        sums = [ir.Constant(_VECTOR, None)] * (self.rows * VECTORS)
        self._store(self._loop(counts, self.steps, [self.a, self.b], sums), adds)
        self.builder.branch(done)

    def _loop(self, counts: Values, steps: Steps, pointers: Values, sums: Values) -> Values:
        """The sums after all loops of `counts`, each of at least one turn."""
        if not counts:
            return self._element(pointers, sums)
        builder, before = self.builder, self.builder.block
        loop, after = (builder.append_basic_block() for _ in range(2))
        builder.branch(loop)
        builder.position_at_end(loop)
        turn = builder.phi(_INT)
        turn.add_incoming(ir.Constant(_INT, 0), before)
        phis = [builder.phi(value.type) for value in (*pointers, *sums)]
        for phi, value in zip(phis, (*pointers, *sums), strict=True):
            phi.add_incoming(value, before)
        found = self._loop(counts[1:], steps[1:], phis[:2], phis[2:])
        moved = [self._at(p, step) for p, step in zip(phis[:2], steps[0], strict=True)]
        following = builder.add(turn, ir.Constant(_INT, 1))
        for phi, value in zip((turn, *phis), (following, *moved, *found), strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, counts[0]), loop, after)
        builder.position_at_end(after)
        return found

    def _element(self, pointers: Values, sums: Values) -> Values:
        """The sums with the products of one element of each row and one row of columns."""
        builder, (a, b) = self.builder, pointers
        columns = [self._load(b, v) for v in range(VECTORS)]
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        found, at = [], a
        for row in range(self.rows):
            if row:
                at = self._at(a, builder.mul(self.a_row, ir.Constant(_INT, row)))
            one = builder.insert_element(
                ir.Constant(_VECTOR, ir.Undefined),
                builder.load(at),
                ir.Constant(ir.IntType(32), 0),
            )
            number = builder.shuffle_vector(one, one, lanes)
            for v in range(VECTORS):
                product = builder.fmul(number, columns[v], flags=_FAST)
                found.append(builder.fadd(product, sums[row * VECTORS + v], flags=_FAST))
        return found

    def _store(self, sums: Values, adds: ir.Value) -> None:
        builder = self.builder
        add, put, after = (builder.append_basic_block() for _ in range(3))
        builder.cbranch(builder.icmp_signed("!=", adds, ir.Constant(_INT, 0)), add, put)
        for block, is_sum in ((add, True), (put, False)):
            builder.position_at_end(block)
            for row in range(self.rows):
                at = self._at(self.out, builder.mul(self.out_row, ir.Constant(_INT, row)))
                for v in range(VECTORS):
                    value = sums[row * VECTORS + v]
                    if is_sum:
                        value = builder.fadd(value, self._load(at, v))
                    builder.store(value, self._vector(at, v)).align = 4
            builder.branch(after)
        builder.position_at_end(after)


_NUM_INTEGERS = 13
"""Integers of `multiply`: rows; steps of a between rows, planes, segments and elements; of b
between the last three; of out between rows; three counts; adds."""


def _text() -> str:
    """LLVM IR of the product: pointers to out, a and b, then the integers."""
    module = ir.Module()
    kinds = [_FLOAT.as_pointer()] * 3 + [_INT] * _NUM_INTEGERS
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), "KERNEL")
    out, a, b, rows, a_row, *steps = function.args[:11]
    out_row, *counts, adds = function.args[11:]
    builder = ir.IRBuilder(function.append_basic_block())
    done = builder.append_basic_block()
    choice = builder.switch(rows, done)
    for number in range(1, MOST_ROWS + 1):
        block = builder.append_basic_block()
        choice.add_case(ir.Constant(_INT, number), block)
        builder.position_at_end(block)
        pairs = list(zip(steps[:3], steps[3:], strict=True))
        _Loops(builder, number, [a, b, out], a_row, out_row, pairs).write(counts, adds, done)
    builder.position_at_end(done)
    builder.ret_void()
    return str(module).replace('@"KERNEL"(', "@KERNEL(")


@cache
def product() -> int:
    """Address of the machine code, which `multiply` takes: compiled once, by itself, because numba
    would compile it again with each function that calls it, for seconds."""
    return address_of(_text())
