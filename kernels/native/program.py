"""Functions of loops over float32 memory, written as LLVM IR by Python functions.

`Program` is for kernels that no formula describes. Names of numbers that the caller passes become
values; `loop` and `when` write the code of their bodies. Addresses are numbers of bytes. Nothing is
checked. Such a function is compiled in 5 to 30 ms, where numba takes a second for one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain

from oneflow.kernels.native.llvm_code import BITS, Code, Value, vector_type
from oneflow.kernels.native.machine_code import address_at, address_of, function_at
from oneflow.kernels.native.product import LANES
from oneflow.kernels.native.thread_pool import hand_out
from oneflow.kernels.threads import cut as cut

FLOAT_NBYTES, INT_NBYTES = 4, 8
Values = list[Value]
SIDE = 8
"""Rows and columns of the tiles that are transposed in registers."""


def at(address: Value, index: Value | int) -> Value:
    """Address of a float32 by its index."""
    return address + (index * FLOAT_NBYTES)


class Program:
    """The function `f(int64 *numbers)`.

    names: of its numbers, by which the program finds them as p["name"]. element: the type of the
    numbers that it loads and stores, "float" or "double". steps: its loops step from address to
    address, see `address_of`.
    """

    def __init__(
        self, names: Sequence[str], element: str = "float", *, steps: bool = False
    ) -> None:
        self.steps = steps
        self.code, self.element = Code(), element
        self.lanes = LANES * 32 // BITS[element]
        self.code.label("entry")
        self._block = "entry"
        self._given = {
            name: self.integer(Value(self.code, "%numbers", "i64") + INT_NBYTES * i)
            for i, name in enumerate(names)
        }

    def __getitem__(self, name: str) -> Value:
        return self._given[name]

    def text(self) -> str:
        self.code.do("ret i32 0")
        head = "define i32 @KERNEL(i64 %numbers) nounwind {"
        return "\n".join([*self.code.declarations.values(), head, *self.code.lines, "}", ""])

    def number(self, value: int) -> Value:
        return self.code.constant(value, "i64")

    def memory(self, nbytes: int | Value) -> Value:
        """Address of memory of the call; to be taken before the first loop."""
        count = nbytes.name if isinstance(nbytes, Value) else nbytes
        made = self.code.let(f"alloca i8, i64 {count}, align 64", "ptr")
        return self.code.let(f"ptrtoint ptr {made.name} to i64", "i64")

    # ---- memory ------------------------------------------------------------------------------

    def pointer(self, address: Value) -> str:
        """The name of an address as a pointer."""
        return self.code.let(f"inttoptr i64 {address.name} to ptr", "ptr").name

    def integer(self, address: Value, kind: str = "i64") -> Value:
        """An integer of memory, as int64."""
        return self.code.let(f"load {kind}, ptr {self.pointer(address)}", kind).to("i64")

    def integers(self, address: Value, kind: str, lanes: int) -> Value:
        """A vector of integers of memory, at any address."""
        text = f"load {vector_type(kind, lanes)}, ptr {self.pointer(address)}, align 1"
        return self.code.let(text, kind, lanes)

    def prefetch(self, address: Value, *, writes: bool = False) -> None:
        """Fetch a line of memory, if it is there: into the second cache to read it, into the first
        to write it."""
        name = "@llvm.prefetch.p0"
        self.code.declarations[name] = f"declare void {name}(ptr, i32, i32, i32)"
        how = "i32 1, i32 3" if writes else "i32 0, i32 2"
        self.code.do(f"call void {name}(ptr {self.pointer(address)}, {how}, i32 1)")

    def load(self, address: Value, lanes: int = 1) -> Value:
        kind = vector_type(self.element, lanes)
        text = f"load {kind}, ptr {self.pointer(address)}, align 4"
        return self.code.let(text, self.element, lanes)

    def store(self, value: Value, address: Value) -> None:
        align = min(4, BITS[value.element] // 8)
        self.code.do(f"store {value.type} {value.name}, ptr {self.pointer(address)}, align {align}")

    def load_first(self, count: Value, address: Value, rest: float = 0.0) -> Value:
        """A vector whose first `count` numbers are there, `rest` behind them."""
        behind = self.code.constant(rest, self.element, self.lanes)
        mask = self._mask(count, self.lanes)
        name = f"@llvm.masked.load.v{self.lanes}f{BITS[self.element]}.p0"
        kind = behind.type
        self.code.declarations[name] = f"declare {kind} {name}(ptr, i32, {mask.type}, {kind})"
        given = f"ptr {self.pointer(address)}, i32 4, {mask.type} {mask.name}"
        text = f"call {kind} {name}({given}, {kind} {behind.name})"
        return self.code.let(text, self.element, self.lanes)

    def store_first(self, count: Value, value: Value, address: Value) -> None:
        kind, mask = value.type, self._mask(count, value.lanes)
        bits = BITS[value.element]
        name = f"@llvm.masked.store.v{value.lanes}{'f' if value.is_float else 'i'}{bits}.p0"
        self.code.declarations[name] = f"declare void {name}({kind}, ptr, i32, {mask.type})"
        place = f"ptr {self.pointer(address)}, i32 {min(4, bits // 8)}"
        given = f"{kind} {value.name}, {place}, {mask.type} {mask.name}"
        self.code.do(f"call void {name}({given})")

    def _mask(self, count: Value, lanes: int) -> Value:
        places = ", ".join(f"i64 {i}" for i in range(lanes))
        numbers = Value(self.code, f"<{places}>", "i64", lanes)
        return numbers.compare("lt", count.splat(lanes))

    def shuffled(self, a: Value, b: Value, places: Sequence[int]) -> Value:
        """Numbers of a vector and, from LANES on, of another."""
        listed = ", ".join(f"i32 {i}" for i in places)
        mask = f"<{len(places)} x i32> <{listed}>"
        text = f"shufflevector {a.type} {a.name}, {b.type} {b.name}, {mask}"
        return self.code.let(text, a.element, len(places))

    def folded(self, values: Values) -> Value:
        """The sums of the lanes of each of some vectors, in a vector: 1, 2, 4 ... of them, no
        more than lanes. Halves of two are added side by side until one vector is left."""
        count, lanes = len(values), values[0].lanes
        low = [j // 2 + (j % 2) * lanes for j in range(lanes)]
        high = [j + lanes // 2 for j in low]
        while len(values) > 1:
            half = len(values) // 2
            pairs = zip(values[:half], values[half:], strict=True)
            values = [self.shuffled(a, b, low) + self.shuffled(a, b, high) for a, b in pairs]
        x = values[0]
        while x.lanes > count:
            half = x.lanes // 2
            x = x.part(0, half) + x.part(half, half)
        return x

    def zero(self, address: Value, count: Value) -> None:
        zeros = self.code.constant(0.0, "float", LANES)
        whole = count & -LANES
        self.loop(0, whole, lambda i, _: self.store(zeros, at(address, i)), step=LANES)
        rest = count - whole
        self.when(rest.compare("gt", 0), lambda: self.store_first(rest, zeros, at(address, whole)))

    # ---- transposes --------------------------------------------------------------------------

    def tile(self, sources: Sequence[Value], targets: Sequence[Value]) -> None:
        """Move SIDE rows of SIDE numbers to where the columns belong. LLVM makes single loads and
        stores of a loop over a tile; loads of whole rows, three rounds of interleaving and stores
        of whole rows are three to five times as fast."""
        lines = self.turned([self.load(source, SIDE) for source in sources])
        for line, target in zip(lines, targets, strict=True):
            self.store(line, target)

    def turned(self, lines: Values) -> Values:
        """The columns of SIDE rows of SIDE numbers."""
        low = [k // 2 + SIDE * (k % 2) for k in range(SIDE)]
        high = [lane + SIDE // 2 for lane in low]
        for _ in range(3):  # log2 of the side
            pairs = [(lines[r], lines[r + SIDE // 2]) for r in range(SIDE // 2)]
            lines = [self.shuffled(a, b, mask) for a, b in pairs for mask in (low, high)]
        return lines

    def tiles(self, count: Value, body: Callable[[Value], None]) -> None:
        """`body(first)` for neighbours of SIDE numbers; the last ones end at `count`, which is at
        least SIDE."""
        last = count - SIDE

        def some(i: Value, _: Values) -> None:
            body(i.compare("lt", last).choose(i, last))

        self.loop(0, count, some, step=SIDE)

    def transpose(
        self,
        target: Value,
        source: Value,
        shape: tuple[Value, Value],
        pitches: tuple[Value, Value],
        *,
        rows_first: bool = False,
    ) -> None:
        """target[j * pitches[0] + i] <- source[i * pitches[1] + j] for i, j below `shape`."""
        rows, columns = shape

        def some(i: Value, j: Value) -> None:
            begin, end = at(source, i * pitches[1] + j), at(target, j * pitches[0] + i)
            steps = [pitch * FLOAT_NBYTES for pitch in pitches]
            self.tile(
                [begin + steps[1] * k for k in range(SIDE)],
                [end + steps[0] * k for k in range(SIDE)],
            )

        def in_tiles() -> None:
            if rows_first:
                self.tiles(rows, lambda i: self.tiles(columns, lambda j: some(i, j)))
            else:
                self.tiles(columns, lambda j: self.tiles(rows, lambda i: some(i, j)))

        def one(j: Value, i: Value) -> None:
            self.store(self.load(at(source, i * pitches[1] + j)), at(target, j * pitches[0] + i))

        def one_by_one() -> None:
            self.loop(0, columns, lambda j, _: self.each(rows, partial(one, j)))

        self.either(rows.compare("ge", SIDE) & columns.compare("ge", SIDE), in_tiles, one_by_one)

    # ---- control -----------------------------------------------------------------------------

    def each(self, count: Value, body: Callable[[Value], None]) -> None:
        """`body(i)` for i below `count`."""
        self.loop(0, count, lambda i, _: body(i))

    def either(self, condition: Value, yes: Callable[[], None], no: Callable[[], None]) -> None:
        self.when(condition, yes)
        self.when(condition ^ 1, no)

    def chosen(
        self, condition: Value, yes: Callable[[], Values], no: Callable[[], Values]
    ) -> Values:
        """The values that `yes` makes where the condition holds, else those that `no` makes."""
        code = self.code
        names = code.fresh("yes"), code.fresh("no")
        done = code.fresh("done")
        code.do(f"br i1 {condition.name}, label %{names[0]}, label %{names[1]}")
        ways = []
        for name, make in zip(names, (yes, no), strict=True):
            code.label(name)
            self._block = name
            values = make()
            code.do(f"br label %{done}")
            ways.append((values, self._block))
        code.label(done)
        self._block = done
        (first, a), (second, b) = ways
        return [
            code.let(f"phi {x.type} [ {x.name}, %{a} ], [ {y.name}, %{b} ]", x.element, x.lanes)
            for x, y in zip(first, second, strict=True)
        ]

    def most(self, a: Value, b: Value | int) -> Value:
        return a.compare("gt", b).choose(a, b)

    def least(self, a: Value, b: Value | int) -> Value:
        return a.compare("lt", b).choose(a, b)

    def loop(
        self,
        start: Value | int,
        stop: Value,
        body: Callable[[Value, Values], Sequence[Value] | None],
        *,
        step: Value | int = 1,
        carried: Sequence[Value] = (),
    ) -> Values:
        """`body(counter, values)` while counter < stop; it returns the values of the next turn, as
        many as `carried`, which are those of the first. Returns those of the last."""
        first = self.number(start) if isinstance(start, int) else start

        def turn(values: Values) -> Values:
            following = body(values[0], values[1:]) or ()
            return [values[0] + step, *following]

        return self.repeat((first, *carried), lambda v: v[0].compare("lt", stop), turn)[1:]

    def repeat(
        self,
        carried: Sequence[Value],
        condition: Callable[[Values], Value],
        body: Callable[[Values], Sequence[Value]],
    ) -> Values:
        """`body(values)` while `condition(values)`; it returns the values of the next turn, as many
        as `carried`, which are those of the first. Returns those of the last."""
        code = self.code
        head, inside, done = code.fresh("head"), code.fresh("inside"), code.fresh("done")
        before = self._block
        code.do(f"br label %{head}")
        code.label(head)
        self._block = head
        place = len(code.lines)
        # Written below, when the block that comes back is known.
        values = [code.let("phi", x.element, x.lanes) for x in carried]
        more = condition(values)
        code.do(f"br i1 {more.name}, label %{inside}, label %{done}")
        code.label(inside)
        self._block = inside
        following = body(values)
        code.do(f"br label %{head}")
        for i, (phi, begin, then) in enumerate(zip(values, carried, following, strict=True)):
            ways = f"[ {begin.name}, %{before} ], [ {then.name}, %{self._block} ]"
            code.lines[place + i] = f"  {phi.name} = phi {phi.type} {ways}"
        code.label(done)
        self._block = done
        return values

    def search(self, start: Value, is_found: Callable[[Value], Value], step: int = 1) -> Value:
        """The first of start, start + step ... for which `is_found` (i1) is true; there is one."""
        code = self.code
        head, following, done = code.fresh("head"), code.fresh("next"), code.fresh("done")
        before = self._block
        code.do(f"br label %{head}")
        code.label(head)
        place = len(code.lines)
        counter = code.let("phi", "i64")
        self._block = head
        found = is_found(counter)
        code.do(f"br i1 {found.name}, label %{done}, label %{following}")
        code.label(following)
        moved = counter + step
        code.do(f"br label %{head}")
        ways = f"[ {start.name}, %{before} ], [ {moved.name}, %{following} ]"
        code.lines[place] = f"  {counter.name} = phi i64 {ways}"
        code.label(done)
        self._block = done
        return counter

    def when(self, condition: Value, body: Callable[[], None]) -> None:
        code = self.code
        inside, done = code.fresh("when"), code.fresh("done")
        code.do(f"br i1 {condition.name}, label %{inside}, label %{done}")
        code.label(inside)
        self._block = inside
        body()
        code.do(f"br label %{done}")
        code.label(done)
        self._block = done

    def call(self, address: Value, pointers: Sequence[Value], integers: Sequence[Value]) -> None:
        """Calls the function at an address that returns nothing, of pointers and int64."""
        named = [("ptr", self.pointer(p)) for p in pointers]
        self.call_library(address, *named, *(("i64", i.name) for i in integers))

    def call_library(self, address: Value, *given: tuple[str, str]) -> None:
        """Call a function that returns nothing. given: types and names of its arguments."""
        listed = ", ".join(f"{kind} {name}" for kind, name in given)
        self.code.do(f"call void {self.pointer(address)}({listed})")

    def vectors(self, count: Value, body: Callable[[Value, int], None], most: int = 8) -> None:
        """`body(first vector, number of vectors)` over `count` vectors: `most` at once, then the
        rest together: a few sums alone would wait for each other."""
        whole = count & -most
        self.loop(0, whole, lambda first, _: body(first, most), step=most)
        rest = count - whole
        for some in range(1, most):
            self.when(rest.compare("eq", some), partial(body, whole, some))


@lru_cache(maxsize=1024)
def function_of(write: Callable[..., Program], *args: object) -> Callable[[object], int]:
    """The function that `write(*args)` writes; it takes its numbers as an array of int64."""
    program = write(*args)
    return function_at(address_of(program.text(), steps=program.steps))


@lru_cache(maxsize=256)
def _packer(count: int) -> Callable[..., bytes]:
    """The function that makes memory of `count` int64, which takes a tenth of the time that an
    array of ctypes takes."""
    return struct.Struct(f"{count}q").pack


def run(function: Callable[[object], int], tasks: Sequence[Sequence[int]]) -> None:
    """Call the function of a program once for each list of numbers, in any order and in threads.

    All lists are of one length; tasks must not depend on each other.
    """
    count, length = len(tasks), len(tasks[0])
    tables = _packer(count * length)(*chain.from_iterable(tasks))
    if count == 1:
        function(tables)
    else:
        hand_out(address_at(function), tables, length * INT_NBYTES, count)
