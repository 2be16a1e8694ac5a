"""LLVM IR as text: values with Python's operators, of any number of lanes.

Kernels say their vectors themselves, so no optimizer pass has to find them: text to machine code
takes milliseconds, where a compiler that starts from loops over scalars takes a second.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16, "float": 32, "double": 64}
BITS |= {"i2": 2, "i4": 4}  # one bit for each of a few lanes
FLOATS = ("half", "float", "double")


class Code:
    """Instructions of one function, and the declarations that the module needs for them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self._count = 0

    def fresh(self, prefix: str = "t") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def let(self, text: str, element: str, lanes: int = 1) -> Value:
        """An instruction with a result."""
        name = "%" + self.fresh()
        self.lines.append(f"  {name} = {text}")
        return Value(self, name, element, lanes)

    def constant(self, number: float, element: str, lanes: int = 1) -> Value:
        text = constant_text(number, element)
        return Value(self, text if lanes == 1 else f"splat ({element} {text})", element, lanes)

    def intrinsic(self, name: str, *args: Value, flags: str = "") -> Value:
        """llvm.NAME of values of one type."""
        x = args[0]
        suffix = ("" if x.lanes == 1 else f"v{x.lanes}") + _SUFFIX[x.element]
        full = f"@llvm.{name}.{suffix}"
        kinds = ", ".join([x.type] * len(args))
        self.declarations[full] = f"declare {x.type} {full}({kinds})"
        listed = ", ".join(f"{a.type} {a.name}" for a in args)
        return self.let(f"call {flags} {x.type} {full}({listed})", x.element, x.lanes)

    def library(self, name: str, *args: Value) -> Value:
        """A function of libm, lane by lane."""
        x = args[0]
        full = "@" + (name + "f" if x.element == "float" else name)
        kinds = ", ".join([x.element] * len(args))
        self.declarations[full] = f"declare {x.element} {full}({kinds}) nounwind"
        if x.lanes == 1:
            listed = ", ".join(f"{x.element} {a.name}" for a in args)
            return self.let(f"call {x.element} {full}({listed})", x.element)
        result = Value(self, "poison", x.element, x.lanes)
        for i in range(x.lanes):
            listed = ", ".join(f"{x.element} {a.lane(i).name}" for a in args)
            one = self.let(f"call {x.element} {full}({listed})", x.element)
            text = f"insertelement {x.type} {result.name}, {x.element} {one.name}, i64 {i}"
            result = self.let(text, x.element, x.lanes)
        return result


_SUFFIX = {"float": "f32", "double": "f64", "half": "f16", "i32": "i32", "i64": "i64", "i8": "i8",
           "i16": "i16", "i1": "i1"}  # fmt: skip


def constant_text(number: float, element: str) -> str:
    """A number as LLVM writes it: floats by their bits."""
    if element == "i1":
        return "true" if number else "false"
    if element in FLOATS:
        value = float(number)
        if element == "float":
            try:
                value = struct.unpack("f", struct.pack("f", value))[0]
            except OverflowError:
                value = float("inf") if value > 0 else float("-inf")
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    return str(int(number))


def vector_type(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


class Value:
    """An SSA value: `lanes` numbers of type `element`. Operators take a Value or a number."""

    __slots__ = ("code", "element", "lanes", "name")

    def __init__(self, code: Code, name: str, element: str, lanes: int = 1) -> None:
        self.code, self.name, self.element, self.lanes = code, name, element, lanes

    @property
    def type(self) -> str:
        return vector_type(self.element, self.lanes)

    @property
    def is_float(self) -> bool:
        return self.element in FLOATS

    def like(self, other: Operand) -> Value:
        """`other` as a value of this type."""
        if isinstance(other, Value):
            return other
        return self.code.constant(other, self.element, self.lanes)

    def _two(self, operation: str, other: Operand, flags: str = "") -> Value:
        text = f"{operation} {flags} {self.type} {self.name}, {self.like(other).name}"
        return self.code.let(text, self.element, self.lanes)

    def __add__(self, other: Operand) -> Value:
        return self._two("fadd" if self.is_float else "add", other)

    def __sub__(self, other: Operand) -> Value:
        return self._two("fsub" if self.is_float else "sub", other)

    def __rsub__(self, other: Operand) -> Value:
        return self.like(other) - self

    def __mul__(self, other: Operand) -> Value:
        return self._two("fmul" if self.is_float else "mul", other)

    def __floordiv__(self, other: Operand) -> Value:
        """Quotient of integers that are not negative."""
        return self._two("udiv", other)

    def __mod__(self, other: Operand) -> Value:
        """Rest of a division of integers that are not negative."""
        return self._two("urem", other)

    def __truediv__(self, other: Operand) -> Value:
        return self._two("fdiv", other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.like(other) / self

    def __neg__(self) -> Value:
        if self.is_float:
            return self.code.let(f"fneg {self.type} {self.name}", self.element, self.lanes)
        return 0 - self

    def __and__(self, other: Operand) -> Value:
        return self._two("and", other)

    def __or__(self, other: Operand) -> Value:
        return self._two("or", other)

    def __xor__(self, other: Operand) -> Value:
        return self._two("xor", other)

    def __lshift__(self, other: Operand) -> Value:
        return self._two("shl", other)

    def __rshift__(self, other: Operand) -> Value:
        """Logical."""
        return self._two("lshr", other)

    def shift_signed(self, other: Operand) -> Value:
        return self._two("ashr", other)

    def times_plus(self, b: Operand, c: Operand) -> Value:
        """self * b + c, rounded once where the processor can."""
        return self.code.intrinsic("fmuladd", self, self.like(b), self.like(c))

    def plus_pairs(self, a: Value, b: Value, *, is_native: bool) -> Value:
        """self + the products of the pairs of bfloat16 whose bits a and b hold, vectors of float32
        as long as this one. is_native: by the instruction for it, of vectors of 512 bits."""
        if not is_native or self.lanes != 16:
            low = widened_low(a).times_plus(widened_low(b), self)
            return widened_high(a).times_plus(widened_high(b), low)
        name, kind = "@llvm.x86.avx512bf16.dpbf16ps.512", "<32 x bfloat>"
        self.code.declarations[name] = f"declare {self.type} {name}({self.type}, {kind}, {kind})"
        halves = (self.code.let(f"bitcast {x.type} {x.name} to {kind}", "i32") for x in (a, b))
        listed = ", ".join(f"{kind} {x.name}" for x in halves)
        text = f"call {self.type} {name}({self.type} {self.name}, {listed})"
        return self.code.let(text, "float", self.lanes)

    def compare(self, how: str, other: Operand, *, signed: bool = True) -> Value:
        """Compare two values.

        how: eq ne lt le gt ge. NaN is unequal to everything.
        """
        if self.is_float:
            word = "fcmp " + ("une" if how == "ne" else "o" + how)
        else:
            is_order = how not in ("eq", "ne")
            word = "icmp " + (("s" if signed else "u") + how if is_order else how)
        text = f"{word} {self.type} {self.name}, {self.like(other).name}"
        return self.code.let(text, "i1", self.lanes)

    def choose(self, yes: Value, no: Operand) -> Value:
        """yes where self (i1), else no."""
        other = yes.like(no)
        text = f"select {self.type} {self.name}, {yes.type} {yes.name}, {other.type} {other.name}"
        return self.code.let(text, yes.element, yes.lanes)

    def bits(self, element: str) -> Value:
        """The same bits as another type of the same width."""
        return self._turned("bitcast", element)

    def _turned(self, operation: str, element: str) -> Value:
        target = vector_type(element, self.lanes)
        text = f"{operation} {self.type} {self.name} to {target}"
        return self.code.let(text, element, self.lanes)

    def to(self, element: str, *, signed: bool = True) -> Value:
        """Converted. signed: is an integer side signed? Floats out of an integer's range become its
        nearest value."""
        mine, theirs = self.element, element
        if mine == theirs:
            return self
        if self.is_float and theirs in FLOATS:
            return self._turned("fpext" if BITS[theirs] > BITS[mine] else "fptrunc", theirs)
        if theirs == "i1":
            return self.compare("ne", 0)
        if self.is_float:
            return self._saturated(theirs, signed)
        if theirs in FLOATS:
            return self._turned("sitofp" if signed and mine != "i1" else "uitofp", theirs)
        if BITS[theirs] < BITS[mine]:
            return self._turned("trunc", theirs)
        return self._turned("sext" if signed and mine != "i1" else "zext", theirs)

    def _saturated(self, element: str, signed: bool) -> Value:
        name = "fptosi" if signed else "fptoui"
        mine, theirs = _SUFFIX[self.element], _SUFFIX[element]
        prefix = "" if self.lanes == 1 else f"v{self.lanes}"
        full = f"@llvm.{name}.sat.{prefix}{theirs}.{prefix}{mine}"
        target = vector_type(element, self.lanes)
        self.code.declarations[full] = f"declare {target} {full}({self.type})"
        return self.code.let(f"call {target} {full}({self.type} {self.name})", element, self.lanes)

    def lane(self, i: int) -> Value:
        return self.code.let(f"extractelement {self.type} {self.name}, i64 {i}", self.element)

    def part(self, first: int, lanes: int) -> Value:
        """`lanes` neighbours from `first` on; a plain number if that is one."""
        if lanes == 1:
            return self.lane(first)
        listed = ", ".join(f"i32 {i}" for i in range(first, first + lanes))
        text = (
            f"shufflevector {self.type} {self.name}, {self.type} poison, <{lanes} x i32> <{listed}>"
        )
        return self.code.let(text, self.element, lanes)

    def folded(self) -> Value:
        """The sum of the lanes, halves first, so that its order is fixed."""
        x = self
        while x.lanes > 1:
            half = x.lanes // 2
            x = x.part(0, half) + x.part(half, half)
        return x

    def splat(self, lanes: int) -> Value:
        """`lanes` copies of a single number."""
        if lanes == 1:
            return self
        kind = vector_type(self.element, lanes)
        text = f"insertelement {kind} poison, {self.element} {self.name}, i64 0"
        one = self.code.let(text, self.element, lanes)
        text = f"shufflevector {kind} {one.name}, {kind} poison, <{lanes} x i32> zeroinitializer"
        return self.code.let(text, self.element, lanes)

    def sqrt(self) -> Value:
        return self.code.intrinsic("sqrt", self)

    def absolute(self) -> Value:
        return self.code.intrinsic("fabs", self)

    def with_sign_of(self, other: Value) -> Value:
        return self.code.intrinsic("copysign", self, other)

    def larger(self, other: Operand) -> Value:
        """NaN if either is."""
        return self.code.intrinsic("maximum", self, self.like(other), flags="nsz")

    def smaller(self, other: Operand) -> Value:
        return self.code.intrinsic("minimum", self, self.like(other), flags="nsz")


Operand: TypeAlias = Value | float
"""The other side of an operator: a value of the same type, or a number that becomes one."""


def widened(raw: Value) -> Value:
    """bfloat16 bits as float32."""
    return (raw.to("i32", signed=False) << 16).bits("float")


def narrowed(x: Value) -> Value:
    """float32 as bfloat16 bits, rounded to even; NaN stays NaN."""
    bits = x.bits("i32")
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    is_nan = x.compare("ne", x)
    quiet = (bits >> 16) | 0x40
    return is_nan.choose(quiet, rounded).to("i16")


def widened_low(pairs: Value) -> Value:
    """The first bfloat16 of each pair as float32. pairs: of float32, for its bits."""
    return (pairs.bits("i32") << 16).bits("float")


def widened_high(pairs: Value) -> Value:
    """The second one."""
    return (pairs.bits("i32") & -65536).bits("float")
