"""Modules of PyTorch as views of ours, and the finder that Python's import asks for them first."""

from __future__ import annotations

import dis
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, FrameType, ModuleType
from typing import Any, cast

from oneflow import __version__
from oneflow.compat.torch.mock.dummy import DummyModule
from oneflow.compat.torch.mock.substitutes import way_out

MAIN = ".__main__"
"""The end of the name that `python -m` looks for in a package."""

TORCH_VERSION = "2.4.0"
"""The PyTorch for which the mock stands, to programs that ask for `torch.__version__`."""

ELSEWHERE = {"torch.ops": "oneflow.compat.torch.libraries"}
"""Modules of PyTorch whose name means something else here."""

OTHER_FORMS = {
    **dict.fromkeys(
        ("AdamW", "Adagrad", "PolynomialLR", "RMSprop"),
        ("oneflow.optim", "oneflow.compat.torch.optim"),
    ),
    "_BaseDataLoaderIter": ("oneflow.utils.data.dataloader", "oneflow.compat.torch.data"),
}
"""Names with other defaults, members or another order of arguments in PyTorch: the module (with
those below it) in which they are asked for, and the one that has PyTorch's form."""

ATTRIBUTE_OPS = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", "LOAD_NAME")


@dataclass(frozen=True)
class Mock:
    """The libraries that are mocked, those that stand for them, and how.

    libraries: name -> ours.  lazy: a missing name becomes a DummyModule.  verbose: say so.
    version: of the mocked library `torch`.
    """

    libraries: Mapping[str, str] = field(default_factory=lambda: {"torch": "oneflow"})
    lazy: bool = False
    verbose: bool = False
    version: str = TORCH_VERSION

    def covers(self, name: str) -> bool:
        """Whether a module's name belongs to a mocked library."""
        return name.partition(".")[0] in self.libraries

    def ours(self, name: str) -> str:
        """The name of our module that stands for one of theirs."""
        if name in ELSEWHERE and self.libraries.get("torch") == "oneflow":
            return ELSEWHERE[name]
        top, dot, rest = name.partition(".")
        return f"{self.libraries[top]}{dot}{rest}"


class ModuleWrapper(ModuleType):
    """One of our modules under another library's name."""

    def __init__(self, name: str, module: ModuleType, finder: MockFinder) -> None:
        super().__init__(name, module.__doc__)
        own = super().__dict__
        own.update(_wrapped=module, _finder=finder, __path__=[], __package__=module.__package__)
        if name == "torch":
            own.update(__version__=finder.mock.version, torch=self)

    def _everything(self) -> dict[str, Any]:
        """All names with their values: `vars(torch.optim)["SGD"]`, loops over a module's names."""
        ours = {name: getattr(self, name) for name in getattr(self._wrapped, "__all__", ())}
        return {**ours, **super().__dict__}

    __dict__ = cast("Any", property(_everything))

    def __getattr__(self, name: str) -> Any:
        own = super().__dict__
        module, finder = own["_wrapped"], own["_finder"]
        mock, full, asking = finder.mock, f"{self.__name__}.{name}", sys._getframe(1)
        finder.users.add(asking.f_globals.get("__name__", ""))
        if full in ELSEWHERE:
            return importlib.import_module(full)
        other = OTHER_FORMS.get(name)
        if other is not None and mock.ours(self.__name__).startswith(other[0]):
            return getattr(importlib.import_module(other[1]), name)
        try:
            found = getattr(module, name)
        except AttributeError:
            asks_by = _operation(asking)
            if not name.startswith("__") and mock.lazy and asks_by in ATTRIBUTE_OPS:
                return _dummy(full, mock)
            what = f"{self.__name__!r}, which is {module.__name__!r} inside mock_torch.enable(),"
            if asks_by == "IMPORT_FROM":
                reason = f"cannot import name {name!r} from {what} {way_out(full)}"
                raise ImportError(reason, name=self.__name__) from None
            raise AttributeError(f"{what} has no attribute {name!r}: {way_out(full)}") from None
        if isinstance(found, ModuleType) and found.__name__ == mock.ours(full):
            if sys.modules.get(self.__name__) is self:
                return importlib.import_module(full)  # so that it is wrapped, the same each time
            return finder.view(full, found)  # the mock has ended: an import finds the real one
        return found

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if not (isinstance(value, ModuleType) or name.startswith("__")):
            setattr(self._wrapped, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dict__, *dir(self._wrapped)})


def _operation(frame: FrameType) -> str:
    """Return the operation by which the code asks: one of ATTRIBUTE_OPS for `m.name` and `from m
    import name`, and not for `hasattr` or `getattr`, which must hear that there is none.
    """
    return dis.opname[frame.f_code.co_code[frame.f_lasti]]


def _dummy(name: str, mock: Mock) -> DummyModule:
    if mock.verbose:
        print(f"mock_torch: {mock.ours(name)} is not found in oneflow; a dummy stands for it")
    return DummyModule(mock.ours(name), mock.verbose)


class MockFinder(MetaPathFinder, Loader):
    """Finds the modules of mocked libraries, and their version.

    users: names of the modules whose code has asked a mocked library for something.  asked: names
    of the other modules that were looked for since the mock came into force.
    """

    def __init__(self, mock: Mock) -> None:
        self.mock = mock
        self.users: set[str] = set()
        self.asked: list[str] = []
        self._views: dict[str, ModuleWrapper] = {}

    def view(self, name: str, module: ModuleType) -> ModuleWrapper:
        """Return the view of one of our modules that was made last, or make one."""
        return self._views.setdefault(name, ModuleWrapper(name, module, self))

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module that stands for a mocked one; None for any other, or one that is missing."""
        if not self.mock.covers(name):
            self.asked.append(name)
            return None
        if not (self.mock.lazy or _exists(self.mock.ours(name.removesuffix(MAIN)))):
            if sys._getframe(2).f_code.co_name == "_find_and_load_unlocked":
                raise ModuleNotFoundError(f"No module named {name!r}: {way_out(name)}", name=name)
            return None  # to `importlib.util.find_spec`
        return ModuleSpec(name, self, is_package=not name.endswith(MAIN))

    def get_code(self, name: str) -> CodeType | None:
        """The code of the module of ours that `python -m` runs. Raises ImportError for none."""
        found = importlib.util.find_spec(self.mock.ours(name.removesuffix(MAIN)))
        loader = found.loader if found is not None else None
        if not isinstance(loader, InspectLoader):
            raise ImportError(f"{name} cannot be run", name=name)
        return loader.get_code(found.name if found is not None else name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        ours = self.mock.ours(spec.name)
        if not _exists(ours):
            return _dummy(spec.name, self.mock)
        made = ModuleWrapper(spec.name, importlib.import_module(ours), self)
        self._views[spec.name] = made
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to run: ours was imported."""

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context
    ) -> Iterator[importlib.metadata.Distribution]:
        """The version of a mocked `torch`, for those who ask the package metadata. With oneflow's
        own version as that of `torch` an installed PyTorch answers, as with upstream's mock.
        """
        if context.name != "torch" or "torch" not in self.mock.libraries:
            return
        installed = importlib.metadata.MetadataPathFinder.find_distributions(context)
        if self.mock.version != __version__ or not any(True for _ in installed):
            yield _Version(self.mock.version)


def _exists(name: str) -> bool:
    """Whether a module of ours can be imported; its parents are."""
    if name in sys.modules:
        return True
    parent, _, _ = name.rpartition(".")
    if parent and not _exists(parent):
        return False
    above = importlib.import_module(parent) if parent else None
    if above is not None and not hasattr(above, "__path__"):
        return False
    return importlib.util.find_spec(name) is not None


class _Version(importlib.metadata.Distribution):
    """An installed package of which nothing but the version is known."""

    def __init__(self, version: str) -> None:
        self._version = version

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        message = Message()
        message["Metadata-Version"], message["Name"] = "2.1", "torch"
        message["Version"] = self._version
        return message.as_string()

    def locate_file(self, path: object) -> Any:
        raise FileNotFoundError(f"mock_torch: {path}")
