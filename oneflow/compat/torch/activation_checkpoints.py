"""`torch.distributed.algorithms._checkpoint.checkpoint_wrapper`: modules that compute their
activations again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from typing import Any

from oneflow.compat.torch.autograd import save_on_cpu
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.utils.checkpoint import checkpoint

__all__ = [
    "CheckpointImpl",
    "CheckpointWrapper",
    "apply_activation_checkpointing",
    "checkpoint_wrapper",
    "offload_wrapper",
]


class CheckpointImpl(Enum):
    """Compute again as a whole, or when the first saved tensor is needed; see `checkpoint`."""

    REENTRANT = auto()
    NO_REENTRANT = auto()


class _Wrapper(Module):
    """A module around another one, whose names it keeps in state dicts."""

    def __init__(self, mod: Module) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = mod
        self._register_state_dict_hook(self._without_prefix)
        self._register_load_state_dict_pre_hook(self._with_prefix)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_checkpoint_wrapped_module":
                raise
            return getattr(self._checkpoint_wrapped_module, name)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The parameters under the names that the module has for them."""
        for name, p in super().named_parameters(prefix, recurse, remove_duplicate):
            yield name.replace("_checkpoint_wrapped_module.", ""), p

    @staticmethod
    def _without_prefix(_: Module, state: dict[str, Any], prefix: str, *__: object) -> None:
        inside = f"{prefix}_checkpoint_wrapped_module."
        for key in [k for k in state if k.startswith(inside)]:
            state[prefix + key.removeprefix(inside)] = state.pop(key)

    @staticmethod
    def _with_prefix(state: dict[str, Any], prefix: str, *_: object) -> None:
        inside = f"{prefix}_checkpoint_wrapped_module."
        for key in [k for k in state if k.startswith(prefix) and not k.startswith(inside)]:
            state[inside + key.removeprefix(prefix)] = state.pop(key)


class CheckpointWrapper(_Wrapper):
    """The module, whose activations are computed again in the backward pass."""

    def __init__(
        self,
        mod: Module,
        checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
        checkpoint_fn: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(mod)
        if checkpoint_fn is None:
            is_reentrant = checkpoint_impl is CheckpointImpl.REENTRANT
            options = {"use_reentrant": is_reentrant, **options}
        self._again = partial(checkpoint_fn or checkpoint, **options)

    def forward(self, *args: object, **kwargs: object) -> Any:
        return self._again(self._checkpoint_wrapped_module, *args, **kwargs)


class OffloadWrapper(_Wrapper):
    """The module, whose saved tensors wait in host memory for the backward pass."""

    def forward(self, *args: object, **kwargs: object) -> Any:
        with save_on_cpu(pin_memory=True):
            return self._checkpoint_wrapped_module(*args, **kwargs)


def checkpoint_wrapper(
    module: Module,
    checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
    checkpoint_fn: Callable[..., Any] | None = None,
    **options: object,
) -> Module:
    """Return the module in a CheckpointWrapper."""
    return CheckpointWrapper(module, checkpoint_impl, checkpoint_fn, **options)


def offload_wrapper(module: Module) -> Module:
    """Return the module in an OffloadWrapper."""
    return OffloadWrapper(module)


def apply_activation_checkpointing(
    model: Module,
    checkpoint_wrapper_fn: Callable[[Module], Module] = checkpoint_wrapper,
    check_fn: Callable[[Module], bool] = lambda _: True,
    auto_wrap_policy: Callable[..., bool] | None = None,
) -> None:
    """Wrap, in place, every part of a model for which `check_fn` holds."""
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if check_fn(part):
                setattr(module, name, checkpoint_wrapper_fn(part))
