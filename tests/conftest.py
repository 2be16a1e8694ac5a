"""Fixtures and names of every test: random numbers of its own, an id made of its arguments."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from oneflow.functional.random_state import manual_seed

# Which library is faster on a busy machine is chance: all processes of the tests multiply alike.
os.environ.setdefault("ONEFLOW_PRODUCTS", "oneflow")

NAMES_NCHARS = 70
PLAIN = (str, bytes, bool, int, float, complex, type(None), re.Pattern)  # pytest shows their values


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect with the collector of circles off: tests live on, and it would go through all of
    them again and again, a third of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.unfreeze()  # into the oldest generation: frozen, they would make each search a full one
        gc.enable()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Begin the default generator anew, whichever tests ran before."""
    manual_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """Return the test's own random numbers: the same whichever tests ran before it."""
    return np.random.default_rng(0)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name a test by the values that it is given, never by their place in a list."""
    if isinstance(val, PLAIN) and len(str(val)) <= NAMES_NCHARS and str(val).isprintable():
        return None
    shown = ascii(shown_value(val))[1:-1]
    return shown if len(shown) <= NAMES_NCHARS else f"{shown[:NAMES_NCHARS]}..."


def shown_value(value: Any) -> str:
    """Return text that is the same in every process: without addresses, and sets in order."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(shown_value, value))) + "}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={shown_value(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return "(" + ", ".join(map(shown_value, value)) + ")"
    if hasattr(value, "__code__"):
        return _shown_function(value)
    if isinstance(value, type):
        return value.__name__
    return re.sub(r" at 0x[0-9a-f]+", "", str(value) or type(value).__name__)


def _shown_function(function: Any) -> str:
    """Its name; for a lambda, the names and numbers that it uses."""
    if function.__name__ != "<lambda>":
        return str(function.__name__)
    code = function.__code__
    constants = [c for c in code.co_consts if isinstance(c, (str, int, float))]
    return " ".join(map(str, (*code.co_names, *constants)))
