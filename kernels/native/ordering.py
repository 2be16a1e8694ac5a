"""Stable orders of rows of numbers: radix sorts, and the first few of long rows.

A number becomes a key without a sign whose order is that of the numbers: NaN is the largest, -0 is
0, keys of a descending order are turned over. Keys of 32 bits lie in a word with their places; the
places of keys of 64 bits lie in words of their own. A pass moves the words by one digit of the
keys, from the lowest on; digits that all keys share are left out.

Threads share rows, each with memory of its own. Of few long rows they share the passes: each
counts the digits of a part of the row and moves it behind the numbers of each digit in the parts
before it. So no result depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import BITS, Value
from oneflow.kernels.native.product import LANES
from oneflow.kernels.native.program import (
    INT_NBYTES,
    Program,
    Values,
    cut,
    function_of,
    run,
)
from oneflow.kernels.threads import kernel_threads

MOST_TASKS = 8
"""Threads, each with memory of its own."""

MOST_FIRST = 64
"""Numbers of the beginning of an order that are kept sorted while the row goes by."""

_ELEMENTS_A_NUMBER = 32
"""Elements of the loops by which threads are counted that take as long as one number."""

MOST_COUNTED = 48
"""Numbers of rows of which each is compared with all others."""

_MOST_OF_SHORT = 4
"""Numbers wanted of such rows up to which inserting them takes less time."""

_INSERTED = 600
"""Elements that take as long as the insertions for each number that is wanted."""

_LEAST_PART = 1 << 15
_WIDE_DIGIT, _NARROW_DIGIT = 11, 8
_LEAST_WIDE = 1 << 13
"""Numbers of a row from which digits have more bits: fewer passes, but longer counts."""

_COUNT_NBYTES = 4
KINDS = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64"}
"""Names of dtypes -> types of LLVM."""


def digit_of(length: int) -> int:
    return _WIDE_DIGIT if length >= _LEAST_WIDE else _NARROW_DIGIT


def memory_shape(kind: str, rows: int, length: int, kept: int) -> tuple[int, int]:
    """Shape of the memory of all tasks, in words: two copies of keys and places, and counts of all
    digits."""
    if not _needs_memory(length, kept):
        return 1, 0
    bits = BITS[KINDS[kind]]
    counts = _passes(bits, digit_of(length)) << digit_of(length)
    return min(MOST_TASKS, rows), 2 * length * (bits // 32) + counts * _COUNT_NBYTES // INT_NBYTES


def _needs_memory(length: int, kept: int) -> bool:
    return length > MOST_COUNTED and kept > MOST_FIRST


def _passes(bits: int, digit: int) -> int:
    return -(-bits // digit)


# ---- programs ------------------------------------------------------------------------------------


class _Writer:
    """The pieces that programs for one type of numbers share."""

    def __init__(self, kind: str, descending: bool, digit: int, *names: str) -> None:
        self.p = Program(("begin", "end", *names))
        self.kind, self.descending, self.digit = KINDS[kind], descending, digit
        self.bits = BITS[self.kind]
        self.is_packed = self.bits == 32
        self.streams = 1 if self.is_packed else 2
        self.nbytes = self.bits // 8

    # ---- keys ----------------------------------------------------------------------------------

    @property
    def element(self) -> str:
        return f"i{self.bits}"

    @property
    def is_whole(self) -> bool:
        return self.kind == self.element

    def read(self, address: Value, lanes: int = 1) -> Value:
        """The bits of numbers of memory."""
        if lanes > 1:
            return self.p.integers(address, self.element, lanes)
        source = self.p.pointer(address)
        return self.p.code.let(f"load {self.element}, ptr {source}", self.element)

    def key(self, address: Value, lanes: int = 1) -> Value:
        """The keys of numbers of memory."""
        bits, least = self.read(address, lanes), -(1 << (self.bits - 1))
        if self.is_whole:
            key = bits ^ least
        else:
            number = bits.bits(self.kind) + 0.0  # -0 becomes 0
            bits = number.bits(self.element)
            sign = bits.shift_signed(self.bits - 1)
            key = bits ^ (sign | least)
            key = number.compare("ne", number).choose(key.like(-1), key)
        return key ^ -1 if self.descending else key

    def distance(self, address: Value, first: Value) -> Value:
        """The key of a number as its distance from the first of all: of integers that lie close
        together all high digits are zero."""
        if not self.is_whole:
            return self.key(address)
        bits = self.read(address)
        return first - bits if self.descending else bits - first

    def first(self, row: Value, length: Value) -> Value:
        """The integer that comes first in a row; of other numbers 0."""
        if not self.is_whole:
            return self.p.code.constant(0, self.element)
        how, lanes = "gt" if self.descending else "lt", LANES * 32 // self.bits

        def better(i: Value, found: Values, count: int = 1) -> Values:
            here = self.read(row + i * self.nbytes, count)
            return [here.compare(how, found[0]).choose(here, found[0])]

        whole = length & -lanes
        start = [self.read(row).splat(lanes)]
        many = partial(better, count=lanes)
        (best,) = self.p.loop(0, whole, many, step=lanes, carried=start)
        one = best.lane(0)
        for i in range(1, lanes):
            other = best.lane(i)
            one = other.compare(how, one).choose(other, one)
        (found,) = self.p.loop(whole, length, better, carried=[one])
        return found

    def word(self, key: Value, place: Value) -> Values:
        """The words of a key at a place, one for each stream."""
        if self.is_packed:
            return [(key.to("i64", signed=False) << 32) | place]
        return [key, place]

    def place(self, words: Values) -> Value:
        return words[0] & 0xFFFFFFFF if self.is_packed else words[1]

    def digit_at(self, word: Value, k: int) -> Value:
        """Digit k of the key of a word, the lowest first."""
        shift = k * self.digit + (32 if self.is_packed else 0)
        return (word >> shift) & ((1 << self.digit) - 1)

    @property
    def num_passes(self) -> int:
        return _passes(self.bits, self.digit)

    # ---- memory ----------------------------------------------------------------------------------

    def load(self, start: Value, i: Value, length: Value) -> Values:
        """The words at i of streams of `length`, which lie one behind the other."""
        return [self.p.integer(start + (i + length * s) * INT_NBYTES) for s in range(self.streams)]

    def put(self, words: Values, start: Value, i: Value, length: Value) -> None:
        for s, word in enumerate(words):
            self.p.store(word, start + (i + length * s) * INT_NBYTES)

    def count_at(self, counts: Value, digit: Value) -> Value:
        return counts + digit * _COUNT_NBYTES

    def clear(self, counts: Value, many: int) -> None:
        self.p.zero(counts, self.p.number(many << self.digit))

    def count(self, counts: Value, word: Value, k: int) -> None:
        here = self.count_at(counts, self.digit_at(word, k))
        self.p.store((self.p.integer(here, "i32") + 1).to("i32"), here)

    def sum_up(self, counts: Value) -> None:
        """Turn counts of digits into the places where each begins."""

        def of_digit(d: Value, total: Values) -> Values:
            here = self.count_at(counts, d)
            count = self.p.integer(here, "i32")
            self.p.store(total[0].to("i32"), here)
            return [total[0] + count]

        digits = self.p.number(1 << self.digit)
        self.p.loop(0, digits, of_digit, carried=[self.p.number(0)])

    def move(self, to: Value, source: Value, length: Value, part: tuple[Value, Value],
             counts: Value, k: int) -> None:  # fmt: skip
        """Move the words of a part of a row to the places of their digits."""

        def one(i: Value, _: Values) -> None:
            words = self.load(source, i, length)
            here = self.count_at(counts, self.digit_at(words[0], k))
            place = self.p.integer(here, "i32")
            self.put(words, to, place, length)
            self.p.store((place + 1).to("i32"), here)

        self.p.loop(part[0], part[1], one)

    def deliver(self, i: Value, words: Values, row: Value, values: Value, index: Value) -> None:
        """Write result i of a row."""
        place, element = self.place(words), f"i{self.bits}"
        self.p.store(place, index + i * INT_NBYTES)
        source = self.p.pointer(row + place * self.nbytes)
        number = self.p.code.let(f"load {element}, ptr {source}", element)
        self.p.store(number, values + i * self.nbytes)


def _write_rows(kind: str, descending: bool, digit: int) -> Program:
    """Rows `begin` to `end`, of which the first `kept` numbers are delivered."""
    made = _Writer(kind, descending, digit, "memory", "length", "kept", "x", "values", "index")
    p = made.p
    length = p["length"]
    space = length * (made.streams * INT_NBYTES)
    first, second = p["memory"], p["memory"] + space
    all_counts = second + space

    def counts(k: int) -> Value:
        return all_counts + (k << digit) * _COUNT_NBYTES

    def pass_by(k: int, places: Values) -> Values:
        source, to = places
        made.sum_up(counts(k))
        made.move(to, source, length, (p.number(0), length), counts(k), k)
        return [to, source]

    def of_row(r: Value, _: Values) -> None:
        row = p["x"] + r * length * made.nbytes
        made.clear(all_counts, made.num_passes)
        least = made.first(row, length)

        def read(i: Value, _: Values) -> None:
            words = made.word(made.distance(row + i * made.nbytes, least), i)
            made.put(words, first, i, length)
            for k in range(made.num_passes):
                made.count(counts(k), words[0], k)

        p.loop(0, length, read)
        places = [first, second]
        for k in range(made.num_passes):
            own = made.digit_at(p.integer(places[0]), k)
            shared = p.integer(made.count_at(counts(k), own), "i32").compare("eq", length)
            same: Callable[[], Values] = partial(list, places)
            places = p.chosen(shared, same, partial(pass_by, k, places))

        values = p["values"] + r * p["kept"] * made.nbytes
        index = p["index"] + r * p["kept"] * INT_NBYTES
        p.each(
            p["kept"],
            lambda i: made.deliver(i, made.load(places[0], i, length), row, values, index),
        )

    p.loop(p["begin"], p["end"], of_row)
    return p


def _write_short(kind: str, descending: bool) -> Program:
    """Rows of at most MOST_COUNTED numbers: each goes to the place of its rank, the number of those
    before it."""
    made = _Writer(kind, descending, _NARROW_DIGIT, "length", "kept", "x", "values", "index")
    p = made.p
    length, lanes = p["length"], LANES // 2
    room = p.number(MOST_COUNTED)
    memory = p.memory(MOST_COUNTED * made.streams * INT_NBYTES)
    whole = (length + (lanes - 1)) & -lanes
    listed = ", ".join(f"i64 {i}" for i in range(lanes))
    lane = Value(p.code, f"<{listed}>", "i64", lanes)

    def is_before(j: Value, words: Values, i: Value) -> Value:
        """Whether words j, j + 1 ... come before those at i."""
        others = p.integers(memory + j * INT_NBYTES, "i64", lanes)
        mine = words[0].splat(lanes)
        found = others.compare("lt", mine, signed=False)
        if made.is_packed:
            return found
        earlier = (lane + j.splat(lanes)).compare("lt", i.splat(lanes))
        return found | (others.compare("eq", mine) & earlier)

    def of_row(r: Value, _: Values) -> None:
        row = p["x"] + r * length * made.nbytes
        values = p["values"] + r * p["kept"] * made.nbytes
        index = p["index"] + r * p["kept"] * INT_NBYTES

        def read(i: Value, _: Values) -> None:
            made.put(made.word(made.key(row + i * made.nbytes), i), memory, i, room)

        def of_number(i: Value, _: Values) -> None:
            words = made.load(memory, i, room)

            def some(j: Value, count: Values) -> Values:
                return [count[0] + is_before(j, words, i).to("i64")]

            none = p.code.constant(0, "i64", lanes)
            (count,) = p.loop(0, whole, some, step=lanes, carried=[none])
            rank = count.folded()
            p.when(
                rank.compare("lt", p["kept"]),
                lambda: made.deliver(rank, words, row, values, index),
            )

        p.loop(0, length, read)
        last = [p.number(-1)] * made.streams
        p.loop(length, whole, lambda i, _: made.put(last, memory, i, room))
        p.loop(0, length, of_number)

    p.loop(p["begin"], p["end"], of_row)
    return p


def _write_keys(kind: str, descending: bool) -> Program:
    made = _Writer(kind, descending, _WIDE_DIGIT, "length", "first", "x", "to")
    p = made.p
    first = p["first"].to(made.element)

    def read(i: Value, _: Values) -> None:
        words = made.word(made.distance(p["x"] + i * made.nbytes, first), i)
        made.put(words, p["to"], i, p["length"])

    p.loop(p["begin"], p["end"], read)
    return p


def _write_counts(kind: str, k: int) -> Program:
    made = _Writer(kind, False, _WIDE_DIGIT, "length", "source", "counts")
    p = made.p
    made.clear(p["counts"], 1)

    def one(i: Value, _: Values) -> None:
        made.count(p["counts"], p.integer(p["source"] + i * INT_NBYTES), k)

    p.loop(p["begin"], p["end"], one)
    return p


def _write_moves(kind: str, k: int) -> Program:
    made = _Writer(kind, False, _WIDE_DIGIT, "length", "source", "to", "counts")
    p = made.p
    made.move(p["to"], p["source"], p["length"], (p["begin"], p["end"]), p["counts"], k)
    return p


def _write_delivery(kind: str) -> Program:
    made = _Writer(kind, False, _WIDE_DIGIT, "length", "source", "x", "values", "index")
    p = made.p

    def one(i: Value, _: Values) -> None:
        words = made.load(p["source"], i, p["length"])
        made.deliver(i, words, p["x"], p["values"], p["index"])

    p.loop(p["begin"], p["end"], one)
    return p


def _write_first(kind: str, descending: bool) -> Program:
    """The first `kept` numbers of an order, at most MOST_FIRST: a number that comes before the last
    of them is moved to its place. Whole vectors are compared with the last."""
    made = _Writer(kind, descending, _NARROW_DIGIT, "length", "kept", "x", "values", "index")
    p = made.p
    lanes = LANES * 32 // made.bits
    room = p.number(MOST_FIRST + 1)
    memory = p.memory((MOST_FIRST + 1) * made.streams * INT_NBYTES)
    kept = memory + INT_NBYTES  # behind a key that is before all others
    length = p["length"]

    def insert(words: Values, last: Value) -> None:
        """Put a word before those that are larger; the word at `last` is lost."""

        def is_before(j: Values) -> Value:
            one = p.integer(kept + (j[0] - 1) * INT_NBYTES)
            inside = j[0].compare("gt", 0)
            return inside & one.compare("gt", words[0], signed=False)

        def step(j: Values) -> Values:
            made.put(made.load(kept, j[0] - 1, room), kept, j[0], room)
            return [j[0] - 1]

        (place,) = p.repeat([last], is_before, step)
        made.put(words, kept, place, room)

    def of_row(r: Value, _: Values) -> None:
        row = p["x"] + r * length * made.nbytes

        def words_at(i: Value) -> Values:
            return made.word(made.key(row + i * made.nbytes), i)

        p.loop(0, p["kept"], lambda i, _: insert(words_at(i), i))
        last = p["kept"] - 1

        def worst() -> Value:
            word = p.integer(kept + last * INT_NBYTES)
            return (word >> 32).to("i32") if made.is_packed else word

        def one(i: Value, _: Values) -> None:
            key = made.key(row + i * made.nbytes)
            is_better = key.compare("lt", worst(), signed=False)
            p.when(is_better, lambda: insert(made.word(key, i), last))

        def some(i: Value, limit: Values) -> Values:
            keys = made.key(row + i * made.nbytes, lanes)
            mask = keys.compare("lt", limit[0].splat(lanes), signed=False)
            bits = p.code.let(f"bitcast {mask.type} {mask.name} to i{lanes}", f"i{lanes}")

            def look() -> Values:
                p.loop(i, i + lanes, one)
                return [worst()]

            return p.chosen(bits.compare("ne", 0), look, lambda: limit)

        whole = length - (length - p["kept"]) % lanes
        p.loop(p["kept"], whole, some, step=lanes, carried=[worst()])
        p.loop(whole, length, one)
        values = p["values"] + r * p["kept"] * made.nbytes
        index = p["index"] + r * p["kept"] * INT_NBYTES
        p.each(p["kept"], lambda i: made.deliver(i, made.load(kept, i, room), row, values, index))

    p.loop(p["begin"], p["end"], of_row)
    return p


# ---- calls ---------------------------------------------------------------------------------------


def order(values: Array, index: Array, x: Array, memory: Array, descending: bool) -> None:
    """values, index (R, K) <- the first K numbers of the order of each row of x (R, N), and their
    places. memory: of `memory_shape`, int64. All contiguous."""
    rows, length = x.shape
    kept = values.shape[1]
    kind = x.dtype.name
    work = x.size * _ELEMENTS_A_NUMBER
    if not _needs_memory(length, kept):
        _without_memory(values, index, x, descending)
        return
    if rows < kernel_threads(work) and length >= 2 * _LEAST_PART:
        for r in range(rows):
            _long_row(values[r], index[r], x[r], memory[0], descending)
        return
    function = function_of(_write_rows, kind, descending, digit_of(length))
    fixed = [length, kept, *map(data_address, (x, values, index))]
    tasks = zip(cut(rows, work, len(memory)), memory, strict=False)
    run(function, [[*part, data_address(own), *fixed] for part, own in tasks])


def _without_memory(values: Array, index: Array, x: Array, descending: bool) -> None:
    """Rows that are short, or of which few numbers are wanted."""
    rows, length = x.shape
    kept = values.shape[1]
    is_short = length <= MOST_COUNTED and kept > _MOST_OF_SHORT
    work = rows * (length * length // 4 if is_short else length // 2 + kept * _INSERTED)
    write = _write_short if is_short else _write_first
    fixed = [length, kept, *map(data_address, (x, values, index))]
    parts = cut(rows, work, MOST_TASKS * MOST_TASKS)
    run(function_of(write, x.dtype.name, descending), [[*part, *fixed] for part in parts])


def _long_row(values: Array, index: Array, x: Array, memory: Array, descending: bool) -> None:
    """One row, whose passes threads share."""
    length, kind = x.size, x.dtype.name
    parts = cut(length, length * _ELEMENTS_A_NUMBER, min(MOST_TASKS, length // _LEAST_PART))
    bits = BITS[KINDS[kind]]
    space = length * (bits // 32)
    source, to = (data_address(memory[k * space :]) for k in (0, 1))
    is_whole = x.dtype.kind == "i"
    first = int(x.max() if descending else x.min()) if is_whole else 0
    keys = function_of(_write_keys, kind, descending)
    _share(parts, keys, [length, first, data_address(x), source])
    counts = np.empty((len(parts), 1 << _WIDE_DIGIT), np.int32)
    own = [data_address(row) for row in counts]
    for k in range(_passes(bits, _WIDE_DIGIT)):
        _share(parts, function_of(_write_counts, kind, k), [length, source], own)
        if int(counts.sum(0).max()) == length:
            continue
        by_digit = counts.T.ravel()
        begins = by_digit.cumsum(dtype=np.int32) - by_digit
        counts[...] = begins.reshape(counts.shape[::-1]).T
        _share(parts, function_of(_write_moves, kind, k), [length, source, to], own)
        source, to = to, source
    found = cut(values.size, length * _ELEMENTS_A_NUMBER, len(parts))
    fixed = [length, source, *map(data_address, (x, values, index))]
    _share(found, function_of(_write_delivery, kind), fixed)


def _share(
    parts: list[tuple[int, int]],
    function: Callable[[object], int],
    fixed: list[int],
    own: list[int] | None = None,
) -> None:
    """Run a function over the parts of a row. own: a number of each part."""
    more = [[]] * len(parts) if own is None else [[one] for one in own]
    run(function, [[*part, *fixed, *last] for part, last in zip(parts, more, strict=True)])
