"""Names of classes and functions in checkpoints, and which of them `load` looks up.

A name leads to code: importing its module runs the module, and `__setstate__` is called. So a file
gets only names that the caller lists (`serialization.add_safe_globals`), layers of `oneflow.nn`,
and under `weights_only=False` all that can be imported. A name is followed only where its own
`__module__` and `__qualname__` say the same, so that `models.os.system` is nothing of `models`.
"""

from __future__ import annotations

import importlib
import sys
from fnmatch import fnmatchcase
from typing import Any

from oneflow.core.config import current_config
from oneflow.core.errors import CheckpointError
from oneflow.nn.module import Module
from oneflow.surfaces import find

VARIABLE = "ONEFLOW_LOAD_ANY_CLASS"

trusted: list[Any] = []
"""Classes, functions and patterns of names ("models.*") that files may name."""


def name_of(value: object) -> str | None:
    """Return the name "module:qualname" under which a class or a function is found, None if there
    is none, as for lambdas and classes defined inside of functions.
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    return f"{module}:{name}" if _attribute(sys.modules.get(module), name) is value else None


def torch_layer(module: str, name: str) -> type[Module] | None:
    """Return our layer for a class of PyTorch's `torch.nn`, None for any other name."""
    if not module.startswith("torch.nn."):
        return None
    try:
        found = find("nn", _OTHER_NAMES.get(name, name))
    except AttributeError:
        return None
    return found if isinstance(found, type) and issubclass(found, Module) else None


_OTHER_NAMES = {"NonDynamicallyQuantizableLinear": "Linear"}


class Names:
    """The names that one call of `load` follows. weights_only: as `load` was given it."""

    def __init__(self, weights_only: bool | None = None) -> None:
        any_class = weights_only is None and current_config().loads_any_class
        self.takes_all = weights_only is False or any_class

    def value(self, name: str) -> Any:
        """Return the class or the function called "module:qualname". Raises CheckpointError for a
        name that is not listed, or that leads to nothing.
        """
        module, _, qualname = name.partition(":")
        dotted = f"{module}.{qualname}"
        for one in trusted:
            if not isinstance(one, str) and name_of(one) == name:
                return one
        if module.split(".")[0] == "oneflow":
            found = _found(module, qualname)
            if isinstance(found, type) and issubclass(found, Module):
                return found
        is_listed = any(isinstance(one, str) and fnmatchcase(dotted, one) for one in trusted)
        if not self.takes_all and not is_listed:
            raise CheckpointError(
                f"load: the file names {dotted[:200]}, and a file gets no code of the program "
                "unless the caller says so: load it inside of `with flow.serialization."
                f"safe_globals([{qualname.split('.')[-1][:80]}]):` (or of a pattern such as "
                f"{module.split('.')[0][:80] + '.*'!r}), or, if you trust whoever wrote it, pass "
                f"weights_only=False or set {VARIABLE}=1"
            )
        found = _found(module, qualname)
        if found is None:
            raise CheckpointError(
                f"load: there is no class or function {dotted[:200]} here; import or define it "
                "before you load the file"
            )
        return found

    def kind(self, name: str) -> type:
        """Return the class of that name. Raises CheckpointError as `value` does, and for anything
        but a class: nothing else is ever made or called.
        """
        found = self.value(name)
        if not isinstance(found, type):
            raise CheckpointError(f"load: {name.replace(':', '.')[:200]} is no class")
        return found

    def may(self, name: str) -> bool:
        """Whether `value` would look the name up."""
        module, _, qualname = name.partition(":")
        dotted = f"{module}.{qualname}"
        return self.takes_all or any(
            fnmatchcase(dotted, one) if isinstance(one, str) else name_of(one) == name
            for one in trusted
        )


def _found(module: str, qualname: str) -> Any:
    """Return the object of exactly this name; None if there is none."""
    try:
        home = sys.modules.get(module) or importlib.import_module(module)
    except (ImportError, ValueError, TypeError):
        return None
    found = _attribute(home, qualname)
    return found if name_of(found) == f"{module}:{qualname}" else None


def _attribute(home: object, qualname: str) -> Any:
    for part in qualname.split("."):
        home = getattr(home, part, None)
        if home is None:
            return None
    return home
