"""Marks that libraries leave for PyTorch's compilers, tracers and exporters. What is marked stays
as it is and runs as Python, eagerly or traced by `nn.Graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from oneflow.core.dispatch import is_traced
from oneflow.core.errors import OneFlowError

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


def wrap(fn_or_name: T) -> T:
    """The function as it is: `fx.wrap` marks one that a tracer must not look into."""
    return fn_or_name


allow_in_graph = assume_constant_result = substitute_in_graph = leaf_function = wrap


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """The function as it is; a decorator that leaves it so, if none is given."""
    return wrap if fn is None else fn


def mark_dynamic(*_: object, **__: object) -> None:
    """Nothing: sizes of tensors are always dynamic."""


mark_static = mark_static_address = mark_unbacked = graph_break = cudagraph_mark_step_begin = (
    reset
) = mark_dynamic


def symbolic_trace(*_: object, **__: object) -> NoReturn:
    """Refuse: nothing here traces Python code into a program."""
    raise OneFlowError("fx.symbolic_trace: there is no tracer of Python here; use nn.Graph")


class Proxy:
    """The tensor of a tracer: none is ever made, so `isinstance` is False."""

    def __init__(self, *_: object, **__: object) -> None:
        symbolic_trace()


class FullyShardedDataParallel:
    """PyTorch's wrapper of a module with sharded parameters: none is ever made, so `isinstance` is
    False.
    """

    def __init__(self, *_: object, **__: object) -> None:
        raise OneFlowError(
            "FullyShardedDataParallel: parameters are sharded by their layout here: "
            "module.to_global(placement, sbp=flow.sbp.split(0)), or enable_zero() of a graph"
        )


class CustomOp:
    """A function registered as an op. Calling it calls the function; what is registered besides,
    for other devices, shapes and gradients, is not needed: the function itself is differentiated.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._function(*args, **keywords)

    def register_kernel(self, device_types: object, fn: object = None, /) -> Any:
        return wrap if fn is None else fn

    def register_fake(self, fn: T, /) -> T:
        return fn

    def register_autograd(self, backward: object, /, *, setup_context: object = None) -> None:
        """Nothing: the ops inside the function have gradients of their own."""


def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Sequence[str] = (),
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
) -> Any:
    """The function as a CustomOp; a decorator, if none is given."""
    return CustomOp if fn is None else CustomOp(fn)


def register_fake(op: object, func: Any = None, /, **_: object) -> Any:
    """The function as it is: only tracers ask for the shapes of a custom op."""
    return wrap if func is None else func


def register_autograd(op: object, backward: object, /, **_: object) -> None:
    """Nothing: the ops inside a custom op have gradients of their own."""
