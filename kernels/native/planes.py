"""Planes of float32 images, a channel of a sample each, and windows over them.

A plane is copied with its padding, and with a stride of s into s * s parts of every s-th row and
column, so that each position in the window meets one long run of numbers, for any length of a row.
The run goes over the ends of the rows; results there are left out when the result is copied. Up to
eight vectors of the run stay in registers while all positions go by.

The memory of a task is filled once: copies of rows write its filler behind their ends, and nothing
else lies between the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import LANES
from oneflow.kernels.native.program import (
    INT_NBYTES,
    Program,
    Values,
    at,
    cut,
    function_of,
    run,
)

MOST_TASKS = 8
"""Threads, each with memory of its own."""

_MOVED, _PRODUCTS = 4, 4
"""Elements of the loops by which threads are counted that take as long as one number on its way
between an image and the memory, and multiplications that take as long as one element. Planes of
14 x 14 under a window of 3 x 3 take 13 elements a number, of 7 x 7 under 5 x 5 they take 24."""

Window = tuple[int, int, int, int, int, int, int, int]
"""Kernel, stride, padding and dilation, two integers each."""

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """Sizes of the parts of a plane, and where each weight of the window finds its numbers.

    rows, columns, pitch: of a part, and between parts. length: of a run. run_pitch, margin: between
    the runs of a channel's results, and zeros before the first. forward, backward: offsets of the
    weights in the parts, and in the run for the gradient, there by parts: `order` of the weights,
    `counts` for each part.
    """

    rows: int
    columns: int
    parts: int
    pitch: int
    length: int
    run_pitch: int
    margin: int
    taps: int
    forward: Array
    backward: Array
    order: Array
    counts: Array
    work: int

    @property
    def whole(self) -> int:
        """Vectors of a part."""
        return vectors(self.rows * self.columns)


def vectors(count: int) -> int:
    return -(-count // LANES)


@lru_cache(maxsize=1024)
def plan_of(x: Shape, out: Shape, window: Window) -> Plan:
    kernel_h, kernel_w, down, across, top, left, apart_h, apart_w = window
    each = out[1] // x[1]
    # The last windows of a pooling may reach over the padding.
    rows = max(-(-(x[2] + 2 * top) // down), out[2] + (kernel_h - 1) * apart_h // down)
    columns = max(-(-(x[3] + 2 * left) // across), out[3] + (kernel_w - 1) * apart_w // across)
    pitch = vectors(rows * columns) * LANES + LANES
    length = (out[2] - 1) * columns + out[3]
    places = []
    for i in range(kernel_h):
        for j in range(kernel_w):
            h, w = i * apart_h, j * apart_w
            places.append((h % down * across + w % across, h // down * columns + w // across))
    margin = vectors(max(offset for _, offset in places)) * LANES
    run_pitch = vectors(margin + rows * columns) * LANES + 2 * LANES
    parts = down * across
    ways = [(part, o, k) for o in range(each) for k, (part, _) in enumerate(places)]
    ways.sort()
    backward = [margin + o * run_pitch - places[k][1] for _, o, k in ways]
    counts = [sum(part == q for part, _, _ in ways) for q in range(parts)]
    taps = len(places)
    return Plan(
        rows, columns, parts, pitch, length, run_pitch, margin, taps,
        integers([part * pitch + offset for part, offset in places]), integers(backward),
        integers([o * taps + k for _, o, k in ways]), integers(counts),
        (parts + 1) * pitch + margin + each * run_pitch + each * taps * LANES,
    )  # fmt: skip


def integers(numbers: list[int]) -> Array:
    return np.array(numbers, np.int64)


def work_shapes(x: Shape, w: Shape, out: Shape, window: Window) -> tuple[Shape, ...]:
    """Shapes of the workspace: memory of every task, the weights in another order."""
    tasks = min(MOST_TASKS, x[0] * x[1])
    return (tasks, plan_of(x, out, window).work), (x[1], out[1] // x[1] * w[2] * w[3])


# ---- programs ------------------------------------------------------------------------------------

_NAMES = (
    "begin", "end", "samples", "channels", "each", "height", "width", "out_height", "out_width",
    "rows", "columns", "pitch", "num_parts", "run_vectors", "part_vectors", "run_pitch", "margin",
    "stride_h", "top", "left", "taps", "x", "out", "weights", "offsets", "counts",
    "divisors", "indices", "deltas", "memory", "memory_vectors",
)  # fmt: skip


class PlanesWriter:
    """The pieces that programs over planes share.

    stride: along a row. filler: of the padding. divides: results are divided where they are copied,
    position by position.
    """

    def __init__(self, stride: int, *, filler: float = 0.0, divides: bool = False) -> None:
        self.filler, self.divides = filler, divides
        self.p, self.stride = Program(_NAMES), stride
        p = self.p
        floats = p["num_parts"] * p["pitch"] + p["pitch"]
        self.parts, self.runs = p["memory"], at(p["memory"], floats)
        floats = floats + p["margin"] + p["each"] * p["run_pitch"]
        self.sums = at(p["memory"], floats)
        fill = p.code.constant(filler, "float", LANES)
        p.loop(0, p["memory_vectors"], lambda i, _: p.store(fill, at(p["memory"], i * LANES)))

    def x_plane(self, n: Value, c: Value) -> Value:
        p = self.p
        return at(p["x"], (n * p["channels"] + c) * p["height"] * p["width"])

    def out_plane(self, n: Value, o: Value) -> Value:
        p = self.p
        outs = p["channels"] * p["each"]
        return at(p["out"], (n * outs + o) * p["out_height"] * p["out_width"])

    def move_parts(self, plane: Value, *, back: bool) -> None:
        """Copy a plane of x into the parts, or the contents of the parts into the plane."""
        p = self.p

        def of_row(h: Value, _: Values) -> None:
            row = h + p["top"]
            part = row % p["stride_h"] * self.stride
            start = part * p["pitch"] + row // p["stride_h"] * p["columns"]
            line = at(plane, h * p["width"])
            if self.stride == 1:
                self.move_row(line, at(self.parts, start + p["left"]), p["width"], back=back)
                return

            def begin(first: Value | int) -> Value:
                column = p["left"] + first
                return start + column % self.stride * p["pitch"] + column // self.stride

            if self.stride == 2:
                ends = at(self.parts, begin(0)), at(self.parts, begin(1))
                self.move_pairs(line, ends, p["width"], back=back)
                return

            def of_first(first: Value, _: Values) -> None:
                to = begin(first)
                count = (p["width"] - first + self.stride - 1) // self.stride

                def of_number(k: Value, _: Values) -> None:
                    one = at(line, first + k * self.stride)
                    other = at(self.parts, to + k)
                    source, target = (other, one) if back else (one, other)
                    p.store(p.load(source), target)

                p.loop(0, count, of_number)

            p.loop(0, p.number(self.stride), of_first)

        p.loop(0, p["height"], of_row)

    def move_run(self, plane: Value, run_begin: Value, *, back: bool) -> None:
        """The same between a plane of results and a run."""
        p = self.p

        def of_row(h: Value, _: Values) -> None:
            line = at(plane, h * p["out_width"])
            divisors = at(p["divisors"], h * p["out_width"]) if self.divides else None
            run_row = at(run_begin, h * p["columns"])
            self.move_row(line, run_row, p["out_width"], divisors, back=back)

        p.loop(0, p["out_height"], of_row)

    def move_row(
        self, line: Value, padded: Value, width: Value, divisors: Value | None = None, *, back: bool
    ) -> None:
        p = self.p

        def some(w: Value, _: Values) -> None:
            rest = width - w
            source = at(padded, w) if back else at(line, w)
            value = p.load(source, LANES) if back else p.load_first(rest, source, self.filler)
            if divisors is not None:
                value = value / p.load_first(rest, at(divisors, w), 1.0)
            if back:
                p.store_first(rest, value, at(line, w))
            else:
                p.store(value, at(padded, w))

        p.loop(0, width, some, step=LANES)

    def move_pairs(
        self, line: Value, ends: tuple[Value, Value], width: Value, *, back: bool
    ) -> None:
        """Every second number of a row to one part, the others to another."""
        p = self.p

        def some(w: Value, _: Values) -> None:
            places = [at(end, w // 2) for end in ends]
            lines = [at(line, w), at(line, w + LANES)]
            if back:
                a, b = (p.load(place, LANES) for place in places)
                for half, target in enumerate(lines):
                    mixed = [i // 2 + half * LANES // 2 + i % 2 * LANES for i in range(LANES)]
                    p.store_first(width - w - half * LANES, p.shuffled(a, b, mixed), target)
                return
            a, b = (
                p.load_first(width - w - i * LANES, x, self.filler) for i, x in enumerate(lines)
            )
            for first, place in enumerate(places):
                p.store(p.shuffled(a, b, range(first, 2 * LANES, 2)), place)

        p.loop(0, width, some, step=2 * LANES)

    def correlate(
        self, target: Value, source: Value, vectors: Value, taps: Value, offsets: Value,
        weights: Value,
    ) -> None:  # fmt: skip
        """target[k] <- the sum over taps t of weights[t] * source[offsets[t] + k]."""
        p = self.p

        def some(first: Value, count: int) -> None:
            def of_tap(t: Value, sums: Values) -> Values:
                offset = p.integer(offsets + t * INT_NBYTES)
                weight = p.load(at(weights, t)).splat(LANES)
                begin = at(source, offset + first * LANES)
                return [
                    weight.times_plus(p.load(at(begin, v * LANES), LANES), s)
                    for v, s in enumerate(sums)
                ]

            zeros = [p.code.constant(0.0, "float", LANES)] * count
            for v, s in enumerate(p.loop(0, taps, of_tap, carried=zeros)):
                p.store(s, at(target, (first + v) * LANES))

        p.vectors(vectors, some)


# ---- calls ---------------------------------------------------------------------------------------


def run_planes(
    write: Callable[..., Program], pieces: int, x: Array, out: Array, window: Window, memory: Array,
    *, weights: Array, is_back: bool = False, divisors: Array | None = None,
    indices: Array | None = None, deltas: Array | None = None,
) -> None:  # fmt: skip
    """Run the program of a window. pieces: of the work, planes or channels."""
    plan = plan_of(x.shape, out.shape, window)
    samples, channels, height, width = x.shape
    offsets = plan.backward if is_back else plan.forward
    some = [0 if a is None else data_address(a) for a in (divisors, indices, deltas)]
    fixed = [
        samples, channels, out.shape[1] // channels, height, width, *out.shape[2:],
        plan.rows, plan.columns, plan.pitch, plan.parts, vectors(plan.length), plan.whole,
        plan.run_pitch, plan.margin, window[2], *window[4:6], plan.taps,
        *map(data_address, (x, out, weights, offsets, plan.counts)), *some,
    ]  # fmt: skip
    work = _MOVED * (x.size + out.size) + out.size * plan.taps // _PRODUCTS
    tasks = [
        [begin, end, *fixed, data_address(memory[i]), plan.work // LANES]
        for i, (begin, end) in enumerate(cut(pieces, work, len(memory)))
    ]
    run(function_of(write, window[3]), tasks)
