"""The facts about a function's code that decide whether calling it again could do anything else:
the names it reads, and whether it may change what no key sees.
"""

from __future__ import annotations

import dis
import hashlib
import marshal
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_ROOTS = frozenset(
    ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF",
     "LOAD_FROM_DICT_OR_GLOBALS")
)  # fmt: skip
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_EFFECTS = {
    "STORE_ATTR": "sets an attribute",
    "DELETE_ATTR": "deletes an attribute",
    "STORE_GLOBAL": "sets a global name",
    "DELETE_GLOBAL": "deletes a global name",
    "IMPORT_NAME": "imports a module",
    "IMPORT_STAR": "imports names",
    "LOAD_BUILD_CLASS": "makes a class",
    "MATCH_CLASS": "matches an object's attributes",
    "BUILD_SET": "makes a set, whose order is another one in each process",
    "SET_ADD": "makes a set, whose order is another one in each process",
}
"""Instructions whose effect, or whose result, a key of what is read cannot show."""

_SET = "a set"
_FORMATS = frozenset(("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"))
_TEXT_NAMES = frozenset(("str", "format", "format_map", "join"))
_FIELD = re.compile(r"\{\w*[.\[]")  # of an object, in a text for str.format
_CELLS = frozenset(("STORE_DEREF", "DELETE_DEREF"))
_HIDDEN = frozenset(
    ("__dict__", "__code__", "__globals__", "__closure__", "__subclasses__", "_array",
     "_version", "data_ptr", "f_back", "f_locals", "f_globals", "gi_frame", "tb_frame")
)  # fmt: skip
"""Attributes that lead around the key."""


@dataclass(frozen=True)
class Chain:
    """A name that code reads, and the attributes that it reads of it at once: `F.gelu`.

    is_cell: the name is one of the enclosing function.
    """

    name: str
    is_cell: bool
    attributes: tuple[str, ...]


@dataclass(frozen=True)
class CodeFacts:
    """Facts about a code object and those inside of it.

    digest: of all it says, lines included. chains: in order of their first use. names: of all
    attributes it reads. asks_classes: it may call the class of an object that it has. refusal: the
    reason why it has to run each time, or "".
    """

    digest: bytes
    chains: tuple[Chain, ...]
    names: frozenset[str]
    asks_classes: bool
    refusal: str


_known: dict[int, tuple[CodeType, CodeFacts]] = {}
_MOST = 4096
"""Code objects that are known at a time: a program may make them without end."""


def facts_of(code: CodeType) -> CodeFacts:
    """The facts about a code object, worked out once."""
    known = _known.get(id(code))  # equal ones may be of different files
    if known is not None:
        return known[1]
    if len(_known) >= _MOST:
        _known.clear()
    found = _find(code)
    _known[id(code)] = code, found
    return found


def _find(code: CodeType) -> CodeFacts:
    chains: dict[Chain, None] = {}
    names: set[str] = set()
    refusals: list[str] = []
    for inner in _all(code):
        names.update(inner.co_names)
        if _makes_text(inner):
            names.update(("__str__", "__repr__"))
        refusals += _refusals(inner, code.co_freevars)
        chains |= dict.fromkeys(c for c in _chains(inner) if _is_outer(c, code))
    # Version 0 writes no references, which depend on who else holds a constant.
    digest = hashlib.blake2b(marshal.dumps(code, 0), digest_size=16).digest()
    asks = not names.isdisjoint(("type", "__class__"))
    return CodeFacts(digest, tuple(chains), frozenset(names), asks, "; ".join(refusals[:1]))


def _all(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all(constant)


def _is_outer(chain: Chain, code: CodeType) -> bool:
    """Whether a name comes from outside of the outermost code: not from a cell of its own."""
    return not chain.is_cell or chain.name in code.co_freevars


def _refusals(code: CodeType, outer: tuple[str, ...]) -> list[str]:
    """Reasons against leaving the call of a code object out. outer: cells of its surroundings."""
    found = [f"reads {name}" for name in code.co_names if name in _HIDDEN]
    makes = code.co_varnames[0] if code.co_name == "__init__" and code.co_argcount else ""
    if not _TEXT_NAMES.isdisjoint(code.co_names):
        texts = [x for x in code.co_consts if isinstance(x, str)]
        found += ["names attributes in a text" for text in texts if _FIELD.search(text)]
    previous = ""
    for step in dis.get_instructions(code):
        effect = _EFFECTS.get(step.opname)
        if step.opname == "STORE_ATTR" and previous and previous == makes:
            effect = None  # of an object that is made now, or that the key shows
        if step.opname in _CELLS and step.argval in outer:
            effect = "sets a name of an enclosing function"
        if effect is not None:
            found.append(effect)
        if previous == _SET and step.opname != "CONTAINS_OP":
            found.append(_EFFECTS["BUILD_SET"])
        is_set = step.opname == "LOAD_CONST" and isinstance(step.argval, frozenset)
        previous = _SET if is_set else step.argval if step.opname == "LOAD_FAST" else ""
    return [f"{code.co_name} ({code.co_filename}:{code.co_firstlineno}) {x}" for x in found]


def _makes_text(code: CodeType) -> bool:
    """Whether code may call the `__str__` or `__repr__` of any object."""
    if not _TEXT_NAMES.isdisjoint(code.co_names):
        return True
    steps = dis.get_instructions(code)
    return any(
        s.opname in _FORMATS or s.opname == "BINARY_MODULO" or s.argrepr == "%" for s in steps
    )


def _chains(code: CodeType) -> Iterator[Chain]:
    root, is_cell, attributes = "", False, []
    for step in dis.get_instructions(code):
        if root and step.opname in _ATTRIBUTES:
            attributes.append(str(step.argval))
            continue
        if root and step.opname in ("EXTENDED_ARG", "CACHE", "NOP"):
            continue
        if root:
            yield Chain(root, is_cell, tuple(attributes))
            root = ""
        if step.opname in _ROOTS:
            is_cell = "DEREF" in step.opname
            root, attributes = str(step.argval), []
