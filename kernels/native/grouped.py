"""Convolutions of float32 images whose groups have few channels: vectors of neighbouring channels.

A vector holds a pixel in as many channels as it has lanes, of one or more groups. A block of
channels is transposed into a memory with its padding; sums of several positions in a row stay in
registers while the window goes by; the results are transposed back. Each channel that a group reads
is spread over the lanes of its group by a shuffle: with 4 channels a group the shuffles are a third
of the products of a 3 x 3 window. Rows may be as short as they like: planes of 7 x 7 under a window
of 7 x 7 take 0.3 of the time that runs over the ends of rows take (planes.py).

The last block of channels ends at the last channel, so that two blocks may hold the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.conv_direct import Call, Phase, Phases, Shape, pair, phases_of
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import LANES, REGISTERS
from oneflow.kernels.native.program import (
    FLOAT_NBYTES,
    SIDE,
    Program,
    Values,
    at,
    cut,
    function_of,
    run,
)

MOST_TASKS = 8
"""Threads, each with memory of its own."""

_PRODUCTS = 16
"""Products that take as long as one element of the loops by which threads are counted."""

_MOST_PIXELS = (1 << 18) // (LANES * FLOAT_NBYTES)
"""Vectors of the source and the target that stay in the second cache."""

_MOST_SUMS = 14 if REGISTERS > 16 else 7
_LEAST_SUMS = 4
_WIDEST = 15
"""Columns of a window, of which all are in the text of a program."""


@dataclass(frozen=True)
class Part:
    """Results of every `step`-th row and column from `begin` on, which meet the same weights.

    Result a meets the source from a * stride + origin on, at `taps` places `dilation` apart. All
    are pairs: rows, columns.
    """

    count: tuple[int, int]
    begin: tuple[int, int]
    step: tuple[int, int]
    origin: tuple[int, int]
    stride: tuple[int, int]
    taps: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def sums(self) -> int:
        """Results of a row that stay in registers: as few of them as can be are computed twice."""
        width = self.count[1]
        if width <= _MOST_SUMS:
            return width
        return min(range(_MOST_SUMS, _LEAST_SUMS - 1, -1), key=lambda b: -(-width // b) * b)

    @property
    def end(self) -> int:
        """The column behind the last that a row meets."""
        reach = (self.count[1] - 1) * self.stride[1] + (self.taps[1] - 1) * self.dilation[1]
        return self.origin[1] + reach + 1


@dataclass(frozen=True)
class Plan:
    """The parts of a convolution with its source and target, and the memory of a task.

    left, columns: zeros before a row of the source, and its length in memory. rows, band: of the
    source and of the target that are in memory at once.
    """

    source: tuple[int, int]
    target: tuple[int, int]
    each: int
    parts: tuple[Part, ...]
    left: int
    columns: int
    rows: int
    band: int

    @property
    def has_bands(self) -> bool:
        """Whether some rows of the source may stay out of memory."""
        return _has_bands(self.source, self.parts)

    @property
    def bands(self) -> int:
        return -(-self.target[0] // self.band)

    @property
    def is_wide(self) -> bool:
        """Whether rows of the source are transposed one by one."""
        return self.source[1] >= SIDE

    @property
    def taps(self) -> int:
        return sum(part.taps[0] * part.taps[1] for part in self.parts)

    @property
    def leaves_some(self) -> bool:
        """Whether some elements of the target meet no window."""
        met = sum(part.count[0] * part.count[1] for part in self.parts)
        return met < self.target[0] * self.target[1]

    @property
    def pixels(self) -> tuple[int, int, int, int]:
        """Vectors of the memory: the source, the same without padding, the target, weights."""
        dense = 0 if self.is_wide else self.source[0] * self.source[1]
        return self.rows * self.columns, dense, self.band * self.target[1], self.each * self.taps


def _has_bands(source: tuple[int, int], parts: tuple[Part, ...]) -> bool:
    return len(parts) == 1 and parts[0].step == (1, 1) and source[1] >= SIDE


def _planned(source: Shape, target: Shape, each: int, parts: tuple[Part, ...]) -> Plan:
    left = max(0, *(-part.origin[1] for part in parts))
    columns = left + max(source[3], *(part.end for part in parts))
    rows, band = source[2], target[2]
    if _has_bands(pair(source[2:]), parts):
        (part,) = parts
        most = max(1, _MOST_PIXELS // (columns * part.stride[0] + target[3]))
        band = -(-band // -(-band // most))
        rows = min(rows, (band - 1) * part.stride[0] + (part.taps[0] - 1) * part.dilation[0] + 1)
    return Plan(pair(source[2:]), pair(target[2:]), each, parts, left, columns, rows, band)


@lru_cache(maxsize=1024)
def forward_plan(call: Call) -> Plan:
    one = (1, 1)
    top, left = pair(call.padding)
    part = Part(pair(call.out[2:]), (0, 0), one, (-top, -left), pair(call.stride),
                pair(call.w[2:]), pair(call.dilation))  # fmt: skip
    return _planned(call.x, call.out, call.w[1], (part,))


@lru_cache(maxsize=1024)
def backward_plan(call: Call) -> Plan:
    """The plan of the gradient of the data: every residue of the stride by itself."""
    parts = tuple(part for _, _, part in _residues(call))
    return _planned(call.out, call.x, call.w[1], parts)


def _residues(call: Call) -> list[tuple[Phase, Phase, Part]]:
    down, across = phases_of(call, 0), phases_of(call, 1)
    step = pair(call.stride)

    def part(a: Phase, b: Phase) -> Part:
        both: tuple[tuple[Phase, Phases], ...] = ((a, down), (b, across))
        sizes = zip(both, call.x[2:], step, strict=True)
        count = [-(-(size - one.begin) // s) for (one, _), size, s in sizes]
        return Part(
            pair(tuple(count)), (a.begin, b.begin), step,
            pair(tuple(one.origin - every.border for one, every in both)), (1, 1),
            (a.taps, b.taps), (down.dilation, across.dilation),
        )  # fmt: skip

    return [(a, b, part(a, b)) for a in down.phases for b in across.phases]


def in_blocks(call: Call) -> bool:
    """Return whether vectors hold whole groups, which have as many channels on both sides."""
    each = call.w[1]
    return (
        len(call.x) == 4
        and LANES >= SIDE
        and call.w[3] <= _WIDEST
        and call.x[1] == call.w[0] == each * call.groups
        and call.groups > 1
        and call.x[1] >= LANES
        and each <= LANES
        and LANES % each == 0
    )


def forward_work(call: Call) -> Shape:
    """Shape of the memory of all tasks."""
    return _memory(forward_plan(call), call.x[0] * _blocks(call.x[1]))


def backward_work(call: Call) -> Shape:
    """The same of the gradient of the data."""
    return _memory(backward_plan(call), call.x[0] * _blocks(call.x[1]))


def filter_work(call: Call) -> Shape:
    """The same of the gradient of the weights."""
    return _memory(forward_plan(call), _blocks(call.x[1]))


def _memory(plan: Plan, most: int) -> Shape:
    """`most`: of the tasks. The memory of each begins where a vector may."""
    return min(MOST_TASKS, most), (sum(plan.pixels) + 1) * LANES


def _blocks(channels: int) -> int:
    return -(-channels // LANES)


# ---- programs ------------------------------------------------------------------------------------


class _Writer:
    """The pieces that the programs of a plan share. more: names of further numbers."""

    def __init__(self, plan: Plan, *more: str) -> None:
        self.plan = plan
        names = ("begin", "end", "memory", "samples", "channels", "blocks", "source", "target")
        self.p = p = Program((*names, *more))
        starts, here = [], 0
        for count in plan.pixels:
            starts.append(self.pixel(p["memory"], here))
            here += count
        self.rows, self.dense, self.results, self.weights = starts
        zeros = p.code.constant(0.0, "float", LANES)
        p.loop(0, p.number(plan.pixels[0]), lambda i, _: p.store(zeros, self.pixel(self.rows, i)))

    def pixel(self, start: Value, index: Value | int) -> Value:
        return at(start, index * LANES)

    def first(self, block: Value) -> Value:
        """The first channel of a block."""
        return self.p.least(block * LANES, self.p["channels"] - LANES)

    def plane(self, name: str, n: Value, c: Value) -> Value:
        height, width = self.plan.source if name == "source" else self.plan.target
        return at(self.p[name], (n * self.p["channels"] + c) * (height * width))

    def band(self, k: Value) -> tuple[Value, Value, Value]:
        """(first result row, the row behind its last, first source row in memory) of band k."""
        p, plan = self.p, self.plan
        begin = k * plan.band
        end = p.least(begin + plan.band, p.number(plan.target[0]))
        if not plan.has_bands:
            return begin, end, p.number(0)
        (part,) = plan.parts
        return begin, end, p.most(begin * part.stride[0] + part.origin[0], p.number(0))

    def read(self, n: Value, c: Value, top: Value) -> None:
        """Transpose the channels from c on into the rows, from source row `top` on."""
        p, (height, width) = self.p, self.plan.source
        plane = self.plane("source", n, c)
        lanes, size = p.number(LANES), p.number(height * width)
        if not self.plan.is_wide:
            p.transpose(self.dense, plane, (lanes, size), (lanes, size))

        def of_row(h: Value) -> None:
            row = self.pixel(self.rows, h * self.plan.columns + self.plan.left)
            if self.plan.is_wide:
                line = at(plane, (top + h) * width)
                p.transpose(row, line, (lanes, p.number(width)), (lanes, size), rows_first=True)
                return
            for w in range(width):
                p.store(p.load(self.pixel(self.dense, h * width + w), LANES), self.pixel(row, w))

        p.each(p.least(height - top, p.number(self.plan.rows)), of_row)

    def move_results(self, n: Value, c: Value, begin: Value, end: Value, *, back: bool) -> None:
        """Transpose rows of results into their planes (back), or of planes into the results."""
        p, width = self.p, self.plan.target[1]
        plane = at(self.plane("target", n, c), begin * width)
        lanes, size = p.number(LANES), p.number(self.plan.target[0] * width)
        count = (end - begin) * width
        if back:
            p.transpose(plane, self.results, (count, lanes), (size, lanes))
        else:
            p.transpose(self.results, plane, (lanes, count), (lanes, size), rows_first=True)

    def meets(self, part: Part, a: Value) -> tuple[Value, Value, Value]:
        """Row of the source that result row a meets first, and the taps in the image."""
        p, taps, apart = self.p, part.taps[0], part.dilation[0]
        top = a * part.stride[0] + part.origin[0]
        begin = (p.most(0 - top, p.number(0)) + (apart - 1)) // apart
        rest = p.most((self.plan.source[0] - 1 + apart) - top, p.number(0))
        return top, begin, p.least(rest // apart, p.number(taps))

    def spread(self, address: Value, r: Value | int) -> Value:
        """Channel r of each group, in all lanes of the group."""
        p, each = self.p, self.plan.each
        if each == LANES:
            return p.load(at(address, r)).splat(LANES)
        pixel = p.load(address, LANES)
        if each == 1:
            return pixel
        assert isinstance(r, int)
        return p.shuffled(pixel, pixel, [i // each * each + r for i in range(LANES)])

    def each_channel(
        self, body: Callable[[Value | int, Values], Values], carried: Values
    ) -> Values:
        """`body(r, values)` for the channels of a group, one after the other."""
        if self.plan.each == LANES:
            return self.p.loop(0, self.p.number(LANES), body, carried=carried)
        for r in range(self.plan.each):
            carried = body(r, carried)
        return carried


def _write_correlation(plan: Plan) -> Program:
    names = [f"weights{k}" for k in range(len(plan.parts))]
    made = _Writer(plan, *names)
    p = made.p

    def read_weights(c: Value) -> None:
        target = made.weights
        for part, name in zip(plan.parts, names, strict=True):
            count = plan.each * part.taps[0] * part.taps[1]
            own = at(p[name], c * count)
            lanes, size = p.number(LANES), p.number(count)
            p.transpose(target, own, (lanes, size), (lanes, size))
            target = made.pixel(target, count)

    def of_part(part: Part, weights: Value, band: tuple[Value, Value, Value]) -> None:
        (down, across), (rows, columns), sums = part.taps, part.count, part.sums
        start, stop, source_top = band
        if not plan.has_bands:
            stop = p.number(rows)
        zeros = p.code.constant(0.0, "float", LANES)

        def of_row(a: Value, _: Values) -> None:
            top, begin, end = made.meets(part, a)
            line = ((a - start) * part.step[0] + part.begin[0]) * plan.target[1] + part.begin[1]

            def some(b: Value, _: Values) -> None:
                b = p.least(b, p.number(columns - sums))
                left = b * part.stride[1] + (plan.left + part.origin[1])

                def of_tap(i: Value, totals: Values) -> Values:
                    row = (top - source_top + i * part.dilation[0]) * plan.columns + left

                    def of_channel(r: Value | int, totals: Values) -> Values:
                        own = p.number(r) if isinstance(r, int) else r
                        first = made.pixel(weights, (own * down + i) * across)
                        w = [p.load(made.pixel(first, j), LANES) for j in range(across)]
                        totals = list(totals)
                        for column, pairs in _met(part).items():
                            x = made.spread(made.pixel(made.rows, row + column), r)
                            for o, j in pairs:
                                totals[o] = x.times_plus(w[j], totals[o])
                        return totals

                    return made.each_channel(of_channel, totals)

                found = p.loop(begin, end, of_tap, carried=[zeros] * sums)
                for o, total in enumerate(found):
                    p.store(total, made.pixel(made.results, line + (b + o) * part.step[1]))

            p.loop(0, p.number(columns), some, step=sums)

        p.loop(start, stop, of_row)

    def of_block(unit: Value, _: Values) -> None:
        whole = unit // plan.bands
        n, c = whole // p["blocks"], made.first(whole % p["blocks"])
        band = made.band(unit % plan.bands)
        read_weights(c)
        made.read(n, c, band[2])
        if plan.leaves_some:
            zero = p.number(plan.pixels[2] * LANES)
            p.zero(made.results, zero)
        weights = made.weights
        for part in plan.parts:
            of_part(part, weights, band)
            weights = made.pixel(weights, plan.each * part.taps[0] * part.taps[1])
        made.move_results(n, c, *band[:2], back=True)

    p.loop(p["begin"], p["end"], of_block)
    return p


def _write_filter_gradient(plan: Plan) -> Program:
    made = _Writer(plan, "weights")
    p = made.p
    (part,) = plan.parts
    (down, across), columns, sums = part.taps, part.count[1], part.sums
    whole = columns // sums * sums
    zeros = p.code.constant(0.0, "float", LANES)

    def of_row(a: Value, band: tuple[Value, Value, Value]) -> None:
        top, begin, end = made.meets(part, a)
        line = made.pixel(made.results, (a - band[0]) * columns)

        def of_tap(i: Value, _: Values) -> None:
            row = (top - band[2] + i * part.dilation[0]) * plan.columns
            row = row + (plan.left + part.origin[1])
            source = made.pixel(made.rows, row)

            def of_channel(r: Value | int, _: Values) -> Values:
                def some(b: Value, totals: Values, count: int = sums) -> Values:
                    totals = list(totals)
                    d = [p.load(made.pixel(line, b + o), LANES) for o in range(count)]
                    for column, pairs in _met(part).items():
                        pairs = [(o, j) for o, j in pairs if o < count]
                        if not pairs:
                            continue
                        place = made.pixel(source, b * part.stride[1] + column)
                        x = made.spread(place, r)
                        for o, j in pairs:
                            k = o % 2 * across + j  # one sum alone would wait for itself
                            totals[k] = x.times_plus(d[o], totals[k])
                    return totals

                carried = [zeros] * (2 * across)
                found = p.loop(0, p.number(whole), some, step=sums, carried=carried)
                found = p.loop(whole, p.number(columns), partial(some, count=1), carried=found)
                own = p.number(r) if isinstance(r, int) else r
                first = made.pixel(made.weights, (own * down + i) * across)
                for j in range(across):
                    here = made.pixel(first, j)
                    p.store(p.load(here, LANES) + (found[j] + found[across + j]), here)
                return []

            made.each_channel(of_channel, [])

        p.loop(begin, end, of_tap)

    def of_block(block: Value, _: Values) -> None:
        c = made.first(block)
        count = p.number(plan.each * plan.taps)
        p.zero(made.weights, count * LANES)

        def of_sample(n: Value) -> None:
            def of_band(k: Value) -> None:
                band = made.band(k)
                made.read(n, c, band[2])
                made.move_results(n, c, *band[:2], back=False)
                p.loop(band[0], band[1], lambda a, _: of_row(a, band))

            p.each(p.number(plan.bands), of_band)

        p.each(p["samples"], of_sample)
        own = at(p["weights"], c * count)
        p.transpose(own, made.weights, (count, p.number(LANES)), (count, p.number(LANES)))

    p.loop(p["begin"], p["end"], of_block)
    return p


def _met(part: Part) -> dict[int, list[tuple[int, int]]]:
    """Columns from the first result's on -> (result, tap) that meet there."""
    found: dict[int, list[tuple[int, int]]] = {}
    for o in range(part.sums):
        for j in range(part.taps[1]):
            found.setdefault(o * part.stride[1] + j * part.dilation[1], []).append((o, j))
    return dict(sorted(found.items()))


# ---- calls ---------------------------------------------------------------------------------------


def _run(
    write: Callable[[Plan], Program], plan: Plan, source: Array, target: Array,
    weights: list[Array], memory: Array,
) -> None:  # fmt: skip
    samples, channels = source.shape[:2]
    units = _blocks(channels)
    if write is _write_correlation:
        units *= samples * plan.bands
    fixed = [samples, channels, _blocks(channels)]
    fixed += [data_address(a) for a in (source, target, *weights)]
    places = [data_address(own) for own in memory]
    work = source.size + target.size
    work += max(source.size, target.size) * plan.each * plan.taps // _PRODUCTS
    run(
        function_of(write, plan),
        [
            [begin, end, place + -place % (LANES * FLOAT_NBYTES), *fixed]
            for (begin, end), place in zip(cut(units, work, len(memory)), places, strict=False)
        ],
    )


def convolve(call: Call, out: Array, x: Array, w: Array, memory: Array) -> None:
    """out (N, C, OH, OW) <- windows of x (N, C, H, W); w: (C, channels of a group, KH, KW). All
    contiguous."""
    _run(_write_correlation, forward_plan(call), x, out, [w], memory)


def data_gradient(
    call: Call, d_x: Array, d_out: Array, w: Array, memory: Array, turned: Array
) -> None:
    """d_x (N, C, H, W) <- d_out (N, C, OH, OW) and w. turned: memory for as many numbers as w."""
    each = call.w[1]
    given = w.reshape(call.groups, each, each, *call.w[2:]).swapaxes(1, 2)
    weights, begin = [], 0
    for a, b, part in _residues(call):
        shape = *given.shape[:3], *part.taps
        own = turned[begin : begin + prod(shape)].reshape(shape)
        own[...] = given[..., a.first :: -a.step, b.first :: -b.step]
        weights.append(own)
        begin += own.size
    _run(_write_correlation, backward_plan(call), d_out, d_x, weights, memory)


def filter_gradient(call: Call, d_w: Array, d_out: Array, x: Array, memory: Array) -> None:
    """d_w (C, channels of a group, KH, KW) <- d_out (N, C, OH, OW) and x (N, C, H, W)."""
    _run(_write_filter_gradient, forward_plan(call), x, d_out, [d_w], memory)
