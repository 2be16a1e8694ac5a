"""Pooling over two dims: float32 images, one plane (a channel of a sample) after another
(planes.py). An average is a sum with weights of 1, divided where it is copied.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.depthwise import write_data_gradient, write_forward
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.planes import (
    MOST_TASKS,
    PlanesWriter,
    Shape,
    Window,
    integers,
    plan_of,
    run_planes,
)
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

_AT_ONCE = 4
"""Shares that are added in a turn of a loop."""
_NONE = -1
"""The place of the largest number of a window that has none above -infinity."""


def work_shape(x: Shape, out: Shape, window: Window) -> Shape:
    """Shape of the memory of every task: that of the planes, and a run of places of maxima."""
    plan = plan_of(_one(x), _one(out), window)
    return min(MOST_TASKS, x[0] * x[1]), plan.work + plan.run_pitch


def _one(shape: Shape) -> Shape:
    """Planes as samples of one channel, which all share their weights."""
    return shape[0] * shape[1], 1, *shape[2:]


def _planes(x: Array) -> Array:
    return x.reshape(_one(x.shape))


@lru_cache(maxsize=256)
def _ones(count: int) -> Array:
    return np.ones(count, np.float32)


@lru_cache(maxsize=256)
def _deltas(width: int, window: Window) -> Array:
    """Distances in a plane from the first position of a window to each."""
    kernel_h, kernel_w, _, _, _, _, apart_h, apart_w = window
    rows = range(0, kernel_h * apart_h, apart_h)
    return integers([h * width + j * apart_w for h in rows for j in range(kernel_w)])


def _write_max(stride: int) -> Program:
    made = PlanesWriter(stride, filler=float("-inf"))
    p = made.p
    none = p.code.constant(_NONE, "i32", LANES)
    lowest = p.code.constant(float("-inf"), "float", LANES)
    places = at(p["memory"], p["memory_vectors"] * LANES)  # a run more, see work_shape

    def find(first: Value, count: int) -> None:
        def of_tap(t: Value, found: Values) -> Values:
            offset, delta = (p.integer(p[name] + t * INT_NBYTES) for name in ("offsets", "deltas"))
            begin, here = at(made.parts, offset + first * LANES), delta.to("i32").splat(LANES)
            best, where = found[:count], found[count:]
            for v in range(count):
                value = p.load(at(begin, v * LANES), LANES)
                is_better = value.compare("gt", best[v]) | value.compare("ne", value)
                best[v], where[v] = (
                    is_better.choose(value, best[v]),
                    is_better.choose(here, where[v]),
                )
            return [*best, *where]

        carried = [lowest] * count + [none] * count
        found = p.loop(0, p["taps"], of_tap, carried=carried)
        for v in range(count):
            p.store(found[v], at(made.runs, (first + v) * LANES))
            p.store(found[count + v].bits("float"), at(places, (first + v) * LANES))

    def of_plane(plane: Value, _: Values) -> None:
        made.move_parts(made.x_plane(plane, p.number(0)), back=False)
        p.vectors(p["run_vectors"], find, most=4)
        made.move_run(made.out_plane(plane, p.number(0)), made.runs, back=True)
        size = p["out_height"] * p["out_width"]

        def of_row(h: Value) -> None:
            top = (h * p["stride_h"] - p["top"]) * p["width"] - p["left"]
            line = p["indices"] + (plane * size + h * p["out_width"]) * INT_NBYTES

            def of_position(w: Value) -> None:
                delta = p.load(at(places, h * p["columns"] + w)).bits("i32").to("i64")
                index = delta.compare("eq", _NONE).choose(p.number(0), top + w * stride + delta)
                p.store(index, line + w * INT_NBYTES)

            p.each(p["out_width"], of_position)

        p.each(p["out_height"], of_row)

    p.loop(p["begin"], p["end"], of_plane)
    return p


def max_pool(out: Array, indices: Array, x: Array, window: Window, memory: Array) -> None:
    """Find the maxima of all windows of contiguous images.

    indices: of the maxima in their plane, flat. The last NaN of a window wins.
    """
    x, out = _planes(x), _planes(out)
    run_planes(_write_max, len(x), x, out, window, memory, weights=_ones(1), indices=indices,
               deltas=_deltas(x.shape[3], window))  # fmt: skip


def _write_max_gradient() -> Program:
    p = Program((
        "begin", "end", "size", "out_height", "out_width", "stride_h", "stride_w", "top", "left",
        "d_x", "d_out", "indices",
    ))  # fmt: skip

    def of_plane(plane: Value, _: Values) -> None:
        target = at(p["d_x"], plane * p["size"])
        p.zero(target, p["size"])
        first = plane * positions
        places, shares = p["indices"] + first * INT_NBYTES, at(p["d_out"], first)

        def add(i: Value) -> None:
            here = at(target, p.integer(places + i * INT_NBYTES))
            p.store(p.load(here) + p.load(at(shares, i)), here)

        def some(i: Value, _: Values) -> None:
            for k in range(_AT_ONCE):
                add(i + k)

        whole = positions & -_AT_ONCE
        p.loop(0, whole, some, step=_AT_ONCE)
        p.loop(whole, positions, lambda i, _: add(i))

        def of_row(h: Value, total: Values) -> Values:
            def of_corner(w: Value, total: Values) -> Values:
                i = h * p["out_width"] + w
                is_meant = p.integer(places + i * INT_NBYTES).compare("eq", 0)
                return [total[0] + is_meant.choose(p.load(at(shares, i)), 0.0)]

            return p.loop(0, corner_width, of_corner, carried=total)

        # Nothing but the windows that hold element 0 gives it a share.
        zero = p.code.constant(0.0, "float")
        (share,) = p.loop(0, corner_height, of_row, carried=[zero])
        p.store(share, target)

    positions = p["out_height"] * p["out_width"]
    corner_height = p.least(p["top"] // p["stride_h"] + 1, p["out_height"])
    corner_width = p.least(p["left"] // p["stride_w"] + 1, p["out_width"])
    p.loop(p["begin"], p["end"], of_plane)
    return p


def max_pool_grad(d_x: Array, d_out: Array, indices: Array, window: Window) -> None:
    """Every d_out goes to its maximum.

    A window of -infinity alone names element 0, which gets nothing unless it lies there: only a
    window that begins in the padding or at the corner holds it.
    """
    planes = d_x.shape[0] * d_x.shape[1]
    fixed = [d_x.shape[2] * d_x.shape[3], *d_out.shape[2:], *window[2:6]]
    fixed += [data_address(a) for a in (d_x, d_out, indices)]
    tasks = [[begin, end, *fixed] for begin, end in cut(planes, d_x.size, MOST_TASKS)]
    run(function_of(_write_max_gradient), tasks)


_write_mean = partial(write_forward, divides=True)
_write_mean_gradient = partial(write_data_gradient, divides=True)


def avg_pool(out: Array, x: Array, divisors: Array, window: Window, memory: Array) -> None:
    """divisors: (height, width) of out."""
    x, out = _planes(x), _planes(out)
    weights = _ones(window[0] * window[1])
    run_planes(_write_mean, len(x), x, out, window, memory, weights=weights, divisors=divisors)


def avg_pool_grad(d_x: Array, d_out: Array, divisors: Array, window: Window, memory: Array) -> None:
    """Every d_out, divided, is added to its whole window."""
    d_x, d_out = _planes(d_x), _planes(d_out)
    weights = _ones(window[0] * window[1])
    run_planes(_write_mean_gradient, len(d_x), d_x, d_out, window, memory, weights=weights,
               is_back=True, divisors=divisors)  # fmt: skip
