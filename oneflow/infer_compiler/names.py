"""Our function of a name of PyTorch's, wherever users find it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from oneflow.surfaces import find

SPACES = ("flow", "F", "tensor", "linalg", "special", "fft", "_C")
"""Namespaces in the order in which they are searched."""


@cache
def function(name: str) -> Callable[..., Any] | None:
    """Return `flow.name`, `nn.functional.name`, a method ...; None if there is none."""
    space, _, last = name.rpartition(".")
    for one in (space,) if space else SPACES:
        try:
            found: Callable[..., Any] = find(one, last)
        except (AttributeError, KeyError):
            continue
        return found
    return None
