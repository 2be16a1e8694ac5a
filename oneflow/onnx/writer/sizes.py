"""Sizes that depend on dynamic dims: ints that know their value for each traced example.

A graph with dynamic dims is traced once for the sizes that were given, and once more for each
dynamic dim with that one changed, and for all of them changed. A number that differs between the
traces is a `Size`. Arithmetic on it is done for all traces at once, so functions that work out
shapes work out dynamic ones, too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

from oneflow.core.tensor_type import TensorType

T = TypeVar("T")


class Size(int):
    """An int that differs between the traces. values: one for each trace, the first its own."""

    values: tuple[int, ...]

    def __new__(cls, values: tuple[int, ...]) -> Size:
        made = super().__new__(cls, values[0])
        made.values = values
        return made

    def _with(self, other: object, combine: Callable[[int, int], int], turned: bool = False) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        theirs = values_of(other, len(self.values))
        pairs = zip(self.values, theirs, strict=True)
        return size_of([combine(b, a) if turned else combine(a, b) for a, b in pairs])

    def __add__(self, other: object) -> Any:
        return self._with(other, operator.add)

    def __radd__(self, other: object) -> Any:
        return self._with(other, operator.add)

    def __sub__(self, other: object) -> Any:
        return self._with(other, operator.sub)

    def __rsub__(self, other: object) -> Any:
        return self._with(other, operator.sub, turned=True)

    def __mul__(self, other: object) -> Any:
        return self._with(other, operator.mul)

    def __rmul__(self, other: object) -> Any:
        return self._with(other, operator.mul)

    def __floordiv__(self, other: object) -> Any:
        return self._with(other, operator.floordiv)

    def __mod__(self, other: object) -> Any:
        return self._with(other, operator.mod)

    def __neg__(self) -> Any:
        return size_of([-value for value in self.values])


def values_of(number: int, count: int) -> tuple[int, ...]:
    """The number in each of `count` traces."""
    return number.values if isinstance(number, Size) else (int(number),) * count


def size_of(values: list[int]) -> int:
    """A Size, or a plain int where all traces agree."""
    return values[0] if len(set(values)) == 1 else Size(tuple(values))


class Differs(Exception):
    """Something other than an int differs between the traces."""


def merge(examples: list[Any]) -> Any:
    """Merge the values that the traces have in one place. Raises Differs."""
    first = examples[0]
    if isinstance(first, tuple):
        if len({len(e) for e in examples}) > 1:
            raise Differs
        return tuple(merge(list(parts)) for parts in zip(*examples, strict=True))
    if isinstance(first, TensorType):
        return TensorType(merge([e.shape for e in examples]), merge([e.dtype for e in examples]))
    if all(e == first or (e != e and first != first) for e in examples):
        return first
    if all(isinstance(e, int) and not isinstance(e, bool) for e in examples):
        return size_of(examples)
    raise Differs


def is_dynamic(value: object) -> bool:
    """Whether a number, or one in a tuple, is a Size."""
    if isinstance(value, tuple):
        return any(map(is_dynamic, value))
    return isinstance(value, Size)


def product(sizes: tuple[int, ...]) -> int:
    """The product, a Size if one of the factors is (`math.prod` would make a plain int of it)."""
    made = 1
    for size in sizes:
        made = made * size
    return made
