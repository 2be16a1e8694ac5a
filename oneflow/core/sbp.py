"""SBP: how a tensor lies over one axis of a hierarchy: split along a dim, broadcast, or partial
sums.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from oneflow.core.errors import GraphError, SbpError

MAX_SPLIT_DIM = 6
"""Users split none of the dims from here on. The steps inside a composed function may have more
dims than its operands (`repeat` of four dims has eight), so `Split` itself has no bound."""


class Sbp:
    """One of `Split(dim)`, `BROADCAST`, `PARTIAL`; immutable. `flow.sbp.sbp` is this class."""

    __slots__ = ()
    is_split = False
    is_broadcast = False
    is_partial = False
    dim = -1

    def __call__(self) -> Sbp:
        return self  # upstream allows flow.sbp.broadcast()


class Split(Sbp):
    """Each rank of the axis holds a balanced part of dim `dim`; the first parts take the
    remainder.
    """

    __slots__ = ("dim",)
    is_split = True
    dim: int
    _interned: dict[int, Split] = {}

    def __new__(cls, dim: int) -> Split:
        try:
            dim = operator.index(dim)
        except TypeError:
            raise TypeError(f"sbp.split: dim must be an integer, got {dim!r}") from None
        if dim < 0:
            raise SbpError(f"Split axis must not be negative, but got {dim}!")
        found = cls._interned.get(dim)
        if found is None:
            found = cls._interned[dim] = super().__new__(cls)
            found.dim = dim
        return found

    def __str__(self) -> str:
        return f"S({self.dim})"

    def __repr__(self) -> str:
        return f"oneflow.sbp.split(dim={self.dim})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Split, (self.dim,)


def split_of_user(dim: int) -> Split:
    """`Split(dim)`. Raises SbpError unless 0 <= dim < MAX_SPLIT_DIM."""
    wanted = Split(dim)
    if wanted.dim >= MAX_SPLIT_DIM:
        raise SbpError(
            "Expected split axis to be less than the supported maximum axis "
            f"({MAX_SPLIT_DIM}), but got {dim}!"
        )
    return wanted


class _Broadcast(Sbp):
    __slots__ = ()
    is_broadcast = True

    def __str__(self) -> str:
        return "B"

    def __repr__(self) -> str:
        return "oneflow.sbp.broadcast"

    def __reduce__(self) -> str:
        return "BROADCAST"


class _Partial(Sbp):
    __slots__ = ()
    is_partial = True

    def __str__(self) -> str:
        return "P"

    def __repr__(self) -> str:
        return "oneflow.sbp.partial_sum"

    def __reduce__(self) -> str:
        return "PARTIAL"


BROADCAST = _Broadcast()
PARTIAL = _Partial()

NdSbp = tuple[Sbp, ...]


@dataclass(frozen=True)
class SbpSignature:
    """One valid way to run an op over one hierarchy axis: an SBP per input and per output."""

    inputs: tuple[Sbp, ...]
    outputs: tuple[Sbp, ...]

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.inputs))} -> {' '.join(map(str, self.outputs))}"


def signature(text: str) -> SbpSignature:
    """`signature("S0 B -> S0")`: a compact way to write signatures in op declarations."""
    return _signature(text)


@lru_cache(maxsize=4096)
def _signature(text: str) -> SbpSignature:
    left, _, right = text.partition("->")
    return SbpSignature(
        tuple(parse_sbp(t) for t in left.split()), tuple(parse_sbp(t) for t in right.split())
    )


@lru_cache(maxsize=256)
def parse_sbp(text: str) -> Sbp:
    """`B`, `P`, `S(1)` or `S1`. Raises GraphError."""
    if text == "B":
        return BROADCAST
    if text == "P":
        return PARTIAL
    match = re.fullmatch(r"S\(?([0-9]{1,9})\)?", text)
    if not match:
        raise GraphError(f"not an SBP: {text!r}; it is B, P or S(dim)")
    return Split(int(match.group(1)))


def nd_sbp_str(nd_sbp: NdSbp) -> str:
    """`S(0)` for one axis, `(S(0), B)` for more."""
    return str(nd_sbp[0]) if len(nd_sbp) == 1 else f"({', '.join(map(str, nd_sbp))})"


def parse_nd_sbp(text: str) -> NdSbp:
    """The inverse of `nd_sbp_str`."""
    inner = text[1:-1] if text.startswith("(") else text
    return tuple(parse_sbp(part.strip()) for part in inner.split(","))


SbpLike: TypeAlias = Sbp | Sequence[Sbp]
"""A layout as users give it: an SBP, or one for each axis of the placement."""


def as_nd_sbp(value: SbpLike, num_axes: int) -> NdSbp:
    """An SBP or a list of them, as a tuple with one entry per hierarchy axis. Raises TypeError,
    SbpError.
    """
    items = (value,) if isinstance(value, Sbp) else value
    if not isinstance(items, Iterable) or isinstance(items, str):
        raise TypeError(
            "sbp parameter must be type of oneflow.sbp.sbp or list/tuple of oneflow.sbp.sbp, "
            f"got {value!r}"
        )
    nd_sbp = tuple(items)
    if not all(isinstance(s, Sbp) for s in nd_sbp):
        raise TypeError(
            "sbp parameter must be type of oneflow.sbp.sbp or list/tuple of oneflow.sbp.sbp, "
            f"got {value!r}"
        )
    if len(nd_sbp) != num_axes:
        raise SbpError(
            f"{len(nd_sbp)} sbp given for a placement of {num_axes} hierarchy axes: "
            f"{nd_sbp_str(nd_sbp)}; give one per axis"
        )
    return nd_sbp


def check_fits(nd_sbp: NdSbp, shape: tuple[int, ...], who: str) -> None:
    """Raises SbpError if a split names a dim that a tensor of `shape` does not have."""
    for sbp in nd_sbp:
        if sbp.is_split and sbp.dim >= len(shape):
            raise SbpError(
                f"{who}: {sbp} needs a tensor of at least {sbp.dim + 1} dims, got shape "
                f"{list(shape)}. Split axis out of range (expected to be in range of "
                f"[0, {len(shape)}), but got {sbp.dim}!)"
            )


def without_sums(nd_sbp: NdSbp) -> NdSbp:
    """The same with copies where there are partial sums."""
    return tuple(BROADCAST if s.is_partial else s for s in nd_sbp)


def all_broadcast(num_axes: int) -> NdSbp:
    return (BROADCAST,) * num_axes
