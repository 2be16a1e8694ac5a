"""Input that a graph reads itself, from the readers that its `build` calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from oneflow.core.errors import GraphError
from oneflow.kernels.array import Array
from oneflow.tensor.tensor import Tensor
from oneflow.utils.data.pipelines import read_ahead


class Source:
    """Input that a graph reads itself: `read` gives a tensor of the same type at each step."""

    def __init__(self, name: str, read: Callable[[object], Tensor], first: Tensor) -> None:
        self.name, self._read, self._type = name, read, first.meta
        self._first: Tensor | None = first  # what was read while the graph was traced

    @property
    def first(self) -> Tensor:
        """The input that was read while the graph was traced, and that no step has used yet."""
        assert self._first is not None
        return self._first

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


class Sources:
    """All input that a graph reads itself. While a step runs that of the next one is read."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._ahead: Future[dict[str, Array]] | None = None

    def take(self) -> dict[str, Array]:
        """The arrays of a step by the names of the inputs; those of the next are being read from
        here on. Raises the error of reading them.
        """
        ahead, self._ahead = self._ahead, None
        found = self._read() if ahead is None else ahead.result()
        self._ahead = read_ahead(self._read)
        return found

    def _read(self) -> dict[str, Array]:
        step = object()
        return {source.name: source.next(step) for source in self._sources}
