"""`torch.fx`: nothing traces Python code into a program that can be edited; `nn.Graph` traces
modules. The classes are there for `isinstance`, which is False.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from oneflow.core.errors import OneFlowError
from oneflow.nn.module import Module

T = TypeVar("T")

__all__ = [
    "Graph",
    "GraphModule",
    "Interpreter",
    "Node",
    "Proxy",
    "Tracer",
    "Transformer",
    "map_arg",
    "symbolic_trace",
    "wrap",
]


def wrap(fn_or_name: T) -> T:
    """Return the function as it is: it marks one that a tracer must not look into."""
    return fn_or_name


def symbolic_trace(*_: object, **__: object) -> NoReturn:
    """Refuse: nothing here traces Python code into a program."""
    raise OneFlowError("fx.symbolic_trace: there is no tracer of Python here; use nn.Graph")


class _Never:
    """A class of which nothing is ever made, so that `isinstance` is False."""

    def __init__(self, *_: object, **__: object) -> None:
        symbolic_trace()


class GraphModule(Module):
    """A module made of a trace: none is ever made, so `isinstance` is False."""

    def __init__(self, *_: object, **__: object) -> None:
        symbolic_trace()


class Graph(_Never):
    """A trace: none is ever made, so `isinstance` is False."""


class Node(_Never):
    """A call in a trace: none is ever made, so `isinstance` is False."""


class Tracer(_Never):
    """A tracer of Python: none is ever made, so `isinstance` is False."""


class Proxy(_Never):
    """The tensor of a tracer: none is ever made, so `isinstance` is False."""


class Interpreter(_Never):
    """A program that runs a trace: none is ever made, so `isinstance` is False."""


class Transformer(_Never):
    """A program that rewrites a trace: none is ever made, so `isinstance` is False."""


Argument = Target = object


def map_arg(a: object, fn: Callable[[Any], Any]) -> Any:
    """Return the nested value as it is: there are no nodes in it."""
    return a


def get_proxy_mode() -> None:
    """Return None: nothing is traced into a program."""
