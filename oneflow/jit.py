"""`flow.jit`: names by which scripts mark code for a compiler of Python. There is none here: what
is marked stays as it is and runs eagerly; `nn.Graph` is what compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, overload

from oneflow.core.dispatch import is_traced
from oneflow.core.errors import OneFlowError
from oneflow.nn.module import Module
from oneflow.surfaces import accept_paths

__all__ = [
    "Final",
    "ScriptFunction",
    "ScriptModule",
    "export",
    "ignore",
    "interface",
    "is_scripting",
    "is_tracing",
    "script",
    "script_if_tracing",
    "trace",
    "unused",
]

T = TypeVar("T")


class ScriptModule(Module):
    """A compiled module: none is ever made, so `isinstance` is False."""

    def __init__(self) -> None:
        raise OneFlowError("jit.ScriptModule: nothing is compiled here; derive from nn.Module")


class ScriptFunction:
    """A compiled function: none is ever made, so `isinstance` is False."""


def script(obj: T, optimize: bool | None = None, _frames_up: int = 0, _rcb: object = None) -> T:
    """The function, class or module as it is."""
    return obj


def trace(func: T, example_inputs: object = None, **options: object) -> T:
    """The function or module as it is."""
    return func


def script_if_tracing(fn: T) -> T:
    """The function as it is."""
    return fn


_script_if_tracing = script_if_tracing


def _overload_method(fn: T) -> T:
    """The function as it is: a later one of the same name takes its place."""
    return fn


_overload = _overload_method


def export(fn: T) -> T:
    """The function as it is."""
    return fn


def interface(obj: T) -> T:
    """The class as it is."""
    return obj


@overload
def ignore(drop: T) -> T: ...
@overload
def ignore(drop: bool = False, **options: object) -> Callable[[T], T]: ...
def ignore(drop: object = False, **options: object) -> object:
    """The function as it is, under `@ignore` and `@ignore()` alike."""
    return drop if callable(drop) else export


def unused(fn: T) -> T:
    """The function as it is."""
    return fn


def is_scripting() -> bool:
    """False: nothing is compiled."""
    return False


def is_tracing() -> bool:
    """Return whether `nn.Graph.build` is being traced."""
    return is_traced()


accept_paths(__name__)
