"""Module backward hooks: all gradients of a module's inputs and outputs at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oneflow.autograd.function import Function, FunctionCtx
from oneflow.core.errors import AutogradError
from oneflow.tensor.tensor import Tensor, check_replaced

if TYPE_CHECKING:
    from oneflow.nn.module import Module

Grads = tuple[Any, ...]


class _Seen(FunctionCtx):
    seen: Callable[[Grads], Grads]


class _Through(Function):
    """Passes tensors through, and hands their gradients to `seen`, which may replace them, as one
    tuple.
    """

    @staticmethod
    def forward(ctx: _Seen, seen: Callable[[Grads], Grads], *tensors: Tensor) -> Any:
        ctx.seen = seen
        return tensors

    @staticmethod
    def backward(ctx: _Seen, *grads: Tensor | None) -> Any:
        return (None, *ctx.seen(grads))


class BackwardWatch:
    """Lives as long as one call's backward pass; calls `hook(module, grad_input, grad_output)` when
    both are known.

    If no input needs a gradient the hooks are called with an empty grad_input as soon as
    grad_output is known.
    """

    def __init__(
        self,
        module: Module,
        hooks: list[Callable[..., Any]],
        before: list[Callable[..., Any]],
    ) -> None:
        """before: hooks `hook(module, grad_output)` that may replace grad_output."""
        self.module = module
        self.hooks, self.before = hooks, before
        self.grad_output: Grads = ()
        self.has_inputs = False

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with the watched tensors in place of those that require gradients."""
        self.has_inputs = any(isinstance(x, Tensor) and x.requires_grad for x in args)
        return self._pass(args, self._inputs_known) if self.has_inputs else args

    def outputs(self, result: object) -> Any:
        """The result, watched."""
        if isinstance(result, Tensor):
            return self._pass((result,), self._outputs_known)[0]
        if isinstance(result, tuple | list):
            return type(result)(self._pass(tuple(result), self._outputs_known))
        return result

    @staticmethod
    def _pass(values: tuple[Any, ...], seen: Callable[[Grads], Grads]) -> tuple[Any, ...]:
        tensors = [x for x in values if isinstance(x, Tensor)]
        passed = _Through.apply(seen, *tensors)
        passed = iter((passed,) if isinstance(passed, Tensor) else passed)
        return tuple(next(passed) if isinstance(x, Tensor) else x for x in values)

    def _outputs_known(self, grads: Grads) -> Grads:
        for hook in self.before:
            grads = _replaced(hook, "grad_output", grads, hook(self.module, grads))
        self.grad_output = grads
        if not self.has_inputs:
            for hook in self.hooks:
                hook(self.module, (), grads)
        return grads

    def _inputs_known(self, grads: Grads) -> Grads:
        for hook in self.hooks:
            changed = hook(self.module, grads, self.grad_output)
            grads = _replaced(hook, "grad_input", grads, changed)
        return grads


def _replaced(hook: Callable[..., Any], what: str, grads: Grads, changed: object) -> Grads:
    """The gradients after a hook that returned `changed` in their place, or None."""
    if changed is None:
        return grads
    new = changed if isinstance(changed, tuple) else (changed,)
    if len(new) != len(grads):
        raise AutogradError(
            f"Backward hook returned an invalid number of {what}, got {len(new)}, but expected "
            f"{len(grads)}"
        )
    for one, other in zip(grads, new, strict=True):
        if one is not None and other is not None:
            check_replaced(hook, one, other)
    return new
