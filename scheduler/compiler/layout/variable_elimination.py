"""The least sum of tables over variables of few values: elimination, which is exact while it fits.

A variable is eliminated by joining the tables that mention it, and keeping for each choice of their
other variables the least sum and the value that gives it. The variable with the smallest join goes
first, so chains, branches and leaves fold away, and last the trunk that is left. A join beyond
`LIMIT` entries is avoided by fixing a variable at a known assignment, which the result is then
never worse than. Variables of one value go before all others: one that many share, as all
updates share a learning rate, would join everything.

Tables have numbers: a table made by the same step from the same tables is the same table, and so is
one with the same entries but for a constant. So equal parts of a problem, the layers of a deep
network, are solved once, and the rest is looking up.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LIMIT = 1 << 20
"""Entries of the largest join: 8 MiB of sums."""

DIGITS = 15
"""Decimals of sums: what differs by rounding alone is the same."""

FORBIDDEN = 1e6
"""The sum of what may not be: no step takes so many seconds, and sums of it stay exact enough."""

Table = NDArray[np.float64]
Choices = NDArray[np.intp]
Factor = tuple[tuple[int, ...], int]
"""Variables, in the order of the table's axes, and the table's number."""


class Tables:
    """Tables by number, each made once for its key."""

    def __init__(self) -> None:
        self._arrays: list[Table] = []
        self._numbers: dict[Hashable, int] = {}
        self._minima: dict[Hashable, tuple[int, Choices]] = {}

    def __getitem__(self, number: int) -> Table:
        return self._arrays[number]

    def number(self, key: Hashable, make: Callable[[], Table]) -> int:
        """The number of the table of `key`, made now if it is not there."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._arrays)
            self._arrays.append(make())
        return found

    def without(self, joined: tuple[tuple[tuple[int, ...], int], ...]) -> tuple[int, Choices]:
        """The join of tables with its first axis minimized away, and the minimizing values.

        joined: the axes of the join on which those of each table lie, and the table's number.
        """
        found = self._minima.get(joined)
        if found is None:
            found = self._minima[joined] = self._minimized(joined)
        return found

    def _minimized(self, joined: tuple[tuple[tuple[int, ...], int], ...]) -> tuple[int, Choices]:
        ndim = 1 + max(axis for axes, _ in joined for axis in axes)
        total: Table | float = 0.0
        for axes, number in joined:
            table = self._arrays[number]
            order = sorted(range(len(axes)), key=axes.__getitem__)
            shape = [1] * ndim
            for axis, size in zip(axes, table.shape, strict=True):
                shape[axis] = size
            total = total + table.transpose(order).reshape(shape)
        assert isinstance(total, np.ndarray)
        choices = total.argmin(axis=0)
        sums: Table = total.min(axis=0, keepdims=True)
        least: Table = (sums - sums.min()).round(DIGITS).reshape(total.shape[1:])
        return self.number((least.shape, least.tobytes()), lambda: least), choices

    def fixed(self, number: int, axis: int, index: int) -> int:
        """The table with one variable at a value."""
        key = "fixed", number, axis, index
        return self.number(key, lambda: self._arrays[number].take([index], axis).squeeze(axis))


class Found(NamedTuple):
    """The outcome of a search.

    values: of every variable.  is_exact: no variable had to be fixed.  fixed: those that were.
    """

    values: list[int]
    is_exact: bool
    fixed: frozenset[int]


def total(factors: Sequence[Factor], tables: Tables, values: Sequence[int]) -> float:
    """The sum of an assignment."""
    return math.fsum(tables[n][tuple([values[v] for v in scope])] for scope, n in factors)


def minimize(
    sizes: Sequence[int],
    factors: Sequence[Factor],
    tables: Tables,
    known: Sequence[int],
    *,
    spared: frozenset[int] = frozenset(),
    limit: int = LIMIT,
) -> Found:
    """The assignment with the least sum, or one that is not worse than `known`.

    sizes: number of values of each variable.  known: an assignment; -1 of a variable that must not
    be fixed.  spared: variables that are fixed only if no other can be.  limit: entries of a join.
    """
    return _Elimination(sizes, factors, tables, known, spared, limit).run()


class _Elimination:
    def __init__(
        self,
        sizes: Sequence[int],
        factors: Sequence[Factor],
        tables: Tables,
        known: Sequence[int],
        spared: frozenset[int],
        limit: int,
    ) -> None:
        self._sizes, self._tables, self._known = sizes, tables, known
        self._spared, self._limit = spared, limit
        self._scopes: dict[int, Factor] = dict(enumerate(factors))
        self._of: list[dict[int, None]] = [{} for _ in sizes]
        for key, (scope, _) in self._scopes.items():
            for v in scope:
                self._of[v][key] = None
        self._next = len(factors)
        self._values = [-1] * len(sizes)
        self._left = [True] * len(sizes)
        self._trail: list[tuple[int, tuple[int, ...], Choices]] = []
        self._fixed: set[int] = set()
        self._near: list[set[int]] = [set() for _ in sizes]
        """The variables that share a table with each."""
        for scope, _ in factors:
            for v in scope:
                self._near[v].update(scope)
        for v, near in enumerate(self._near):
            near.discard(v)
        for v, size in enumerate(sizes):
            if size == 1:
                self._settle(v, 0)
        self._current = [self._join_size(v) for v in range(len(sizes))]
        self._heap = [(size, v) for v, size in enumerate(self._current) if self._left[v]]
        heapq.heapify(self._heap)

    def run(self) -> Found:
        while self._heap:
            size, v = heapq.heappop(self._heap)
            if not self._left[v] or size != self._current[v]:
                continue
            chosen = v if size <= self._limit else self._to_fix(v)
            if size > self._limit and chosen >= 0:
                heapq.heappush(self._heap, (size, v))
                self._fix(chosen)
            else:
                self._eliminate(v)
        for v, others, choices in reversed(self._trail):
            self._values[v] = int(choices[tuple([self._values[o] for o in others])])
        return Found(self._values, not self._fixed, frozenset(self._fixed))

    def _join_size(self, v: int) -> int:
        return math.prod([self._sizes[o] for o in self._near[v]], start=self._sizes[v])

    def _update(self, variables: Sequence[int]) -> None:
        for v in variables:
            size = self._join_size(v)
            if size != self._current[v]:
                self._current[v] = size
                heapq.heappush(self._heap, (size, v))

    def _eliminate(self, v: int) -> None:
        place = {v: 0}
        joined = []
        for key in self._of[v]:
            scope, number = self._scopes.pop(key)
            axes = tuple([place.setdefault(o, len(place)) for o in scope])
            joined.append((axes, number))
            for o in scope:
                if o != v:
                    del self._of[o][key]
        others = tuple(place)[1:]
        self._left[v] = False
        if not joined:
            self._values[v] = 0
            return
        number, choices = self._tables.without(tuple(joined))
        self._trail.append((v, others, choices))
        if others:
            self._add((others, number))
            for o in others:
                near = self._near[o]
                near.update(others)
                near -= {o, v}
            self._update(others)

    def _add(self, factor: Factor) -> None:
        key, self._next = self._next, self._next + 1
        self._scopes[key] = factor
        for o in factor[0]:
            self._of[o][key] = None

    def _to_fix(self, v: int) -> int:
        """The neighbour with the most neighbours, `v` included; -1: none may be fixed."""
        allowed = [o for o in (v, *self._near[v]) if self._known[o] >= 0]
        if not allowed:
            return -1
        return max(
            allowed,
            key=lambda o: (o not in self._spared, len(self._near[o]), self._sizes[o], -o),
        )

    def _fix(self, v: int) -> None:
        self._fixed.add(v)
        self._update(self._settle(v, self._known[v]))

    def _settle(self, v: int, value: int) -> list[int]:
        """Let a variable have a value. Returns its neighbours."""
        others = sorted(self._near[v])
        self._values[v], self._left[v] = value, False
        for key in list(self._of[v]):
            scope, number = self._scopes.pop(key)
            axis = scope.index(v)
            for o in scope:
                if o != v:
                    del self._of[o][key]
            if len(scope) > 1:
                rest = scope[:axis] + scope[axis + 1 :]
                self._add((rest, self._tables.fixed(number, axis, value)))
        for o in others:
            self._near[o].discard(v)
        return others
