"""Guards of a traced function: the state of Python that it reads, which has to be as it was.

A trace turns numbers, flags and the branches that they choose into constants. Guards remember them:
a walk from the function and its arguments takes the variables around each function, its globals,
the items of lists and dicts, the attributes that any code on the way names, and all hooks of
modules. A plan serves calls while these are the same; a trace that changes one makes no plan, as
later calls would not change it. Not seen are attributes of computed names, clocks, and the
state that functions of installed packages read, but for methods of objects that the walk meets.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import partial
from itertools import chain
from operator import attrgetter, contains, getitem, is_
from typing import Any, TypeAlias

import numpy as np

from oneflow.core.location import package_file
from oneflow.nn.module import HOOK_KINDS, Module
from oneflow.tensor.tensor import Tensor

LARGEST = 256
"""Containers with more items are told apart by identity and length."""
MOST = 20_000
"""Guards of one plan at most."""
VALUES = (bool, int, float, complex, str, bytes, type(None))
"""Types that are compared by value; others by identity."""
_MISSING = object()
Container: TypeAlias = "list[object] | dict[object, object] | set[object]"


class Guards:
    """The state that a function, called with such (args, kwargs), reads besides them."""

    def __init__(self, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
        self._seen: dict[int, object] = {}
        self._names: set[str] = set()
        self._entries: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any, str]] = {}
        self._cells: list[tuple[types.CellType, Any, str]] = []
        self._lists: list[tuple[Container, list[Any], str]] = []
        self._empty: list[Container] = []
        """Containers without items: most are those of the hooks of modules."""
        self._objects: list[tuple[dict[str, Any], type, str]] = []
        self._classes: list[type] = []
        self._spaces: list[types.ModuleType] = []
        self._drawn = random.getstate(), _numpy_state()
        self._same: _Same | None = None
        self.add([function, *given[0], *given[1].values()])

    def add(self, found: Iterable[object]) -> None:
        """Guard more things, as they are now."""
        self._same = None
        for x in found:
            self._walk(x, getattr(x, "__qualname__", type(x).__name__))
        before = -1
        while before < len(self._seen) + len(self._names):
            before = len(self._seen) + len(self._names)
            for d, kind, place in list(self._objects):
                for name in sorted(self._names & d.keys()):
                    self._entry(d, name, f"{place}.{name}")
                for name in sorted(self._names & _defaults(kind) - d.keys()):
                    self._entry(d, name, f"{place}.{name}")
                    self._walk(kind, kind.__name__)
            for kind in list(self._classes):
                for name in sorted(self._names & _defaults(kind)):
                    base = next(base for base in kind.__mro__ if name in vars(base))
                    self._entry(vars(base), name, f"{kind.__name__}.{name}")
            for space in list(self._spaces):
                for name in sorted(self._names & vars(space).keys()):
                    if not isinstance(vars(space)[name], types.ModuleType):
                        self._entry(vars(space), name, f"{space.__name__}.{name}")

    def hold(self) -> bool:
        """Whether everything is as it was."""
        if any(self._empty):
            return False
        if self._same is not None and self._same.holds():
            return True
        for d, name, value, _ in self._entries.values():
            now = d.get(name, _MISSING)
            if now is not value and not _is_same(now, value):
                return False
        if next(self._changes_inside(), None) is not None:
            return False
        self._same = _Same(self._entries.values(), self._cells, self._lists)
        return True

    def moved(self, of: Callable[[Any], Any]) -> Guards:
        """The same guards of other objects.   of: the one that stands for an object."""
        other = copy(self)
        other._same = None
        other._seen = {id(x): x for x in map(of, self._seen.values())}
        other._entries = {
            (id(of(d)), name): (of(d), name, of(value), place)
            for d, name, value, place in self._entries.values()
        }
        other._cells = [(cell, of(value), place) for cell, value, place in self._cells]
        other._lists = [(of(x), list(map(of, items)), place) for x, items, place in self._lists]
        other._empty = list(map(of, self._empty))
        other._objects = [(of(d), kind, place) for d, kind, place in self._objects]
        return other

    def change(self) -> str | None:
        """The first thing that is not as it was, or random numbers drawn since, in words."""
        if self._drawn[0] != random.getstate() or self._drawn[1] != _numpy_state():
            return "random numbers of Python or NumPy are drawn"
        place = next(self._changes(), None)
        return None if place is None else f"{place} is changed"

    def restore(self) -> None:
        """Make everything as it was, for a call that starts again."""
        random.setstate(self._drawn[0])
        np.random.set_state(self._drawn[1])
        for d, name, value, _ in self._entries.values():
            if not isinstance(d, dict):
                continue  # of a class
            if value is _MISSING:
                d.pop(name, None)
            elif d.get(name, _MISSING) is not value:
                d[name] = value
        for cell, value, _ in self._cells:
            cell.cell_contents = value
        for empty in self._empty:
            empty.clear()
        for held, items, _ in self._lists:
            if not _holds(held, items):
                _refill(held, items)

    def _changes(self) -> Iterator[str]:
        if any(self._empty):
            yield "an empty list or dict"
        for d, name, value, place in self._entries.values():
            now = d.get(name, _MISSING)
            if now is not value and not _is_same(now, value):
                yield place
        yield from self._changes_inside()

    def _changes_inside(self) -> Iterator[str]:
        for cell, value, place in self._cells:
            now = cell.cell_contents
            if now is not value and not _is_same(now, value):
                yield place
        for held, items, place in self._lists:
            if not _holds(held, items):
                yield place

    # ---- the walk --------------------------------------------------------------------------------

    def _entry(self, d: Mapping[str, Any], name: str, place: str) -> None:
        key = id(d), name
        if key not in self._entries and len(self._entries) < MOST:
            value = d.get(name, _MISSING)
            self._entries[key] = d, name, value, place
            self._walk(value, place)

    def _walk(self, x: object, place: str) -> None:
        if isinstance(x, (*VALUES, Tensor)) or x is _MISSING or id(x) in self._seen:
            return
        self._seen[id(x)] = x
        if isinstance(x, types.FunctionType):
            self._function(x, place)
        elif isinstance(x, types.MethodType):
            self._walk(x.__func__, place)
            self._walk(x.__self__, type(x.__self__).__name__)
        elif isinstance(x, partial):
            self._walk([x.func, x.args, x.keywords], place)
        elif isinstance(x, (list, tuple, dict, set)):
            self._container(x, place)
        elif isinstance(x, Module):
            self._module(x)
        elif isinstance(x, types.ModuleType):
            if _is_users(getattr(x, "__file__", None)):
                self._spaces.append(x)
        elif isinstance(x, type):
            if not _is_ours(x):
                self._classes.append(x)
        elif not _is_ours(type(x)):
            self._object(x, type(x).__name__)

    def _function(self, function: types.FunctionType, place: str) -> None:
        code = function.__code__
        if package_file(code.co_filename):
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                value = cell.cell_contents
            except ValueError:  # not set yet
                continue
            self._cells.append((cell, value, name))
            self._walk(value, name)
        self._walk(function.__defaults__, place)
        self._walk(function.__kwdefaults__, place)
        names = _names(code)
        self._names |= names
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if _is_users(code.co_filename) or isinstance(value, VALUES):
                self._entry(function.__globals__, name, name)

    def _container(self, x: Container | tuple[object, ...], place: str) -> None:
        if len(x) > LARGEST:
            return
        if not isinstance(x, tuple):
            if x:
                self._lists.append((x, list(_items(x)), place))
            else:
                self._empty.append(x)
        for item in x.values() if isinstance(x, dict) else x:
            self._walk(item, place)

    def _module(self, module: Module) -> None:
        d, kind = vars(module), type(module)
        for name in HOOK_KINDS:
            if name in d:
                self._container(d[name], f"{kind.__name__}.{name}")
        if _is_ours(kind):
            for name in [n for n in d if not n.startswith("_") and n != "training"]:
                self._entry(d, name, f"{kind.__name__}.{name}")
        else:
            self._object(module, kind.__name__)
        for part in module._modules.values():
            self._walk(part, kind.__name__)

    def _object(self, x: object, place: str) -> None:
        """An object of the user's: its attributes that code names, and its methods."""
        d = getattr(x, "__dict__", None)
        if isinstance(d, dict):
            self._objects.append((d, type(x), place))
        for base in type(x).__mro__:
            if not _is_ours(base):
                for member in vars(base).values():
                    member = getattr(member, "__func__", getattr(member, "fget", member))
                    if isinstance(member, types.FunctionType):
                        self._walk(member, member.__qualname__)


class _Same:
    """The objects that are in the guarded places now, and later nearly always: a call of a model
    asks for thousands of them, in loops of the interpreter's own.
    """

    def __init__(
        self,
        entries: Iterable[tuple[Mapping[str, Any], str, Any, str]],
        cells: list[tuple[types.CellType, Any, str]],
        lists: list[tuple[Container, list[Any], str]],
    ) -> None:
        places = [(d, name) for d, name, _, _ in entries]
        self._dicts, self._names = _columns([(d, name) for d, name in places if name in d])
        self._values = list(map(getitem, self._dicts, self._names))
        self._missing = _columns([(d, name) for d, name in places if name not in d])
        self._cells = [cell for cell, _, _ in cells]
        self._contents = list(map(_contents, self._cells))
        held = [x for x, _, _ in lists]
        self._parts: list[Any] = [*held, *(x.values() for x in held if isinstance(x, dict))]
        self._lengths = list(map(len, self._parts))
        self._items = list(chain.from_iterable(self._parts))

    def holds(self) -> bool:
        """Whether all objects are the same; False may also mean equal numbers."""
        try:
            return (
                all(map(is_, map(getitem, self._dicts, self._names), self._values))
                and not any(map(contains, *self._missing))
                and all(map(is_, map(_contents, self._cells), self._contents))
                and list(map(len, self._parts)) == self._lengths
                and all(map(is_, chain.from_iterable(self._parts), self._items))
            )
        except (KeyError, ValueError):  # an entry, or the content of a cell, is gone
            return False


def _columns(places: list[tuple[Any, str]]) -> tuple[list[Any], list[str]]:
    return [d for d, _ in places], [name for _, name in places]


_contents = attrgetter("cell_contents")


def _defaults(kind: type) -> set[str]:
    """The names of numbers and such that a class has for its instances."""
    own = [vars(base) for base in kind.__mro__ if not _is_ours(base)]
    return {
        name for d in own for name, x in d.items() if isinstance(x, (*VALUES, tuple, list, dict))
    }


def _is_ours(kind: type) -> bool:
    """Whether a class is of this package or of the interpreter, whose methods read nothing else."""
    top = kind.__module__.partition(".")[0]
    return top == "oneflow" or (top in sys.stdlib_module_names and top != "__main__")


def _is_users(file: str | None) -> bool:
    """Whether code is of the user's own, not of an installed package."""
    return bool(file) and not (
        package_file(str(file)) or "site-packages" in str(file) or str(file).startswith(_LIBRARY)
    )


_LIBRARY = types.__file__.rpartition("types")[0]


def _names(code: types.CodeType) -> set[str]:
    """The globals and attributes that code names, with the functions within it and texts, which
    may be names for `getattr`.
    """
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    texts = [c for c in code.co_consts if isinstance(c, str) and c.isidentifier()]
    return {*code.co_names, *texts}.union(*map(_names, inner))


def _items(x: Container) -> Iterable[Any]:
    return chain(x, x.values()) if isinstance(x, dict) else x


def _holds(x: Container, items: list[Any]) -> bool:
    """Whether a container has these items."""
    length = 2 * len(x) if isinstance(x, dict) else len(x)
    return length == len(items) and _are_same(_items(x), items)


def _refill(x: Container, items: list[Any]) -> None:
    x.clear()
    if isinstance(x, list):
        x.extend(items)
    elif isinstance(x, dict):
        half = len(items) // 2
        x.update(zip(items[:half], items[half:], strict=True))
    else:
        x.update(items)


def _are_same(now: Iterable[Any], then: Iterable[Any]) -> bool:
    now, then = tuple(now), tuple(then)
    return all(map(is_, now, then)) or all(map(_is_same, now, then))


def _is_same(now: object, then: object) -> bool:
    if now is then:
        return True
    if type(now) is not type(then):
        return False
    if isinstance(now, (float, complex)):
        return repr(now) == repr(then)  # -0.0 and NaN
    if isinstance(now, VALUES):
        return now == then
    if isinstance(now, tuple) and isinstance(then, tuple):
        return len(now) == len(then) and _are_same(now, then)
    return False


def _numpy_state() -> Any:
    kind, keys, *rest = np.random.get_state()
    return kind, tuple(np.asarray(keys).tolist()), *rest
