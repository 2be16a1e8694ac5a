"""Marks that libraries leave for PyTorch's compilers, tracers and exporters. A marked function
stays as it is and runs as Python, eagerly or traced by `nn.Graph`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from oneflow.core.dispatch import is_traced

T = TypeVar("T")

BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = BroadcastingList4 = list
"""One number or so many, in annotations for a compiler: `BroadcastingList2[int]`."""


def is_compiling() -> bool:
    """Return whether `nn.Graph.build` is being traced."""
    return is_traced()


is_dynamo_compiling = is_compiling


def is_exporting() -> bool:
    """Return False: nothing is exported by tracing Python."""
    return False


is_dynamo_supported = is_exporting


def wrap(fn: T) -> T:
    """The function as it is."""
    return fn


allow_in_graph = assume_constant_result = substitute_in_graph = leaf_function = wrap


def disable(fn: object = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """The function as it is; a decorator that leaves it so, if none is given."""
    return wrap if fn is None else fn


def mark_dynamic(*_: object, **__: object) -> None:
    """Nothing: sizes of tensors are always dynamic."""


mark_static = mark_static_address = mark_unbacked = graph_break = cudagraph_mark_step_begin = (
    reset
) = mark_dynamic
