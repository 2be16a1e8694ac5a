"""Hooks around tensors saved for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oneflow.surfaces import accept_paths
from oneflow.tensor.grad_mode import state
from oneflow.tensor.tensor import Tensor


class saved_tensors_hooks:
    """Inside, every tensor saved for backward passes `pack_hook`; `unpack_hook` gives it back when
    it is needed.
    """

    def __init__(
        self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]
    ) -> None:
        self._pair = (pack_hook, unpack_hook)

    def __enter__(self) -> saved_tensors_hooks:
        state.saved_hooks = (*state.saved_hooks, self._pair)
        return self

    def __exit__(self, *_: object) -> None:
        state.saved_hooks = state.saved_hooks[:-1]


accept_paths(__name__)
