"""Convolutions of each channel by itself: float32 images, one plane (a channel of a sample) after
another (planes.py).

Planes of 7 x 7 and 14 x 14 are one to four turns of a loop over the weights. With the run in memory
each product cost two loads and a store.
"""

from __future__ import annotations

import numpy as np

from oneflow.kernels.array import Array
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.planes import PlanesWriter, Window, plan_of, run_planes
from oneflow.kernels.native.product import LANES
from oneflow.kernels.native.program import INT_NBYTES, Program, Values, at


def write_forward(stride: int, divides: bool = False) -> Program:
    made = PlanesWriter(stride, divides=divides)
    p = made.p

    def of_plane(plane: Value, _: Values) -> None:
        n, c = plane // p["channels"], plane % p["channels"]
        made.move_parts(made.x_plane(n, c), back=False)

        def of_result(k: Value, _: Values) -> None:
            o = c * p["each"] + k
            made.correlate(made.runs, made.parts, p["run_vectors"], p["taps"], p["offsets"],
                           at(p["weights"], o * p["taps"]))  # fmt: skip
            made.move_run(made.out_plane(n, o), made.runs, back=True)

        p.loop(0, p["each"], of_result)

    p.loop(p["begin"], p["end"], of_plane)
    return p


def write_data_gradient(stride: int, divides: bool = False) -> Program:
    made = PlanesWriter(stride, divides=divides)
    p = made.p

    def of_plane(plane: Value, _: Values) -> None:
        n, c = plane // p["channels"], plane % p["channels"]

        def of_result(k: Value, _: Values) -> None:
            run_begin = at(made.runs, p["margin"] + k * p["run_pitch"])
            made.move_run(made.out_plane(n, c * p["each"] + k), run_begin, back=False)

        p.loop(0, p["each"], of_result)
        own = at(p["weights"], c * p["each"] * p["taps"])

        def of_part(q: Value, before: Values) -> Values:
            count = p.integer(p["counts"] + q * INT_NBYTES)
            offsets, weights = p["offsets"] + before[0] * INT_NBYTES, at(own, before[0])
            target = at(made.parts, q * p["pitch"])
            made.correlate(target, made.runs, p["part_vectors"], count, offsets, weights)
            return [before[0] + count]

        p.loop(0, p["num_parts"], of_part, carried=[p.number(0)])
        made.move_parts(made.x_plane(n, c), back=True)

    p.loop(p["begin"], p["end"], of_plane)
    return p


def _filter_gradient(stride: int) -> Program:
    made = PlanesWriter(stride)
    p = made.p
    zeros = p.code.constant(0.0, "float", LANES)

    def of_channel(c: Value, _: Values) -> None:
        count = p["each"] * p["taps"]
        p.loop(0, count, lambda i, _: p.store(zeros, at(made.sums, i * LANES)))

        def of_sample(n: Value, _: Values) -> None:
            made.move_parts(made.x_plane(n, c), back=False)

            def of_result(k: Value, _: Values) -> None:
                made.move_run(made.out_plane(n, c * p["each"] + k), made.runs, back=False)

                def some(first: Value, count: int) -> None:
                    sums = [at(made.sums, (k * p["taps"] + first + t) * LANES)
                            for t in range(count)]  # fmt: skip
                    sources = [
                        at(made.parts, p.integer(p["offsets"] + (first + t) * INT_NBYTES))
                        for t in range(count)
                    ]

                    def of_vector(v: Value, totals: Values) -> Values:
                        d = p.load(at(made.runs, v * LANES), LANES)
                        return [
                            d.times_plus(p.load(at(s, v * LANES), LANES), total)
                            for s, total in zip(sources, totals, strict=True)
                        ]

                    before = [p.load(s, LANES) for s in sums]
                    found = p.loop(0, p["run_vectors"], of_vector, carried=before)
                    for total, s in zip(found, sums, strict=True):
                        p.store(total, s)

                p.vectors(p["taps"], some)

            p.loop(0, p["each"], of_result)

        p.loop(0, p["samples"], of_sample)

        def of_weight(i: Value, _: Values) -> None:
            total = p.load(at(made.sums, i * LANES), LANES).folded()
            p.store(total, at(p["weights"], c * count + i))

        p.loop(0, count, of_weight)

    p.loop(p["begin"], p["end"], of_channel)
    return p


def convolve(out: Array, x: Array, w: Array, window: Window, work: tuple[Array, ...]) -> None:
    """out (N, O, OH, OW) <- windows of x (N, C, H, W); w: (O, 1, KH, KW); O is a multiple of C.
    All contiguous."""
    planes = x.shape[0] * x.shape[1]
    run_planes(write_forward, planes, x, out, window, work[0], weights=w)


def data_gradient(
    d_x: Array, d_out: Array, w: Array, window: Window, work: tuple[Array, ...]
) -> None:
    """d_x (N, C, H, W) <- d_out (N, O, OH, OW) and w (O, 1, KH, KW)."""
    memory, weights = work
    np.take(w.reshape(weights.shape), plan_of(d_x.shape, d_out.shape, window).order, 1, weights)
    planes = d_x.shape[0] * d_x.shape[1]
    run_planes(
        write_data_gradient, planes, d_x, d_out, window, memory, weights=weights, is_back=True
    )


def filter_gradient(
    d_w: Array, d_out: Array, x: Array, window: Window, work: tuple[Array, ...]
) -> None:
    """d_w (O, 1, KH, KW) <- d_out (N, O, OH, OW) and x (N, C, H, W)."""
    run_planes(_filter_gradient, x.shape[1], x, d_out, window, work[0], weights=d_w)
