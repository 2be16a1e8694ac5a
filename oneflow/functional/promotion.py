"""The dtype in which operands meet, as PyTorch has it: Python numbers do not widen tensors of their
own category.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from functools import reduce, wraps
from typing import Any, TypeVar

import numpy as np

from oneflow.api import FLOAT, INTEGER, KEEP, SAME_TYPE, TENSORS
from oneflow.core import dtype as dtypes
from oneflow.core.dispatch import call, current_mode
from oneflow.core.dtype import DType, category, promote
from oneflow.core.errors import CallError
from oneflow.core.op import Op
from oneflow.core.operand import Number, TensorLike
from oneflow.core.sbp import all_broadcast
from oneflow.functional.declared import function_of
from oneflow.ops.cast import cast
from oneflow.ops.complex_numbers import PARTS, make_complex, real
from oneflow.ops.unary import full_like
from oneflow.tensor.creation_like import wrapped
from oneflow.tensor.from_same_data import from_same_data
from oneflow.tensor.grad_mode import switches
from oneflow.tensor.tensor import Tensor, wrap

R = TypeVar("R")

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
        raise CallError(f"only floating-point types are supported as the default type, got {dtype}")
    _default = dtype
    switches.count += 1


def _number_category(value: Number | complex) -> int:
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return 1
    return 3 if isinstance(value, complex) else 2


def with_number(dtype: DType, value: Number | complex) -> DType:
    """The dtype of a tensor of `dtype` combined with a Python number."""
    wanted = _number_category(value)
    if wanted <= category(dtype):
        return dtype
    wide = dtypes.float64 in (dtype, _default if category(dtype) < 2 else dtype)
    whole = dtypes.complex128 if wide else dtypes.complex64
    return (dtypes.bool_, dtypes.int64, _default, whole)[wanted]


def meet(a: Tensor, b: Tensor) -> DType:
    """The common dtype of two tensors. A 0-d tensor does not widen one with dims of its own
    category.
    """
    x, y = a.meta.dtype, b.meta.dtype
    if x is y:
        return x
    if bool(a.meta.shape) != bool(b.meta.shape):
        large, small = (x, y) if a.meta.shape else (y, x)
        if category(large) >= category(small):
            return large
    return promote(x, y)


def meet_all(tensors: Sequence[Tensor]) -> DType:
    """Return the common dtype of tensors in any order: those without dims do not widen those with
    dims of their own category.
    """
    wide = [x.meta.dtype for x in tensors if x.meta.shape]
    narrow = [x.meta.dtype for x in tensors if not x.meta.shape]
    if not wide or not narrow:
        return reduce(promote, wide or narrow)
    large, small = reduce(promote, wide), reduce(promote, narrow)
    return large if category(large) >= category(small) else promote(large, small)


def as_type(x: Tensor, dtype: DType) -> Tensor:
    """`x` itself if it has that dtype."""
    return x if x.meta.dtype is dtype else cast(x, dtype=dtype)


def as_float(x: Tensor) -> Tensor:
    """Integers and bools become the default floating-point dtype."""
    return x if category(x.meta.dtype) >= 2 else cast(x, dtype=_default)


def together(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    dtype = meet(a, b)
    return as_type(a, dtype), as_type(b, dtype)


def all_together(*tensors: Tensor) -> list[Tensor]:
    """The operands of one op: which are together first does not decide their dtype."""
    dtype = meet_all(tensors)
    return [as_type(x, dtype) for x in tensors]


def operand(value: object, beside: tuple[object, ...] = ()) -> Any:
    """A tensor as it is, an array as a tensor, anything numeric as a Python number; else
    NotImplemented. beside: the operands of the op: an array beside a global tensor is made global.
    """
    if isinstance(value, (Tensor, bool, int, float, complex)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _array_operand(value, beside)
    if isinstance(value, numbers.Real):
        return float(value)
    return NotImplemented


def _array_operand(array: np.ndarray[Any, Any], beside: tuple[object, ...]) -> Tensor:
    """Beside a global tensor: copies on its placement, in its dtype unless that is of a lower
    category; else a local tensor over the array's memory.
    """
    for x in beside:
        if isinstance(x, Tensor) and x.is_global:
            if category(dtypes.dtype_of(array.dtype)) <= category(x.meta.dtype):
                array = array.astype(x.meta.dtype.np)
            return from_same_data(array, x.placement, all_broadcast(x.placement.ndim), "array")
    return wrap(array)


def operands(name: str, *values: object) -> tuple[Any, ...]:
    """`operand` of each. Raises TypeError if one is no number, or none is a tensor."""
    result = tuple(operand(v, values) for v in values)
    if any(isinstance(r, complex) for r in result):
        like = next((r for r in result if isinstance(r, Tensor)), None)
        if like is not None:
            return tuple(_complex_number(like, r) if isinstance(r, complex) else r for r in result)
    if any(r is NotImplemented for r in result) or not any(isinstance(r, Tensor) for r in result):
        got = ", ".join(type(v).__name__ for v in values)
        raise CallError(
            f"{name}() needs tensors and numbers, at least one of them a tensor; got {got}"
        )
    return result


def need_tensors(name: str, **given: object) -> None:
    """Raises CallError unless all operands, by their names, are tensors."""
    for position, (argument, value) in enumerate(given.items(), 1):
        if not isinstance(value, Tensor):
            raise CallError(
                f"{name}(): argument '{argument}' (position {position}) must be Tensor, not "
                f"{type(value).__name__}"
            )


def _complex_number(like: Tensor, value: complex) -> Tensor:
    """A complex number in the shape of `like`, in the dtype in which both meet."""
    whole = with_number(like.meta.dtype, value)
    flat = (
        cast(like.detach(), dtype=PARTS[whole])
        if not like.meta.dtype.is_complex
        else real(like.detach())
    )
    return make_complex(full_like(flat, value=value.real), full_like(flat, value=value.imag))


def same_type(name: str, a: TensorLike, b: TensorLike) -> tuple[Tensor, Tensor]:
    """Two operands as tensors of one dtype; one of them may be a number.

    name: of the function, for the TypeError that `operands` raises.
    """
    x, y = operands(name, a, b)
    if not isinstance(y, Tensor):
        x = as_type(x, with_number(x.meta.dtype, y))
        y = full_like(x.detach(), value=wrapped(y, x.meta.dtype))
    elif not isinstance(x, Tensor):
        y = as_type(y, with_number(y.meta.dtype, x))
        x = full_like(y.detach(), value=wrapped(x, y.meta.dtype))
    return together(x, y)


def two_floats(name: str, a: TensorLike, b: TensorLike) -> tuple[Tensor, Tensor]:
    """`same_type` of a function that integers enter as floats. Each is made one first, and once:
    unsigned integers have no negative numbers, small ones no large numbers, and none has halves.
    """
    x, y = operands(name, a, b)
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        return same_type(name, *(as_float(t) if isinstance(t, Tensor) else t for t in (x, y)))
    return floats_together(x, y)


def floats_together(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """`together` of a function that integers enter as floats."""
    if x.meta.dtype is y.meta.dtype and x.meta.dtype.is_floating_point:
        return x, y
    dtype = meet(x, y)
    dtype = dtype if category(dtype) >= 2 else _default
    return as_type(x, dtype), as_type(y, dtype)


def promoted(op: type[Op], name: str, kind: str, *, inplace: bool = False) -> Callable[..., Tensor]:
    """The function that users call for an op: it promotes its operands, then runs the op.

    kind: FLOAT, INTEGER, SAME_TYPE, TENSORS or KEEP of `oneflow/api`.  inplace: it takes a
    parameter of that name, if it has one operand.
    """
    if kind == TENSORS:
        return _of_two_tensors(op, name)
    if kind != SAME_TYPE:
        return function_of(op, cast=_CASTS[kind], inplace=inplace)

    def of_two(input: TensorLike, other: TensorLike) -> Tensor:
        out: Tensor = call(op, *same_type(name, input, other))
        return out

    of_two.__name__ = of_two.__qualname__ = name
    of_two.__doc__ = op.__doc__
    return of_two


def _of_two_tensors(op: type[Op], name: str) -> Callable[..., Tensor]:
    def of_two(input: Tensor, other: Tensor) -> Tensor:
        if isinstance(other, np.ndarray) and isinstance(input, Tensor) and input.is_global:
            joined: Tensor = call(op, *same_type(name, input, other))  # the whole, on every rank
            return joined
        need_tensors(name, input=input, other=other)
        out: Tensor = call(op, *together(input, other))
        return out

    of_two.__name__ = of_two.__qualname__ = name
    of_two.__doc__ = op.__doc__
    return of_two


def _as_number(x: Tensor) -> Tensor:
    """A bool tensor as integers."""
    return as_type(x, dtypes.int64) if category(x.meta.dtype) == 0 else x


_CASTS: dict[str, Callable[[Tensor], Tensor] | None] = {
    FLOAT: as_float,
    INTEGER: _as_number,
    KEEP: None,
}


NARROW = (dtypes.float16, dtypes.bfloat16)


def rounded_once(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function`, a composition, of half floats: computed in float32 and rounded at the end."""

    @wraps(function)
    def apply(*args: object, **keywords: object) -> Tensor:
        kinds = {x.meta.dtype for x in (*args, *keywords.values()) if isinstance(x, Tensor)}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind not in NARROW:
            return function(*args, **keywords)
        wide = {name: _widened(x) for name, x in keywords.items()}
        return as_type(function(*[_widened(x) for x in args], **wide), kind)

    return apply


def _widened(x: object) -> object:
    return as_type(x, dtypes.float32) if isinstance(x, Tensor) else x


def recast(function: Callable[..., R], how: tuple[str, ...]) -> Callable[..., R]:
    """`function`, whose tensors `autocast` casts before its first op.  how: see `Row.autocast`."""

    @wraps(function)
    def apply(*args: object, **keywords: object) -> R:
        run_cast = current_mode().run_cast
        if run_cast is None:
            return function(*args, **keywords)
        result: R = run_cast(function, args, keywords, how)
        return result

    return apply
