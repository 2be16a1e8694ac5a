"""Packages that depend on a library, among those that a package depends on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([\w., \t]+))", re.MULTILINE)
"""An absolute import of a source file."""


@lru_cache
def dependants(package: str, libraries: frozenset[str]) -> tuple[str, ...]:
    """The packages that `package` requires, directly or through others, and that require one of
    the libraries so; requirements of extras count. By import name, sorted.
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
    """Import names, as far as they are those of the distributions. A package without
    a distribution needs the modules that its files import.
    """
    try:
        listed = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return sorted(set(_imports(package)))
    return [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].replace("-", "_") for line in listed]


def _imports(package: str) -> Iterator[str]:
    if package in sys.stdlib_module_names:
        return
    for file in _files(package):
        for whole, several in IMPORT.findall(file.read_text(errors="replace")):
            for name in [whole] if whole else several.split(","):
                yield re.split(r"[.\s]", name.strip(), maxsplit=1)[0]


def _files(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # ValueError: a module that was put into sys.modules by hand
        return []
    if spec is None:
        return []
    folders = [Path(folder) for folder in spec.submodule_search_locations or []]
    if folders:
        return [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    return [Path(spec.origin)] if spec.origin and spec.origin.endswith(".py") else []
