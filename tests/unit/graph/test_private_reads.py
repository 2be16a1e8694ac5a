"""Nobody but graph.py reads or writes private attributes of `nn.Graph`: helpers take its
GraphSpec.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from oneflow.nn import Graph

PACKAGE = Path(__file__).resolve().parents[3] / "oneflow"
CLASS, DOOR = "graph/graph.py", "graph/spec.py"
"""The class, and the one way to its definition."""


def private_reads(text: str) -> Iterator[int]:
    """Lines in which an attribute that begins with an underscore is asked of a graph."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        owner = node.value
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if name.lstrip("_") == "graph" and node.attr in PRIVATE:
            yield node.lineno


def private_names() -> frozenset[str]:
    graph: Graph = type("Empty", (Graph,), {})()
    return frozenset(n for n in (*vars(graph), *vars(Graph)) if n[0] == "_" and n[:2] != "__")


PRIVATE = private_names()


def test_reads_are_found() -> None:
    assert "_spec" in PRIVATE and "_compile" in PRIVATE
    text = "graph._spec\nself._graph._spec = 1\nself.graph._compile()\ngraph.name\nself._spec\n"
    assert list(private_reads(text)) == [1, 2, 3]


def test_helpers_read_nothing_private() -> None:
    found = [
        (str(path.relative_to(PACKAGE)), line)
        for path in PACKAGE.rglob("*.py")
        for line in private_reads(path.read_text())
    ]
    assert [file for file, _ in found if file != CLASS] == [DOOR], found
