"""What holds for every test: it draws the random numbers that it draws when it runs alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def generators(request: pytest.FixtureRequest) -> list[tuple[np.random.Generator, Any]]:
    """The module's generators, each with its state before the module's first test."""
    found = [g for g in vars(request.module).values() if isinstance(g, np.random.Generator)]
    return [(g, copy.deepcopy(g.bit_generator.state)) for g in found]


@pytest.fixture(autouse=True)
def own_random_numbers(generators: list[tuple[np.random.Generator, Any]]) -> Iterator[None]:
    """Begin a module's generators anew for each test, whichever tests ran before it."""
    for generator, state in generators:
        generator.bit_generator.state = state
    yield
