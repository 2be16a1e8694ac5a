"""`torch.ops` to packages under mock_torch, and `flow.utils.load_library`.

Ops in C++ libraries are written for another runtime; ops of `torch.library` are functions here, and
those of PyTorch and torchvision that packages call by these names are functions of `oneflow`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oneflow import surfaces
from oneflow.core.errors import OneFlowError

__all__ = ["load_library", "loaded_libraries"]

loaded_libraries: set[str] = set()

SPELLED = {
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "_to_copy": "to",
    "_unsafe_view": "view",
    "convolution": "conv2d",
    "sym_size": "size",
}
"""Ops of PyTorch whose name here is another one."""

registered: dict[str, Callable[..., Any]] = {}
"""Ops of `torch.library`, by "namespace::name"."""


def load_library(path: str | Path) -> None:
    """Raise OSError: ops of a C++ library are written for another runtime.

    Packages that bring one then do without it; the ops of torchvision's are functions here.
    """
    if Path(path).parent.name == "torchvision":
        return
    raise OSError(f"{path}: ops in C++ libraries cannot be loaded; write the op in Python")


class Overload:
    """One form of an op, such as `aten.add.Tensor`: calls the op."""

    def __init__(self, op: Op, name: str) -> None:
        self._op, self._overloadname = op, name
        self.__name__ = f"{op.name}.{name}"

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._op(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<op {self._op.namespace}.{self.__name__}>"

    @property
    def overloadpacket(self) -> Op:
        """The op of which this is a form."""
        return self._op


class Op:
    """An op by name. It is found when it is called, so that any may be named."""

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace, self.name, self.__name__ = namespace, name, name
        self._forms: dict[str, Overload] = {}

    def __getattr__(self, name: str) -> Overload:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._forms.setdefault(name, Overload(self, name))

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._function()(*args, **kwargs)

    def overloads(self) -> list[str]:
        """Return the names of the forms."""
        return list(self._forms) or ["default"]

    def _function(self) -> Callable[..., Any]:
        own = registered.get(f"{self.namespace}::{self.name}")
        if own is not None:
            return own
        if self.namespace == "torchvision":
            found = getattr(importlib.import_module("oneflow.compat.torch.vision"), self.name, None)
            if found is not None:
                function: Callable[..., Any] = found
                return function
        elif self.namespace in ("aten", "prims"):
            name = SPELLED.get(self.name, self.name)
            for space in ("flow", "F", "tensor"):
                if name in surfaces.index()[space]:
                    made: Callable[..., Any] = surfaces.find(space, name)
                    return made
        raise OneFlowError(
            f"torch.ops.{self.namespace}.{self.name} is called, but there is no such op here: ops "
            "in C++ libraries cannot be loaded; write it in Python, with torch.library.custom_op"
        )

    def __repr__(self) -> str:
        return f"<op {self.namespace}.{self.name}>"


class Namespace:
    """The ops of one library."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ops: dict[str, Op] = {}

    def __getattr__(self, name: str) -> Op:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.name in BUILT_IN or f"{self.name}::{name}" in registered:
            return self._ops.setdefault(name, Op(self.name, name))
        raise AttributeError(f"there is no op torch.ops.{self.name}.{name}")


BUILT_IN = ("aten", "prims", "torchvision", "_c10d_functional", "c10d", "torch_attn")
"""Libraries of which any op may be named; those of others exist when they are registered."""

_spaces: dict[str, Namespace] = {}


def __getattr__(name: str) -> Namespace:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _spaces.setdefault(name, Namespace(name))
