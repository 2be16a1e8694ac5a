"""Functions as users find them: the rows of `oneflow/api.py`, looked up, promoted and renamed.

`find("flow", "exp")` imports the home of the row named `exp` and returns the function that users
call as `oneflow.exp`. A function is made once, so `flow.relu is flow.nn.functional.relu`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from oneflow.api import ROWS, Row

IN_PLACE = {"flow_": "flow", "tensor_": "tensor", "F_": "F"}
"""Surfaces of functions that write into their first argument, and the namespaces they join."""

NUMPY_KEYWORDS = {"axis": "dim", "keepdims": "keepdim"}
"""Keywords of NumPy that PyTorch and OneFlow take wherever they have the other one."""


@cache
def index() -> dict[str, dict[str, tuple[Row, bool]]]:
    """Namespace -> public name -> its row, and whether it is the form that writes in place."""
    found: dict[str, dict[str, tuple[Row, bool]]] = {}
    for row in ROWS:
        for surface in row.surfaces:
            in_place = surface in IN_PLACE
            space = found.setdefault(IN_PLACE.get(surface, surface), {})
            for name in row.names:
                space[f"{name}_" if in_place else name] = (row, in_place)
    return found


def names(space: str) -> list[str]:
    """The public names of one namespace ("flow", "tensor", "F", "linalg", ...), sorted."""
    return sorted(index()[space])


def find(space: str, name: str) -> Any:
    """The function or object called `name` in a namespace.

    Raises AttributeError, worded as for a module, if no row puts that name there.
    """
    entry = index()[space].get(name)
    if entry is None:
        module = {"flow": "oneflow", "F": "oneflow.nn.functional"}.get(space, f"oneflow.{space}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return _made(id(entry[0]), entry[1]) if entry[1] else _function(id(entry[0]))


_BY_ID = {id(row): row for row in ROWS}


@cache
def _function(key: int) -> Any:
    """Return what a row's users call. key: the id of the row, which lives as long as the
    program.
    """
    row = _BY_ID[key]
    own = getattr(importlib.import_module(row.home), row.own)
    if row.promote is not None:
        from oneflow.functional.promotion import promoted

        own = promoted(own, row.own, row.promote)
    renames = {**_numpy_names(own), **row.keywords}
    return _taking(own, renames, row.order) if renames or row.order else own


@cache
def _made(key: int, in_place: bool) -> Any:
    from oneflow.tensor.inplace import in_place as writing

    return writing(_function(key))


def _numpy_names(function: Any) -> dict[str, str]:
    if not isinstance(function, FunctionType):
        return {}
    code = function.__code__
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {k: v for k, v in NUMPY_KEYWORDS.items() if v in own and k not in own}


def _taking(
    function: Callable[..., Any], renames: dict[str, str], order: tuple[str, ...]
) -> Callable[..., Any]:
    """`function` under other spellings of its keywords, and in another positional order."""

    def apply(*args: Any, **keywords: Any) -> Any:
        if order:
            keywords = {**dict(zip(order, args, strict=False)), **keywords}
            args = args[len(order) :]
        if keywords:
            for theirs in renames.keys() & keywords.keys():
                ours = renames[theirs]
                if ours in keywords:
                    raise TypeError(
                        f"{function.__name__}() got {ours} and {theirs}, which mean the same"
                    )
                keywords[ours] = keywords.pop(theirs)
        return function(*args, **keywords)

    apply.__name__ = function.__name__
    apply.__qualname__ = function.__qualname__
    apply.__module__ = function.__module__
    apply.__doc__ = function.__doc__
    apply.__wrapped__ = function  # type: ignore[attr-defined]  # inspect.signature follows it
    return apply


def open_module(module: str, space: str, modules: tuple[str, ...] = ()) -> None:
    """Lets the module of that name answer for a namespace: its attributes, `dir()`, `__all__`.

    modules: sub-modules that are imported when users first ask for them.  Names that the module
    defines itself come first.
    """
    here = sys.modules[module]

    def get(name: str) -> Any:
        if name in modules:
            found: Any = importlib.import_module(f"{module}.{name}")
        elif name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        else:
            found = find(space, name)
        setattr(here, name, found)
        return found

    offered = sorted({*names(space), *modules})
    here.__getattr__ = get  # type: ignore[method-assign]
    here.__dir__ = lambda: offered  # type: ignore[method-assign]
    here.__all__ = offered  # type: ignore[attr-defined]


def install_methods(tensor: type) -> None:
    """Gives the Tensor class the methods of the table."""
    for name in names("tensor"):
        setattr(tensor, name, find("tensor", name))
