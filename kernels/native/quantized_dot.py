"""Products of a few rows by packed integers through the processor's dot products of bytes.

An instruction of AVX-512 VNNI multiplies 64 bytes without a sign by 64 with one and adds them up by
fours in 32 bits. Bytes without a sign are the integers of the weight as they lie, or halves of
them. Those with one are x: in each block of inputs it becomes integers of 16 bits, of which the
largest is 32512, in two bytes each. So a sum is off by the 65000th part of the block's largest
number for each of its terms, as if x had been rounded to 16 bits, and one vector of weights takes
two instructions, or seven for twice as many integers of 4 bits. That is faster than memory.

Zero points are taken away once for each group: the sum of the numbers of x that meet it is known.

Other processors, and groups that are no whole vectors, take the product of quantized.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.machine_code import machine
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
from oneflow.kernels.native.quantized import NAMES, Block, Form, write_product, write_turn
from oneflow.kernels.native.quantized import dequantize as dequantize
from oneflow.ops.quantized import zero_of

Shape = tuple[int, ...]
Function = Callable[[object], int]
Packed = tuple[Array, Array, Array | None]
"""Weight, scales, and zeros if there are any; all contiguous."""

_MOST_TASKS = 64
_BYTES = 4
"""Bytes of weights that take as long as one element of the loops by which threads are counted."""
_VECTOR = 64
"""Bytes of a vector."""
_LARGEST = 127.0 * 256
_MOST_STEPS = 8
"""Vectors of the weight in a block, if that is no group: they are written out."""


def product_of_rows(
    out: Array, x: Array, packed: Packed, bias: Array | None, bits: int, turned: Array
) -> None:
    """out (rows, n) <- x (rows, k) @ weight^T + bias. turned: memory of twice the size of x."""
    if not out.size:
        return
    weight, scales, zeros = packed
    turn, product, numbers = _programs(
        bits, x.shape, scales.shape, zeros is not None, bias is not None
    )
    steps, columns, _, outs = numbers
    at_x, at_turned = data_address(x), data_address(turned)
    if steps:
        run(turn, [(steps, columns, at_turned, at_x)])
    given = [
        *numbers, data_address(out), at_turned, at_x, data_address(weight), data_address(scales),
        0 if zeros is None else data_address(zeros), 0 if bias is None else data_address(bias),
    ]  # fmt: skip
    tasks = cut(outs, weight.size // _BYTES, _MOST_TASKS)
    run(product, [(*part, *given) for part in tasks])


@lru_cache(maxsize=1024)
def _programs(
    bits: int, x: Shape, scales: Shape, has_zeros: bool, has_bias: bool
) -> tuple[Function, Function, tuple[int, int, int, int]]:
    """(program that turns x, program of the product, first numbers of both) for these shapes."""
    (rows, columns), (outs, groups) = x, scales
    group = 0 if groups == 1 else columns // groups
    form = Form(bits, rows, group, False, has_zeros, has_bias)
    steps = columns // form.step if form.fits else 0
    block = _block_of(form, steps)
    form = form._replace(has_rest=steps * form.step < columns, block=block)
    ways = (_write_turn, _write_product) if block else (write_turn, write_product)
    turn, product = (function_of(write, form) for write in ways)
    return turn, product, (steps, columns, groups, outs)


def _block_of(form: Form, steps: int) -> int:
    """The vectors of the weight in a block; 0 if the processor has no such instructions, or groups
    are no such vectors."""
    is_alike = form.step * form.bits == 8 * _VECTOR
    if not machine().has_byte_dots or not is_alike or not steps or form.group % form.step:
        return 0
    if form.group:
        block = form.group // form.step
        return block if block <= _MOST_STEPS else 0
    return next(n for n in range(_MOST_STEPS, 0, -1) if steps % n == 0)


class _Row:
    """The places of a row of x: vectors of bytes, first the high ones; of each block its scale, and
    its sum times that."""

    def __init__(self, p: Program, form: Form, row: int) -> None:
        start = p["turned"] + p["columns"] * (2 * FLOAT_NBYTES * row)
        self.bytes = (start + (_VECTOR - 1)) & -_VECTOR
        self.scales = self.bytes + p["steps"] * (2 * form.step)
        self.sums = at(self.scales, p["steps"] // form.block)


def _write_turn(form: Form) -> Program:
    p = Program(("steps", "columns", "turned", "x"))
    step, parts = form.step, 8 // form.bits
    size = step * form.block

    def of_row(index: int, row: _Row, b: Value) -> None:
        source = at(p["x"], p["columns"] * index + b * size)
        vectors = [p.load(at(source, v * LANES), LANES) for v in range(size // LANES)]
        largest = vectors[0].absolute()
        for x in vectors[1:]:
            largest = largest.larger(x.absolute())
        while largest.lanes > 1:
            half = largest.lanes // 2
            largest = largest.part(0, half).larger(largest.part(half, half))
        scale = largest * (1 / _LARGEST)  # NaN if any number is
        inverse = scale.compare("gt", 0.0).choose(1.0 / scale, scale.like(0.0))
        total = p.code.constant(0, "i32", LANES)
        for t in range(form.block):
            whole = p.load(at(source, t * step), step) * inverse.splat(step)
            rounded = (whole + whole.like(0.5).with_sign_of(whole)).to("i32")
            for i in range(0, step, LANES):
                total = total + rounded.part(i, LANES)
            for j in range(parts):
                some = p.shuffled(rounded, rounded, range(j, step, parts))
                low = (some << 24).shift_signed(24)
                place = row.bytes + ((b * form.block + t) * parts + j) * (2 * _VECTOR)
                p.store(((some - low) >> 8).to("i8"), place)
                p.store(low.to("i8"), place + _VECTOR)
        p.store(scale, at(row.scales, b))
        p.store(scale * total.folded().to("float"), at(row.sums, b))

    for index in range(form.rows):
        p.each(p["steps"] // form.block, partial(of_row, index, _Row(p, form, index)))
    return p


def _write_product(form: Form) -> Program:
    p = Program(NAMES)
    outs = 4 if form.rows == 1 else 2
    own = (p["end"] - p["begin"] + (outs - 1)) // outs
    last = p["end"] - 1

    def some(first: Value, _: Values) -> None:
        places = [p.least(first + own * s, last) for s in range(outs)]
        for row in range(0, form.rows, 4):
            _DotBlock(p, form, places, range(row, min(row + 4, form.rows))).write()

    p.loop(p["begin"], p["begin"] + own, some)
    return p


class _DotBlock(Block):
    """The results of some rows of x in some columns."""

    def write(self) -> None:
        p, form = self.p, self.form
        self.places = [_Row(p, form, row) for row in self.rows]
        zero = p.code.constant(0.0, "float", LANES)
        away = [p.code.constant(0.0, "float")] * self.sums
        found = p.loop(0, p["steps"] // form.block, self._block, carried=[zero] * self.sums + away)
        totals, away = found[: self.sums], found[self.sums :]
        for i, (total, less) in enumerate(zip(totals, away, strict=True)):
            if not form.has_zeros:
                less = less * float(zero_of(form.bits))
            elif not form.group:
                less = less * self._zeros([self.outs[i // len(self.rows)]])[0].lane(0)
            totals[i] = total - (less * (1 / LANES)).splat(LANES)
            if not form.group:
                totals[i] = totals[i] * self._scale(self.outs[i // len(self.rows)]).splat(LANES)
        self._finish(totals)

    def _block(self, b: Value, values: Values) -> Values:
        p, form, count = self.p, self.form, len(self.rows)
        found = list(values)
        of_x = [p.load(at(row.scales, b)) for row in self.places]
        sums = [p.load(at(row.sums, b)) for row in self.places]
        for o, out in enumerate(self.outs):
            dots = self._dots(b, self.lines[o])
            place = out * p["groups"] + b
            own = self._scale(place) if form.group else None
            zeros = self._zeros([place])[0].lane(0) if form.group and form.has_zeros else None
            for r in range(count):
                i, scale, less = o * count + r, of_x[r], sums[r]
                if own is not None:
                    scale, less = scale * own, less * own
                if zeros is not None:
                    less = less * zeros
                found[i] = dots[r].to("float").times_plus(scale.splat(LANES), found[i])
                found[self.sums + i] = found[self.sums + i] + less
        return found

    def _dots(self, b: Value, line: Value) -> Values:
        """The products of a block of a row of the weight and of each row of x, as integers."""
        p, form, parts = self.p, self.form, 8 // self.form.bits
        nothing = p.code.constant(0, "i32", LANES)
        high, low = [nothing] * len(self.rows), [nothing] * len(self.rows)
        for t in range(form.block):
            step = b * form.block + t
            words = p.integers(line + step * _VECTOR, "i32", LANES)
            for j in range(parts):
                some = words if parts == 1 else (words >> (form.bits * j)) & 0x0F0F0F0F
                for r, row in enumerate(self.places):
                    place = row.bytes + (step * parts + j) * (2 * _VECTOR)
                    high[r] = _dot(p, high[r], some, p.integers(place, "i32", LANES))
                    low[r] = _dot(p, low[r], some, p.integers(place + _VECTOR, "i32", LANES))
        return [(x << 8) + y for x, y in zip(high, low, strict=True)]


def _dot(p: Program, total: Value, unsigned: Value, signed: Value) -> Value:
    name, kind = "@llvm.x86.avx512.vpdpbusd.512", total.type
    p.code.declarations[name] = f"declare {kind} {name}({kind}, {kind}, {kind})"
    given = ", ".join(f"{kind} {x.name}" for x in (total, unsigned, signed))
    return p.code.let(f"call {kind} {name}({given})", "i32", LANES)
