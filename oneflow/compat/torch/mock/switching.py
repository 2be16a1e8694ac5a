"""Switching between mocked and real libraries: which modules Python knows in each of the two.

Modules of a mocked library, and those that were imported while it was mocked and use it, leave
`sys.modules` when the mock ends and come back when the same mock begins again; so do the real ones.
A caller's own global names for them (`torch`, `nn`) change with them.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any, ClassVar

from oneflow import __version__, surfaces
from oneflow.compat.torch.mock.brought import NEVER_ANEW, Owners, brought
from oneflow.compat.torch.mock.dependants import dependants
from oneflow.compat.torch.mock.importer import TORCH_VERSION, Mock, MockFinder
from oneflow.core.config import TRUE_WORDS
from oneflow.core.errors import OneFlowError
from oneflow.core.spelling import is_mocked, set_mocked

Names = dict[str, Any]
Modules = dict[str, ModuleType]

WAIT_LIMIT_S = 120.0
"""Seconds that a thread waits for another one's with-block of another mock."""


@dataclass
class _World:
    """The finder of one mock, the packages that use it, and their modules while it is not in force.

    anew: packages whose real modules go out when the mock begins. users: all that use it.
    """

    finder: MockFinder
    anew: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    modules: Modules = field(default_factory=dict)
    known: frozenset[str] = frozenset()  # real modules that stayed when the mock began
    owners: Owners = field(default_factory=dict)

    def enter(self) -> Modules:
        """Put the mock in force. Return the real modules that it takes out: those of the mocked
        libraries, of packages to be imported anew, and those of which (or above which) the mock
        has a twin.
        """
        tops = {*self.finder.mock.libraries, *self.anew}
        twins = self.modules
        some = {_top(name) for name in twins}  # most modules have no twin: a quick look first

        def is_taken(name: str) -> bool:
            top = _top(name)
            return top in tops or (top in some and any(one in twins for one in _and_above(name)))

        real = _take_out(is_taken)
        self.known = frozenset(sys.modules)
        # A new list: another thread may be going over the old one, and would leave a finder out.
        sys.meta_path = [self.finder, *sys.meta_path]
        sys.modules.update(self.modules)
        return real

    def leave(self, real: Modules) -> None:
        """Take out all that the mock brought, and put the real modules back."""
        self.users |= self.anew | brought(self.finder, self.known, self.users, self.owners)
        tops = {*self.finder.mock.libraries, *self.users}
        self.modules = _take_out(lambda name: _top(name) in tops and name not in self.known)
        sys.meta_path = [one for one in sys.meta_path if one is not self.finder]
        self.finder.asked = []
        sys.modules.update(real)


class _Switch:
    """The mock in force, the worlds of all mocks, and the changes that a with-block may undo."""

    def __init__(self) -> None:
        self.current: _World | None = None
        self.worlds: dict[str, _World] = {}
        self.real: Modules = {}  # taken out for the mock in force
        # Weak: `enable()` without a with-block is gone at once and stands for nobody.
        self.began: list[weakref.ref[_Change]] = []
        self.changed = threading.Condition(threading.RLock())

    @property
    def mock(self) -> Mock | None:
        return None if self.current is None else self.current.finder.mock

    def begin(self, change: _Change, mock: Mock | None, anew: Sequence[str]) -> None:
        """Put another mock in force. `sys.modules` is the process's, so a thread waits here for
        others that are in a with-block of another mock.

        Raises:
            OneFlowError: If they stay there for WAIT_LIMIT_S.
        """
        with self.changed:
            self._wait_for(mock, anew)
            change.before = self.mock
            self._to(mock, change.names, anew)
            self.began = [weakref.ref(one) for one in (*self._open(), change)]

    def end(self, change: _Change) -> None:
        """Undo a change. If other threads are in a with-block of this mock, the last of them does
        that.
        """
        with self.changed:
            place = self._open().index(change)
            self.began = [weakref.ref(one) for one in self._open() if one is not change]
            others = [one for one in self._open() if one.thread != change.thread]
            if others and len(others) == len(self.began):
                others[0].names += change.names
                later = [one for one in self._open()[place:] if one in others]
                if later:
                    later[0].before = change.before
            else:
                self._wait_for(change.before)
                self._to(change.before, change.names, ())
            self.changed.notify_all()

    def _open(self) -> list[_Change]:
        """Changes that were not undone, in their order."""
        return [change for one in self.began if (change := one()) is not None]

    def _wait_for(self, mock: Mock | None, anew: Sequence[str] = ()) -> None:
        """Wait until no module has to move, or no other thread is in a with-block."""
        here = threading.get_ident()

        def may_move() -> bool:
            stays = self._is_in_force(mock, anew)
            return stays or all(one.thread == here for one in self._open())

        if not self.changed.wait_for(may_move, WAIT_LIMIT_S):
            raise OneFlowError(
                f"mock_torch: another thread has been in a with-block of another mock for "
                f"{WAIT_LIMIT_S} s; leave it before a thread that it waits for switches"
            )

    def _to(self, mock: Mock | None, names: Sequence[Names], anew: Sequence[str]) -> None:
        new = None
        if mock is not None:
            new = self.worlds.setdefault(repr(mock), _World(MockFinder(mock)))
        if not self._is_in_force(mock, anew):
            if self.current is not None:
                self.current.leave(self.real)
                self.real = {}
            if new is not None:
                new.anew.update(top for top in anew if top not in NEVER_ANEW)
                self.real = new.enter()
            self.current = new
            surfaces.mocked = is_mocked
            set_mocked(mock is not None and "torch" in mock.libraries)
        for one in names:
            self._rename(one)

    def _is_in_force(self, mock: Mock | None, anew: Sequence[str]) -> bool:
        if mock != self.mock:
            return False
        return self.current is None or self.current.anew.issuperset(anew)

    def _rename(self, names: Names) -> None:
        """Let a module's global names mean modules of the world in force; those it lacks go."""
        for alias, module in names.copy().items():
            if not (isinstance(module, ModuleType) and self._is_elsewhere(module)):
                continue
            names.pop(alias)
            try:
                names[alias] = importlib.import_module(_imported_as(module))
            except ImportError:
                continue

    def _is_elsewhere(self, module: ModuleType) -> bool:
        """Whether a module belongs to a world that is not in force."""
        name = _imported_as(module)
        if sys.modules.get(name) is module:
            return False
        away = [self.real, *(w.modules for w in self.worlds.values() if w is not self.current)]
        return any(modules.get(name) is module for modules in away)


class MockEnableDisableMixin:
    """The place where upstream's users add to the modules that are never imported twice."""

    hazard_list: ClassVar[list[str]] = [
        "_distutils_hack",
        "importlib",
        "regex",
        "tokenizers",
        "safetensors._safetensors_rust",
    ]


def _top(name: str) -> str:
    return name.partition(".")[0]


def _stays(name: str) -> bool:
    kept = MockEnableDisableMixin.hazard_list
    return name in kept or _top(name) in kept


def _take_out(is_chosen: Callable[[str], bool]) -> Modules:
    # A list first: other threads import.
    chosen = [name for name in list(sys.modules) if is_chosen(name) and not _stays(name)]
    return {name: sys.modules.pop(name) for name in chosen}


def _and_above(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _imported_as(module: ModuleType) -> str:
    """The name that was imported; a dummy's own name is that of ours which is missing."""
    return module.__name__ if module.__spec__ is None else module.__spec__.name


_switch = _Switch()


def is_enabled() -> bool:
    """Is a mock in force?"""
    return _switch.mock is not None


class _Importer:
    """The state that upstream's users read from `mock_torch.mock_importer._importer`."""

    @property
    def enable(self) -> bool:
        """Whether a mock is in force."""
        return is_enabled()

    @property
    def delete_list(self) -> list[str]:
        """Names of the modules that were looked for since the mock came into force."""
        world = _switch.current
        return [] if world is None else list(world.finder.asked)


_importer = _Importer()


class _Change:
    """A switch that a with-block undoes at its end."""

    def __init__(self, mock: Mock | None, names: Names, anew: Sequence[str] = ()) -> None:
        self.names, self.thread = [names], threading.get_ident()
        self.before: Mock | None = None
        _switch.begin(self, mock, anew)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _switch.end(self)


class enable(_Change):
    """`import torch` means oneflow from now on, or inside a with-block.

    lazy: a missing name becomes a DummyModule, which raises when it is used, not when it is
    imported (default: ONEFLOW_MOCK_TORCH_LAZY).  verbose: print missing names
    (ONEFLOW_MOCK_TORCH_VERBOSE).  extra_dict: other libraries and those that stand for them.
    main_pkg: a package that was imported with PyTorch and is to be imported anew, with all it
    depends on that depend on a mocked library.  required_dependencies: further such packages.
    mock_version: `torch.__version__`; True for oneflow's own.
    ONEFLOW_DISABLE_MOCK_TORCH=1 turns all of it off.
    """

    def __init__(
        self,
        lazy: bool | None = None,
        verbose: bool | None = None,
        extra_dict: Mapping[str, str] | None = None,
        *,
        main_pkg: str | None = None,
        mock_version: str | bool | None = None,
        required_dependencies: Sequence[str] = (),
    ) -> None:
        if extra_dict is not None and not isinstance(extra_dict, Mapping):
            raise ValueError("Extra mock library must be a dict.")
        mock = Mock(
            {"torch": "oneflow", **(extra_dict or {})},
            _is_set("ONEFLOW_MOCK_TORCH_LAZY") if lazy is None else lazy,
            _is_set("ONEFLOW_MOCK_TORCH_VERBOSE") if verbose is None else verbose,
            _version(mock_version),
        )
        anew = list(required_dependencies)
        if main_pkg:
            anew += [main_pkg, *dependants(main_pkg, frozenset(mock.libraries))]
        off = _is_set("ONEFLOW_DISABLE_MOCK_TORCH")
        super().__init__(_switch.mock if off else mock, sys._getframe(1).f_globals, anew)


class disable(_Change):
    """`import torch` means PyTorch again from now on, or inside a with-block."""

    def __init__(self) -> None:
        super().__init__(None, sys._getframe(1).f_globals)


def _is_set(variable: str) -> bool:
    environment: Mapping[str, str] = os.environ
    return environment.get(variable, "").lower() in TRUE_WORDS


def _version(wanted: str | bool | None) -> str:
    return __version__ if wanted is True else wanted or TORCH_VERSION
