"""Packages that a mock brought: those whose modules hold something of a mocked library."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType

from oneflow.compat.torch.mock.dummy import DummyModule
from oneflow.compat.torch.mock.importer import MockFinder, ModuleWrapper

NEVER_ANEW = frozenset({"oneflow", "__main__"})
MOCKED = ""
"""The owner of objects of a mocked library."""

Owners = dict[str, tuple[ModuleType, int, frozenset[str]]]
"""Name of a module -> the module, the number of its names, and the packages of their values."""


def brought(
    finder: MockFinder, known: frozenset[str], before: set[str], owners: Owners
) -> set[str]:
    """Return the packages that were imported under a mock and use a mocked library, by asking it
    for a name or by holding something of such a package.

    known: modules that were imported before the mock came into force. before: packages that are
    known to use the library. owners: of modules that were looked at before, to be brought up to
    date. Packages that do not use the library are the same in every world, so that their classes
    are, too.
    """
    # A copy of the dictionary: another thread may import while a list of pairs is made, since the
    # pairs are new objects and the garbage collector may run between two of them.
    new = {
        name: module
        for name, module in sys.modules.copy().items()
        if name not in known and not finder.mock.covers(name)
    }
    # An import that failed took its package out again, and left the modules below it.
    found = before | {_top(name) for name in new if _top(name) not in sys.modules}
    found |= {_top(name) for name in finder.users if name not in known}
    held: dict[str, set[str]] = {}
    for name, module in new.items():
        held.setdefault(_top(name), set()).update(_looked_up(owners, name, module))
    found.add(MOCKED)
    while more := {top for top in held if top not in found and found & held[top]}:
        found |= more
    return found - NEVER_ANEW - {MOCKED}


def _top(name: str) -> str:
    return name.partition(".")[0]


def _looked_up(owners: Owners, name: str, module: ModuleType) -> frozenset[str]:
    names = _names(module)
    last = owners.get(name)
    if last is None or last[0] is not module or last[1] != len(names):
        last = owners[name] = module, len(names), frozenset(_owners(list(names.values())))
    return last[2]


def _names(module: ModuleType) -> dict[str, object]:
    # Not `vars`: the first look at a lazily loaded module's attribute loads it.
    if isinstance(module, ModuleType) and not isinstance(module, ModuleWrapper):
        found: dict[str, object] = object.__getattribute__(module, "__dict__")
        return found
    return getattr(module, "__dict__", {})


def _owners(values: list[object]) -> Iterator[str]:
    """Yield the packages of modules, classes, functions and other values."""
    for value in values:
        if isinstance(value, ModuleWrapper | DummyModule):
            yield MOCKED
            continue
        if isinstance(value, ModuleType):
            name = object.__getattribute__(value, "__dict__").get("__name__")
        elif isinstance(value, type | FunctionType | BuiltinFunctionType):
            name = getattr(value, "__module__", None)
        else:
            name = type(value).__module__
        if isinstance(name, str) and name:
            yield _top(name)
