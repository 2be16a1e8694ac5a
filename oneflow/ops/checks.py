"""Checks that declarations make of their input types, and how they say no."""

from __future__ import annotations

from collections.abc import Callable

from oneflow.core.dtype import DType, bool_
from oneflow.core.errors import DTypeError, PositionError, ShapeError
from oneflow.core.operand import Operand

ANY, NUMBER, FLOAT, INTEGRAL, BOOL = "any", "number", "float", "integral", "bool"
FIELD = "field"
_ACCEPTS: dict[str, tuple[str, Callable[[DType], bool]]] = {
    ANY: ("", lambda d: True),
    NUMBER: ("numbers", lambda d: d is not bool_),
    FLOAT: ("floating-point elements", lambda d: d.is_floating_point),
    FIELD: ("floating-point elements", lambda d: d.is_floating_point or d.is_complex),
    INTEGRAL: ("integers or bool", lambda d: d.is_integer or d is bool_),
    BOOL: ("bool elements", lambda d: d is bool_),
}


def require(name: str, x: Operand, accepts: str) -> None:
    """Raises DTypeError unless the elements of `x` are of the kind `accepts` (FLOAT, NUMBER,
    ...)."""
    wanted, is_accepted = _ACCEPTS[accepts]
    if not is_accepted(x.dtype):
        raise DTypeError(f"{name} needs {wanted}, but its input is {x}; cast it first")


def require_same_dtype(name: str, *types: Operand) -> DType:
    """The common dtype. Raises DTypeError."""
    first = types[0].dtype
    if any(t.dtype is not first for t in types):
        listed = ", ".join(map(str, types))
        raise DTypeError(f"{name} needs inputs of one dtype, got {listed}; cast them first")
    return first


def require_float(name: str, *types: Operand) -> None:
    """Raises DTypeError unless all types have one floating-point dtype."""
    first = types[0]
    if not first.dtype.is_floating_point:
        raise DTypeError(f"{name}: needs a floating-point tensor, got {first}")
    for other in types[1:]:
        if other.dtype is not first.dtype:
            raise DTypeError(f"{name}: {first} and {other} must have one dtype")


def require_same(name: str, *types: Operand) -> None:
    """Raises ShapeError or DTypeError unless all types are equal and floating-point."""
    require_float(name, *types)
    for other in types[1:]:
        if other.shape != types[0].shape:
            raise ShapeError(f"{name}: {types[0]} and {other} must have one shape")


def require_shape(name: str, shape: tuple[int, ...], **operands: Operand | None) -> None:
    """Raises ShapeError unless each operand that is there has this shape."""
    for what, x in operands.items():
        if x is not None and x.shape != shape:
            raise ShapeError(f"{name}: {what} must have the shape {list(shape)}, got {x}")


def require_dtype(name: str, what: str, x: Operand, dtype: DType) -> None:
    """Raises DTypeError unless `x`, called `what` in the message, has exactly `dtype`."""
    if x.dtype is not dtype:
        raise DTypeError(f"{name}: {what} must be {dtype.name}, but it is {x}; cast it first")


def require_dim(name: str, x: Operand, dim: int) -> None:
    """Raises PositionError unless 0 <= dim < ndim: declarations take no negative dims."""
    if not 0 <= dim < x.ndim:
        raise PositionError(
            f"{name}: Dimension out of range: dim {dim} of {x}, which has dims 0 to {x.ndim - 1}"
        )


def require_scalar(name: str, x: Operand, value: object) -> None:
    """Raises DTypeError if combining `x` with the Python number `value` would change its dtype."""
    if isinstance(value, float) and not (x.dtype.is_floating_point or x.dtype.is_complex):
        raise DTypeError(f"{name}: {x} cannot take the float {value}; cast the tensor first")
    if isinstance(value, complex) and x.dtype.is_complex:
        return
    if not isinstance(value, (bool, int, float)):
        raise DTypeError(f"{name}: the scalar must be a Python number, got {value!r}")


def broadcast(name: str, *types: Operand) -> tuple[int, ...]:
    """The shape in which the shapes of `types` meet by NumPy's rules. Raises ShapeError."""
    ndim = max(t.ndim for t in types)
    out = [1] * ndim
    for t in types:
        for i, size in enumerate(t.shape, start=ndim - t.ndim):
            if size == 1 or size == out[i]:
                continue
            if out[i] != 1:
                listed = " and ".join(map(str, types))
                raise ShapeError(
                    f"{name}: {listed} cannot be broadcast together: dim {i} of the result would "
                    f"be both {out[i]} and {size}"
                )
            out[i] = size
    return tuple(out)
