"""PTX, as NVRTC makes it, read into variables, functions and statements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

NBITS = {
    **dict.fromkeys(("b8", "u8", "s8"), 8),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 16),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2"), 32),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 64),
    "pred": 1,
    "b128": 128,
}
"""Width of a value of each type."""

_LINKAGE = r"(?:\.(?:visible|weak|extern|common)\s+)*"
_ALIGN = r"(?:\.align\s+(\d+)\s+)?"
_FUNCTION = re.compile(_LINKAGE + r"\.(entry|func)\b")
_VARIABLE = re.compile(_LINKAGE + r"\.(shared|global|const)\s+(.*)", re.DOTALL)
_DECLARED = re.compile(
    r"(?:\.attribute\([^)]*\)\s*)?" + _ALIGN + r"\.(\w+)\s+([^\s\[]+)((?:\[[^\]]*\])*)\s*$"
)
_PARAMETER = re.compile(
    r"\.(?:param|reg)\s+"
    + _ALIGN
    + r"\.(\w+)\s+(?:\.ptr\s*(?:\.\w+\s*)*(?:\.align\s+\d+\s*)?)?([^\s\[]+)(?:\[(\d+)\])?"
)
_HEAD = re.compile(r"([^\s(]+)\s*(?:\((.*?)\))?(.*)$", re.DOTALL)
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_TARGETS = re.compile(r"\s*\.(branchtargets|callprototype|calltargets)\s+([^;]*);")
_DIMS = re.compile(r"\[([^\]]*)\]")


class NotEmulated(Exception):
    """The text has something that the translator does not know."""


@dataclass(frozen=True)
class Parameter:
    """A parameter, a result, or a local of a function: bytes at an alignment."""

    name: str
    nbytes: int
    align: int


@dataclass(frozen=True)
class Variable:
    """An array. initial: text of its values.  is_open: its size comes with the launch."""

    space: str
    name: str
    type: str
    count: int
    align: int
    initial: str | None
    is_open: bool

    @property
    def nbytes(self) -> int:
        return self.count * NBITS[self.type] // 8


@dataclass(frozen=True)
class Function:
    """A kernel (an entry) or a function of the device. body: None where it is only declared."""

    is_entry: bool
    name: str
    results: tuple[Parameter, ...]
    parameters: tuple[Parameter, ...]
    body: str | None


@dataclass(frozen=True)
class Label:
    name: str


@dataclass(frozen=True)
class Targets:
    """The labels that an indexed branch may go to, under a name."""

    name: str
    labels: tuple[str, ...]


Statement = str | Label | Targets
"""Text without its semicolon, a brace, or a label."""


def found(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    """The match at the start of `text`. Raises NotEmulated where there is none."""
    match = pattern.match(text)
    if match is None:
        raise NotEmulated(text[:200])
    return match


def read(text: str) -> Iterator[Variable | Function]:
    """Yield the variables and functions of a module, in order."""
    text = re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
    at = _skip_space(text, 0)
    while at < len(text):
        if text.startswith((".version", ".target", ".address_size"), at):
            at = text.index("\n", at)
        elif match := _FUNCTION.match(text, at):
            begin = _end_of_head(text, match.end())
            end = begin if text[begin] == ";" else _end_of_block(text, begin)
            body = None if end == begin else text[begin + 1 : end]
            yield _function(match[1] == "entry", text[match.end() : begin].strip(), body)
            at = end + 1
        else:
            end = text.index(";", at)
            words = text[at:end].strip()
            if not words.startswith((".file", ".section", ".pragma", ".alias")):
                match = found(_VARIABLE, words)
                yield variable(match[1], match[2])
            at = end + 1
        at = _skip_space(text, at)


def variable(space: str, text: str) -> Variable:
    """The array that `text` declares, after its space."""
    declared, _, initial = text.partition("=")
    match = found(_DECLARED, declared.strip())
    count, is_open = 1, False
    for dim in _DIMS.findall(match[4]):
        if dim.strip():
            count *= int(dim, 0)
        else:
            is_open = not initial
    align = int(match[1] or NBITS[match[2]] // 8)
    return Variable(space, match[3], match[2], count, align, initial.strip() or None, is_open)


def parameter(text: str) -> Parameter:
    match = found(_PARAMETER, text)
    nbytes = NBITS[match[2]] // 8
    return Parameter(match[3], nbytes * int(match[4] or 1), int(match[1] or nbytes))


def statements(body: str) -> Iterator[Statement]:
    """The statements of a function's body, in order."""
    at = _skip_space(body, 0)
    while at < len(body):
        if body[at] in "{}":
            yield body[at]
            at += 1
        elif match := _LABEL.match(body, at):
            at = match.end()
            if targets := _TARGETS.match(body, at):
                if targets[1] == "branchtargets":
                    yield Targets(match[1], tuple(x.strip() for x in targets[2].split(",")))
                at = targets.end()
            else:
                yield Label(match[1])
        else:
            end = body.index(";", at)
            if words := body[at:end].strip():
                yield words
            at = end + 1
        at = _skip_space(body, at)


def split(text: str) -> list[str]:
    """The operands, which commas part outside of braces and brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "{[(") - (char in "}])")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def _function(is_entry: bool, head: str, body: str | None) -> Function:
    results: tuple[Parameter, ...] = ()
    if head.startswith("("):
        inside, _, head = head[1:].partition(")")
        results = _parameters(inside)
    match = found(_HEAD, head.strip())
    return Function(is_entry, match[1], results, _parameters(match[2] or ""), body)


def _parameters(text: str) -> tuple[Parameter, ...]:
    return tuple(parameter(part.strip()) for part in text.split(",") if part.strip())


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _end_of_head(text: str, at: int) -> int:
    """Find the brace that begins the body, or the semicolon of a declaration."""
    depth = 0
    while depth or text[at] not in "{;":
        depth += (text[at] == "(") - (text[at] == ")")
        at += 1
    return at


def _end_of_block(text: str, at: int) -> int:
    """Find the end of the block whose brace is at `at`."""
    depth = 0
    while True:
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return at
        at += 1
