"""Functions that run inside a context manager: `with` blocks as decorators.

A call of a generator function only makes the generator: its body runs when values are asked for.
So each step of it is taken inside a new context, and between steps the caller's own one holds.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def run_inside(
    make: Callable[[], AbstractContextManager[Any]], function: Callable[P, R]
) -> Callable[P, R]:
    """`function`, each call of which (each step, of a generator) runs inside what `make` gives."""
    if inspect.isgeneratorfunction(function):
        return _stepped(make, function)

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with make():
            return function(*args, **kwargs)

    return wrapped


def _stepped(
    make: Callable[[], AbstractContextManager[Any]], function: Callable[P, Any]
) -> Callable[P, Any]:
    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        step, given = inner.send, None
        while True:
            try:
                with make():
                    found = step(given)
            except StopIteration as end:
                return end.value
            try:
                given, step = (yield found), inner.send
            except GeneratorExit:
                with make():
                    inner.close()
                raise
            except BaseException as error:
                given, step = error, inner.throw

    return wrapped
