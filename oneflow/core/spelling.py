"""Other spellings of keywords, for functions that stand outside of the public table."""

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
