"""`torch.library`: ops that programs register. An op is a function here: it runs as Python, eagerly
or traced by `nn.Graph`, with the gradient that was registered for it, or else with that of the ops
inside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from oneflow.autograd.function import Function, FunctionCtx
from oneflow.compat.torch.libraries import BUILT_IN, Op, Overload, registered
from oneflow.compat.torch.marks import wrap
from oneflow.tensor.tensor import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Gradient:
    """A registered gradient: `backward(ctx, *grads)`, after `setup(ctx, inputs, output)`."""

    backward: Callable[..., Any]
    setup: Callable[..., Any] | None


_gradients: dict[str, Gradient] = {}
"""Gradients by "namespace::name"; they may be registered before the function."""


class CustomOp:
    """A function registered as an op. Registrations for devices and shapes are not needed."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._qualname, self._function = name, function
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)

    def __call__(self, *args: object, **keywords: object) -> Any:
        gradient = _gradients.get(self._qualname)
        if gradient is None:
            return self._function(*args, **keywords)
        bound = inspect.signature(self._function).bind(*args, **keywords)
        bound.apply_defaults()
        return _function_of(self, gradient, bound).apply(*_flat(bound.args))

    def register_kernel(self, device_types: object, fn: object = None, /) -> Any:
        """Return the function as it is: that of the op runs on all devices."""
        return wrap if fn is None else fn

    def register_fake(self, fn: T, /) -> T:
        """Return the function as it is: only tracers of PyTorch ask for shapes."""
        return fn

    register_vmap = register_torch_dispatch = register_fake

    def register_autograd(
        self,
        backward: Callable[..., Any],
        /,
        *,
        setup_context: Callable[..., Any] | None = None,
    ) -> None:
        """Register the gradient of the op: see `torch.library.register_autograd`."""
        _gradients[self._qualname] = Gradient(backward, setup_context)


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    """Yield arguments, and those of lists of tensors one by one."""
    for value in values:
        if _is_list(value):
            yield from value
        else:
            yield value


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(one, Tensor) for one in value)


def _function_of(op: CustomOp, gradient: Gradient, bound: inspect.BoundArguments) -> type[Function]:
    """Return the op with its gradient, for arguments of the form of `bound`."""

    def grouped(flat: Sequence[Any]) -> tuple[Any, ...]:
        rest = iter(flat)
        return tuple(
            type(old)([next(rest) for _ in old]) if _is_list(old) else next(rest)
            for old in bound.args
        )

    def forward(*flat: object) -> Any:
        return op._function(*grouped(flat), **bound.kwargs)

    def setup_context(ctx: FunctionCtx, flat: Sequence[Any], output: object) -> None:
        if gradient.setup is not None:
            named = {"keyword_only_inputs": bound.kwargs} if bound.kwargs else {}
            gradient.setup(ctx=ctx, inputs=grouped(flat), output=output, **named)

    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Any, ...]:
        made = gradient.backward(ctx, *grads)
        made = made if isinstance(made, tuple) else (made,)
        return tuple(
            part
            for old, one in zip(bound.args, made, strict=True)
            for part in (_parts(one, len(old)) if _is_list(old) else [one])
        )

    body: dict[str, Callable[..., Any]] = {
        "forward": forward, "setup_context": setup_context, "backward": backward
    }  # fmt: skip
    return type(op.__name__, (Function,), {k: staticmethod(v) for k, v in body.items()})


def _parts(grads: Sequence[Any] | None, count: int) -> Sequence[Any]:
    return [None] * count if grads is None else grads


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
        made = CustomOp(name, function)
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
    CPUs, or for all, comes before one for GPUs; shapes alone are not needed.
    """

    def enter(function: T) -> T:
        kinds = {k.lower() for k in ([types] if isinstance(types, str) else types)}
        if (kinds <= {"cuda"} and qualname in registered) or kinds & NOT_FUNCTIONS:
            return function
        registered[qualname] = CustomOp(qualname, cast("Callable[..., Any]", function))
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
        full = name_of(op_name, self)
        if self.ns not in BUILT_IN:
            impl(full, dispatch_key or self._key or "default", fn)


def name_of(op: object, library: Library | None = None) -> str:
    """Return "namespace::name" of an op that is given by name, or as it was registered."""
    if isinstance(op, CustomOp):
        return op._qualname
    packet = op.overloadpacket if isinstance(op, Overload) else op
    if isinstance(packet, Op):
        return f"{packet.namespace}::{packet.name}"
    name = str(getattr(op, "name", op)).partition(".")[0]
    return name if "::" in name or library is None else f"{library.ns}::{name}"


def register_fake(op: object, func: object = None, /, **_: object) -> Any:
    """The function as it is: only tracers ask for the shapes of a custom op."""
    return wrap if func is None else func


register_vmap = register_torch_dispatch = register_autocast = impl_abstract = register_fake


def register_autograd(
    op: object,
    backward: Callable[..., Any],
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
    lib: Library | None = None,
) -> None:
    """Register the gradient of an op.

    Args:
        op: Its name, "namespace::name", or the op.
        backward: `backward(ctx, *grads)` returns a gradient for each input: None for one
            that is no tensor, a list for a list of tensors.
        setup_context: `setup_context(ctx, inputs, output)` saves values for backward; of an op
            with keyword-only arguments it takes `keyword_only_inputs`, too.
        lib: Library of a name without a namespace.
    """
    _gradients[name_of(op, lib)] = Gradient(backward, setup_context)
