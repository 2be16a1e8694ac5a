"""The user's own source line: of the call that led into this package."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import ParamSpec, TypeVar

from oneflow.core.errors import OneFlowError

P = ParamSpec("P")
R = TypeVar("R")
Failure = TypeVar("Failure", bound=Exception)

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ROOMS = ("actors", "boxing", "kernels", "launcher", "protos", "scheduler")
_CHECKOUT = os.path.dirname(_PACKAGE)
# The rooms of a checkout are links: their files may be known under either path.
_OURS = (
    _PACKAGE + os.sep,
    *(os.path.join(_CHECKOUT, room) + os.sep for room in _ROOMS),
)
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_TRACING = tuple(os.path.join(_PACKAGE, room) + os.sep for room in ("core", "graph"))
_AROUND = ("apply", "called")
"""Names of wrappers, which say nothing to users."""
_left_out: dict[str, bool] = {}
_lines: dict[tuple[str, int], str] = {}
"""Lines as text: the nodes of a graph, of which many stand in one line, share it."""


def user_location() -> str:
    """`file:line` of the innermost frame outside this package, or "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not (_left_out[name] if name in _left_out else _is_left_out(name)):
            place = name, frame.f_lineno
            return _lines.get(place) or _lines.setdefault(place, f"{name}:{frame.f_lineno}")
        frame = frame.f_back
    return ""


def user_stack(depth: int, only_user: bool = True) -> str:
    """`file:line <- file:line ...`: at most `depth` lines, the innermost first.

    only_user: leave out frames of this package; else, innermost, only those that record the op.
    """
    lines: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(lines) < depth:
        name = frame.f_code.co_filename
        is_left_out = _is_left_out(name) if only_user else not lines and name.startswith(_TRACING)
        if not is_left_out:
            lines.append(f"{name}:{frame.f_lineno}")
        frame = frame.f_back
    return " <- ".join(lines)


def user_call() -> str:
    """`to_global at file:line`: the function of this package that the user called, and where."""
    name, place = _called()
    return " at ".join(filter(None, (name, place)))


def called_function() -> str:
    """The name of the function of this package that the user called."""
    return _called()[0]


def _called() -> tuple[str, str]:
    """The function that the user called, beneath the wrappers around many of them, and `file:line`
    of the call.
    """
    name = ""
    caller: FrameType | None = sys._getframe(2)
    while caller is not None:
        file = caller.f_code.co_filename
        if not _is_left_out(file):
            return name, f"{file}:{caller.f_lineno}"
        if caller.f_code.co_name not in _AROUND:
            name = caller.f_code.co_name
        caller = caller.f_back
    return name, ""


def package_file(name: str) -> bool:
    """Whether a code file is part of this package (or of the interpreter), not of the user's."""
    return name.startswith(_OURS) or name.startswith("<frozen")


def _is_left_out(name: str) -> bool:
    """Whether a line of a code file is not the one to tell a user: of this package, or of Python's
    library, through which a call may lead into it, as `copy.deepcopy` does.
    """
    left_out = _left_out.get(name)
    if left_out is None:
        is_library = name.startswith(_LIBRARY) and "-packages" not in name
        left_out = _left_out[name] = package_file(name) or is_library
    return left_out


def locate(error: Exception, module: str = "", where: str = "") -> None:
    """Add the user's line, and the module if given, to the text of an error; once only.

    where: that line; if not given, it is looked for among the frames that the error came through
    and then among the callers.
    """
    if getattr(error, "location", None) is not None or len(error.args) != 1:
        return
    where = where or _raised_at(error) or user_location()
    error.__dict__["location"] = where
    inside = f", in module {module}" if module else ""
    if where:
        error.args = (f"{error.args[0]} ({where}{inside})",)


def with_location(error: Failure) -> Failure:
    """The error itself, after `locate`: `raise with_location(GraphError(...))`."""
    locate(error)
    return error


def located(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose users' mistakes name the user's line."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except OneFlowError as error:
            if error.reason == OneFlowError.reason:
                locate(error)
            raise

    return called


def _raised_at(error: Exception) -> str:
    """The innermost of the user's lines that the error has come through so far."""
    found, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not _is_left_out(name):
            found = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
