"""The dtype in which operands meet, as PyTorch has it: Python numbers do not widen tensors of their
own category.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from oneflow.api import FLOAT, INTEGER, KEEP
from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DType, promote
from oneflow.ops.cast import cast
from oneflow.ops.unary import full_like
from oneflow.tensor.tensor import Tensor, wrap

Number: TypeAlias = "bool | int | float"
Operand: TypeAlias = "Tensor | Number"

_default = dtypes.float32


def get_default_dtype() -> DType:
    """The dtype of new floating-point tensors; float32 unless `set_default_dtype` said
    otherwise.
    """
    return _default


def set_default_dtype(dtype: DType) -> None:
    """Sets the dtype of new floating-point tensors. Raises TypeError for any other kind of
    dtype.
    """
    global _default
    if not dtype.is_floating_point:
        raise TypeError(f"only floating-point types are supported as the default type, got {dtype}")
    _default = dtype


def category(dtype: DType) -> int:
    """0 bool, 1 integer, 2 floating point, 3 complex."""
    if dtype is dtypes.bool_:
        return 0
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else 1


def _number_category(value: Any) -> int:
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return 1
    return 3 if isinstance(value, complex) else 2


def with_number(dtype: DType, value: Any) -> DType:
    """The dtype of a tensor of `dtype` combined with a Python number."""
    wanted = _number_category(value)
    if wanted <= category(dtype):
        return dtype
    return (dtypes.bool_, dtypes.int64, _default, dtypes.complex64)[wanted]


def meet(a: Tensor, b: Tensor) -> DType:
    """The common dtype of two tensors. A 0-d tensor does not widen one with dims of its own
    category.
    """
    x, y = a.type.dtype, b.type.dtype
    if x is y:
        return x
    if bool(a.type.shape) != bool(b.type.shape):
        large, small = (x, y) if a.type.shape else (y, x)
        if category(large) >= category(small):
            return large
    return promote(x, y)


def as_type(x: Tensor, dtype: DType) -> Tensor:
    """`x` itself if it has that dtype."""
    return x if x.type.dtype is dtype else cast(x, dtype=dtype)


def as_float(x: Tensor) -> Tensor:
    """Integers and bools become the default floating-point dtype."""
    return x if category(x.type.dtype) >= 2 else cast(x, dtype=_default)


def together(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    dtype = meet(a, b)
    return as_type(a, dtype), as_type(b, dtype)


def operand(value: Any) -> Any:
    """A tensor as it is, an array as a tensor, anything numeric as a Python number; else
    NotImplemented.
    """
    if isinstance(value, (Tensor, bool, int, float, complex)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return wrap(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return NotImplemented


def operands(name: str, *values: Any) -> tuple[Any, ...]:
    """`operand` of each. Raises TypeError if one is no number, or none is a tensor."""
    result = tuple(operand(v) for v in values)
    if any(r is NotImplemented for r in result) or not any(isinstance(r, Tensor) for r in result):
        got = ", ".join(type(v).__name__ for v in values)
        raise TypeError(
            f"{name}() needs tensors and numbers, at least one of them a tensor; got {got}"
        )
    return result


def same_type(name: str, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Two operands as tensors of one dtype; one of them may be a number.

    name: of the function, for the TypeError that `operands` raises.
    """
    a, b = operands(name, a, b)
    if not isinstance(b, Tensor):
        a = as_type(a, with_number(a.type.dtype, b))
        b = full_like(a.detach(), value=b)
    elif not isinstance(a, Tensor):
        b = as_type(b, with_number(b.type.dtype, a))
        a = full_like(b.detach(), value=a)
    return together(a, b)


def promoted(op: Callable[..., Tensor], name: str, kind: str) -> Callable[..., Tensor]:
    """The function that users call for an op: it promotes its operands, then runs the op.

    kind: FLOAT, INTEGER, SAME_TYPE or KEEP of `oneflow/api.py`.
    """
    if kind == FLOAT:

        def apply(input: Tensor) -> Tensor:
            return op(as_float(input))

    elif kind == INTEGER:

        def apply(input: Tensor) -> Tensor:
            return op(as_type(input, dtypes.int64) if category(input.type.dtype) == 0 else input)

    elif kind == KEEP:

        def apply(input: Tensor) -> Tensor:
            return op(input)

    else:

        def apply(input: Any, other: Any) -> Tensor:  # type: ignore[misc]
            return op(*same_type(name, input, other))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = op.__doc__
    return apply
