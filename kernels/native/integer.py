"""Sums of products of 8-bit integers, as programs for the CPU.

The input is rounded once to integers less their zero point, kept in 16 bits, so that a pair of
products is one instruction: PMADDWD multiplies 16 pairs and adds neighbours in 32 bits (AVX-512
VNNI adds them to the sum as well), twice as many multiplications as one of float32. 255 * 255 fits
with any zero point; nothing saturates. The weight stays in 8 bits in memory and is widened as a
register of it is read, once for all rows of a block.

A dense layer is a convolution of one image line with windows of one place. Images lie with their
channels innermost, so that a line of a window is one run of integers, read where it lies: no
windows are gathered. Runs of the weight are padded by its zero point to whole registers; the
padding adds nothing to a sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import LANES, REGISTERS
from oneflow.kernels.native.program import SIDE, Program, Values, at, cut, function_of, run
from oneflow.ops.quantized import RUN, runs_of

if TYPE_CHECKING:
    from oneflow.ops.quantized import Windows

_MOST_TASKS = 64
_PANEL_NBYTES = 1 << 17
"""Bytes of the weights that meet all positions before the next: they stay in the second cache."""

_PRODUCTS = 48
"""Products that take as long as one element of the loops by which threads are counted."""

_ROUNDED = 4
"""Numbers rounded in the time of one such element, the other way: each takes so many."""


class Rounding(NamedTuple):
    """The scale and zero point by which x becomes integers, between two limits."""

    low: int
    high: int
    unit: Array
    zero: Array


class Layer(NamedTuple):
    """The operands of the products; all contiguous."""

    weight: Array
    scales: Array
    zeros: Array
    unit: Array
    bias: Array | None = None


# ---- rounding ------------------------------------------------------------------------------------


class _Rounder:
    """Floats to integers less their zero point. The program has the numbers unit and zero."""

    def __init__(self, p: Program, low: int, high: int) -> None:
        self.low, self.high = float(low), float(high)
        self.unit, self.zero = p.load(p["unit"]), p.integer(p["zero"], "i32").to("float")

    def __call__(self, x: Value) -> Value:
        zero = self.zero.splat(x.lanes)
        level = x.code.intrinsic("rint", x / self.unit.splat(x.lanes)) + zero
        level = level.compare("gt", self.low).choose(level, level.like(self.low))
        level = level.compare("lt", self.high).choose(level, level.like(self.high))
        return (level - zero).to("i32").to("i16")


def _write_rows(low: int, high: int) -> Program:
    """Rows of integers, each padded to whole runs by numbers that count nothing."""
    p = Program(("begin", "end", "columns", "width", "x", "q", "unit", "zero"))
    rounded = _Rounder(p, low, high)
    whole = p["columns"] & -LANES
    rest = p["columns"] - whole

    def of_row(row: Value, _: Values) -> None:
        source, target = at(p["x"], row * p["columns"]), p["q"] + row * p["width"] * 2

        def some(k: Value, _: Values) -> None:
            p.store(rounded(p.load(at(source, k), LANES)), target + k * 2)

        def last() -> None:
            p.store(rounded(p.load_first(rest, at(source, whole))), target + whole * 2)

        p.loop(0, whole, some, step=LANES)
        p.when(rest.compare("gt", 0), last)

    p.loop(p["begin"], p["end"], of_row)
    return p


def _write_pixels(low: int, high: int) -> Program:
    """Padded images (groups, N, padded height, padded width, channels of a group)."""
    p = Program((
        "begin", "end", "samples", "padded", "across", "channels", "groups", "height", "width",
        "top", "left", "x", "q", "unit", "zero",
    ))  # fmt: skip
    rounded = _Rounder(p, low, high)
    plane, channels = p["height"] * p["width"], p["channels"]

    def clear(address: Value, count: Value) -> None:
        whole = count & -RUN
        zeros, zero = p.code.constant(0, "i16", RUN), p.code.constant(0, "i16")
        p.loop(0, whole, lambda i, _: p.store(zeros, address + i * 2), step=RUN)
        p.loop(whole, count, lambda i, _: p.store(zero, address + i * 2))

    def of_line(task: Value, _: Values) -> None:
        row, image = task % p["padded"], task // p["padded"]
        n, group = image % p["samples"], image // p["samples"]
        line = p["q"] + task * p["across"] * channels * 2
        h = row - p["top"]
        first = (n * p["groups"] + group) * channels
        source = at(p["x"], first * plane + h * p["width"])

        def fill() -> None:
            clear(line, p["left"] * channels)
            end = p["left"] + p["width"]
            clear(line + end * channels * 2, (p["across"] - end) * channels)
            _turn(p, rounded, source, line + p["left"] * channels * 2, plane)

        is_inside = row.compare("ge", p["top"]) & h.compare("lt", p["height"])
        p.either(is_inside, fill, lambda: clear(line, p["across"] * channels))

    p.loop(p["begin"], p["end"], of_line)
    return p


def _turn(p: Program, rounded: _Rounder, source: Value, target: Value, plane: Value) -> None:
    """One line of an image, (channels, width), as rounded pixels (width, channels)."""
    channels, width = p["channels"], p["width"]

    def tile(c: Value, w: Value) -> None:
        rows = [p.load(at(source, (c + i) * plane + w), SIDE) for i in range(SIDE)]
        for i, pixel in enumerate(p.turned(rows)):
            p.store(rounded(pixel), target + ((w + i) * channels + c) * 2)

    def some(c: Value, w: Value) -> None:
        found = rounded(p.load(at(source, c * plane + w), SIDE))
        for i in range(SIDE):
            p.store(found.lane(i), target + ((w + i) * channels + c) * 2)

    def one(c: Value, w: Value) -> None:
        found = rounded(p.load(at(source, c * plane + w)))
        p.store(found, target + (w * channels + c) * 2)

    def wide() -> None:
        def few() -> None:
            p.each(channels, lambda c: p.tiles(width, lambda w: some(c, w)))

        def many() -> None:
            p.tiles(channels, lambda c: p.tiles(width, lambda w: tile(c, w)))

        p.either(channels.compare("ge", SIDE), many, few)

    def narrow() -> None:
        p.each(channels, lambda c: p.each(width, lambda w: one(c, w)))

    p.either(width.compare("ge", SIDE), wide, narrow)


# ---- products ------------------------------------------------------------------------------------


class Form(NamedTuple):
    """Facts of a product by which its program differs. rows: positions of a block. lanes: integers
    of a vector."""

    rows: int
    lanes: int
    has_zeros: bool
    has_bias: bool

    @property
    def outs(self) -> int:
        """Outputs of a block: with its rows, the sums leave registers for the operands."""
        return {1: 8, 2: 5}.get(self.rows, 2) * (REGISTERS // 16)


_NAMES = (
    "begin", "end", "first", "last", "positions", "per_image", "across",
    "image", "line", "pixel", "lines", "per_line", "places", "per_place", "run",
    "x", "weight", "scales", "zeros", "unit", "bias", "out", "out_image", "out_position", "out_out",
)  # fmt: skip
"""Positions, and outputs, of a task. Of the image: positions in all, in an image, in a line; bytes
between images, lines and pixels that windows begin at. Of a window: its lines and places, and the
bytes between those; bytes of a run are twice its integers. Of the result: floats between images,
positions and outputs."""


def _write_product(form: Form) -> Program:
    p = Program(_NAMES)
    last = p["last"] - 1

    def some(first: Value, _: Values) -> None:
        end = p["end"] - 1
        rows = [_Position(p, p.least(first + r, end)) for r in range(form.rows)]

        def outs(o: Value, _: Values) -> None:
            places = [p.least(o + i, last) for i in range(form.outs)]
            _write_block(p, form, rows, places)

        p.loop(p["first"], p["last"], outs, step=form.outs)

    p.loop(p["begin"], p["end"], some, step=form.rows)
    return p


class _Position:
    """The addresses at which a window begins and its results go."""

    def __init__(self, p: Program, position: Value) -> None:
        image, inside = position // p["per_image"], position % p["per_image"]
        line, pixel = inside // p["across"], inside % p["across"]
        self.x = p["x"] + image * p["image"] + line * p["line"] + pixel * p["pixel"]
        self.out = at(p["out"], image * p["out_image"] + inside * p["out_position"])


def _write_block(p: Program, form: Form, rows: list[_Position], outs: Values) -> None:
    """The sums of some positions in some outputs, those of the first output first."""
    count = len(rows)
    window = p["run"] * p["lines"] * p["places"]
    weights = [p["weight"] + out * window for out in outs]
    zeros = None
    if form.has_zeros:
        zeros = [_at_int(p, p["zeros"], out).to("i16").splat(form.lanes) for out in outs]

    def of_run(inputs: Values, line: Value, place: Value, sums: Values) -> Values:
        start = (line * p["places"] + place) * p["run"]

        def step(k: Value, sums: Values) -> Values:
            found = list(sums)
            vectors = [p.integers(x + k * 2, "i16", form.lanes) for x in inputs]
            for i, weight in enumerate(weights):
                w = p.integers(weight + start + k, "i8", form.lanes).to("i16")
                if zeros is not None:
                    w = w - zeros[i]
                for r, x in enumerate(vectors):
                    found[i * count + r] = found[i * count + r] + _pairs(p, w, x)
            return found

        return p.loop(0, p["run"], step, step=form.lanes, carried=sums)

    def of_line(line: Value, sums: Values) -> Values:
        def of_place(place: Value, sums: Values) -> Values:
            offset = line * p["per_line"] + place * p["per_place"]
            return of_run([row.x + offset for row in rows], line, place, sums)

        return p.loop(0, p["places"], of_place, carried=sums)

    nothing = p.code.constant(0, "i32", form.lanes // 2)
    sums = p.loop(0, p["lines"], of_line, carried=[nothing] * (count * len(outs)))
    for i, out in enumerate(outs):
        _write_results(p, form, rows, out, sums[i * count : (i + 1) * count])


def _pairs(p: Program, a: Value, b: Value) -> Value:
    """The sums of the products of neighbours; LLVM knows the instruction for it."""
    product = a.to("i32") * b.to("i32")
    even, odd = (range(i, a.lanes, 2) for i in range(2))
    return p.shuffled(product, product, even) + p.shuffled(product, product, odd)


def _at_int(p: Program, address: Value, index: Value) -> Value:
    return p.integer(address + index * 4, "i32")


def _write_results(p: Program, form: Form, rows: list[_Position], out: Value, sums: Values) -> None:
    while sums[0].lanes > len(sums):
        half = sums[0].lanes // 2
        sums = [x.part(0, half) + x.part(half, half) for x in sums]
    total = p.folded(sums) if len(sums) > 1 else sums[0]
    factor = p.load(p["unit"]) * p.load(at(p["scales"], out))
    result = total.to("float") * factor.splat(len(rows))
    if form.has_bias:
        result = result + p.load(at(p["bias"], out)).splat(len(rows))
    for r, row in enumerate(rows):
        one = result.lane(r) if len(rows) > 1 else result
        p.store(one, at(row.out, out * p["out_out"]))


# ---- calls ---------------------------------------------------------------------------------------


def linear(out: Array, x: Array, q: Array, rounding: Rounding, layer: Layer) -> None:
    """out (rows, outputs) <- x (rows, inputs). q: memory of the integers of x."""
    (rows, columns), outs = x.shape, len(layer.weight)
    if not out.size:
        return
    width = layer.weight.shape[1]
    given = [columns, width, *map(data_address, (x, q, rounding.unit, rounding.zero))]
    tasks = cut(rows, x.size * _ROUNDED, _MOST_TASKS)
    run(function_of(_write_rows, rounding.low, rounding.high), [[*t, *given] for t in tasks])
    geometry = [rows, rows, rows, 0, 0, 2 * width, 1, 0, 1, 0, width]
    _multiply(out, q, layer, geometry, (0, outs, 1))


def conv(
    out: Array, x: Array, q: Array, rounding: Rounding, layer: Layer, windows: Windows
) -> None:
    """out (N, outputs, positions) <- x (N, C, H, W). q: memory of the padded integers of x."""
    if not out.size:
        return
    (n, channels, height, width), groups = x.shape, windows["groups"]
    top, left = windows["padding"]
    padded, across, own = height + 2 * top, width + 2 * left, channels // groups
    given = [n, padded, across, own, groups, height, width, top, left]
    given += map(data_address, (x, q, rounding.unit, rounding.zero))
    tasks = cut(groups * n * padded, x.size * _ROUNDED, _MOST_TASKS)
    run(function_of(_write_pixels, rounding.low, rounding.high), [[*t, *given] for t in tasks])
    outs, each = out.shape[1], out.shape[2] * out.shape[3]
    geometry = _geometry(n, each, out.shape[3], across * own * 2, padded, own, windows)
    for g in range(groups):
        of = slice(g * outs // groups, (g + 1) * outs // groups)
        bias = None if layer.bias is None else layer.bias[of]
        some = Layer(layer.weight[of], layer.scales[of], layer.zeros[of], layer.unit, bias)
        image = q[g * n * padded * across * own :]
        _multiply(out[:, of], image, some, geometry, (outs * each, 1, each))


def _geometry(
    n: int, each: int, across: int, line: int, padded: int, channels: int, windows: Windows
) -> list[int]:
    """The numbers of `_NAMES` from positions to run."""
    pixel = 2 * channels
    lines, places, count = runs_of(windows["kernel"], channels, windows["dilation"])
    stride, dilation = windows["stride"], windows["dilation"]
    run_ = -(-count // RUN) * RUN
    image = [padded * line, line * stride[0], pixel * stride[1]]
    return [n * each, each, across, *image, lines, line * dilation[0], places,
            pixel * dilation[1], run_]  # fmt: skip


def _multiply(
    out: Array, q: Array, layer: Layer, geometry: list[int], pitches: tuple[int, int, int]
) -> None:
    """The products of all positions and outputs."""
    positions, run_ = geometry[0], geometry[-1]
    weight, bias = layer.weight, layer.bias
    rows = 1 if positions == 1 else 2 if positions < 4 else 4
    lanes = 2 * LANES if run_ % (2 * LANES) == 0 else RUN
    form = Form(rows, lanes, bool(layer.zeros.any()), bias is not None)
    given = [*geometry, data_address(q)]
    given += map(data_address, (weight, layer.scales, layer.zeros, layer.unit))
    given += [0 if bias is None else data_address(bias), data_address(out), *pitches]
    parts = _parts(positions, len(weight), weight.size // len(weight), form)
    run(function_of(_write_product, form), [[*part, *given] for part in parts])


def _parts(positions: int, outs: int, window: int, form: Form) -> list[tuple[int, int, int, int]]:
    """(begin and end of positions, first and last output) of the tasks: panels of outputs meet all
    positions, or, of few positions, each task has outputs of its own."""
    elements = positions * outs * window // _PRODUCTS
    if positions < 4 * form.rows:
        return [(0, positions, *some) for some in cut(outs, elements, _MOST_TASKS, form.outs)]
    panel = max(1, _PANEL_NBYTES // window // form.outs) * form.outs
    ends = [*range(0, outs, panel), outs]
    count = len(ends) - 1
    pieces = cut(positions, elements // count, max(1, _MOST_TASKS // count), form.rows)
    return [(*some, ends[i], ends[i + 1]) for i in range(count) for some in pieces]
