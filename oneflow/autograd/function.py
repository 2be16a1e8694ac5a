"""User-defined functions with their own backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, ParamSpec, TypeVar

from oneflow.core.errors import AutogradError
from oneflow.tensor.alike import filled_like
from oneflow.tensor.grad_mode import no_grad, state
from oneflow.tensor.tape import record_call
from oneflow.tensor.tensor import Tensor, alias

P = ParamSpec("P")
R = TypeVar("R")


class FunctionCtx:
    """The context that forward and backward share. Any attribute may be set on it."""

    def __init__(self) -> None:
        self._saved: tuple[tuple[Tensor, int] | partial[Tensor] | None, ...] = ()
        self._non_differentiable: tuple[int, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps tensors (or None) for backward. Writing to them in place later is found out
        there.
        """
        hooks = state.saved_hooks
        if hooks:
            pack, unpack = hooks[-1]
            self._saved = tuple(None if t is None else partial(unpack, pack(t)) for t in tensors)
            return
        self._saved = tuple(None if t is None else (t, t._version[0]) for t in tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors given to `save_for_backward`. Raises AutogradError if one has been written to
        since.
        """
        return tuple(None if s is None else _unpack(s) for s in self._saved)

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """These outputs of forward do not require a gradient."""
        self._non_differentiable = tuple(id(t) for t in outputs)


def _unpack(saved: tuple[Tensor, int] | partial[Tensor]) -> Tensor:
    if isinstance(saved, partial):
        return saved()
    what, version = saved
    if what._version[0] != version:
        raise AutogradError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a {what.meta} given to save_for_backward"
        )
    return what


def _no_forward(*_: object) -> None:
    raise AutogradError("a Function needs a static method forward(ctx, ...)")


def _no_backward(*_: object) -> None:
    raise AutogradError("a Function needs a static method backward(ctx, ...)")


class Function:
    """Subclass it with static methods `forward(ctx, *args)` and `backward(ctx, *grads)`, and call
    `apply`.
    """

    forward: ClassVar[Callable[..., Any]] = staticmethod(_no_forward)
    backward: ClassVar[Callable[..., Any]] = staticmethod(_no_backward)

    def __call__(self, *args: object) -> Any:
        return self.apply(*args)

    @classmethod
    def apply(cls, *args: object) -> Any:
        """Runs forward and records backward."""
        ctx = FunctionCtx()
        inputs = [a for a in args if isinstance(a, Tensor)]
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        with no_grad():
            made = cls.forward(ctx, *args)
        single = isinstance(made, Tensor)
        results: Sequence[Any] = (made,) if single else tuple(made)
        # A result that is an input (or has a history) becomes a tensor of its own.
        outs = tuple(
            _as_output(r, inputs)
            if isinstance(r, Tensor) and id(r) not in ctx._non_differentiable
            else r
            for r in results
        )
        live = [o for o in outs if isinstance(o, Tensor) and id(o) not in ctx._non_differentiable]
        # Aliases: the outputs themselves will hold the node that holds this function.
        places = {id(t): (k, alias(t)) for k, t in enumerate(live)}
        slots = [places.get(id(o)) for o in outs]

        def backward(grads: Sequence[Tensor | None]) -> list[Any]:
            filled = [None if s is None else _or_zeros(grads[s[0]], s[1]) for s in slots]
            return _backward(cls, ctx, args, filled)

        record_call(cls.__name__, inputs, live, backward)
        return outs[0] if single else outs


def _as_output(result: Tensor, inputs: list[Tensor]) -> Tensor:
    return alias(result) if any(result is x for x in inputs) or result._requires_grad else result


def _backward(
    cls: type[Function],
    ctx: FunctionCtx,
    args: tuple[object, ...],
    filled: list[Tensor | None],
) -> list[Any]:
    """Calls the user's backward with one gradient per output and keeps those of the tensor
    inputs.
    """
    results = cls.backward(ctx, *filled)
    results = results if isinstance(results, (tuple, list)) else (results,)
    if len(results) < len(args):
        raise AutogradError(
            f"{cls.__name__}.backward returned {len(results)} gradients, but forward took "
            f"{len(args)} inputs; "
            "return one per input, None where there is none"
        )
    return [g for a, g in zip(args, results, strict=False) if isinstance(a, Tensor)]


def _or_zeros(grad: Tensor | None, like: Tensor) -> Tensor:
    return filled_like(like, 0) if grad is None else grad


def once_differentiable(backward: Callable[P, R]) -> Callable[P, R]:
    """Marks a backward that cannot itself be differentiated."""

    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with no_grad():
            return backward(*args, **kwargs)

    return wrapped
