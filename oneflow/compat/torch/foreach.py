"""`torch._foreach_*`: one function over lists of tensors. Each is the method of that name on every
tensor of the first list; other operands are a number, a tensor, or a list with one for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from oneflow import surfaces
from oneflow.core.errors import ArgumentError, CallError
from oneflow.tensor.tensor import Tensor

UNARY = """
abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
"""
WITH_OTHERS = """
add addcdiv addcmul clamp_max clamp_min div lerp maximum minimum mul pow sub
"""
KEYWORDS = {"weight", "weights", "value", "scalars", "tensors1", "tensors2", "other", "exponent"}
"""Operands that callers may name; all others are options of the function, such as `alpha`."""


def _each(function: Callable[..., Any], name: str) -> Callable[..., list[Tensor]]:
    """The function over lists. name: for messages."""

    def apply(self: Sequence[Tensor], *others: object, **options: object) -> list[Tensor]:
        is_listed = isinstance(self, list | tuple) and all(isinstance(x, Tensor) for x in self)
        if not is_listed and name != "_foreach_pow":
            raise CallError(f"{name}: argument 0 must be a list of tensors, got {self!r:.80}")
        others += tuple(options.pop(key) for key in [*options] if key in KEYWORDS)
        if name == "_foreach_pow" and not isinstance(self, Sequence):  # a number to many powers
            self = [surfaces.find("flow", "full_like")(x, self) for x in others[0]]
        columns = [_column(name, other, len(self)) for other in others]
        return [_call(function, row, options) for row in zip(self, *columns, strict=True)]

    return apply


def _call(function: Callable[..., Any], row: Sequence[Any], options: dict[str, Any]) -> Tensor:
    if function in _WITH_VALUE and len(row) == 4:
        row, options = row[:3], {**options, "value": _number(row[3])}
    made: Tensor = function(*row, **options)
    return made


def _number(value: object) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _column(name: str, other: object, count: int) -> Iterable[Any]:
    """One operand for each tensor of the list."""
    if not isinstance(other, list | tuple):
        return repeat(other, count)
    if len(other) != count:
        raise ArgumentError(f"{name}: lists must be as long, got {count} and {len(other)}")
    return other


def _writing(function: Callable[..., Any], name: str) -> Callable[..., None]:
    """The function over lists, which writes into the tensors of the first one."""
    each = _each(function, name)

    def apply(self: Sequence[Tensor], *others: object, **options: object) -> None:
        each(self, *others, **options)

    return apply


def _extreme(name: str) -> Callable[..., Any]:
    """`maximum` or `minimum` that takes a number, too."""
    both, bounded = surfaces.find("flow", name), surfaces.find("flow", _CLAMPS[name])

    def apply(x: Tensor, other: object) -> Any:
        return both(x, other) if isinstance(other, Tensor) else bounded(x, other)

    return apply


def _extreme_(name: str) -> Callable[..., Any]:
    pure = _extreme(name)
    return lambda x, other: x.copy_(pure(x, other))


_CLAMPS = {"maximum": "clamp_min", "minimum": "clamp_max"}
_WITH_VALUE = [
    surfaces.find("tensor", name) for name in ("addcdiv", "addcmul", "addcdiv_", "addcmul_")
]

for _name in (UNARY + WITH_OTHERS).split():
    for _tail, _make in (("", _each), ("_", _writing)):
        _public = f"_foreach_{_name}{_tail}"
        if _name in _CLAMPS:
            _function = _extreme_(_name) if _tail else _extreme(_name)
        else:
            _function = surfaces.find("tensor", _name + _tail)
        globals()[_public] = _make(_function, _public)

_foreach_copy_ = _writing(surfaces.find("tensor", "copy_"), "_foreach_copy_")
_foreach_zero_ = _writing(surfaces.find("tensor", "zero_"), "_foreach_zero_")


def _foreach_norm(self: Sequence[Tensor], ord: float = 2, dtype: object = None) -> list[Tensor]:
    """The norm of each tensor as one vector."""
    return [surfaces.find("linalg", "vector_norm")(x, ord, dtype=dtype) for x in self]


def _foreach_max(self: Sequence[Tensor]) -> list[Tensor]:
    """The largest element of each tensor."""
    return [surfaces.find("tensor", "max")(x) for x in self]
