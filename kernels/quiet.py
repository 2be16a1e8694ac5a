"""Kernel calls without NumPy's warnings: log(0) is -inf, as in other frameworks, and no reason to
print.

`with np.errstate(all="ignore")` costs 2.7 us a call, more than many a small kernel. NumPy 2 keeps
the setting in the context (PEP 567), so a context in which it was made once serves every call after
that for 0.1 us.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class _Runs(Protocol):
    def run(self, function: Callable[..., Any], /, *args: Any, **attrs: Any) -> Any: ...


_idle: list[_Runs] = []
"""Contexts that nobody is in. One can be entered only once at a time, so every thread that is in a
kernel, and whatever interrupts a kernel, takes one of its own."""


def run_quietly(function: Callable[..., Any], /, *args: Any, **attrs: Any) -> Any:
    """`function(*args, **attrs)`, unheard."""
    try:
        context = _idle.pop()
    except IndexError:
        context = _new()
    try:
        return context.run(function, *args, **attrs)
    finally:
        _idle.append(context)


def quiet_context() -> object:
    """Such a context of the caller's own, of NumPy 2 and later."""
    return _new()


class _Errstate:
    """A stand-in for such a context where NumPy keeps the setting per thread, as before 2.0."""

    def run(self, function: Callable[..., Any], /, *args: Any, **attrs: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args, **attrs)


def _new() -> _Runs:
    if int(np.__version__.partition(".")[0]) < 2:
        return _Errstate()
    context = contextvars.copy_context()
    context.run(np.seterr, all="ignore")
    return context
