"""Whether the functions and classes of this package are those that its files define: a program that
replaces one of them changes what a trace is, and no key of the program's own code shows it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import partial
from types import FunctionType, ModuleType

from oneflow import surfaces
from oneflow.core.location import package_file

ROOT = "oneflow"
ROOMS = tuple(
    f"{ROOT}.{room}"
    for room in (
        "amp", "autograd", "core", "distributions", "functional", "graph", "nn", "ops", "optim",
        "signal", "tensor",
    )
)  # fmt: skip
"""Parts of this package whose code runs while a graph is traced."""

_KINDS = (FunctionType, type, staticmethod, classmethod, property)
_HOMES = frozenset(
    (ROOT, "numpy", "numba", "llvmlite", "google", "grpc", "ml_dtypes", "cupy", "uvloop")
)
"""Packages from which modules of this one have functions, beside the standard library."""


_own_files: set[str] = set()


class _Space:
    """The names of a module or class of this package, as they were when they were first seen.

    prefix: of the qualified names of functions that are defined there.
    """

    def __init__(self, names: Mapping[str, object], prefix: str) -> None:
        self._names, self._prefix = names, prefix
        self._functions = _functions(names)
        self._ids = tuple(map(id, names.values()))
        self._defaults = _Defaults(self._functions) or None
        foreign = [name for name, value in self._functions.items() if not _is_own(value)]
        self._foreign = self._prefix + foreign[0] if foreign else ""

    def replaced(self) -> str:
        """The name of a function or class that is not the one it was, or not this package's."""
        ids = tuple(map(id, self._names.values()))
        if self._defaults is not None and (changed := self._defaults.changed()):
            return self._prefix + changed
        if ids != self._ids:
            now, before = _functions(self._names), self._functions
            for name in now.keys() | before.keys():
                value = now.get(name)
                if name in before:
                    is_same = value is before[name]
                else:
                    is_same = _is_own(value) and self._is_at_home(name, value)
                if not is_same:
                    return self._prefix + name
            self._ids, self._functions, self._defaults = ids, now, _Defaults(now) or None
        return self._foreign

    def others(self) -> list[str]:
        """The functions and classes that come from elsewhere, or are there under another name."""
        return [
            f"{name} {value.__module__}.{value.__qualname__}"
            for name, value in self._functions.items()
            if isinstance(value, FunctionType | type) and not self._is_at_home(name, value)
        ]

    def _is_at_home(self, name: str, value: object) -> bool:
        """Whether a function has the name it was defined by, or one by which its module makes it
        when it is first asked for.
        """
        if getattr(value, "__qualname__", None) == self._prefix + name:
            return True
        make = self._names.get("__getattr__")
        made: object
        if self._prefix == "Tensor.":
            make = partial(surfaces.find, "tensor")
        elif self._prefix or not callable(make):
            return False
        try:
            made = make(name)
        except AttributeError:
            return False
        if isinstance(self._names, dict) and self._names.get(name) is not value:
            self._names[name] = value  # as it was before it was made and kept
        return bool(made is value)


class _Defaults:
    """The defaults of functions, as they were when they were first seen. A function without any
    needs no look: its callers give all arguments.
    """

    def __init__(self, functions: Mapping[str, object]) -> None:
        self._plain: dict[str, FunctionType] = {}
        self._named: dict[str, FunctionType] = {}
        for name, value in functions.items():
            inner = getattr(value, "__func__", value)
            while isinstance(inner, FunctionType):
                if inner.__defaults__:
                    self._plain[name] = inner
                if inner.__kwdefaults__:
                    self._named[name] = inner
                name, inner = f"{name}.__wrapped__", inner.__dict__.get("__wrapped__")
        self._kept = [
            *(f.__defaults__ for f in self._plain.values()),
            *(list((f.__kwdefaults__ or {}).values()) for f in self._named.values()),
        ]
        """They live as long as their ids are compared."""
        self._ids = self._now()

    def __bool__(self) -> bool:
        return bool(self._kept)

    def _now(self) -> list[object]:
        plain = [id(f.__defaults__) for f in self._plain.values()]
        named = [[*map(id, (f.__kwdefaults__ or {}).values())] for f in self._named.values()]
        return [*plain, *named]

    def changed(self) -> str:
        """The name of a function whose defaults are others now; "" if there is none."""
        now = self._now()
        if now == self._ids:
            return ""
        names = [*self._plain, *self._named]
        changed = zip(names, now, self._ids, strict=True)
        return next(f"{name}'s defaults" for name, a, b in changed if a != b)


class PackageState:
    """The modules of this package that are there, and what was found in them."""

    def __init__(self) -> None:
        self._spaces: dict[str, list[_Space]] = {}
        self._swaps: dict[str, str] = {}

    def replaced(self) -> str:
        """The name of a function or class that the program has replaced; "" if there is none."""
        for name, module in list(sys.modules.items()):
            if name not in self._spaces and name.startswith(ROOMS) and module is not None:
                self._spaces[name] = _spaces_of(module)
        for name, spaces in self._spaces.items():
            for space in spaces:
                if found := space.replaced():
                    return f"{name}.{found}"
        return ""

    def swaps(self) -> dict[str, str]:
        """A digest for each module of what it has under other names than it was defined by: another
        process that has a module of the same digest has replaced none of its functions by another.
        """
        for name in self._spaces.keys() - self._swaps.keys():
            found = [other for space in self._spaces[name] for other in space.others()]
            data = "\n".join(sorted(found)).encode()
            self._swaps[name] = hashlib.blake2b(data, digest_size=6).hexdigest()
        return dict(self._swaps)

    def has_swaps(self, swaps: dict[str, str]) -> bool:
        """Whether all modules that another process had, too, are as they were there."""
        own = self.swaps()
        return all(own.get(name, digest) == digest for name, digest in swaps.items())


def _spaces_of(module: ModuleType) -> list[_Space]:
    inside = [
        value
        for value in list(vars(module).values())
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    spaces = [_Space(vars(cls), f"{cls.__qualname__}.") for cls in inside]
    return [_Space(vars(module), ""), *spaces]


def _functions(names: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in list(names.items()) if isinstance(value, _KINDS)}


def _is_own(value: object) -> bool:
    """Whether a module of this package may have got a function or class from its own source."""
    if isinstance(value, FunctionType) and value.__code__.co_filename in _own_files:
        return True
    if isinstance(value, type):
        return _is_known(value.__module__)
    if isinstance(value, property):
        return all(_is_own(f) for f in (value.fget, value.fset, value.fdel) if f is not None)
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if not isinstance(function, FunctionType):
        return True  # written in C
    file = function.__code__.co_filename
    if package_file(file):
        _own_files.add(file)
        return True
    # Not its `__module__`, which a wrapper takes over from what it wraps.
    return _is_known(function.__globals__.get("__name__"))


def _is_known(module: object) -> bool:
    root = _root(str(module))
    return root in _HOMES or root in sys.stdlib_module_names or root.startswith("namedtuple_")


def _root(module: str) -> str:
    return module.partition(".")[0]
