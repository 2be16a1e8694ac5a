"""A stand-in for a name of PyTorch that does not exist here, where it is asked for lazily."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import NoReturn

from oneflow.compat.torch.mock.substitutes import substitute
from oneflow.core.errors import OneFlowError

OPERATORS = """
add radd sub rsub mul rmul matmul truediv rtruediv floordiv mod pow neg lt le gt ge
len next int float index enter exit setitem delitem contains
"""


class DummyModule(ModuleType):
    """Stands for a missing name, so that a file which mentions it can be imported.

    Its attributes are dummies, too, and so is the result of a call while a module is being imported
    (a decorator, a constant). Any other use raises OneFlowError with its name.
    """

    def __init__(self, name: str, verbose: bool = False) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__all__: list[str] = []
        self.__file__ = None
        self._verbose = verbose

    def __getattr__(self, name: str) -> DummyModule:
        if name.startswith("__"):
            raise AttributeError(f"{self.__name__} has no attribute {name!r}")
        return self._next(f".{name}")

    def __getitem__(self, index: object) -> DummyModule:
        if isinstance(index, int):
            raise IndexError(f"{self.__name__}, which oneflow does not have, is empty")
        return self._next(f"[{index!r}]")

    def __call__(self, *args: object, **kwargs: object) -> DummyModule:
        if not _is_importing(sys._getframe(1)):
            self._refuse()
        return self._next("(...)")

    def __or__(self, other: object) -> DummyModule:
        return self  # `torch.Missing | None` in an annotation

    __ror__ = __or__

    def __bool__(self) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        """The base of a class that derives from a missing one: it cannot be instantiated."""
        dummy = self

        class Missing:
            def __init__(self, *args: object, **kwargs: object) -> None:
                dummy._refuse()

        Missing.__name__ = self.__name__.rpartition(".")[2]
        return (Missing,)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<{self.__name__}, which oneflow does not have>"

    def _next(self, tail: str) -> DummyModule:
        name = self.__name__ + tail
        if self._verbose:
            print(f"mock_torch: {name} is used at import and stands for nothing")
        return DummyModule(name, self._verbose)

    def _refuse(self) -> NoReturn:
        instead = substitute(self.__name__) or "it was imported because mock_torch is lazy"
        raise OneFlowError(f"{self.__name__} is used, but oneflow has no such name: {instead}")


def _refusing() -> Callable[..., NoReturn]:
    def refuse(self: DummyModule, *_: object) -> NoReturn:
        self._refuse()

    return refuse


for _operator in OPERATORS.split():
    setattr(DummyModule, f"__{_operator}__", _refusing())


def _is_importing(frame: FrameType | None) -> bool:
    """Whether the code on the stack runs because a module is being imported."""
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if frame.f_code.co_name == "<module>" and getattr(spec, "_initializing", False):
            return True
        frame = frame.f_back
    return False
