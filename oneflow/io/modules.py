"""Modules of `oneflow.nn` as data: the public name of their class, and tables of their contents.

Loading makes an instance without calling `__init__` and fills in the tables. Modules of a program's
own classes go by io/objects.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oneflow.core.errors import CheckpointError
from oneflow.nn.module import HOOK_KINDS, Module
from oneflow.surfaces import find
from oneflow.tensor.tensor import Tensor

Tables = dict[str, dict[Any, Any]]

TABLES: tuple[tuple[str, str, type], ...] = (
    ("parameters", "_parameters", Tensor),
    ("buffers", "_buffers", Tensor),
    ("modules", "_modules", Module),
)
"""Name in a checkpoint, attribute that holds the table, and type of its entries or None."""

_APART = frozenset(attribute for _, attribute, _ in TABLES) | frozenset(HOOK_KINDS)


def class_name(module: Module) -> str | None:
    """Return the name in `oneflow.nn` of the module's class; None if it is a class of the program,
    if functions are registered as hooks, or if an attribute hides a method: then it is saved as any
    other object is.
    """
    kind, own = type(module), vars(module)
    if _class_named(kind.__name__) is not kind or any(own[name] for name in HOOK_KINDS):
        return None
    if any(callable(getattr(kind, name, None)) for name in own):
        return None
    return kind.__name__


def tables(module: Module) -> Tables:
    """Return the contents of the module: its parameters, buffers, parts and all other
    attributes."""
    own = vars(module)
    found = {name: dict(own[attribute]) for name, attribute, _ in TABLES}
    found["attributes"] = {name: value for name, value in own.items() if name not in _APART}
    return found


def blank(name: str) -> Module:
    """Return an empty module of the class called `name`. Raises CheckpointError."""
    kind = _class_named(name)
    if kind is None:
        raise CheckpointError(f"load: there is no module oneflow.nn.{name[:80]}")
    made = kind.__new__(kind)
    Module.__init__(made)
    return made


def fill(made: Module, found: Tables) -> None:
    """Let a module hold `found`. Raises CheckpointError."""
    kind, own = type(made), vars(made)
    for table, attribute, type_ in TABLES:
        entries = _named(found.get(table, {}), kind)
        for key, value in entries.items():
            if value is not None and not isinstance(value, type_):
                raise CheckpointError(f"load: {key!r} of nn.{kind.__name__} is no {type_.__name__}")
        own[attribute].update(entries)
    attributes = _named(found.get("attributes", {}), kind)
    for key in attributes:
        if key in _APART or key.startswith("__"):
            raise CheckpointError(f"load: nn.{kind.__name__} cannot hold an attribute {key!r}")
    own.update(attributes)
    if type(own["training"]) is not bool or type(own["_non_persistent_buffers_set"]) is not set:
        raise CheckpointError(f"load: nn.{kind.__name__} does not say whether it trains")


def function_name(value: object) -> str:
    """Return the name in `oneflow.nn.functional` of a function that a module holds, such as its
    activation; "" if it is no function of ours.
    """
    name = getattr(value, "__name__", "")
    try:
        return name if callable(value) and find("F", name) is value else ""
    except AttributeError:
        return ""


def function_named(name: str) -> Callable[..., Any]:
    """Return the function of that name in `oneflow.nn.functional`. Raises CheckpointError."""
    try:
        found = find("F", name)
    except AttributeError:
        found = None
    if not callable(found) or isinstance(found, type):
        raise CheckpointError(f"load: there is no function oneflow.nn.functional.{name[:80]}")
    function: Callable[..., Any] = found
    return function


def _named(entries: Mapping[Any, Any], kind: type[Module]) -> dict[str, Any]:
    for key in entries:
        if not isinstance(key, str) or callable(getattr(kind, key, None)):
            raise CheckpointError(f"load: nn.{kind.__name__} cannot hold {str(key)[:80]!r}")
    return dict(entries)


def _class_named(name: str) -> type[Module] | None:
    try:
        found = find("nn", name)
    except AttributeError:
        return None
    is_layer = isinstance(found, type) and issubclass(found, Module) and found is not Module
    return found if is_layer else None
