"""`torch.utils._python_dispatch`: there are no modes of dispatch written in Python, and no tensors
that wrap others.
"""

from __future__ import annotations

from typing import Any

from oneflow.core.errors import OneFlowError

__all__ = ["TorchDispatchMode", "is_traceable_wrapper_subclass"]


def is_traceable_wrapper_subclass(t: object) -> bool:
    """Return False: no tensor wraps others."""
    return False


is_traceable_wrapper_subclass_type = is_traceable_wrapper_subclass


class TorchDispatchMode:
    """A mode of dispatch: none is ever entered, so `isinstance` is False."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OneFlowError("TorchDispatchMode: ops cannot be intercepted; flow.profiler times them")


def _get_current_dispatch_mode() -> None:
    """Return None: there is no such mode."""


def _get_current_dispatch_mode_stack() -> list[Any]:
    """Return an empty list: there is no such mode."""
    return []
