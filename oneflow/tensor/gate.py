"""Tensors that stand for the parameters of modules during a call.

Data parallelism lets layers use others of the same memory, behind a node of the tape that sees each
gradient pass; fully sharded parameters are whole during a call. A plan is bound to the parameters
themselves: the caller of a plan opens the gates, sends the gradients through those of the same
memory, and gives the plan the tensors behind the others as arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oneflow.tensor.tensor import Tensor

Table = dict[str, Any]
Place = tuple[Table, str]


class _State(threading.local):
    gates: tuple[Gate, ...] = ()


_state = _State()


class Gate:
    """A gate before some modules.

    places: a table of a module's parameters, a name in it, and the parameter.  behind: the
    tensor that stands for a parameter, by its id.  shares_memory: they have one memory.
    """

    def __init__(
        self,
        places: list[tuple[Table, str, Tensor]],
        behind: dict[int, Tensor],
        *,
        shares_memory: bool = True,
    ) -> None:
        self.places, self.behind, self.shares_memory = places, behind, shares_memory

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
    before, _state.gates = _state.gates, (*_state.gates, gate)
    try:
        gate.close()
        yield
    finally:
        gate.open()
        _state.gates = before


class Lifted:
    """The tensors that stood for parameters.

    behind: of the same memory, by the id of the parameter.  apart: others, by the id of the table
    and the name in it.
    """

    def __init__(self, gates: tuple[Gate, ...]) -> None:
        self.behind: dict[int, Tensor] = {}
        self.apart: dict[tuple[int, str], tuple[Table, Tensor]] = {}
        for gate in gates:  # the last one is the innermost
            if gate.shares_memory:
                self.behind.update(gate.behind)
                continue
            for table, name, p in gate.places:
                self.apart[id(table), name] = table, gate.behind[id(p)]


NOTHING = Lifted(())


@contextmanager
def lifted() -> Iterator[Lifted]:
    """A block in which modules have their parameters. Gives the tensors that stood for them."""
    gates = _state.gates
    if not gates:
        yield NOTHING
        return
    _state.gates = ()
    try:
        for gate in reversed(gates):
            gate.open()
        yield Lifted(gates)
    finally:
        for gate in gates:
            gate.close()
        _state.gates = gates
