"""The one door to execution: calling an op. Modes differ in how they run it, not in its meaning.

A mode is an object with `run(op, inputs, attrs)`, which returns a tensor, or a tuple of tensors if
the op has several outputs. This module never looks inside a tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from oneflow.core.errors import InternalError, OneFlowError
from oneflow.core.location import locate
from oneflow.core.operand import Attr
from oneflow.core.sbp import NdSbp

if TYPE_CHECKING:
    from oneflow.core.op import Op


class Mode(Protocol):
    """How ops are run: eagerly on local arrays, eagerly on shards, or recorded in a graph."""

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: dict[str, Attr]) -> Any: ...

    def layout(self, x: Any, *, is_fixed: bool) -> NdSbp:
        """The layout of a global tensor that has none yet, in a mode that makes such tensors.
        is_fixed: it has to stay so, as the caller relies on it.
        """


class _State(threading.local):
    mode: Mode | None = None


_state = _State()
_default: Mode | None = None


def set_default_mode(mode: Mode) -> None:
    """The mode of every thread that has entered no other; set once by the front end."""
    global _default
    _default = mode


def current_mode() -> Mode:
    mode = _state.mode or _default
    if mode is None:
        raise InternalError("no execution mode is set")
    return mode


@contextmanager
def use_mode(mode: Mode) -> Iterator[None]:
    """Ops of this thread run in `mode` inside the with-block."""
    previous, _state.mode = _state.mode, mode
    try:
        yield
    finally:
        _state.mode = previous


def call(op: type[Op], *inputs: Any, **attrs: Attr) -> Any:
    """Run or record one op, with the defaults of attrs that are not given.

    A mistake in the use of the op names the user's line.
    """
    mode = _state.mode or _default
    if mode is None:
        raise InternalError("no execution mode is set")
    try:
        return mode.run(op, inputs, op.defaults | attrs)
    except OneFlowError as error:
        if error.reason == OneFlowError.reason:
            locate(error)
        raise
