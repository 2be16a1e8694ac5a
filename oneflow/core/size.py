"""Shapes as users see them."""

from __future__ import annotations

import math
from typing import Any, SupportsIndex, overload


class Size(tuple[int, ...]):
    """The shape of a tensor: a tuple of ints that prints as `oneflow.Size([2, 3])`."""

    __slots__ = ()

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Size: ...
    def __getitem__(self, index: SupportsIndex | slice) -> int | Size:
        found = tuple.__getitem__(self, index)
        return Size(found) if isinstance(found, tuple) else found

    def __add__(self, other: Any) -> Size:
        return Size(tuple.__add__(self, tuple(other)))

    def __radd__(self, other: Any) -> Size:
        return Size(tuple(other) + tuple(self))

    def __mul__(self, other: SupportsIndex) -> Size:
        return Size(tuple.__mul__(self, other))

    def __repr__(self) -> str:
        return f"oneflow.Size([{', '.join(map(str, self))}])"

    __str__ = __repr__
