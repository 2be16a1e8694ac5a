"""Tensors that stand for the parameters of modules during a call.

Data parallelism lets layers use others of the same memory, behind a node of the tape that sees each
gradient pass. A plan works on the parameters themselves, so whoever runs one lifts the gate and
sends the gradients through it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oneflow.tensor.tensor import Tensor

Table = dict[str, Any]


class _State(threading.local):
    gate: Gate | None = None


_state = _State()
_NOBODY: Mapping[int, Tensor] = {}


class Gate:
    """A gate before some modules.

    places: a table of a module's parameters, a name in it, and the parameter.  behind: the
    tensor that stands for a parameter, by its id.
    """

    def __init__(self, places: list[tuple[Table, str, Tensor]], behind: dict[int, Tensor]) -> None:
        self.places, self.behind = places, behind

    def close(self) -> None:
        """Let the modules see the tensors behind it."""
        for table, name, p in self.places:
            table[name] = self.behind[id(p)]

    def open(self) -> None:
        """Let the modules see their parameters."""
        for table, name, p in self.places:
            table[name] = p


@contextmanager
def behind(gate: Gate) -> Iterator[None]:
    """A block in which modules of this thread use the tensors behind a gate."""
    before, _state.gate = _state.gate, gate
    try:
        gate.close()
        yield
    finally:
        gate.open()
        _state.gate = before


@contextmanager
def lifted() -> Iterator[Mapping[int, Tensor]]:
    """A block in which modules have their parameters. Gives the tensors that the gradients go to
    instead, by the id of the parameter; none where there is no gate.
    """
    gate = _state.gate
    if gate is None:
        yield _NOBODY
        return
    _state.gate = None
    try:
        gate.open()
        yield gate.behind
    finally:
        gate.close()
        _state.gate = gate
