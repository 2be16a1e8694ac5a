"""Modules without first values, for weights that are loaded next."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from oneflow.nn import init
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor

__all__ = ["skip_init"]

M = TypeVar("M", bound=Module)


def skip_init(module_cls: type[M], *args: object, **kwargs: object) -> M:
    """A module with uninitialized parameters; arguments: of its constructor.

    Raises RuntimeError for a class whose constructor takes no `device`.
    """
    if not issubclass(module_cls, Module):
        raise RuntimeError(f"Expected a Module; got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError("Module must support a 'device' arg to skip initialization")
    with _without_first_values():
        return module_cls(*args, **kwargs)


@contextmanager
def _without_first_values() -> Iterator[None]:
    """Let the functions of `nn.init` return their argument as it is."""

    def as_it_is(tensor: Tensor, *_: object, **__: object) -> Tensor:
        return tensor

    own = {n: f for n, f in vars(init).items() if n.endswith("_") and callable(f)}
    own = {n: f for n, f in own.items() if not n.startswith("_")}
    vars(init).update(dict.fromkeys(own, as_it_is))
    try:
        yield
    finally:
        vars(init).update(own)
