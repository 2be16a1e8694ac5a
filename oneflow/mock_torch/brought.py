"""Packages that a mock brought: those whose modules hold something of a mocked library."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType

from oneflow.mock_torch.dummy import DummyModule
from oneflow.mock_torch.importer import MockFinder, ModuleWrapper

NEVER_ANEW = frozenset({"oneflow", "__main__"})


def brought(finder: MockFinder, known: frozenset[str], before: set[str]) -> set[str]:
    """Return the packages that were imported under a mock and use a mocked library, by asking it
    for a name or by holding something of such a package.

    known: modules that were imported before the mock came into force. before: packages that are
    known to use the library. Packages that do not use it are the same in every world, so that
    their classes are, too.
    """
    new = {
        name: module
        for name, module in list(sys.modules.items())
        if name not in known and not finder.mock.covers(name)
    }
    found = {_top(name) for name in finder.users if name not in known}
    found |= {_top(name) for name, module in new.items() if _holds_mocked(module)}
    # An import that failed took its package out again, and left the modules below it.
    found |= {_top(name) for name in new if _top(name) not in sys.modules}
    held: dict[str, set[str]] = {}
    for name, module in new.items():
        held.setdefault(_top(name), set()).update(_owners(module))
    found |= before
    while more := {top for top in held if top not in found and found & held[top]}:
        found |= more
    return found - NEVER_ANEW - {""}


def _top(name: str) -> str:
    return name.partition(".")[0]


def _values(module: ModuleType) -> list[object]:
    # Not `vars`: the first look at a lazily loaded module's attribute loads it.
    if isinstance(module, ModuleType) and not isinstance(module, ModuleWrapper):
        return list(object.__getattribute__(module, "__dict__").values())
    return list(getattr(module, "__dict__", {}).values())


def _holds_mocked(module: ModuleType) -> bool:
    return any(isinstance(value, ModuleWrapper | DummyModule) for value in _values(module))


def _owners(module: ModuleType) -> Iterator[str]:
    """Yield the packages of the modules, classes, functions and other values that it holds."""
    for value in _values(module):
        if isinstance(value, ModuleWrapper):
            continue
        if isinstance(value, ModuleType):
            name = object.__getattribute__(value, "__dict__").get("__name__")
        elif isinstance(value, type | FunctionType | BuiltinFunctionType):
            name = getattr(value, "__module__", None)
        else:
            name = type(value).__module__
        if isinstance(name, str):
            yield _top(name)
