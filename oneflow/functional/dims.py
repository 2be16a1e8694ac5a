"""Dims as users write them: negative ones, one or many, or none for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

from oneflow.core.errors import CallError, PositionError, ShapeError
from oneflow.core.operand import DimLike, ShapeLike, Tensors
from oneflow.tensor.tensor import Tensor


def one_dim(dim: SupportsIndex, ndim: int, who: str) -> int:
    """`dim` counted from the front. Raises PositionError if there is no such dim."""
    index = dim.__index__()
    bound = max(ndim, 1)
    if not -bound <= index < bound:
        raise PositionError(
            f"{who}: Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], "
            f"but got {index})"
        )
    return int(index % bound)


def many_dims(dims: DimLike, ndim: int, who: str) -> tuple[int, ...]:
    """A dim, several, or None (or nothing) for all."""
    if dims is None or (isinstance(dims, (tuple, list)) and not dims):
        return tuple(range(ndim))
    if isinstance(dims, (tuple, list)):
        found = tuple(one_dim(d, ndim, who) for d in dims)
    else:
        found = (one_dim(dims, ndim, who),)
    return found if ndim else ()


def some_dims(dims: DimLike, ndim: int, who: str) -> tuple[int, ...]:
    """A dim, or several; none of them where the list is empty."""
    if isinstance(dims, (tuple, list)) and not dims:
        return ()
    return many_dims(dims, ndim, who)


def argument_dims(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`f(1, 2)` and `f((1, 2))` alike, and tensors of one size or several."""
    if len(args) == 1 and not isinstance(args[0], int):
        first = args[0].tolist() if isinstance(args[0], Tensor) else args[0]
        return (first,) if isinstance(first, int) else tuple(first)
    return args


def given(who: str, args: tuple[Any, ...], **named: ShapeLike | None) -> tuple[Any, ...]:
    """The sizes or dims of a call `f(1, 2)`, `f((1, 2))` or `f(shape=(1, 2))`.

    named: the value of each keyword that the function takes for them; None: not given. Raises
    TypeError where they were given twice.
    """
    found = [(name, value) for name, value in named.items() if value is not None]
    if not found:
        return args
    if args or len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise CallError(f"{who}() got its sizes or dims more than once, also as {names}")
    return (found[0][1],)


def listed(tensors: tuple[Tensors, ...]) -> list[Tensor]:
    """The tensors of a call `f(a, b)` or `f([a, b])`."""
    if len(tensors) == 1 and not isinstance(tensors[0], Tensor):
        return list(tensors[0])
    return list(cast(tuple[Tensor, ...], tensors))


Size = int | Sequence[int]
"""A number for all spatial dims, or one for each."""


def spatial_sizes(value: Size, count: int) -> tuple[int, ...]:
    """A number for all dims, or one each."""
    given: Any = value
    is_several = isinstance(value, (tuple, list)) or getattr(value, "ndim", 0) > 0
    items: tuple[Any, ...] = tuple(given) if is_several else (given,)
    items = items * count if len(items) == 1 else items
    if len(items) != count:
        raise ShapeError(f"expected 1 or {count} sizes, got {value}")
    return tuple(int(i) for i in items)
