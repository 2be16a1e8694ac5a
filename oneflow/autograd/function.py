"""User-defined functions with their own backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oneflow.core.errors import AutogradError
from oneflow.tensor.alike import filled_like
from oneflow.tensor.grad_mode import no_grad, state
from oneflow.tensor.tape import record_call
from oneflow.tensor.tensor import Tensor, alias


class FunctionCtx:
    """The context that forward and backward share. Any attribute may be set on it."""

    def __init__(self) -> None:
        self._saved: tuple[Any, ...] = ()
        self._non_differentiable: tuple[int, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps tensors (or None) for backward. Writing to them in place later is found out
        there.
        """
        hooks = state.saved_hooks
        if hooks:
            pack, unpack = hooks[-1]
            self._saved = tuple((pack(t), unpack) if t is not None else None for t in tensors)
            return
        self._saved = tuple(None if t is None else (t, t._version[0]) for t in tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors given to `save_for_backward`. Raises AutogradError if one has been written to
        since.
        """
        return tuple(None if s is None else _unpack(*s) for s in self._saved)

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """These outputs of forward do not require a gradient."""
        self._non_differentiable = tuple(id(t) for t in outputs)


def _unpack(what: Any, version: Any) -> Tensor:
    if callable(version):
        return version(what)  # type: ignore[no-any-return]
    if what._version[0] != version:
        raise AutogradError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a {what.type} given to save_for_backward"
        )
    return what  # type: ignore[no-any-return]


class Function:
    """Subclass it with static methods `forward(ctx, *args)` and `backward(ctx, *grads)`, and call
    `apply`.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        raise AutogradError("a Function needs a static method forward(ctx, ...)")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise AutogradError("a Function needs a static method backward(ctx, ...)")

    def __call__(self, *args: Any) -> Any:
        return self.apply(*args)

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Runs forward and records backward."""
        ctx = FunctionCtx()
        inputs = [a for a in args if isinstance(a, Tensor)]
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a._requires_grad for a in args)
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

        def backward(grads: list[Any]) -> list[Any]:
            filled = [None if s is None else _or_zeros(grads[s[0]], s[1]) for s in slots]
            return _backward(cls, ctx, args, filled)

        record_call(cls.__name__, inputs, live, backward)
        return outs[0] if single else outs


def _as_output(result: Tensor, inputs: list[Tensor]) -> Tensor:
    return alias(result) if any(result is x for x in inputs) or result._requires_grad else result


def _backward(
    cls: type[Function], ctx: FunctionCtx, args: tuple[Any, ...], filled: list[Any]
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


def _or_zeros(grad: Any, like: Tensor) -> Any:
    return filled_like(like, 0) if grad is None else grad


def once_differentiable(backward: Any) -> Any:
    """Marks a backward that cannot itself be differentiated."""

    def wrapped(ctx: Any, *grads: Any) -> Any:
        with no_grad():
            return backward(ctx, *grads)

    return wrapped
