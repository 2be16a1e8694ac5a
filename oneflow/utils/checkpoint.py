"""`flow.utils.checkpoint`: forgets the results of a part of the model, and computes them again in
the backward pass. Memory for time, with the same random numbers and the same mixed precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from oneflow.autograd.api import backward
from oneflow.autograd.function import Function, FunctionCtx
from oneflow.autograd.graph import saved_tensors_hooks
from oneflow.core.dispatch import current_mode, use_mode
from oneflow.core.errors import AutogradError
from oneflow.functional.random_state import default_generator
from oneflow.nn.module import Module
from oneflow.surfaces import accept_paths
from oneflow.tensor.grad_mode import enable_grad, state
from oneflow.tensor.tensor import Tensor

__all__ = ["checkpoint", "checkpoint_sequential"]

Part = Callable[..., Any]


def checkpoint(
    function: Part,
    *args: object,
    use_reentrant: bool = True,
    preserve_rng_state: bool = True,
    context_fn: object = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: object,
) -> Any:
    """`function(*args)`, of which only the arguments are kept for the backward pass.

    use_reentrant: run it again as a whole in the backward pass, which needs an argument that
    requires a gradient and cannot be used with `autograd.grad`; False: run it again when the first
    of its saved tensors is needed.  preserve_rng_state: draw the same numbers again.
    """
    again = _Again(partial(function, **kwargs) if kwargs else function, preserve_rng_state)
    return _Reentrant.apply(again, *args) if use_reentrant else _recording(again, args)


class _Again:
    """A function that can be run once more as it ran first."""

    def __init__(self, function: Part, keep_random: bool) -> None:
        self.function, self.mode = function, current_mode()
        self.position = default_generator.position if keep_random else None
        self.blocks = state.rerun_in

    def first(self, args: Sequence[object]) -> Any:
        """The result in the mode in which it was asked for."""
        with use_mode(self.mode.afresh()):
            return self.function(*args)

    def __call__(self, args: Sequence[object]) -> Any:
        """The result again, with history."""
        now = default_generator.position
        if self.position is not None:
            default_generator.move_to(self.position)
        try:
            with enable_grad(), ExitStack() as around:
                for block in self.blocks:
                    around.enter_context(block())
                return self.first(args)
        finally:
            if self.position is not None:
                default_generator.move_to(now)


class _Reentrant(Function):
    """Runs the function without history, and again with it in the backward pass."""

    @staticmethod
    def forward(ctx: FunctionCtx, again: _Again, *args: object) -> Any:
        vars(ctx).update(again=again, given=args)
        return again.first(args)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        again: _Again = vars(ctx)["again"]
        given = [
            a.detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a
            for a in vars(ctx)["given"]
        ]
        made = again(given)
        outputs = (made,) if isinstance(made, Tensor) else tuple(made)
        pairs = [
            (out, grad)
            for out, grad in zip(outputs, grads, strict=True)
            if isinstance(out, Tensor) and out.requires_grad and grad is not None
        ]
        if not pairs:
            raise AutogradError("checkpoint: none of its outputs requires a gradient")
        backward([out for out, _ in pairs], [grad for _, grad in pairs])
        return (None, *(a.grad if isinstance(a, Tensor) else None for a in given))


def _recording(again: _Again, args: Sequence[object]) -> Any:
    """Run the function; each tensor it saves is a number, found again by running it once more."""
    count = 0
    found: dict[int, Tensor] = {}

    def number(_: Tensor) -> int:
        nonlocal count
        count += 1
        return count - 1

    def keep(tensor: Tensor) -> int:
        found[len(found)] = tensor.detach()
        return len(found) - 1

    def recall(place: int) -> Tensor:
        if place not in found:
            with saved_tensors_hooks(keep, found.__getitem__):
                again(args)
        if place not in found:
            raise AutogradError(
                "checkpoint: the function saved fewer tensors when it was run again; it must do "
                "the same each time"
            )
        return found.pop(place) if len(found) == count else found[place]

    with saved_tensors_hooks(number, recall):
        return again.first(args)


def checkpoint_sequential(
    functions: Module | Sequence[Part],
    segments: int,
    input: Tensor,
    use_reentrant: bool = True,
    preserve_rng_state: bool = True,
) -> Any:
    """The functions one after another, cut into `segments` parts of which all but the last are
    checkpointed.
    """
    parts: list[Part] = list(functions.children() if isinstance(functions, Module) else functions)
    size = max(1, len(parts) // segments)

    def run(chosen: Sequence[Part], x: Tensor) -> Tensor:
        for part in chosen:
            x = part(x)
        return x

    out = input
    last = size * (segments - 1)
    for start in range(0, last, size):
        out = checkpoint(
            partial(run, parts[start : start + size]),
            out,
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve_rng_state,
        )
    return run(parts[last:], out)


accept_paths(__name__)
