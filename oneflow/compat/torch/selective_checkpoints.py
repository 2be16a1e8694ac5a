"""Names of `torch.utils.checkpoint` beyond `checkpoint` itself.

A checkpointed part is run again as a whole: which of its values a policy would keep changes memory
and time, and no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from typing import Any

from oneflow.core.errors import AutogradError
from oneflow.core.no_effect import without_effect
from oneflow.graph.tree import map_tensors, tensors_of
from oneflow.tensor.tensor import Tensor

CheckpointError = AutogradError
SAC_IGNORED_OPS: frozenset[object] = frozenset()


class CheckpointPolicy(Enum):
    """Whether a value is kept or made again."""

    MUST_SAVE, PREFER_SAVE, MUST_RECOMPUTE, PREFER_RECOMPUTE, MUST_CPU_OFFLOAD = range(5)


class SelectiveCheckpointContext:
    """The first argument of a policy."""

    def __init__(self, *, is_recompute: bool, op_output: object = None) -> None:
        self.is_recompute, self.op_output = is_recompute, op_output


class DefaultDeviceType:
    """The kind of device whose random state is kept: that of the tensors."""

    _now = "cuda"

    @staticmethod
    def set_device_type(device: str = "cuda") -> None:
        """Set the kind, which changes nothing."""
        DefaultDeviceType._now = device

    @staticmethod
    def get_device_type() -> str:
        """Return the kind that was set."""
        return DefaultDeviceType._now


def noop_context_fn() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return two blocks that do nothing: for the first run, and for the second."""
    return nullcontext(), nullcontext()


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Callable[..., Any] | Sequence[object],
    allow_cache_entry_mutation: bool = False,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return two blocks that do nothing, and say so once: a part is run again as a whole."""
    without_effect(
        "create_selective_checkpoint_contexts", "a checkpointed part is run again as a whole"
    )
    return noop_context_fn()


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """A block that changes nothing: the second run ends with its last value."""
    yield


@contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """A block that changes nothing: errors of a second run name the line of the user."""
    yield


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with tensors cut off from their history."""

    def cut(x: Tensor) -> Tensor:
        return x.detach().requires_grad_(x.requires_grad)

    made: tuple[Any, ...] = map_tensors(inputs, cut)
    return made


def check_backward_validity(inputs: Sequence[object]) -> None:
    """Raise AutogradError if no tensor among the arguments requires a gradient."""
    if not any(x.requires_grad for x in tensors_of(list(inputs))):
        raise AutogradError("checkpoint: none of the arguments requires a gradient")


def get_device_states(*_: object) -> tuple[list[int], list[Tensor]]:
    """Return two empty lists: generators do not depend on devices."""
    return [], []


def set_device_states(devices: Sequence[int], states: Sequence[Tensor], **_: object) -> None:
    """Change nothing: generators do not depend on devices."""
