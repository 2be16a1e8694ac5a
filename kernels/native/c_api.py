"""Functions of machine code that call Python's C API, written as LLVM IR by Python functions.

All values are words of 64 bits: addresses of objects, and numbers. A result of the C type `int` is
to be cut to its 32 bits by the caller (`& INT`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oneflow.kernels.native.llvm_code import Code, Value

INT = 0xFFFFFFFF


class Routine:
    """A function of words. Blocks are Python functions that write their instructions."""

    def __init__(self, name: str, parameters: Sequence[str], kind: str = "") -> None:
        listed = ", ".join(f"i64 %{p}" for p in parameters)
        self.name = name
        self.head = f"define {kind} i64 @{name}({listed}) nounwind {{\nentry:"
        self.outside: dict[str, int] = {}
        self.code = Code()
        self._given = {p: Value(self.code, f"%{p}", "i64") for p in parameters}
        self._cells: list[str] = []

    def __getitem__(self, name: str) -> Value:
        return self._given[name]

    def text(self) -> str:
        return "\n".join([self.head, *self._cells, *self.code.lines, "}"])

    def number(self, value: int) -> Value:
        return self.code.constant(value, "i64")

    def words(self, count: int = 1) -> Value:
        """Address of zeroed memory of the call."""
        name = f"%{self.code.fresh('cell')}"
        self._cells += [
            f"  {name}.p = alloca [{count} x i64], align 16",
            f"  store [{count} x i64] zeroinitializer, ptr {name}.p",
            f"  {name} = ptrtoint ptr {name}.p to i64",
        ]
        return Value(self.code, name, "i64")

    def load(self, address: Value, kind: str = "i64") -> Value:
        pointer = self.code.let(f"inttoptr i64 {address.name} to ptr", "ptr")
        return self.code.let(f"load {kind}, ptr {pointer.name}", kind).to("i64")

    def store(self, value: Value | int, address: Value) -> None:
        value = self.number(value) if isinstance(value, int) else value
        pointer = self.code.let(f"inttoptr i64 {address.name} to ptr", "ptr")
        self.code.do(f"store i64 {value.name}, ptr {pointer.name}")

    def call(self, function: str | Value, *given: Value | int) -> Value:
        """The result of a function of the C API by its name, or of one at an address."""
        listed = ", ".join(f"i64 {self._word(x).name}" for x in given)
        if isinstance(function, Value):
            pointer = self.code.let(f"inttoptr i64 {function.name} to ptr", "ptr").name
        else:
            self.outside[function] = len(given)
            pointer = f"@{function}"
        return self.code.let(f"call i64 {pointer}({listed})", "i64")

    def _word(self, x: Value | int) -> Value:
        return self.number(x) if isinstance(x, int) else x

    def answer(self, value: Value | int) -> None:
        """Return from the function; the instructions behind it are reached by a label only."""
        self.code.do(f"ret i64 {self._word(value).name}")
        self.code.label(self.code.fresh("after"))

    def go(self, label: str) -> None:
        self.code.do(f"br label %{label}")
        self.code.label(self.code.fresh("after"))

    def label(self, name: str) -> None:
        """The place that `go` and `need` go to; from above, nothing falls into it."""
        self.code.do(f"br label %{name}")
        self.code.label(name)

    def need(self, condition: Value, otherwise: str) -> None:
        """Go to a label unless the condition holds."""
        on = self.code.fresh("on")
        self.code.do(f"br i1 {condition.name}, label %{on}, label %{otherwise}")
        self.code.label(on)

    def when(self, condition: Value, body: Callable[[], None]) -> None:
        done = self.code.fresh("done")
        self.need(condition, done)
        body()
        self.label(done)

    def either(self, condition: Value, yes: Callable[[], None], no: Callable[[], None]) -> None:
        other, done = self.code.fresh("other"), self.code.fresh("done")
        self.need(condition, other)
        yes()
        self.code.do(f"br label %{done}")
        self.code.label(other)
        no()
        self.label(done)

    def each(self, count: Value, body: Callable[[Value], None]) -> None:
        """`body(i)` for i below `count`."""
        counter = self.words()
        again, done = self.code.fresh("again"), self.code.fresh("done")
        self.store(0, counter)
        self.label(again)
        i = self.load(counter)
        self.need(i.compare("lt", count), done)
        body(i)
        self.store(i + 1, counter)
        self.code.do(f"br label %{again}")
        self.code.label(done)

    def hold(self, x: Value) -> Value:
        self.call("Py_IncRef", x)
        return x

    def drop(self, x: Value) -> None:
        self.call("Py_DecRef", x)


def module_text(*routines: Routine) -> str:
    """LLVM IR of some functions that may call each other; KERNEL is the one to be found."""
    outside = {name: count for r in routines for name, count in r.outside.items()}
    for r in routines:
        outside.pop(r.name, None)
    declared = [
        f"declare i64 @{name}({', '.join(['i64'] * count)})" for name, count in outside.items()
    ]
    return "\n".join([*declared, *(r.text() for r in routines), ""])
