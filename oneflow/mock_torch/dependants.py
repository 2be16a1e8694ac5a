"""Installed packages that depend on a library, among those that a package depends on."""

from __future__ import annotations

import importlib.metadata
import re
from functools import lru_cache


@lru_cache
def dependants(package: str, libraries: frozenset[str]) -> tuple[str, ...]:
    """The packages that `package` requires, directly or through others, and that require one of
    the libraries so; what is required for an extra counts. By import name, sorted.
    """
    needs: dict[str, list[str]] = {}
    waiting = [package]
    while waiting:
        name = waiting.pop()
        if name not in needs and name not in libraries:
            needs[name] = _requirements(name)
            waiting += needs[name]
    found = set(libraries)
    while more := {n for n in needs if n not in found and found.intersection(needs[n])}:
        found |= more
    return tuple(sorted(found - libraries - {package}))


def _requirements(package: str) -> list[str]:
    """Import names, as far as they are those of the distributions."""
    try:
        listed = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].replace("-", "_") for line in listed]
