"""The verbosity of a graph, and the ranks that print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.core.errors import CallError
from oneflow.distributed.world import world

if TYPE_CHECKING:
    from oneflow.nn.module import Module

Ranks = int | list[int] | None
"""Ranks that print: None is rank 0, -1 all."""


class Debugging:
    """The settings of `Graph.debug` and `GraphModule.debug`.

    stack: lines of code that each op tells, and whether of the user alone; None: one line.
    modules: those that are printed once compiled, by path: how much of them, and on which ranks.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.v_level = -1
        self.ranks: Ranks = None
        self.stack: tuple[int, bool] | None = None
        self.modules: dict[str, tuple[Module, int, Ranks]] = {}

    def say(self, level: int, text: str) -> None:
        """Prints on the ranks that the user asked to, from level `level` of debugging on."""
        if self.is_heard(level):
            self.print(text)

    def is_heard(self, level: int) -> bool:
        return self.v_level >= level and prints(self.ranks)

    def print(self, text: str) -> None:
        print(f"[GRAPH:{self._name}] {text}", flush=True)


def prints(ranks: Ranks) -> bool:
    """Whether this rank is among those asked to print."""
    listed = [ranks or 0] if isinstance(ranks, int | None) else ranks
    return -1 in listed or world().rank in listed


def check_debugging(v_level: int, max_py_stack_depth: int) -> None:
    """Raises AssertionError, as upstream does, for a number that `debug` does not take, and
    CallError for anything else.
    """
    for name, value in (("v_level", v_level), ("max_py_stack_depth", max_py_stack_depth)):
        if not isinstance(value, int):
            raise CallError(f"debug: {name} must be an integer, got {value!r}")
    if not -1 <= v_level <= 3:
        raise AssertionError(f"the min verbose level is -1, and the max is 3, got {v_level}")
    if max_py_stack_depth < 0:
        raise AssertionError(f"max_py_stack_depth must be >= 0, got {max_py_stack_depth}")
