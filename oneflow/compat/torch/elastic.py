"""`torch.distributed.elastic`: the launcher reports how ranks fail by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from oneflow.core.errors import OneFlowError

__all__ = ["ChildFailedError", "record"]

F = TypeVar("F", bound=Callable[..., object])


class ChildFailedError(OneFlowError):
    """A rank has failed: torchrun raises it, and this launcher exits instead."""


def record(fn: F, error_handler: object = None) -> F:
    """Return the function: the launcher names the rank, the error and the line by itself."""
    return fn
