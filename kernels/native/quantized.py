"""Products of a few rows by packed integers, and packed integers as floats, as programs.

The time of a product with few rows is that of reading the weight, so every byte is read once and
becomes floats in registers. A register holds L words of 32 bits, and a word 8 or 4 neighbouring
integers. The j-th integer of each word is masked where it stands, which leaves 2^(bits * j) times
its value: exact as a float, and made up for by x, of which the numbers that meet the j-th integers
lie side by side, divided by that power ("turned", by a program of its own). So a vector of weights
takes three instructions: mask, convert, multiply and add. Zero points cost none: each sum starts at
minus the zero point times the sum of the numbers of x that meet the word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import LANES, REGISTERS
from oneflow.kernels.native.program import (
    Program,
    Values,
    at,
    cut,
    function_of,
    run,
)
from oneflow.ops.quantized import zero_of

_WORD = 32
_MOST_TASKS = 64

_CHUNK = 32
"""Integers that become floats at once."""

_MOST_STEPS = 8
"""Steps of a group that are written out: a loop of few turns costs more than its body saves."""


NAMES = (
    "begin", "end", "steps", "columns", "groups", "outs", "out", "turned", "x", "weight", "scales",
    "zeros", "bias",
)  # fmt: skip
"""Numbers of a product."""


class Form(NamedTuple):
    """Facts of a product by which its program differs.

    rows: of x. group: inputs of a group, 0 if a row of the weight is one. block: vectors of the
    weight that share a scale of x, see quantized_dot.py; 0 if x stays floats.
    """

    bits: int
    rows: int
    group: int
    has_rest: bool
    has_zeros: bool
    has_bias: bool
    block: int = 0

    @property
    def per_word(self) -> int:
        return _WORD // self.bits

    @property
    def step(self) -> int:
        """Integers of one register."""
        return self.per_word * LANES

    @property
    def turned(self) -> int:
        """Floats of x in one step: the start of the sum, then a vector for each place of a word."""
        return (self.per_word + 1) * LANES

    @property
    def fits(self) -> bool:
        """Do groups and registers begin together, again and again?"""
        is_part = not self.step % (self.group or 1) and not self.group % self.per_word
        return not self.group % self.step or is_part

    @property
    def outs(self) -> int:
        """Rows of the weight that are read at once: their sums take half of the registers."""
        return max(1, min(4, REGISTERS // 4 // min(self.rows, 4)))


def write_turn(form: Form) -> Program:
    p = Program(("steps", "columns", "turned", "x"))
    count, bits = form.per_word, form.bits

    def of_row(row: Value) -> None:
        def of_step(t: Value) -> None:
            source = at(p["x"], row * p["columns"] + t * form.step)
            target = at(p["turned"], (row * p["steps"] + t) * form.turned)
            x = p.load(source, form.step)
            parts = [p.shuffled(x, x, range(j, form.step, count)) for j in range(count)]
            whole = parts[0]
            for part in parts[1:]:
                whole = whole + part
            p.store(whole * (-1.0 if form.has_zeros else -float(zero_of(bits))), target)
            for j, part in enumerate(parts):
                size = 2.0 ** -(bits * j) if j < count - 1 else 1.0
                p.store(part * size, at(target, (j + 1) * LANES))

        p.each(p["steps"], of_step)

    p.each(p.number(form.rows), of_row)
    return p


def write_product(form: Form) -> Program:
    p = Program(NAMES)
    # As in few_rows.py: rows of the weight that are read at the same time lie far apart, and behind
    # the last one is that one again.
    own = (p["end"] - p["begin"] + (form.outs - 1)) // form.outs
    last = p["end"] - 1

    def some(first: Value, _: Values) -> None:
        outs = [p.least(first + own * s, last) for s in range(form.outs)]
        for row in range(0, form.rows, 4):
            rows = range(row, min(row + 4, form.rows))
            Block(p, form, outs, rows).write()

    p.loop(p["begin"], p["begin"] + own, some)
    return p


class Block:
    """The results of some rows of x in some columns.

    A list of sums has those of the first column first, one for each row of x.
    """

    def __init__(self, p: Program, form: Form, outs: Values, rows: range) -> None:
        self.p, self.form, self.outs, self.rows = p, form, outs, rows
        pitch = (p["columns"] * form.bits) >> 3
        self.lines = [p["weight"] + out * pitch for out in self.outs]
        self.inputs = [at(p["turned"], p["steps"] * (form.turned * row)) for row in rows]
        self.sums = len(rows) * len(outs)

    def write(self) -> None:
        p, form = self.p, self.form
        nothing = p.code.constant(0.0, "float", LANES)
        totals: Values = [nothing] * self.sums
        if form.group == 0:
            self.zeros = self._zeros(self.outs)
            sums = p.loop(0, p["steps"], self._step, carried=totals)
            scales = [self._scale(out).splat(LANES) for out in self.outs]
            totals = [s * scales[i // len(self.rows)] for i, s in enumerate(sums)]
        elif form.group % form.step == 0:
            totals = self._by_groups(totals)
        elif form.fits:
            totals = p.loop(0, p["steps"], self._several_groups, carried=totals)
        self._finish(totals)

    # ---- groups ------------------------------------------------------------------------------

    def _by_groups(self, totals: Values) -> Values:
        """Each group is some whole steps."""
        p, steps = self.p, self.form.group // self.form.step

        def of_group(g: Value, totals: Values) -> Values:
            places = [out * p["groups"] + g for out in self.outs]
            self.zeros = self._zeros(places)
            scales = [self._scale(place).splat(LANES) for place in places]
            first = g * steps
            sums = self._step(first, [])
            if steps <= _MOST_STEPS:
                for i in range(1, steps):
                    sums = self._step(first + i, sums)
            else:
                sums = p.loop(first + 1, first + steps, self._step, carried=sums)
            return self._scaled(sums, scales, totals)

        return p.loop(0, p["groups"], of_group, carried=totals)

    def _several_groups(self, t: Value, totals: Values) -> Values:
        """A step is some whole groups, whose scales lie side by side in a register."""
        p, form = self.p, self.form
        count, per_group = form.step // form.group, form.group // form.per_word
        spread = [lane // per_group for lane in range(LANES)]
        places = [out * p["groups"] + t * count for out in self.outs]
        loaded = [p.load(at(p["scales"], place), count) for place in places]
        scales = [p.shuffled(s, s, spread) for s in loaded]
        if form.has_zeros:
            found = [p.integers(p["zeros"] + place, "i8", count) for place in places]
            floats = [z.to("i32", signed=False).to("float") for z in found]
            self.zeros = [p.shuffled(z, z, spread) for z in floats]
        return self._scaled(self._step(t, []), scales, totals)

    def _scaled(self, sums: Values, scales: Values, totals: Values) -> Values:
        count = len(self.rows)
        return [
            s.times_plus(scales[i // count], total)
            for i, (s, total) in enumerate(zip(sums, totals, strict=True))
        ]

    def _scale(self, place: Value) -> Value:
        return self.p.load(at(self.p["scales"], place))

    def _zeros(self, places: Values) -> Values:
        """The zero points of groups, each in all lanes; none if the weight has none."""
        p = self.p
        if not self.form.has_zeros:
            return []
        bytes_ = [p.integer(p["zeros"] + place, "i8") & 255 for place in places]
        return [byte.to("float").splat(LANES) for byte in bytes_]

    # ---- one register of weights -------------------------------------------------------------

    def _step(self, t: Value, sums: Values) -> Values:
        p, form, count = self.p, self.form, len(self.rows)
        offset = t * (LANES * _WORD // 8)
        words = [p.integers(line + offset, "i32", LANES) for line in self.lines]
        inputs = [at(x, t * form.turned) for x in self.inputs]
        found = self._started([p.load(x, LANES) for x in inputs], sums)
        low = (1 << form.bits) - 1
        for j in range(form.per_word):
            vectors = [p.load(at(x, (j + 1) * LANES), LANES) for x in inputs]
            is_last = j == form.per_word - 1
            for o, word in enumerate(words):
                part = word >> (form.bits * j) if is_last else word & (low << (form.bits * j))
                weights = part.to("float")
                for r, vector in enumerate(vectors):
                    place = o * count + r
                    found[place] = weights.times_plus(vector, found[place])
        return found

    def _started(self, starts: Values, sums: Values) -> Values:
        """The sums less the share of the zero points, or that share alone if there are none yet."""
        found = []
        for i in range(self.sums):
            start = starts[i % len(self.rows)]
            if not self.form.has_zeros:
                found.append(sums[i] + start if sums else start)
                continue
            zero = self.zeros[i // len(self.rows)]
            found.append(start.times_plus(zero, sums[i]) if sums else start * zero)
        return found

    # ---- the end -----------------------------------------------------------------------------

    def _finish(self, totals: Values) -> None:
        p, form, count = self.p, self.form, len(self.rows)
        results = [total.folded() for total in totals]
        if form.has_rest:
            results = p.loop(p["steps"] * form.step, p["columns"], self._one, carried=results)
        for i, result in enumerate(results):
            out = self.outs[i // count]
            if form.has_bias:
                result = result + p.load(at(p["bias"], out))
            p.store(result, at(p["out"], p["outs"] * self.rows[i % count] + out))

    def _one(self, k: Value, results: Values) -> Values:
        """One input behind the last whole register, or of groups that fit none."""
        p, form, count = self.p, self.form, len(self.rows)
        inputs = [p.load(at(p["x"], p["columns"] * row + k)) for row in self.rows]
        g = p.number(0) if form.group == 0 else k // form.group
        found = []
        for o, out in enumerate(self.outs):
            place = out * p["groups"] + g
            weight = _integer(p, self.lines[o], k, form.bits).to("float")
            zero: Value | float = float(zero_of(form.bits))
            if form.has_zeros:
                zero = (p.integer(p["zeros"] + place, "i8") & 255).to("float")
            weight = (weight - zero) * self._scale(place)
            found += [weight.times_plus(x, results[o * count + r]) for r, x in enumerate(inputs)]
        return found


def _integer(p: Program, line: Value, k: Value, bits: int) -> Value:
    """Element k of a row of packed integers."""
    place = k * bits
    return (p.integer(line + (place >> 3), "i8") >> (place & 7)) & ((1 << bits) - 1)


# ---- floats --------------------------------------------------------------------------------------


def dequantize(out: Array, weight: Array, scales: Array, zeros: Array | None, bits: int) -> None:
    """out <- (q - zeros) * scales, all of contiguous float32 and uint8."""
    if not out.size:
        return
    rows, groups = scales.shape
    numbers = [groups, out.shape[1] // groups, *map(data_address, (out, weight, scales))]
    numbers.append(0 if zeros is None else data_address(zeros))
    tasks = [[*part, *numbers] for part in cut(rows * groups, out.size, _MOST_TASKS)]
    run(function_of(_write_dequantize, bits, zeros is not None), tasks)


def _write_dequantize(bits: int, has_zeros: bool) -> Program:
    """Groups are numbered through all rows."""
    p = Program(("begin", "end", "groups", "group", "out", "weight", "scales", "zeros"))
    whole = p["group"] & -_CHUNK

    def of_group(g: Value, _: Values) -> None:
        line, target = p["weight"] + ((g * p["group"] * bits) >> 3), at(p["out"], g * p["group"])
        scale = p.load(at(p["scales"], g))
        zero = p.code.constant(float(zero_of(bits)), "float")
        if has_zeros:
            zero = (p.integer(p["zeros"] + g, "i8") & 255).to("float")
        turned: list[tuple[int, Callable[[Value], Value]]] = [
            (_CHUNK, lambda k: _chunk(p, line + ((k * bits) >> 3), bits)),
            (1, lambda k: _integer(p, line, k, bits)),
        ]
        bounds = p.number(0), whole, p["group"]
        for i, (lanes, integers) in enumerate(turned):

            def some(
                k: Value,
                _: Values,
                lanes: int = lanes,
                integers: Callable[[Value], Value] = integers,
            ) -> None:
                floats = integers(k).to("float")
                value = (floats - zero.splat(lanes)) * scale.splat(lanes)
                p.store(value, at(target, k))

            p.loop(bounds[i], bounds[i + 1], some, step=lanes)

    p.loop(p["begin"], p["end"], of_group)
    return p


def _chunk(p: Program, address: Value, bits: int) -> Value:
    """Neighbouring integers in their order."""
    if bits == 8:
        return p.integers(address, "i8", _CHUNK).to("i32", signed=False)
    both = p.integers(address, "i8", _CHUNK // 2)
    places = [k // 2 + _CHUNK // 2 * (k % 2) for k in range(_CHUNK)]
    return p.shuffled(both & 15, both >> 4, places).to("i32", signed=False)
