"""The one door to execution: `call(Op, *inputs, **attrs)`. Modes differ in how they run an op,
never in what it means.

A mode is an object with `run(op, inputs, attrs)`, which returns a value, or a tuple of values if
the op has several
outputs. Values are whatever the front end uses (`Tensor`); this module only asks them for nothing
at all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from oneflow.core.errors import InternalError, OneFlowError
from oneflow.core.location import locate
from oneflow.core.op import Attr, Op
from oneflow.core.sbp import NdSbp


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
    """Runs or records one op. A mistake in its use names the user's line."""
    try:
        return current_mode().run(op, inputs, attrs)
    except OneFlowError as error:
        if error.reason == OneFlowError.reason:
            locate(error)
        raise
