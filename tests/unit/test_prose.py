"""Docstrings begin with a verb or a noun phrase, have a first sentence, and are wrapped whole."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("oneflow", "protos", "kernels", "boxing", "actors", "scheduler", "launcher")

# What says nothing in an index: a question word, or a preposition that hangs in the air.
HEADS = re.compile(
    r"(What|Who|Whoever|Whose|Where|When|How|Which|Why|Of|From|By|For|With|On|In|At|To|Into|Over"
    r"|Under|As|After|Before)\b"
)
PARAMETERS = re.compile(r"[a-z_][\w, ]*: (?![^.]*\.$)")
# Lines that are laid out by hand: columns, lists, code, formulas.
BY_HAND = re.compile(r"   |^\s*([-*>|#]|\d+[.)])|->|[=;:,.!?)\]}|]$|^\s*\w+:")


def docstrings(rooms: tuple[str, ...] = ROOMS) -> list[tuple[str, str]]:
    """Place of each docstring, and its text with the indentation taken off; read once."""
    return [found for room in rooms for found in _read(room)]


@cache
def _read(room: str) -> list[tuple[str, str]]:
    found = []
    for path in sorted((ROOT / room).rglob("*.py")):
        if path.is_symlink() or any(p.is_symlink() for p in path.parents):
            continue
        if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            continue
        for line, text in docstrings_in(path.read_text()):
            found.append((f"{path.relative_to(ROOT)}:{line}", text))
    return found


def docstrings_in(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring: of modules, classes and functions, and of constants, below
    their assignment.
    """
    for node in _bodies(ast.parse(source)):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text
        body = getattr(node, "body", None)
        for before, literal in itertools.pairwise(body if isinstance(body, list) else ()):
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(literal, ast.Expr):
                value = literal.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield literal.lineno, inspect.cleandoc(value.value)


def _bodies(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all that have a body within it: a tenth of all nodes."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, field, None)
        for one in inner if isinstance(inner, list) else ():
            yield from _bodies(one)


def broken(text: str) -> bool:
    """Does a line of a paragraph end far too early, in mid-sentence?"""
    for paragraph in text.split("\n\n"):
        lines = paragraph.split("\n")
        if any(re.match(r"\s", line) for line in lines):
            continue  # an example or a table
        for line, following in itertools.pairwise(lines):
            word = following.split(" ")[0]
            if len(line) + 1 + len(word) < 72 and not BY_HAND.search(line) and word[:1].islower():
                return True
    return False


def listed(found: list[str], limit: int, what: str) -> None:
    shown = "\n".join(found[:20])
    assert len(found) <= limit, f"{len(found)} docstrings {what} (at most {limit}):\n{shown}"


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [w for w, text in docstrings((*ROOMS, "tests")) if HEADS.match(text)]
    listed(found, 0, "begin with a question word")


def test_docstrings_of_constants_are_seen() -> None:
    source = '"""Module."""\nA = 1\n"""Of what."""\n\nclass C:\n    x: int = 2\n    """In it."""\n'
    assert [text for _, text in docstrings_in(source)] == ["Module.", "Of what.", "In it."]


def test_docstrings_have_a_first_sentence() -> None:
    found = [w for w, text in docstrings() if PARAMETERS.match(text.split("\n")[0])]
    listed(found, 4, "begin with a parameter list")


def test_docstrings_are_wrapped_whole() -> None:
    listed(
        [w for w, text in docstrings() if broken(text)], 0, "have a line that ends in mid-sentence"
    )
