"""Machine code that places blocks of memory, by the rule of `oneflow.actors.offsets`.

In vectors over all blocks, because a block that is placed raises every other one that lives with
it: for 2,500 blocks 1.5 ms, where a NumPy call for each step took 18.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from oneflow.kernels.native.llvm_code import BITS, Value
from oneflow.kernels.native.program import Program, Values, function_of

Ints = np.ndarray[Any, np.dtype[Any]]

_NARROW, _WIDE = 1 << 30, 1 << 61
"""Edges of blocks that are placed, in 32 and 64 bits: beyond every arena."""


def _least(x: Value) -> Value:
    """The least of the lanes."""
    while x.lanes > 1:
        half = x.lanes // 2
        low, high = x.part(0, half), x.part(half, half)
        x = low.compare("lt", high).choose(low, high)
    return x


def _write_place(element: str) -> Program:
    p = Program(("number", "count", "columns", "offsets"), element)
    nbytes, lanes, bits = BITS[element] // 8, p.lanes, f"i{p.lanes}"
    gone = p.code.constant(_NARROW if element == "i32" else _WIDE, element)
    line = p["count"] * nbytes
    names = ("sizes", "first", "last", "edges")
    columns = {name: p["columns"] + line * i for i, name in enumerate(names)}

    def some(name: str, k: Value) -> Value:
        return p.load(columns[name] + k * nbytes, lanes)

    def one(address: Value, k: Value) -> Value:
        return p.integer(address + k * nbytes, element)

    def below(k: Value, limit: Value) -> Value:
        """A bit for each edge from the k-th on that is below the limit."""
        found = some("edges", k).compare("lt", limit.splat(lanes))
        return p.code.let(f"bitcast {found.type} {found.name} to {bits}", bits)

    def first_below(start: Value, limit: Value) -> Value:
        return p.search(start, lambda k: below(k, limit).compare("ne", 0), lanes)

    def smaller(k: Value, least: Value) -> Value:
        end = some("edges", k) + some("sizes", k)
        return end.compare("lt", least).choose(end, least)

    def turn(_: Value, carried: Values) -> Values:
        least, start = carried
        start = first_below(start, gone)
        near = first_below(start, least)
        lane = p.code.let(
            f"call {bits} @llvm.cttz.{bits}({bits} {below(near, least).name}, i1 true)", bits
        )
        i = near + lane.to("i64", signed=False)
        begin, stop = one(columns["first"], i), one(columns["last"], i)
        edge = one(columns["edges"], i)
        end = edge + one(columns["sizes"], i)
        p.store(edge.to(element), p["offsets"] + i * nbytes)
        p.store(gone, columns["edges"] + i * nbytes)
        born, died, top = (x.to(element).splat(lanes) for x in (begin, stop, end))

        def raise_some(k: Value, known: Values) -> Values:
            before = some("edges", k)
            meets = some("first", k).compare("le", died) & some("last", k).compare("ge", born)
            edges = (meets & before.compare("lt", top)).choose(top, before)
            p.store(edges, columns["edges"] + k * nbytes)
            ends = edges + some("sizes", k)
            return [ends.compare("lt", known[0]).choose(ends, known[0])]

        nothing = gone.splat(lanes)
        (ends,) = p.loop(start, p["count"], raise_some, step=lanes, carried=[nothing])
        return [_least(ends), start]

    p.code.declarations["cttz"] = f"declare {bits} @llvm.cttz.{bits}({bits}, i1)"
    nothing = gone.splat(lanes)
    (ends,) = p.loop(
        0, p["count"], lambda k, known: [smaller(k, known[0])], step=lanes, carried=[nothing]
    )
    p.loop(0, p["number"], turn, carried=[_least(ends), p.number(0)])
    return p


def offsets_of(sizes: Ints, first: Ints, last: Ints, edges: Ints | None = None) -> Ints:
    """Offsets of blocks that are listed by priority.

    sizes, first, last: see `Blocks`.  edges: the least offset of each; None: 0.
    """
    number = len(sizes)
    largest = int(sizes.sum()) + (0 if edges is None else int(edges.max()))
    element, kind = ("i32", np.int32) if largest < _NARROW else ("i64", np.int64)
    count = -(-number // 16) * 16
    columns = np.zeros((4, count), kind)
    columns[:3, :number] = sizes, first, last
    if edges is not None:
        columns[3, :number] = edges
    beyond = _NARROW if element == "i32" else _WIDE
    columns[:, number:] = [[0], [beyond], [-1], [beyond]]  # live at no moment
    offsets = np.zeros(number, kind)
    numbers = [number, count, columns.ctypes.data, offsets.ctypes.data]
    function_of(_write_place, element)((ctypes.c_int64 * len(numbers))(*numbers))
    return offsets.astype(np.int64)
