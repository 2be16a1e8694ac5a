"""The passes over a row in which expressions with reductions are computed.

A reduction over the last dim ends a pass; values made of its result belong to the next one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from oneflow.core.expression import REDUCTIONS, Expression, row_values, uniform_nodes, walk


class Passes:
    """Facts about `roots`, where the inputs `whole` have one value per row.

    order: every node, arguments first.  numbers: nodes with one value per call.  fixed: nodes with
    one value per row.  level: the pass in which a node is known.  last: the number of the last one.
    """

    def __init__(self, roots: tuple[Expression, ...], whole: Container[str]) -> None:
        self.roots = roots
        self.order = list(walk(*roots))
        self.numbers = uniform_nodes(*roots)
        self.fixed = row_values(whole, *roots)
        self.level: dict[Expression, int] = {}
        for node in self.order:
            before = max((self.level[a] for a in node.args), default=0)
            self.level[node] = before + (node.function in REDUCTIONS)
        self.last = max((self.level[root] for root in roots), default=0)

    def reduced(self, stage: int) -> list[Expression]:
        """Reductions that end a pass."""
        return [n for n in self.order if n.function in REDUCTIONS and self.level[n] == stage + 1]

    def needed(
        self, roots: Iterable[Expression], known: Container[Expression] = ()
    ) -> list[Expression]:
        """Nodes that differ within a row and that `roots` are made of, `known` ones without their
        arguments."""
        wanted: set[Expression] = set()
        stack = [r for r in roots if r not in self.fixed]
        while stack:
            node = stack.pop()
            if node not in wanted:
                wanted.add(node)
                if node not in known:
                    stack.extend(a for a in node.args if a not in self.fixed)
        return [n for n in self.order if n in wanted]

    def row_numbers(
        self, roots: list[Expression], known: Container[Expression]
    ) -> list[Expression]:
        """Nodes with one value per row that a pass reads on its way to `roots`; reductions without
        their arguments."""
        stack = [*roots, *(a for n in self.needed(roots, known) for a in n.args)]
        wanted: set[Expression] = set()
        while stack:
            node = stack.pop()
            if node in self.fixed and node not in self.numbers and node not in wanted:
                wanted.add(node)
                stack += () if node.function in REDUCTIONS else node.args
        return [n for n in self.order if n in wanted]
