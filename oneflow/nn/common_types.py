"""Names of argument types that many layers share: one number, or one per spatial dim."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex, TypeVar, Union

from oneflow.core.errors import CallError

T = TypeVar("T")

_scalar_or_tuple_any_t = Union[T, tuple[T, ...]]  # noqa: UP007  (read as values by scripts)
_scalar_or_tuple_1_t = Union[T, tuple[T]]  # noqa: UP007
_scalar_or_tuple_2_t = Union[T, tuple[T, T]]  # noqa: UP007
_scalar_or_tuple_3_t = Union[T, tuple[T, T, T]]  # noqa: UP007
_scalar_or_tuple_4_t = Union[T, tuple[T, T, T, T]]  # noqa: UP007
_scalar_or_tuple_6_t = Union[T, tuple[T, T, T, T, T, T]]  # noqa: UP007

_size_any_t = _scalar_or_tuple_any_t[int]
_size_1_t = _scalar_or_tuple_1_t[int]
_size_2_t = _scalar_or_tuple_2_t[int]
_size_3_t = _scalar_or_tuple_3_t[int]
_size_4_t = _scalar_or_tuple_4_t[int]
_size_6_t = _scalar_or_tuple_6_t[int]
_size_any_opt_t = Union[int, None, tuple[Union[int, None], ...]]  # noqa: UP007
_size_2_opt_t = Union[int, None, tuple[Union[int, None], Union[int, None]]]  # noqa: UP007
_size_3_opt_t = Union[  # noqa: UP007
    int, None, tuple[Union[int, None], Union[int, None], Union[int, None]]  # noqa: UP007
]
_ratio_2_t = _scalar_or_tuple_2_t[float]
_ratio_3_t = _scalar_or_tuple_3_t[float]
_ratio_any_t = _scalar_or_tuple_any_t[float]


def one_or_more(value: object, what: str) -> tuple[int, ...]:
    """One whole number, NumPy's among them, or a sequence of them, as a tuple. Raises CallError."""
    given = (value,) if _is_one(value) else value
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise CallError(f"{what} must be an int or a tuple of ints, got {value!r}")
    try:
        return tuple(map(operator.index, given))
    except TypeError:
        raise CallError(f"{what} must be an int or a tuple of ints, got {value!r}") from None


def _is_one(value: object) -> bool:
    """Is it a number? An array of several has `__index__`, too."""
    return isinstance(value, SupportsIndex) and not getattr(value, "ndim", 0)


def per_dim(value: int | tuple[int, ...] | list[int], dims: int, what: str) -> tuple[int, ...]:
    """One number for all spatial dims, or a sequence of them, as a tuple of `dims` numbers. Raises
    ValueError.
    """
    values = one_or_more(value, what)
    if _is_one(value):
        values *= dims
    if len(values) != dims:
        raise ValueError(f"{what} must be one number or {dims} of them, got {value!r}")
    return values
