"""Objects of a program's own classes as data: the name of the class, and the state that pickle
would write. `__getstate__`, `__setstate__` and `__slots__` count; no function makes an object.
"""

from __future__ import annotations

import copyreg
import enum
import types
from dataclasses import fields, is_dataclass
from typing import Any, cast

from oneflow.core.errors import CheckpointError
from oneflow.nn.module import Module


def state_of(value: object, where: str) -> Any:
    """Return the state of an object. Raises CheckpointError for one that is more than its state:
    files, locks, and objects that a function has to make.
    """
    kind = type(value)
    try:
        parts: Any = value.__reduce_ex__(2)
    except Exception as error:  # whatever the object's own code raises
        raise _no_form(value, where, f": {error}") from error
    is_plain = isinstance(parts, tuple) and parts[0] is getattr(copyreg, "__newobj__", None)
    if not is_plain or parts[1] != (kind,) or any(parts[3:]):
        raise _no_form(value, where, ", since it is made by a call and not from its state")
    return parts[2] if len(parts) > 2 else None


def _no_form(value: object, where: str, why: str) -> CheckpointError:
    kind = type(value)
    return CheckpointError(
        f"save: {where or 'the object'} is a {kind.__module__}.{kind.__qualname__}, which has no "
        f"form in a checkpoint{why}; save its state_dict() or plain values"
    )


def blank(kind: type) -> Any:
    """Return an object of a class without a state. Raises CheckpointError."""
    try:
        made = cast(Any, kind).__new__(kind)
    except TypeError as error:
        raise CheckpointError(f"load: {kind.__qualname__} has no objects: {error}") from error
    if isinstance(made, Module):
        Module.__init__(made)
    return made


def fill(made: object, state: object) -> None:
    """Give an object its state, as pickle does. Raises CheckpointError if that does not fit it."""
    if hasattr(made, "__setstate__"):
        try:
            made.__setstate__(state)
        except Exception as error:  # whatever the class's own code raises
            raise CheckpointError(
                f"load: {type(made).__qualname__} does not take its state: "
                f"{type(error).__name__}: {error}"
            ) from error
    elif isinstance(state, tuple) and len(state) == 2:
        _update(made, state[0])
        for name, value in (state[1] or {}).items():
            if not isinstance(getattr(type(made), str(name), None), types.MemberDescriptorType):
                raise CheckpointError(f"load: {type(made).__qualname__} has no slot {name!r:.80}")
            setattr(made, name, value)
    else:
        _update(made, state)
    if isinstance(made, Module):
        _check_module(made)


def _update(made: object, state: object) -> None:
    if state is None:
        return
    own = getattr(made, "__dict__", None)
    if not isinstance(state, dict) or own is None or not all(type(key) is str for key in state):
        raise CheckpointError(f"load: the state of a {type(made).__qualname__} does not fit it")
    own.update(state)


def _check_module(made: Module) -> None:
    for table in ("_parameters", "_buffers", "_modules"):
        if not isinstance(vars(made).get(table), dict):
            raise CheckpointError(f"load: {type(made).__qualname__} has no table {table}")


def set_fields(made: object, values: dict[Any, Any]) -> None:
    """Give a dataclass its fields, frozen or not. Raises CheckpointError."""
    known = {field.name for field in fields(made)} if is_dataclass(made) else set()
    for name, value in values.items():
        if name not in known:
            raise CheckpointError(f"load: {type(made).__qualname__} has no field {name!r:.80}")
        object.__setattr__(made, name, value)


def enum_member(kind: type, value: object) -> Any:
    """Return the member of an enum that has a value. Raises CheckpointError."""
    if not issubclass(kind, enum.Enum):
        raise CheckpointError(f"load: {kind.__qualname__} is no enum")
    try:
        return kind(value)
    except ValueError as error:
        raise CheckpointError(f"load: {error}") from error
