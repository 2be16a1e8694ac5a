"""Ways of either library: other spellings of keywords, for functions that stand outside of the
public table, and whose defaults count where the two have different ones: OneFlow's, and in programs
of PyTorch, to which `import torch` means this library, PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def also_called(**renames: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the function takes the keyword `theirs` where it has `ours`, for each
    theirs="ours".
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: Any, **keywords: Any) -> R:
            for theirs, ours in renames.items():
                if theirs in keywords:
                    if ours in keywords:
                        raise TypeError(f"{function.__name__}() got {ours} and {theirs}, one thing")
                    keywords[ours] = keywords.pop(theirs)
            return function(*args, **keywords)

        return cast("Callable[P, R]", call)

    return decorate


class _State:
    is_mocked = False


def is_mocked() -> bool:
    """Return whether `import torch` means this library now: inside `mock_torch.enable()`."""
    return _State.is_mocked


def set_mocked(value: bool) -> None:
    """Say so; only compat/torch/mock/switching.py does."""
    _State.is_mocked = value


class DefaultNumber(float):
    """A default of OneFlow's for which PyTorch has another form: None, the value of the dtype."""

    def given(self) -> float | None:
        """Return the number, None in a program of PyTorch."""
        return None if is_mocked() else float(self)
