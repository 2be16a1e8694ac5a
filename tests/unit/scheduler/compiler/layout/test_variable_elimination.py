"""min_sum: on random problems the least sum is that of trying everything."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from oneflow.scheduler.compiler.layout.variable_elimination import Factor, Tables, minimize, total


def random_problem(seed: int) -> tuple[list[int], list[Factor], Tables]:
    """Up to 12 variables of 1 to 4 values, and tables over one to three of them."""
    rng = random.Random(seed)
    sizes = [rng.choice([1, 2, 2, 2, 3, 3, 4]) for _ in range(rng.randint(2, 12))]
    tables = Tables()
    factors: list[Factor] = []
    for _ in range(rng.randint(1, 2 * len(sizes))):
        scope = tuple(rng.sample(range(len(sizes)), min(rng.randint(1, 3), len(sizes))))
        values = [rng.choice([rng.random(), 0.0, 1e6]) for _ in range(40 * 40)]
        shape = tuple(sizes[v] for v in scope)
        table = np.array(values[: int(np.prod(shape))]).reshape(shape)
        factors.append((scope, tables.number(len(factors), lambda table=table: table)))
    return sizes, factors, tables


def least(sizes: Sequence[int], factors: Sequence[Factor], tables: Tables) -> float:
    sums = np.zeros(sizes)
    for scope, number in factors:
        shape = [sizes[v] if v in scope else 1 for v in range(len(sizes))]
        sums = sums + tables[number].transpose(np.argsort(scope)).reshape(shape)
    return float(sums.min())


@pytest.mark.parametrize("seed", range(40))
def test_elimination_finds_the_least_sum(seed):
    sizes, factors, tables = random_problem(seed)
    found = minimize(sizes, factors, tables, [0] * len(sizes))
    assert found.is_exact
    assert total(factors, tables, found.values) == pytest.approx(least(sizes, factors, tables))


@pytest.mark.parametrize("seed", range(20))
def test_with_little_room_the_sum_is_not_worse_than_a_known_one(seed):
    sizes, factors, tables = random_problem(seed)
    known = [random.Random(seed).randrange(size) for size in sizes]
    found = minimize(sizes, factors, tables, known, limit=8)
    assert total(factors, tables, found.values) <= total(factors, tables, known) + 1e-9
    assert all(found.values[v] == known[v] for v in found.fixed)


def test_equal_parts_are_solved_once():
    """A chain of 60 equal links makes no more tables than one of 30."""

    def made(links: int) -> int:
        tables = Tables()
        step = tables.number("step", lambda: np.array([[0.0, 1.0], [2.0, 0.5]]))
        factors = [((i, i + 1), step) for i in range(links)]
        minimize([2] * (links + 1), factors, tables, [0] * (links + 1))
        return tables.number("next", lambda: np.zeros(1))

    assert made(60) <= made(30) + 2


def test_every_assignment_of_a_tie_is_found_alike():
    tables = Tables()
    flat = tables.number("flat", lambda: np.zeros((3, 3)))
    factors: list[Factor] = [((a, b), flat) for a, b in itertools.combinations(range(4), 2)]
    found = minimize([3] * 4, factors, tables, [0] * 4)
    assert found.values == [0, 0, 0, 0]
