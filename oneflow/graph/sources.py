"""Input that a graph reads itself, from the readers that its `build` calls."""

from __future__ import annotations

from collections.abc import Callable

from oneflow.core.errors import GraphError
from oneflow.kernels.array import Array
from oneflow.tensor.tensor import Tensor


class Source:
    """Input that a graph reads itself: `read` gives a tensor of the same type at each step."""

    def __init__(self, name: str, read: Callable[[object], Tensor], first: Tensor) -> None:
        self.name, self._read, self._type = name, read, first.meta
        self._first: Tensor | None = first  # what was read while the graph was traced

    def next(self, step: object) -> Array:
        """The numbers of a step. Raises GraphError if they have another shape than at first."""
        x = self._read(step) if self._first is None else self._first
        self._first = None
        if x.meta != self._type:
            raise GraphError(
                f"{self.name} of the graph read {x.meta} after {self._type}: give what makes "
                "tensors of images a fixed size"
            )
        array: Array = x._array
        return array
