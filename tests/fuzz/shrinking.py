"""The least program that still differs in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .drawing import Leaf, Program
from .programs import NAMES
from .running import Difference, differences


def shrunk(program: Program, difference: Difference) -> tuple[Program, Difference]:
    """The program without lines, leaves, gradients and numbers that the difference can spare."""
    least, last, moved = program, difference, True
    while moved:
        moved = False
        for smaller in _smaller(least):
            again = _same(smaller, last)
            if again is not None:
                least, last, moved = smaller, again, True
                break
    return least, last


def _same(program: Program, wanted: Difference) -> Difference | None:
    try:
        found = differences(program, (wanted.mode,))
    except Exception:
        return None  # the smaller program means nothing
    return next((f for f in found if f.kind == wanted.kind), None)


def _smaller(program: Program) -> Iterator[Program]:
    for i in reversed(range(len(program.lines))):
        given = program.lines[i].split(" = ")[0]
        later = " ".join(program.lines[i + 1 :])
        if "[" in given or " = " not in program.lines[i] or not _uses(later, given):
            yield _tidy(program, program.lines[:i] + program.lines[i + 1 :])
    for i, leaf in enumerate(program.leaves):
        for less in _plainer(leaf):
            leaves = (*program.leaves[:i], less, *program.leaves[i + 1 :])
            yield replace(program, leaves=leaves)


def _uses(text: str, names: str) -> bool:
    return bool(set(NAMES.findall(text)) & set(NAMES.findall(names)))


def _tidy(program: Program, lines: tuple[str, ...]) -> Program:
    used = set(NAMES.findall("\n".join(lines)))
    leaves = tuple(leaf for leaf in program.leaves if leaf.name in used)
    return replace(program, lines=lines, leaves=leaves)


def _plainer(leaf: Leaf) -> Iterator[Leaf]:
    if leaf.requires_grad:
        yield replace(leaf, requires_grad=False)
    plain = tuple(False if leaf.dtype == "bool" else 1 for _ in leaf.numbers)
    if any(isinstance(n, str) for n in leaf.numbers):
        yield replace(leaf, numbers=tuple(0.5 if isinstance(n, str) else n for n in leaf.numbers))
    if leaf.numbers != plain:
        yield replace(leaf, numbers=plain)
