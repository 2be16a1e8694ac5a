"""Functions that are called before and after the steps of optimizers, their saving and loading."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from oneflow.tensor.tensor import RemovableHandle

Hook = Callable[..., Any]
KINDS = (
    "step_pre",
    "step_post",
    "state_dict_pre",
    "state_dict_post",
    "load_state_dict_pre",
    "load_state_dict_post",
)


class Hooks:
    """The hooks of one optimizer, of each kind in the order in which they are called."""

    def __init__(self) -> None:
        self._listed: dict[str, OrderedDict[int, Hook]] = {kind: OrderedDict() for kind in KINDS}
        self.before, self.after = self._listed["step_pre"], self._listed["step_post"]
        self.is_stepping = False

    def add(self, kind: str, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Add a hook behind the others of its kind, or before them."""
        handle = RemovableHandle(self._listed[kind], hook)
        if prepend:
            self._listed[kind].move_to_end(next(reversed(self._listed[kind])), last=False)
        return handle

    def run(self, kind: str, *args: object) -> None:
        for hook in list(self._listed[kind].values()):
            hook(*args)

    def replaced(self, kind: str, owner: object, value: dict[str, Any]) -> dict[str, Any]:
        """Return `value`, or the result of the last hook that returned one."""
        for hook in list(self._listed[kind].values()):
            found = hook(owner, value)
            value = value if found is None else found
        return value

    def around(self, kind: str) -> list[Hook]:
        """The hooks around steps: those of every optimizer first, then those of this one."""
        return [*EVERY[kind].values(), *self._listed[kind].values()]


EVERY: dict[str, OrderedDict[int, Hook]] = {"step_pre": OrderedDict(), "step_post": OrderedDict()}
"""Hooks of all optimizers."""


def register_optimizer_step_pre_hook(hook: Hook) -> RemovableHandle:
    """Call hook(optimizer, args, kwargs) before every step of every optimizer."""
    return RemovableHandle(EVERY["step_pre"], hook)


def register_optimizer_step_post_hook(hook: Hook) -> RemovableHandle:
    """Call hook(optimizer, args, kwargs) after every step of every optimizer."""
    return RemovableHandle(EVERY["step_post"], hook)


class _Hooked(Protocol):
    _hooks: Hooks


def with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """A `step` that calls the optimizer's hooks around itself; a step inside a step does not."""

    @functools.wraps(step)
    def stepped(self: _Hooked, *args: object, **kwargs: object) -> Any:
        hooks = self._hooks
        are_there = hooks.before or hooks.after or EVERY["step_pre"] or EVERY["step_post"]
        if not are_there or hooks.is_stepping:
            return step(self, *args, **kwargs)
        hooks.is_stepping = True
        try:
            for hook in hooks.around("step_pre"):
                found = hook(self, args, kwargs)
                if found is not None:
                    args, kwargs = _checked(hook, found)
            result = step(self, *args, **kwargs)
            for hook in hooks.around("step_post"):
                hook(self, args, kwargs)
        finally:
            hooks.is_stepping = False
        return result

    return stepped


def _checked(hook: Hook, found: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(found, tuple) and len(found) == 2:
        args, kwargs = found
        return args, kwargs
    raise RuntimeError(f"{hook} must return None or a tuple of (new_args, new_kwargs), got {found}")
