"""Machine code that looks for offsets of blocks below a given height, or finds that none exist.

Every placement can be pushed down until each block lies on another one or on the floor, and its
blocks can be listed by rising offsets (Moffitt, ASPLOS 2023). So blocks are placed in that order,
each as low as those below it allow, and a choice that cannot be completed is taken back. A state is
given up as soon as the lowest edge at a moment and the sizes of the blocks to come exceed the
height. Moments that no block to come crosses part the rest, each part of which is then alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.kernels.expressions.llvm_code import Value
from oneflow.kernels.expressions.program import Program, Values, function_of

Ints = np.ndarray[Any, np.dtype[np.int64]]

_PART = ("number", "begin", "end", "level", "after")
_SHARED = ("height", "left", "sizes", "first", "last", "edges", "offsets", "floors", "sums")
_HEAD = len(_PART) + len(_SHARED) + 1  # the last word is the answer
_FAR = 1 << 61
NONE, FOUND, UNKNOWN = 0, 1, -1


def _write_fit() -> Program:
    """A frame begins with the numbers of one part, followed by its arrays; the frame of a part of
    it follows. `begin` and `end`: its moments. `level`, `after`: the offset of the block that was
    placed last, and the block.
    """
    p = Program((*_PART, *_SHARED), "i64")
    frame = Value(p.code, "%numbers", "i64")
    answer = frame + 8 * (_HEAD - 1)
    members = frame + 8 * _HEAD
    line = p["number"] * 8
    choices, saved = members + line, members + line * 2
    behind = members + line * 3
    crossing = behind - p["begin"] * 8  # found by the moment
    below = behind + (p["end"] - p["begin"]) * 8
    floors, sums = p["floors"], p["sums"]

    def get(array: Value, k: Value) -> Value:
        return p.integer(array + k * 8)

    def put(array: Value, k: Value, value: Value | int) -> None:
        p.store(p.number(value) if isinstance(value, int) else value, array + k * 8)

    def get_of(name: str, block: Value) -> Value:
        return get(p[name], block)

    def say(value: Value | int) -> None:
        put(answer, p.number(0), value)

    def said(value: int) -> Value:
        return p.integer(answer).compare("eq", value)

    def clear(s: Value, _: Values) -> None:
        put(floors, s, _FAR)
        put(sums, s, 0)

    def bound(k: Value, carried: Values) -> Values:
        lowest, fits = carried
        block = get(members, k)
        edge, size = get_of("edges", block), get_of("sizes", block)
        level = edge.compare("lt", p["level"]).choose(p["level"], edge)

        def one(s: Value, _: Values) -> None:
            put(sums, s, get(sums, s) + size)
            put(floors, s, p.least(level, get(floors, s)))

        p.loop(get_of("first", block), get_of("last", block) + 1, one)
        return [p.least(edge + size, lowest), fits & (level + size).compare("le", p["height"])]

    def bound_moment(s: Value, carried: Values) -> Values:
        total = get(sums, s)
        fits = (total + get(floors, s)).compare("le", p["height"]) | total.compare("eq", 0)
        return [carried[0] & fits]

    def choose_some(lowest: Value) -> Value:
        """List the blocks that may come next, the lowest first, and return their number."""

        def one(k: Value, carried: Values) -> Values:
            block = get(members, k)
            edge = get_of("edges", block)
            put(saved, k, edge)
            later = block.compare("gt", p["after"]) & edge.compare("eq", p["level"])
            may = (later | edge.compare("gt", p["level"])) & edge.compare("lt", lowest)

            def higher(v: Values) -> Value:
                above = get_of("edges", get(choices, v[0] - 1)).compare("gt", edge)
                return above & v[0].compare("gt", 0)

            def move(v: Values) -> Values:
                put(choices, v[0], get(choices, v[0] - 1))
                return [v[0] - 1]

            def insert() -> None:
                (place,) = p.repeat([carried[0]], higher, move)
                put(choices, place, block)

            p.when(may, insert)
            return [carried[0] + may.to("i64")]

        return p.loop(0, p["number"], one, carried=[p.number(0)])[0]

    def part_rest(block: Value, edge: Value) -> None:
        def clear_crossing(s: Value, _: Values) -> None:
            put(crossing, s, 0)

        def count(k: Value) -> None:
            other = get(members, k)
            change = other.compare("ne", block).to("i64", signed=False)
            first, last = get_of("first", other), get_of("last", other)
            put(crossing, first, get(crossing, first) + change)
            put(crossing, last, get(crossing, last) - change)

        def moment(s: Value, carried: Values) -> Values:
            live, begin = carried
            live = live + get(crossing, s)
            is_end = live.compare("eq", 0)
            p.when(is_end & said(FOUND), lambda: descend(begin, s))
            return [live, is_end.choose(s + 1, begin)]

        def descend(begin: Value, end: Value) -> None:
            def one(k: Value, carried: Values) -> Values:
                other = get(members, k)
                inside = get_of("first", other).compare("ge", begin)
                inside &= get_of("last", other).compare("le", end)
                inside &= other.compare("ne", block)
                put(below + 8 * _HEAD, carried[0], other)
                return [carried[0] + inside.to("i64", signed=False)]

            (number,) = p.loop(0, p["number"], one, carried=[p.number(0)])

            def go() -> None:
                numbers = [number, begin, end + 1, edge, block, *(p[name] for name in _SHARED)]
                for i, value in enumerate(numbers):
                    p.store(value, below + 8 * i)
                p.code.do(f"call i32 @KERNEL(i64 {below.name})")
                say(p.integer(below + 8 * (_HEAD - 1)))

            p.when(number.compare("gt", 0), go)

        p.loop(p["begin"], p["end"], clear_crossing)
        p.each(p["number"], count)
        p.loop(p["begin"], p["end"], moment, carried=[p.number(0), p["begin"]])

    def choose_next(v: Values) -> Values:
        block = get(choices, v[0])
        edge = get_of("edges", block)
        top = edge + get_of("sizes", block)
        first, last = get_of("first", block), get_of("last", block)
        put(p["offsets"], block, edge)

        def lift(k: Value) -> None:
            other = get(members, k)
            meets = get_of("first", other).compare("le", last)
            meets &= get_of("last", other).compare("ge", first)
            before = get_of("edges", other)
            put(p["edges"], other, (meets & before.compare("lt", top)).choose(top, before))

        p.each(p["number"], lift)
        say(FOUND)
        part_rest(block, edge)
        p.when(said(NONE), lambda: p.each(p["number"], restore))
        return [v[0] + 1]

    def restore(k: Value) -> None:
        put(p["edges"], get(members, k), get(saved, k))

    def look() -> None:
        p.loop(p["begin"], p["end"], clear)
        true = p.number(0).compare("eq", 0)
        far = p.number(_FAR)
        lowest, fits = p.loop(0, p["number"], bound, carried=[far, true])
        (fits,) = p.loop(p["begin"], p["end"], bound_moment, carried=[fits])

        def descend() -> None:
            count = choose_some(lowest)
            p.repeat([p.number(0)], lambda v: v[0].compare("lt", count) & said(NONE), choose_next)

        p.when(fits, descend)

    left = p.integer(p["left"]) - p["number"]
    p.store(left, p["left"])
    say(left.compare("lt", 0).choose(p.number(UNKNOWN), p.number(NONE)))
    p.when(left.compare("ge", 0), look)
    return p


class Fitter:
    """Blocks that are fitted again and again below different heights; see `Blocks`."""

    def __init__(self, sizes: Ints, first: Ints, last: Ints) -> None:
        self._given = sizes, first, last
        number, self._moments = len(sizes), int(last.max()) + 1
        # Each part has a block less than the one that it is a part of; blocks are written to the
        # next frame before they are known to belong there.
        words = (_HEAD + 1) * (number + 1) + 3 * number * (number + 1) // 2 + self._moments * number
        self._frames = np.empty(words, np.int64)
        self._function = function_of(_write_fit)

    def fit(self, order: Ints, height: int, most_work: int) -> tuple[int, Ints, int]:
        """Look for offsets below `height`, and try blocks that `order` lists first before others.

        most_work: the search ends when it has looked at so many blocks, again in each state.
        Returns NONE, FOUND or UNKNOWN, the offsets, and the work done.
        """
        number = len(order)
        sizes, first, last = (np.ascontiguousarray(x[order]) for x in self._given)
        edges, placed = np.zeros(number, np.int64), np.zeros(number, np.int64)
        left, moments = np.array([most_work]), np.empty((2, self._moments), np.int64)
        shared = [left, sizes, first, last, edges, placed, *moments]
        head = [number, 0, self._moments, 0, -1, height, *(x.ctypes.data for x in shared)]
        frame = self._frames
        frame[: _HEAD - 1] = head
        frame[_HEAD : _HEAD + number] = np.arange(number)
        self._function(frame.ctypes.data)
        offsets = np.zeros(number, np.int64)
        offsets[order] = placed
        return int(frame[_HEAD - 1]), offsets, most_work - int(left[0])
