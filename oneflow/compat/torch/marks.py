"""Marks that libraries leave for PyTorch's compilers, tracers and exporters. A marked function
stays as it is and runs as Python, eagerly or traced by `nn.Graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from oneflow.compat.torch.libraries import BUILT_IN, registered
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


class CustomOp:
    """A function registered as an op. Calling it calls the function; other registrations,
    for devices, shapes and gradients, are not needed: the function itself is differentiated.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def __call__(self, *args: object, **keywords: object) -> Any:
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
    """The function as a CustomOp, which is `torch.ops.namespace.name`; a decorator, if none is
    given.
    """

    def enter(function: Callable[..., Any]) -> CustomOp:
        made = CustomOp(function)
        registered[name] = made
        return made

    return enter if fn is None else enter(fn)


triton_op = custom_op


def define(qualname: str, schema: str = "", *, lib: object = None, tags: object = ()) -> Any:
    """Take no note: an op exists when `impl` gives its function."""
    return wrap


def impl(
    qualname: str, types: str | Sequence[str], func: object = None, *, lib: object = None
) -> Any:
    """Register the function of an op for a kind of device; a decorator, if none is given. One for
    CPUs, or for all, comes before one for GPUs; shapes alone and gradients are not needed.
    """

    def enter(function: T) -> T:
        kinds = {k.lower() for k in ([types] if isinstance(types, str) else types)}
        if (kinds <= {"cuda"} and qualname in registered) or kinds & NOT_FUNCTIONS:
            return function
        registered[qualname] = cast("Callable[..., Any]", function)
        return function

    return enter if func is None else enter(func)


NOT_FUNCTIONS = {"meta", "autograd", "autogradcpu", "autogradcuda", "autocastcpu", "autocastcuda"}
"""Dispatch keys under which no function of values is registered."""

register_kernel = impl


class Library:
    """A library of ops in the making: `define`, then `impl`."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        self.ns, self._key = ns, dispatch_key

    def define(self, schema: str, *_: object, **__: object) -> str:
        """Return the name of the op that a schema declares."""
        return schema.partition("(")[0].strip()

    def impl(self, op_name: object, fn: object, dispatch_key: str = "", **_: object) -> None:
        """Register the function of an op."""
        name = str(getattr(op_name, "name", op_name)).partition(".")[0]
        full = name if "::" in name else f"{self.ns}::{name}"
        if self.ns not in BUILT_IN:
            impl(full, dispatch_key or self._key or "default", fn)


def register_fake(op: object, func: object = None, /, **_: object) -> Any:
    """The function as it is: only tracers ask for the shapes of a custom op."""
    return wrap if func is None else func


register_vmap = register_torch_dispatch = register_autocast = impl_abstract = register_fake


def register_autograd(op: object, backward: object, /, **_: object) -> None:
    """Nothing: the ops inside a custom op have gradients of their own."""
