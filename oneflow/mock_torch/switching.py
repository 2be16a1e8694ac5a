"""Switching between mocked and real libraries: which modules Python knows in each of the two.

Modules of a mocked library, and those that were imported while it was mocked and use it, leave
`sys.modules` when the mock ends and come back when the same mock begins again; so do the real ones.
A caller's own global names for them (`torch`, `nn`) change with them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any, ClassVar

from oneflow import __version__, surfaces
from oneflow.core.config import TRUE_WORDS
from oneflow.core.spelling import is_mocked, set_mocked
from oneflow.mock_torch.dependants import dependants
from oneflow.mock_torch.dummy import DummyModule
from oneflow.mock_torch.importer import TORCH_VERSION, Mock, MockFinder, ModuleWrapper

Names = dict[str, Any]


@dataclass
class _World:
    """The finder of one mock (None: of the real libraries), and the modules that exist under it
    while it is not in force.
    """

    finder: MockFinder | None
    modules: dict[str, ModuleType] = field(default_factory=dict)
    known: frozenset[str] = frozenset()  # imported before the mock began

    @property
    def mock(self) -> Mock:
        return Mock() if self.finder is None else self.finder.mock


class _Switch:
    """The world in force, and those that are not."""

    def __init__(self) -> None:
        self.current = _World(None)
        self.worlds: dict[object, _World] = {None: self.current}

    @property
    def mock(self) -> Mock | None:
        return None if self.current.finder is None else self.current.mock

    def to(self, mock: Mock | None, names: Names, dependants: Sequence[str] = ()) -> None:
        """Put another mock in force; names: the caller's globals.

        dependants: packages that were imported before and are to be imported anew.
        """
        old, new = self.current, self._world_of(mock)
        if new is old:
            return
        leaving = _leaving(old, {*old.mock.libraries, *new.mock.libraries}, dependants)
        aliases = {n: _imported_as(m) for n, m in names.items() if _is_one_of(m, leaving)}
        old.modules = {name: sys.modules.pop(name) for name in leaving}
        if old.finder is not None:
            sys.meta_path.remove(old.finder)
            old.finder.asked = []
        if new.finder is not None:
            sys.meta_path.insert(0, new.finder)
        new.known = frozenset(sys.modules)
        sys.modules.update(new.modules)
        self.current = new
        surfaces.mocked = is_mocked
        set_mocked("torch" in new.mock.libraries and new.finder is not None)
        _rename(names, aliases)

    def _world_of(self, mock: Mock | None) -> _World:
        key = None if mock is None else repr(mock)
        return self.worlds.setdefault(key, _World(None if mock is None else MockFinder(mock)))


class MockEnableDisableMixin:
    """The place where upstream's users add to the modules that are never imported twice."""

    hazard_list: ClassVar[list[str]] = [
        "_distutils_hack",
        "importlib",
        "regex",
        "tokenizers",
        "safetensors._safetensors_rust",
    ]


def _leaving(world: _World, libraries: set[str], dependants: Sequence[str]) -> list[str]:
    """Names of the modules that belong to the world that is left: the libraries, and the packages
    of which a file that was imported in it uses them.
    """
    tops = {*dependants}
    if world.finder is not None:
        for name, module in list(sys.modules.items()):
            if name in world.known or world.mock.covers(name):
                continue
            if name in world.finder.users or _holds_mocked(module):
                tops.add(name.partition(".")[0])
    tops -= {"oneflow", "__main__"}

    kept = MockEnableDisableMixin.hazard_list

    def leaves(name: str) -> bool:
        top = name.partition(".")[0]
        if top in libraries:
            return True
        return top in tops and name not in world.known and top not in kept and name not in kept

    return [name for name in sys.modules if leaves(name)]


def _holds_mocked(module: ModuleType) -> bool:
    held = list(getattr(module, "__dict__", {}).values())
    return any(isinstance(value, ModuleWrapper | DummyModule) for value in held)


def _is_one_of(value: object, leaving: Sequence[str]) -> bool:
    return (
        isinstance(value, ModuleType)
        and _imported_as(value) in leaving
        and sys.modules.get(_imported_as(value)) is value
    )


def _imported_as(module: ModuleType) -> str:
    """The name that was imported; a dummy's own name is that of ours which is missing."""
    return module.__name__ if module.__spec__ is None else module.__spec__.name


def _rename(names: Names, aliases: Mapping[str, str]) -> None:
    """Let global names mean the modules of the world that begins; those it lacks are gone."""
    for alias, name in aliases.items():
        names.pop(alias)
        try:
            names[alias] = importlib.import_module(name)
        except ImportError:
            continue


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
        finder = _switch.current.finder
        return [] if finder is None else list(finder.asked)


_importer = _Importer()


class _Change:
    """A switch that a with-block undoes at its end."""

    def __init__(self, mock: Mock | None, names: Names, dependants: Sequence[str] = ()) -> None:
        self._names, self._before = names, _switch.mock
        _switch.to(mock, names, dependants)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _switch.to(self._before, self._names)


class enable(_Change):
    """`import torch` means oneflow from now on, or inside a with-block.

    lazy: a missing name becomes a DummyModule, which raises when it is used, not when it is
    imported (default: ONEFLOW_MOCK_TORCH_LAZY).  verbose: print what is missing
    (ONEFLOW_MOCK_TORCH_VERBOSE).  extra_dict: other libraries and what stands for them.
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
