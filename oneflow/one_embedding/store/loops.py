"""Compiled loops over the index of a store and its rows.

An index (index.py) is open addressing in PARTS tables, each of which grows on its own: the highest
bits of an id's hash name the table, the others the entry where the search for the id begins. An
entry is two words: the 64 bits of the id, and its table (TABLE_BITS) with its place plus one; an
empty one is 0. Searches compare a group of entries, a line of memory, at once. Rows lie in chunks
of a power of two. A look-up waits for memory and hardly computes, so loops ask for later
entries before they work on the present ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.program import (
    FLOAT_NBYTES,
    INT_NBYTES,
    Program,
    Values,
    at,
)

PART_BITS, TABLE_BITS = 4, 12
PARTS = 1 << PART_BITS
ENTRY_NBYTES = 16
_GROUP_BITS = 2
GROUP = 1 << _GROUP_BITS
"""Entries of a group, a line of memory, which are compared at once: the search for an id begins at
a whole one."""
HEAD_WORDS = 4
"""Words for each table of the index: its address, its entries, those in use, and their limit."""

_PLACE_BITS = 64 - TABLE_BITS
_ON_THE_WAY = 32
"""Ids whose entries are on their way from memory at once; a power of two."""
_AHEAD = 32
"""Rows and ids asked for ahead of the one that is copied or added."""
_LINE_NBYTES = 64
_MOST_LINES = 4
_ASKED_GROUPS = 4
"""Groups of entries that are asked for ahead: where tables are nearly full one search in four goes
beyond the first, and waiting for memory then takes longer than all else."""
HASH_TABLE = 0x9E3779B97F4A7C15
HASH_FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
"""Multipliers of tables, and those by which Appleby's MurmurHash3 ends: each bit of the id changes
half of the hash."""


def _hash(p: Program, key: Value, table: Value) -> Value:
    h = key ^ ((table + 1) * _signed(HASH_TABLE))
    for factor in HASH_FACTORS:
        h = (h ^ (h >> 33)) * _signed(factor)
    return h ^ (h >> 33)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _high_product(p: Program, a: Value, b: Value) -> Value:
    """The higher half of the product of two words."""
    wide = [p.code.let(f"zext i64 {x.name} to i128", "i128") for x in (a, b)]
    product = p.code.let(f"mul i128 {wide[0].name}, {wide[1].name}", "i128")
    high = p.code.let(f"lshr i128 {product.name}, 64", "i128")
    return p.code.let(f"trunc i128 {high.name} to i64", "i64")


def _prefetch(p: Program, address: Value) -> None:
    name = "@llvm.prefetch.p0"
    p.code.declarations[name] = f"declare void {name}(ptr, i32, i32, i32)"
    pointer = p.code.let(f"inttoptr i64 {address.name} to ptr", "ptr")
    p.code.do(f"call void {name}(ptr {pointer.name}, i32 0, i32 3, i32 1)")


def _word(p: Program, address: Value, index: int = 0) -> Value:
    return p.integer(address + INT_NBYTES * index)


class _Entries:
    """The table of an index that is meant for a hash."""

    def __init__(self, p: Program, heads: Value, hashed: Value) -> None:
        self.p = p
        self.head = heads + (hashed >> (64 - PART_BITS)) * (HEAD_WORDS * INT_NBYTES)
        self.base, self.size = _word(p, self.head), _word(p, self.head, 1)
        groups = self.size >> _GROUP_BITS
        self.first = _high_product(p, hashed << PART_BITS, groups) << _GROUP_BITS

    def entry(self, position: Value) -> Value:
        return self.base + position * ENTRY_NBYTES

    def ask(self) -> None:
        """Let the first entries come from memory."""
        for group in range(_ASKED_GROUPS):
            _prefetch(self.p, self.entry(self.first) + group * _LINE_NBYTES)

    def probe(self, key: Value, table: Value) -> Value:
        """Address of the entry of an id, or of the empty one where it belongs."""
        p = self.p

        def is_missing(values: Values) -> Value:
            return values[1].compare("eq", 0)

        def following(values: Values) -> Values:
            after = values[0] + GROUP
            position = after.compare("eq", self.size).choose(p.number(0), after)
            return [position, self._matches(position, key, table)]

        start = [self.first, self._matches(self.first, key, table)]
        position, matches = p.repeat(start, is_missing, following)
        return self.entry(position + _first_bit(p, matches))

    def _matches(self, position: Value, key: Value, table: Value) -> Value:
        """A bit for each entry of a group that is empty or the id's."""
        p, words = self.p, 2 * GROUP
        entry = p.code.let(f"inttoptr i64 {self.entry(position).name} to ptr", "ptr")
        group = p.code.let(f"load <{words} x i64>, ptr {entry.name}, align 8", "i64", words)
        keys, used = (p.shuffled(group, group, range(k, words, 2)) for k in (0, 1))
        is_it = keys.compare("eq", key.splat(GROUP))
        is_it = is_it & (used >> _PLACE_BITS).compare("eq", table.splat(GROUP))
        found = is_it | used.compare("eq", 0)
        bits = p.code.let(f"bitcast {found.type} {found.name} to i{GROUP}", f"i{GROUP}")
        return p.code.let(f"zext i{GROUP} {bits.name} to i64", "i64")


def _first_bit(p: Program, bits: Value) -> Value:
    """The number of the lowest bit that is set."""
    name = "@llvm.cttz.i64"
    p.code.declarations[name] = f"declare i64 {name}(i64, i1)"
    return p.code.let(f"call i64 {name}(i64 {bits.name}, i1 true)", "i64")


def _key(p: Program, i: Value) -> tuple[Value, Value]:
    return p.integer(p["keys"] + i * INT_NBYTES), p.integer(p["tables"] + i * 4, "i32")


def _in_turn(p: Program, body: Callable[[Value, Value, Value], None]) -> None:
    """`body(i, its table of the index, its entry)` for i from begin to end. While one is worked on,
    the entries of the next _ON_THE_WAY come from memory, which so is never idle."""
    hashes = p.memory(_ON_THE_WAY * INT_NBYTES)

    def place(i: Value) -> Value:
        return hashes + ((i - p["begin"]) & (_ON_THE_WAY - 1)) * INT_NBYTES

    def ask(i: Value, _: Values) -> None:
        hashed = _hash(p, *_key(p, i))
        p.store(hashed, place(i))
        _Entries(p, p["heads"], hashed).ask()

    def use(i: Value, values: Values) -> None:
        hashed = p.integer(place(i))
        ask(p.least(i + _ON_THE_WAY, p["end"] - 1), values)
        body(i, *_found(p, hashed, *_key(p, i)))

    p.loop(p["begin"], p.least(p["begin"] + _ON_THE_WAY, p["end"]), ask)
    p.loop(p["begin"], p["end"], use)


def _found(p: Program, hashed: Value, key: Value, table: Value) -> tuple[Value, Value]:
    entries = _Entries(p, p["heads"], hashed)
    return entries.head, entries.probe(key, table)


def write_find() -> Program:
    """places[i] <- the place of id i, -1 if it is not there."""
    p = Program(("begin", "end", "keys", "tables", "places", "heads"))

    def one(i: Value, _: Value, entry: Value) -> None:
        used = _word(p, entry, 1)
        p.store((used & ((1 << _PLACE_BITS) - 1)) - 1, p["places"] + i * INT_NBYTES)

    _in_turn(p, one)
    return p


def write_assign() -> Program:
    """Give ids their places, known or not, up to the first whose table of the index is full; its
    number goes to `done`."""
    p = Program(("end", "keys", "tables", "places", "heads", "done"))

    def has_room(values: Values) -> Value:
        return values[0].compare("lt", p["end"]) & values[1].compare("ne", 0)

    def one(values: Values) -> Values:
        i = values[0]
        later = p.least(i + _AHEAD, p["end"] - 1)
        _Entries(p, p["heads"], _hash(p, *_key(p, later))).ask()
        key, table = _key(p, i)
        entries = _Entries(p, p["heads"], _hash(p, key, table))
        entry = entries.probe(key, table)
        is_new = _word(p, entry, 1).compare("eq", 0).to("i64")
        count = _word(p, entries.head, 2) + is_new
        room = count.compare("le", _word(p, entries.head, 3))

        def write() -> None:
            place = p.integer(p["places"] + i * INT_NBYTES) + 1
            p.store(key, entry)
            p.store(place | (table << _PLACE_BITS), entry + INT_NBYTES)
            p.store(count, entries.head + 2 * INT_NBYTES)

        p.when(room, write)
        return [i + room.to("i64"), room.to("i64")]

    last = p.repeat([p.number(0), p.number(1)], has_room, one)
    p.store(last[0], p["done"])
    return p


def write_move() -> Program:
    """Entries of a table of an index go to a larger one, whose head is `head`."""
    p = Program(("entries", "count", "heads"))

    def one(i: Value) -> None:
        entry = p["entries"] + i * ENTRY_NBYTES
        key, used = _word(p, entry), _word(p, entry, 1)

        def move() -> None:
            table = used >> _PLACE_BITS
            _, to = _found(p, _hash(p, key, table), key, table)
            p.store(key, to)
            p.store(used, to + INT_NBYTES)

        p.when(used.compare("ne", 0), move)

    p.each(p["count"], one)
    return p


def write_part_counts() -> Program:
    """counts[part of the hash of id i] += 1."""
    p = Program(("end", "keys", "tables", "counts"))

    def one(i: Value) -> None:
        to = p["counts"] + (_hash(p, *_key(p, i)) >> (64 - PART_BITS)) * INT_NBYTES
        p.store(p.integer(to) + 1, to)

    p.each(p["end"], one)
    return p


def write_copy(is_out: bool) -> Program:
    """Copy rows out of chunks (target[i] <- the row at places[i]), or into them.

    Numbers of a row: `line`, of memory between rows of a chunk: `pitch`. A chunk has 2^shift rows.
    """
    p = Program(("begin", "end", "places", "chunks", "shift", "line", "pitch", "outer"))
    mask = (p.number(1) << p["shift"]) - 1

    def row(i: Value) -> Value:
        place = p.integer(p["places"] + i * INT_NBYTES)
        chunk = p.integer(p["chunks"] + (place >> p["shift"]) * INT_NBYTES)
        return at(chunk, (place & mask) * p["pitch"])

    def one(i: Value, _: Values) -> None:
        ahead = row(p.least(i + _AHEAD, p["end"] - 1))
        for line in range(_MOST_LINES):
            beyond = p["line"].compare("gt", line * _LINE_NBYTES // FLOAT_NBYTES)
            p.when(beyond, partial(_prefetch, p, ahead + line * _LINE_NBYTES))
        inner, outer = row(i), at(p["outer"], i * p["line"])
        source, target = (inner, outer) if is_out else (outer, inner)
        whole = p["line"] & -p.lanes

        def some(j: Value, _: Values) -> None:
            p.store(p.load(at(source, j), p.lanes), at(target, j))

        p.loop(0, whole, some, step=p.lanes)
        rest = p["line"] - whole

        def end() -> None:
            p.store_first(rest, p.load_first(rest, at(source, whole)), at(target, whole))

        p.when(rest.compare("gt", 0), end)

    p.loop(p["begin"], p["end"], one)
    return p


def write_mark() -> Program:
    """Set the bits of places in `bits`; the numbers of those that were not set go to `fresh`, and
    how many they are to `count`."""
    p = Program(("end", "places", "bits", "fresh", "count"))

    def one(i: Value, values: Values) -> Values:
        place, count = p.integer(p["places"] + i * INT_NBYTES), values[0]
        to = p["bits"] + (place >> 6) * INT_NBYTES
        before, bit = p.integer(to), p.number(1) << (place & 63)
        p.store(before | bit, to)
        p.store(i, p["fresh"] + count * INT_NBYTES)
        return [count + (before & bit).compare("eq", 0).to("i64")]

    p.store(p.loop(0, p["end"], one, carried=[p.number(0)])[0], p["count"])
    return p


def write_sweep() -> Program:
    """Find lines of a cache that may go, as a clock does: from `hand` on, a line of state 0 is
    found, and others get another turn, each for one of their uses. states: bytes; a line whose bit
    `pinned` is set stays as it is, and those that are found get it.

    The numbers of `wanted` lines go to `found`, the hand to `hand`.
    """
    p = Program(("wanted", "states", "lines", "hand", "found", "pinned"))

    def is_short(values: Values) -> Value:
        return values[1].compare("lt", p["wanted"])

    def one(values: Values) -> Values:
        line, count = values
        at_line = p["states"] + line
        state = p.integer(at_line, "i8")
        p.store(line, p["found"] + count * INT_NBYTES)
        is_pinned = (state & p["pinned"]).compare("ne", 0)
        following = state.compare("eq", 0).choose(p["pinned"], is_pinned.choose(state, state - 1))
        p.store(following.to("i8"), at_line)
        after = line + 1
        after = after.compare("eq", p["lines"]).choose(p.number(0), after)
        return [after, count + state.compare("eq", 0).to("i64")]

    last = p.repeat([p.integer(p["hand"]), p.number(0)], is_short, one)
    p.store(last[0], p["hand"])
    return p
