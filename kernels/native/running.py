"""Running sums and products of float32, added up in float64."""

from __future__ import annotations

from functools import partial

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import LANES
from oneflow.kernels.native.program import Program, Values, at, cut, function_of, run

_TOGETHER = 4
"""Rows, or vectors of columns, that one loop goes through: each waits for its own last sum."""


def _write_running(multiplies: bool) -> Program:
    """Along the rows `begin` to `end`, of `size` elements each."""
    p = Program(("begin", "end", "size", "source", "target"))
    first = 1.0 if multiplies else 0.0

    def rows(count: int, row: Value, _: Values) -> None:
        starts = [(row + k) * p["size"] for k in range(count)]

        def element(i: Value, totals: Values) -> Values:
            terms = [p.load(at(p["source"], start + i)).to("double") for start in starts]
            pairs = zip(totals, terms, strict=True)
            made = [total * x if multiplies else total + x for total, x in pairs]
            for start, total in zip(starts, made, strict=True):
                p.store(total.to("float"), at(p["target"], start + i))
            return made

        p.loop(0, p["size"], element, carried=[p.code.constant(first, "double")] * count)

    whole = p["begin"] + ((p["end"] - p["begin"]) & -_TOGETHER)
    p.loop(p["begin"], whole, partial(rows, _TOGETHER), step=_TOGETHER)
    p.loop(whole, p["end"], partial(rows, 1))
    return p


def _write_running_columns(multiplies: bool) -> Program:
    """Down the columns `begin` to `end` of each of `before` samples of (size, after)."""
    p = Program(("begin", "end", "before", "size", "after", "source", "target"))
    first, after = 1.0 if multiplies else 0.0, p["after"]

    def of_sample(a: Value) -> None:
        start = a * p["size"] * after

        def columns(count: int, lanes: int, j: Value, _: Values) -> None:
            def element(i: Value, totals: Values) -> Values:
                here = [start + i * after + j + k * lanes for k in range(count)]
                terms = [p.load(at(p["source"], h), lanes).to("double") for h in here]
                pairs = zip(totals, terms, strict=True)
                made = [total * x if multiplies else total + x for total, x in pairs]
                for h, total in zip(here, made, strict=True):
                    p.store(total.to("float"), at(p["target"], h))
                return made

            begin = p.code.constant(first, "double", lanes)
            p.loop(0, p["size"], element, carried=[begin] * count)

        step = _TOGETHER * LANES
        whole = p["begin"] + ((p["end"] - p["begin"]) & -step)
        p.loop(p["begin"], whole, partial(columns, _TOGETHER, LANES), step=step)
        p.loop(whole, p["end"], partial(columns, 1, 1))

    p.each(p["before"], of_sample)
    return p


def run_on(out: Array, x: Array, dim: int, *, multiplies: bool) -> None:
    """The sums or products of `x` up to each element along `dim`, rounded once. x, out: float32,
    contiguous, of one shape; they may be the same memory.
    """
    size, before, after = x.shape[dim], 1, 1
    for n in x.shape[:dim]:
        before *= n
    for n in x.shape[dim + 1 :]:
        after *= n
    arrays = [data_address(x), data_address(out)]
    if after == 1:
        parts = cut(before, x.size, max(1, before // _TOGETHER))
        tasks = [[begin, end, size, *arrays] for begin, end in parts]
        run(function_of(_write_running, multiplies), tasks)
    else:
        parts = cut(after, x.size, max(1, after // (_TOGETHER * LANES)))
        tasks = [[begin, end, before, size, after, *arrays] for begin, end in parts]
        run(function_of(_write_running_columns, multiplies), tasks)
