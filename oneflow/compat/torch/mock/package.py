"""One package that runs on oneflow while the rest of the program runs on PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from oneflow.compat.torch.mock.switching import enable


class DynamicMockModule(ModuleType):
    """A package whose attributes are looked up, and its files imported, while torch is mocked."""

    def __init__(self, pkg_name: str, obj_entity: ModuleType, mocked: Callable[[], enable]) -> None:
        super().__init__(pkg_name)
        self._package, self._mocked = obj_entity, mocked
        self._replaced: dict[str, object] = {}

    @classmethod
    def from_package(
        cls,
        main_pkg: str,
        *,
        lazy: bool = True,
        verbose: bool = False,
        extra_dict: Mapping[str, str] | None = None,
        required_dependencies: Sequence[str] = (),
    ) -> DynamicMockModule:
        """The package of that name, imported anew."""

        def mocked() -> enable:
            return enable(
                lazy,
                verbose,
                extra_dict,
                main_pkg=main_pkg,
                required_dependencies=required_dependencies,
            )

        with mocked():
            package = importlib.import_module(main_pkg)
        return cls(main_pkg, package, mocked)

    def hijack(self, module_name: str, obj: object) -> None:
        """Put another object in the place of `package.name`."""
        self._replaced[module_name] = obj

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self._package.__name__}.{name}"
        if full in self._replaced:
            return self._replaced[full]
        with self._mocked():
            try:
                found = getattr(self._package, name)
            except AttributeError:
                found = importlib.import_module(full)
        if not isinstance(found, ModuleType):
            return found
        below = DynamicMockModule(full, found, self._mocked)
        below._replaced = self._replaced
        return below

    def __dir__(self) -> list[str]:
        return dir(self._package)

    def __repr__(self) -> str:
        return f"<{self.__name__} on oneflow>"
