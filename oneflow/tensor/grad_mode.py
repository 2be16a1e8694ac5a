"""Whether ops are recorded: no_grad, enable_grad, set_grad_enabled, inference_mode. Per thread.
How often tensors and modules were switched, in all threads.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class GradState(threading.local):
    enabled = True
    is_inference = False
    differentiating: str | None = None
    """The node whose gradients are being computed and recorded (create_graph)."""
    saved_hooks: tuple[tuple[Callable[[Any], Any], Callable[[Any], Any]], ...] = ()
    rerun_in: tuple[Callable[[], AbstractContextManager[None]], ...] = ()
    """The blocks in which functions that are checkpointed now are to run again."""


state = GradState()


class Switches:
    """The number of times that `requires_grad` of a tensor, `training` of a module or the default
    dtype changed. While it stands still no trace is stale, so a step of a graph asks for nothing
    else.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


switches = Switches()


def is_grad_enabled() -> bool:
    return state.enabled


def is_inference_mode_enabled() -> bool:
    """Whether the code runs inside of `inference_mode()`."""
    return state.is_inference


class _Mode:
    """A context manager that is also a decorator."""

    _enabled = True

    def __init__(self) -> None:
        self._previous: list[bool] = []

    def __enter__(self) -> _Mode:
        self._previous.append(state.enabled)
        state.enabled = self._enabled
        return self

    def __exit__(self, *_: object) -> None:
        state.enabled = self._previous.pop()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        return run_inside(self._again, function)

    def _again(self) -> _Mode:
        return type(self)()


class no_grad(_Mode):
    """Inside (`with no_grad():`, or as a decorator) nothing is recorded for a backward pass."""

    _enabled = False

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        if function is not None:  # used as a bare decorator
            _Mode.__init__(made)
            return made(function)
        return made

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__()


class enable_grad(no_grad):
    """Inside, ops are recorded again."""

    _enabled = True


class set_grad_enabled(_Mode):
    """Sets recording on or off, at once; as a context manager until the end of the with-block."""

    def __init__(self, mode: bool | None = None, *, is_train: bool | None = None) -> None:
        super().__init__()
        wanted = is_train if mode is None else mode
        if wanted is None:
            raise TypeError("set_grad_enabled() needs True or False")
        self._enabled = bool(wanted)
        self._before = state.enabled
        state.enabled = self._enabled

    def __enter__(self) -> _Mode:
        self._previous.append(self._before)
        state.enabled = self._enabled
        return self

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        state.enabled = self._before
        return super().__call__(function)

    def _again(self) -> _Mode:
        return set_grad_enabled(self._enabled)


class inference_mode(_Mode):
    """A block without gradients, as no_grad; `inference_mode(False)` changes nothing."""

    def __new__(cls, mode: bool | Callable[..., Any] = True) -> Any:
        made = super().__new__(cls)
        if callable(mode):
            inference_mode.__init__(made)
            return made(mode)
        return made

    def __init__(self, mode: bool | Callable[..., Any] = True) -> None:
        super().__init__()
        self._wanted = bool(mode)
        self._was_inside: list[bool] = []

    def __enter__(self) -> _Mode:
        self._previous.append(state.enabled)
        self._was_inside.append(state.is_inference)
        state.is_inference = self._wanted
        if self._wanted:
            state.enabled = False
        return self

    def __exit__(self, *_: object) -> None:
        state.is_inference = self._was_inside.pop()
        super().__exit__()

    def _again(self) -> _Mode:
        return inference_mode(self._wanted)


# ---- decorated functions -------------------------------------------------------------------------


def run_inside(
    make: Callable[[], AbstractContextManager[Any]], function: Callable[P, R]
) -> Callable[P, R]:
    """`function`, each call of which (each step, of a generator) runs inside the context that
    `make` gives.

    A call of a generator function only makes the generator: its body runs when values are asked
    for. So each step of it is taken inside a new context, and between steps the caller's own holds.
    """
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
