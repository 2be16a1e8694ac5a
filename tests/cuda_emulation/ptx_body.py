"""Statements of a function of PTX as C++: names, operands, guards; ptx_writers.py has the
instructions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ptx
from ptx import NBITS, NotEmulated

UNSIGNED = {1: "bool", 8: "uint8_t", 16: "uint16_t", 32: "uint32_t", 64: "uint64_t"}
SIGNED = {8: "int8_t", 16: "int16_t", 32: "int32_t", 64: "int64_t"}
WIDE = "unsigned __int128"
FLOATS = ("f32", "f64", "f16", "bf16")
PAIRS = {"f16x2": "h", "bf16x2": "b"}
"""Types of two halves in one register, and the letter of their functions in emu.h."""

VALUE_OF_BITS = {"f32": "asf", "f64": "asd", "f16": "h2f", "bf16": "b2f"}
BITS_OF_VALUE = {"f32": "fbits", "f64": "dbits", "f16": "f2h", "bf16": "f2b"}

_LANE = "(t->lin & 31u)"
SHORT_LANE = "(t->lin&31u)"
SPECIAL_REGISTERS = {
    "WARP_SZ": "32u",
    "%laneid": _LANE,
    "%warpid": "(t->lin >> 5)",
    "%smid": "0u",
    "%gridid": "0u",
    "%nsmid": "132u",
    "%nwarpid": "64u",
    "%lanemask_lt": f"((1u<<{SHORT_LANE})-1u)",
    "%lanemask_eq": f"(1u<<{SHORT_LANE})",
    "%lanemask_le": f"((2u<<{SHORT_LANE})-1u)",
    "%lanemask_gt": f"(~((2u<<{SHORT_LANE})-1u))",
    "%lanemask_ge": f"(~((1u<<{SHORT_LANE})-1u))",
    "%clock": "(uint32_t)emu_clock()",
    "%clock_hi": "(uint32_t)emu_clock()",
    "%clock64": "emu_clock()",
    "%globaltimer": "emu_clock()",
    "%dynamic_smem_size": "t->dyn",
    "%total_smem_size": "(t->dyn+emu_shared)",
}

OF_PAIRS = {
    "add": "{}+{}",
    "sub": "{}-{}",
    "mul": "{}*{}",
    "fma": "(float)((double){}*{}+{})",
    "neg": "-{}",
    "abs": "fabsf({})",
    "ex2": "exp2f({})",
    "tanh": "tanhf({})",
}
"""Instructions on two halves at once; `min` and `max` besides."""
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$")
_FLOAT = re.compile(r"0[fF][0-9a-fA-F]{8}$")
_DOUBLE = re.compile(r"0[dD][0-9a-fA-F]{16}$")
_COORDINATE = re.compile(r"%(tid|ntid|ctaid|nctaid)\.(x|y|z)$")
_SUM = re.compile(r"([\w$%.]+?)(?:\s*\+\s*(-?\d+))?$")
_ADDRESS = re.compile(r"\[\s*(.+?)\s*(?:\+\s*(-?\w+))?\s*\]$")
_GUARD = re.compile(r"@(!?)(%?[\w$]+)\s+(.*)$", re.DOTALL)
_WORDS = re.compile(r"([\w.:]+)\s*(.*)$", re.DOTALL)
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)$", re.DOTALL)
_NUMBERED = re.compile(r"(%?[\w$%]+)<(\d+)>$")


def plain(name: str) -> str:
    """A name that C++ takes."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def c_type(type_: str) -> str:
    return (SIGNED if type_[0] == "s" else UNSIGNED)[NBITS[type_]]


def c_unsigned(type_: str) -> str:
    return UNSIGNED.get(NBITS[type_], WIDE)


def number(text: str, nbits: int) -> int | None:
    """An integer literal, as an unsigned one of so many bits."""
    if not _INTEGER.match(text):
        return None
    return int(text.rstrip("U"), 0) & ((1 << nbits) - 1)


def float_bits(text: str) -> str | None:
    """The bits of a literal of floating point."""
    if _FLOAT.match(text):
        return f"0x{text[2:]}u"
    return f"0x{text[2:]}ull" if _DOUBLE.match(text) else None


class Module:
    """A module's variables."""

    def __init__(self) -> None:
        self.shared: dict[str, int] = {}
        """Offsets of shared arrays."""
        self.shared_nbytes = 0
        self.open_shared: set[str] = set()
        """Names of the shared memory whose size comes with the launch."""
        self.globals: dict[str, ptx.Variable] = {}
        self.functions_sync = False
        """A function of the device that was translated lets threads wait for each other."""

    def declare(self, variable: ptx.Variable) -> None:
        if variable.space != "shared":
            self.globals[variable.name] = variable
        elif variable.is_open:
            self.open_shared.add(variable.name)
        else:
            at = -(-self.shared_nbytes // variable.align) * variable.align
            self.shared[variable.name] = at
            self.shared_nbytes = at + variable.nbytes


def head(function: ptx.Function) -> str:
    names = [plain(p.name) for p in (*function.results, *function.parameters)]
    return f"f_{plain(function.name)}({', '.join(['Thr* t', *(f'char* {n}' for n in names)])})"


def offsets(parameters: Sequence[ptx.Parameter]) -> list[tuple[ptx.Parameter, int]]:
    """Each parameter with its place among the bytes of a launch."""
    placed, end = [], 0
    for p in parameters:
        at = -(-end // p.align) * p.align
        placed.append((p, at))
        end = at + p.nbytes
    return placed


@dataclass(frozen=True)
class Instruction:
    """`op.mods operands`, and the last type among its mods."""

    op: str
    mods: tuple[str, ...]
    operands: tuple[str, ...]
    text: str

    @property
    def types(self) -> list[str]:
        return [m for m in self.mods if m in NBITS]

    @property
    def type(self) -> str:
        return self.types[-1]

    @property
    def nbits(self) -> int:
        return NBITS[self.type]

    @property
    def c(self) -> str:
        return c_unsigned(self.type)

    @property
    def is_float(self) -> bool:
        return bool(self.types) and self.type in FLOATS

    @property
    def is_signed(self) -> bool:
        return self.type[0] == "s"

    @property
    def is_in_shared(self) -> bool:
        return any(m.startswith("shared") for m in self.mods)

    def one_of(self, *names: str) -> str:
        for m in self.mods:
            if m in names:
                return m
        raise NotEmulated(self.text)


Writer = Callable[["Body", Instruction], str]
WRITERS: dict[str, Writer] = {}
"""The C++ of each instruction."""


def writes(*ops: str) -> Callable[[Writer], Writer]:
    def note(writer: Writer) -> Writer:
        WRITERS.update(dict.fromkeys(ops, writer))
        return writer

    return note


class Body:
    """A function's statements in C++."""

    def __init__(self, module: Module, function: ptx.Function) -> None:
        self.module = module
        self.syncs = False
        """Threads wait for each other."""
        self.locals: set[str] = set()
        self.places: dict[str, str] = {}
        """Expressions of parameters' addresses, by name."""
        self.targets: dict[str, tuple[str, ...]] = {}
        if function.is_entry:
            self.places = {p.name: f"(t->params+{at})" for p, at in offsets(function.parameters)}
        else:
            everything = (*function.parameters, *function.results)
            self.places = {p.name: plain(p.name) for p in everything}
        lines = [self._statement(s) for s in ptx.statements(function.body or "")]
        title = f"k_{plain(function.name)}(Thr* t)" if function.is_entry else head(function)
        text = "\n".join(line for line in lines if line is not None)
        self.code = f"static void {title} {{\nuint32_t cc=0; (void)cc;\n{text}\n}}\n"

    # ---- statements ------------------------------------------------------------------------------

    def _statement(self, statement: ptx.Statement) -> str | None:
        if isinstance(statement, ptx.Label):
            return f"L_{plain(statement.name)}:;"
        if isinstance(statement, ptx.Targets):
            self.targets[statement.name] = tuple(map(plain, statement.labels))
            return None
        if statement in "{}":
            return statement
        if statement.startswith("."):
            return self._directive(statement)
        guard = ""
        if match := _GUARD.match(statement):
            guard, statement = f"if ({match[1]}{plain(match[2])}) ", match[3]
        words = ptx.found(_WORDS, statement)
        op, *mods = words[1].split(".")
        operands = tuple(ptx.split(words[2].strip()))
        return f"{guard}{{ {self._write(Instruction(op, tuple(mods), operands, statement))} }}"

    def _directive(self, text: str) -> str:
        word = text.split()[0]
        if word == ".reg":
            return _registers(text)
        if word == ".local":
            local = ptx.variable("local", text[len(word) :].strip())
            self.locals.add(local.name)
            return f"alignas(16) char l_{plain(local.name)}[{local.nbytes}];"
        if word == ".shared":
            self.module.declare(ptx.variable("shared", text[len(word) :].strip()))
            return ""
        if word == ".param":
            p = ptx.parameter(text)
            self.places[p.name] = plain(p.name)
            return f"alignas(16) char {plain(p.name)}[{p.nbytes}];"
        if word.startswith((".loc", ".pragma", ".maxntid", ".minnctapersm", ".reqntid")):
            return ""
        raise NotEmulated(text)

    def _write(self, x: Instruction) -> str:
        if x.types and x.type in PAIRS and x.op in (*OF_PAIRS, "min", "max"):
            return self._on_both_halves(x)
        writer = WRITERS.get(x.op)
        if writer is None:
            raise NotEmulated(x.text)
        return writer(self, x)

    def _on_both_halves(self, x: Instruction) -> str:
        letter = PAIRS[x.type]
        values = [self.bits(operand, 32) for operand in x.operands[1:]]

        def lane(k: int) -> str:
            args = [f"{letter}2f((uint16_t)(({v})>>{16 * k}))" for v in values]
            if x.op in OF_PAIRS:
                result = OF_PAIRS[x.op].format(*args)
            else:
                result = f"emu_{x.op}({args[0]},{args[1]},{int('NaN' in x.mods)})"
            return f"(uint32_t)f2{letter}({result})"

        return f"{plain(x.operands[0])} = {lane(0)} | ({lane(1)}<<16);"

    # ---- operands --------------------------------------------------------------------------------

    def bits(self, operand: str, nbits: int) -> str:
        """The operand as an unsigned integer."""
        text = operand.strip()
        if literal := float_bits(text):
            return literal
        value = number(text, nbits)
        if value is not None:
            if nbits == 1:
                return "true" if value else "false"
            return f"({UNSIGNED[nbits]}){value}ull"
        if text in SPECIAL_REGISTERS:
            return SPECIAL_REGISTERS[text]
        if match := _COORDINATE.match(text):
            return f"t->{match[1]}[{'xyz'.index(match[2])}]"
        if text.startswith("%"):
            return plain(text)
        if text.startswith("!"):
            return f"!{plain(text[1:])}"
        match = ptx.found(_SUM, text)
        return self._place(match[1], match[2] or "0", UNSIGNED[nbits])

    def _place(self, name: str, offset: str, c: str) -> str:
        """The address of a variable, or a register that was declared without %."""
        module = self.module
        if name in module.shared:
            return f"({c})({module.shared[name]}u+{offset})"
        if name in module.open_shared:
            return f"({c})((emu_shared+15u)/16u*16u+{offset})"
        if name in self.locals:
            return f"(uint64_t)(l_{plain(name)}+{offset})"
        if name in module.globals:
            return f"(uint64_t)((char*)g_{plain(name)}+{offset})"
        if name in self.places:
            return f"(uint64_t)({self.places[name]}+{offset})"
        return plain(name)

    def real(self, operand: str, type_: str) -> str:
        """The operand as a float or double."""
        sign = ""
        if operand.startswith("-") and not operand[1:2].isdigit():
            sign, operand = "-", operand[1:]
        return f"{sign}{VALUE_OF_BITS[type_]}({self.bits(operand, NBITS[type_])})"

    def flushed(self, x: Instruction, operand: str) -> str:
        """The operand as a float, 0 where it is denormal and the instruction says so."""
        value = self.real(operand, x.type)
        return f"fz({value})" if "ftz" in x.mods and x.type == "f32" else value

    def integer(self, operand: str, type_: str) -> str:
        """The operand as an integer with the type's sign."""
        return f"({c_type(type_)})({self.bits(operand, NBITS[type_])})"

    def set(self, x: Instruction, value: str) -> str:
        """`value` into the first operand."""
        if x.operands[0].strip() == "_":
            return f"(void)({value});"
        return f"{plain(x.operands[0])} = {value};"

    def set_real(self, x: Instruction, value: str) -> str:
        if "sat" in x.mods:
            value = f"sat1({value})"
        if "ftz" in x.mods and x.type == "f32":
            value = f"fz({value})"
        return self.set(x, packed(value, x.type))

    def address(self, operand: str, space: str) -> str:
        match = ptx.found(_ADDRESS, operand)
        base, offset = match[1], match[2] or "0"
        if space == "param":
            if base in self.places:
                return f"({self.places[base]}+{offset})"
            return f"((char*)(uint64_t){self.bits(base, 64)}+{offset})"
        if space == "shared":
            return f"(t->shared+(uint32_t)({self.bits(base, 32)})+{offset})"
        return f"((char*)(uint64_t)({self.bits(base, 64)})+{offset})"

    def product(self, x: Instruction) -> str:
        """Multiply the integers that are the second and third operand: low, high or whole."""
        a, b, n = x.operands[1], x.operands[2], x.nbits
        if "wide" in x.mods:
            big = (SIGNED if x.is_signed else UNSIGNED)[2 * n]
            factors = f"({big}){self.integer(a, x.type)} * ({big}){self.integer(b, x.type)}"
            return f"({UNSIGNED[2 * n]})({factors})"
        if "hi" in x.mods:
            big = "__int128" if x.is_signed else WIDE
            factors = f"({big}){self.integer(a, x.type)} * ({big}){self.integer(b, x.type)}"
            return f"({x.c})(({factors})>>{n})"
        return f"({x.c})((uint64_t){self.bits(a, n)} * (uint64_t){self.bits(b, n)})"


def packed(value: str, type_: str) -> str:
    """The bits of a float or double."""
    return f"{BITS_OF_VALUE[type_]}({value})"


def _registers(text: str) -> str:
    match = ptx.found(_REGISTERS, text)
    names: list[str] = []
    for part in map(str.strip, match[2].split(",")):
        if numbered := _NUMBERED.match(part):
            names += [f"{plain(numbered[1])}{k}" for k in range(int(numbered[2]))]
        else:
            names.append(plain(part))
    return f"{c_unsigned(match[1])} {', '.join(names)};"


def vector(operand: str) -> list[str]:
    """The registers of `{a, b}`, or of `a`."""
    return [x.strip() for x in operand.strip("{}").split(",")]
