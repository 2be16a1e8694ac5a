"""Objects of one structure, such as the caches of two texts: the parts of one by those of another.

A plan reads and overwrites the tensors of objects that it was given. It can serve another object
that differs in these alone: its guards then look at the places of the other object, and its
variables are the tensors there. Numbers are not compared here: guards know which of them count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oneflow.graph.arguments import meta_of
from oneflow.graph.functions.guards import VALUES
from oneflow.tensor.tensor import Tensor
from oneflow.tensor.views import owner_of, view_of


class Likeness:
    """The parts of other objects, for each part of some that have the same structure."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Any, Any]] = {}

    def of(self, x: object) -> Any:
        """The part that stands for `x`; itself if there is none."""
        pair = self._pairs.get(id(x))
        return x if pair is None else pair[1]

    def in_place_of(self, x: Tensor) -> Tensor:
        """The tensor that stands for the memory of `x`; itself if there is none."""
        array = x._array
        pairs = ((old, new) for old, new in self._pairs.values() if isinstance(old, Tensor))
        return next((new for old, new in pairs if old._array is array), x)

    def find(self, old: Iterable[object], new: Iterable[object]) -> bool:
        """Whether objects and the others have the same structure, with memory of their own."""
        if not all(map(self._meet, old, new)):
            return False
        tensors = [y for _, y in self._pairs.values() if isinstance(y, Tensor)]
        return len({id(owner_of(y)) for y in tensors}) == len(tensors)

    def _meet(self, x: object, y: object) -> bool:
        if x is y:
            return True
        if id(x) in self._pairs:
            return self._pairs[id(x)][1] is y
        if type(x) is not type(y):
            return False
        if isinstance(x, VALUES):
            return True
        self._pairs[id(x)] = x, y
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            return _are_alike(x, y)
        if isinstance(x, dict) and isinstance(y, dict):
            return list(x) == list(y) and all(map(self._meet, x.values(), y.values()))
        if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
            return len(x) == len(y) and all(map(self._meet, x, y))
        if hasattr(x, "__dict__") and not callable(x):
            return self._meet(vars(x), vars(y))
        return bool(x == y)  # functions and modules have more behind them than attributes


def _are_alike(x: Tensor, y: Tensor) -> bool:
    """Whether a plan that works in the memory of one can work in that of the other."""
    if view_of(x) is not None or view_of(y) is not None or x._placement is not None:
        return False
    if x.requires_grad or y.requires_grad:
        return False
    return meta_of(x) == meta_of(y) and x._device == y._device
