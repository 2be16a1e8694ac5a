"""Placements: which ranks hold a tensor, and the hierarchy (grid) in which they stand."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from oneflow.core.device import META, device_types, is_device_type
from oneflow.core.errors import GraphError, PlacementError

MAX_RANK = 1 << 31


lines: set[Placement] = set()
"""Placements that are this rank's part of a grid, whose other ranks have parts of their own: a
whole tensor there is the same tensor in each part.
"""
Ranks: TypeAlias = "int | Sequence[Ranks] | np.ndarray[Any, Any]"
"""Ranks as users give them: one, a list, a nested list for a hierarchy, or an integer array."""


class Placement:
    """A device type and the ranks, whose shape is the hierarchy.

    type: "cpu", "cuda", or "meta" for tensors without values. ranks: a list, nested list or integer
    array; sorted and de-duplicated, so that a rank's place in the hierarchy is its place in
    ascending order. Immutable and hashable.
    """

    __slots__ = ("__weakref__", "_hash", "hierarchy", "rank_ids", "type")

    type: str
    hierarchy: tuple[int, ...]
    rank_ids: tuple[int, ...]
    _hash: int

    def __new__(cls, type: str, ranks: Ranks) -> Placement:
        if type != META and not is_device_type(type):
            raise PlacementError(
                f"Expected one of {', '.join(device_types())} device type "
                f"at start of device string: {type}"
            )
        try:
            array = np.asarray(ranks)
        except ValueError:  # rows of different lengths
            array = np.empty(0)
        if array.size == 0 or array.dtype.kind not in "iu":
            raise PlacementError(f"placement ranks shoule be an array of long int, got {ranks!r}")
        if array.min() < 0:
            raise PlacementError(f"placement ranks must not be negative, got {ranks!r}")
        if array.max() >= MAX_RANK:
            raise PlacementError(f"placement ranks must be less than {MAX_RANK}, got {ranks!r}")
        if array.ndim == 0:
            array = array.reshape(1)
        unique = tuple(sorted(set(array.ravel().tolist())))  # np.unique imports masked arrays
        shape = array.shape
        if len(unique) != array.size:
            if array.ndim > 1:
                raise PlacementError(f"placement names a rank twice: {ranks!r}")
            shape = (len(unique),)
        return _interned(type, shape, unique)

    @property
    def ranks(self) -> np.ndarray[Any, Any]:
        """int64 array in hierarchy shape."""
        return np.array(self.rank_ids, dtype=np.int64).reshape(self.hierarchy)

    @property
    def device_type(self) -> str:
        """The old name of `type`."""
        warnings.warn(
            "placement.device_type is deprecated; use placement.type",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.type

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.rank_ids)

    @property
    def ndim(self) -> int:
        """Number of hierarchy axes."""
        return len(self.hierarchy)

    def __contains__(self, rank: object) -> bool:
        return rank in self.rank_ids

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Return the coordinate of `rank` in the hierarchy. Raises PlacementError if it is not in
        the placement.
        """
        if rank not in self.rank_ids:
            raise PlacementError(f"rank {rank} is not in {self}")
        return coordinates(self.hierarchy)[self.rank_ids.index(rank)]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Placement):
            return NotImplemented
        return (
            self._hash == other._hash
            and self.type == other.type
            and self.hierarchy == other.hierarchy
            and self.rank_ids == other.rank_ids
        )

    def __hash__(self) -> int:
        return self._hash

    @property
    def notation(self) -> str:
        """Write the placement as printed graphs and messages have it: `cpu[0, 1]`, `cpu[[0, 1], [2,
        3]]`.
        """
        return f"{self.type}{self.ranks.tolist()}"

    def __repr__(self) -> str:
        return f'oneflow.placement(type="{self.type}", ranks={self.ranks.tolist()})'

    def __reduce__(self) -> tuple[Any, ...]:
        return Placement, (self.type, self.ranks.tolist())


_known: WeakValueDictionary[tuple[Any, ...], Placement] = WeakValueDictionary()


def _interned(type_: str, hierarchy: tuple[int, ...], rank_ids: tuple[int, ...]) -> Placement:
    """One object per placement: comparing two of a thousand ranks is then comparing two
    pointers.
    """
    key = type_, hierarchy, rank_ids
    found = _known.get(key)
    if found is None:
        found = object.__new__(Placement)
        found.type, found.hierarchy, found.rank_ids = key
        found._hash = hash(key)
        _known[key] = found
    return found


@lru_cache(maxsize=1024)
def coordinates(hierarchy: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The coordinates of a hierarchy in rank order, e.g. (2, 2) -> ((0, 0), (0, 1), (1, 0), (1,
    1)).
    """
    return tuple(
        tuple(int(i) for i in np.unravel_index(k, hierarchy)) for k in range(math.prod(hierarchy))
    )


_PLACEMENT_TEXT = re.compile(r"(\w+)(\[[\d,\[\] ]*\])")


def parse_placement(text: str) -> Placement:
    """The inverse of `placement.notation`. Raises GraphError."""
    match = _PLACEMENT_TEXT.fullmatch(text)
    if not match:
        raise GraphError(f"not a placement: {text!r}; a placement looks like cpu[0, 1]")
    return Placement(match.group(1), _parse_nested(match.group(2)))


def _parse_nested(text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise GraphError(f"not a list of ranks: {text[:80]!r}") from None
    return value if isinstance(value, list) else [value]
