"""Hooks around a module's `forward`: their options, and the call that runs them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oneflow.nn.backward_hooks import BackwardWatch
from oneflow.tensor.tensor import RemovableHandle

if TYPE_CHECKING:
    from oneflow.nn.module import Module

Hooks = dict[int, Any]


@dataclass(frozen=True, slots=True)
class Special:
    """A hook with options.

    with_kwargs: it gets the keyword arguments, too.  always: it is called after an exception, too.
    """

    function: Callable[..., Any]
    with_kwargs: bool
    always: bool = False


class Everywhere:
    """Hooks of all modules of this process, which run before a module's own."""

    def __init__(self) -> None:
        self.before: Hooks = {}
        self.after: Hooks = {}
        self.backward: Hooks = {}


everywhere = Everywhere()
Hook = Special | Callable[..., Any]


def enter(hooks: Hooks, hook: Hook, prepend: bool = False) -> RemovableHandle:
    """Adds a hook behind those that are there, or in front of them."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    if prepend:
        others = [(number, known) for number, known in hooks.items() if number != handle.id]
        for number, known in others:
            del hooks[number]
            hooks[number] = known
    return handle


def with_options(hook: Callable[..., Any], with_kwargs: bool, always: bool = False) -> Hook:
    """The hook as the tables hold it: itself if no option is set."""
    return Special(hook, with_kwargs, always) if with_kwargs or always else hook


def call_with_hooks(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls `forward` between the hooks."""
    hooks = [*everywhere.after.values(), *module._forward_hooks.values()]
    called: list[Hook] = []
    try:
        return _call(module, args, kwargs, hooks, called)
    except Exception:
        for hook in hooks:
            if isinstance(hook, Special) and hook.always and hook not in called:
                _after(hook, module, args, kwargs, None)
        raise


def _call(
    module: Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    hooks: list[Hook],
    called: list[Hook],
) -> Any:
    for hook in [*everywhere.before.values(), *module._forward_pre_hooks.values()]:
        args, kwargs = _before(hook, module, args, kwargs)
    watch = None
    behind = [*everywhere.backward.values(), *module._backward_hooks.values()]
    if behind or module._backward_pre_hooks:
        watch = BackwardWatch(module, behind, list(module._backward_pre_hooks.values()))
        args = watch.inputs(args)
    result = module.forward(*args, **kwargs)
    for hook in hooks:
        called.append(hook)
        changed = _after(hook, module, args, kwargs, result)
        if changed is not None:
            result = changed
    return result if watch is None else watch.outputs(result)


def _before(
    hook: Hook, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, as a hook changes them."""
    if isinstance(hook, Special):
        changed = hook.function(module, args, kwargs)
        if changed is None:
            return args, kwargs
        if not isinstance(changed, tuple) or len(changed) != 2:
            raise TypeError(
                f"a forward pre-hook of {type(module).__name__} that gets keyword arguments must "
                f"return None or (args, kwargs), got {type(changed).__name__}"
            )
        return changed
    changed = hook(module, args)
    if changed is None:
        return args, kwargs
    return (changed if isinstance(changed, tuple) else (changed,)), kwargs


def _after(
    hook: Hook, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: object
) -> Any:
    if not isinstance(hook, Special):
        return hook(module, args, result)
    if hook.with_kwargs:
        return hook.function(module, args, kwargs, result)
    return hook.function(module, args, result)


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls `hook(module, args)` before the `forward` of every module."""
    return enter(everywhere.before, hook)


def register_module_forward_hook(
    hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Calls `hook(module, args, output)` after the `forward` of every module."""
    return enter(everywhere.after, with_options(hook, with_kwargs, always_call))


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls `hook(module, grad_input, grad_output)` in the backward pass of every module."""
    return enter(everywhere.backward, hook)
