"""Rules about tests: no unit test sleeps, none shares random numbers, none is named by a place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import shown_value

TESTS = Path(__file__).resolve().parents[1]
SOURCES = sorted(TESTS.rglob("*.py"))
GENERATORS = ("default_rng", "RandomState", "Random", "Generator")


def called(node: ast.AST) -> str:
    """The last name of the called expression; "" for an expression that is no call."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", "") or getattr(node.func, "id", "")


def sleeps(path: Path) -> Iterator[str]:
    """Calls of `sleep` but for sleep(0), by which a task lets others go on."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "sleep" in text else ():
        if called(node) == "sleep" and ast.unparse(node)[-3:] != "(0)":
            yield f"{path.relative_to(TESTS)}:{node.lineno}"


def test_no_unit_test_sleeps() -> None:
    """A test looks at the thing it waits for: tests/support/waiting.py."""
    found = [place for path in (TESTS / "unit").rglob("*.py") for place in sleeps(path)]
    assert not found


def shared_generators(path: Path) -> Iterator[str]:
    """Functions that draw from a generator of their module."""
    tree = ast.parse(path.read_text())
    names = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and called(node.value) in GENERATORS
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    functions = (n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Lambda)))
    for function in functions if names else ():
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in names:
                yield f"{path.relative_to(TESTS)}:{node.lineno}: {node.id}"


def test_no_test_shares_random_numbers() -> None:
    """The fixture `rng` is a test's own."""
    assert not [place for path in SOURCES for place in shared_generators(path)]


def helper(x: int) -> int:
    return x


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ((np.zeros((2, 3)), {"dim": 1}), "(float64[2, 3], dim=1)"),
        ({"b", "a"}, "{a, b}"),
        ([helper, lambda t: t.view(3, -1)], "(helper, view 3 -1)"),
        (np.float32, "float32"),
        (b"PK" * 99, "198 bytes"),
        (ast.Name("x"), "<ast.Name object>"),
    ],
    ids=["nested", "set", "functions", "type", "bytes", "object"],
)
def test_values_name_tests_alike_in_every_process(value: object, wanted: str) -> None:
    assert shown_value(value) == wanted
