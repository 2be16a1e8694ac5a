"""`torch._foreach_*`: one function over lists of tensors. Each is the method of that name on every
tensor of the first list; other operands are a number, a tensor, or a list with one for each.

In place, an op that makes all of the result writes it straight into the tensor's own memory where
no history asks for the old values: that takes 2 to 4 us a small tensor, where the method takes 8 to
12, and half of the memory traffic of a large one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import repeat
from typing import Any

import numpy as np

from oneflow import surfaces
from oneflow.core.dispatch import call, current_mode
from oneflow.core.errors import ArgumentError, CallError
from oneflow.core.op import REGISTRY, Op, find_op
from oneflow.core.operand import Attrs
from oneflow.kernels.quiet import run_quietly
from oneflow.tensor.eager import EAGER, bound_call
from oneflow.tensor.grad_mode import state
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
    takes_value = name.rstrip("_").endswith(("addcdiv", "addcmul"))

    def apply(self: Sequence[Tensor], *others: object, **options: object) -> list[Tensor]:
        is_listed = isinstance(self, list | tuple) and all(isinstance(x, Tensor) for x in self)
        if not is_listed and name != "_foreach_pow":
            raise CallError(f"{name}: argument 0 must be a list of tensors, got {self!r:.80}")
        others += tuple(options.pop(key) for key in [*options] if key in KEYWORDS)
        if name == "_foreach_pow" and not isinstance(self, Sequence):  # a number to many powers
            self = [surfaces.find("flow", "full_like")(x, self) for x in others[0]]
        columns = [_column(name, other, len(self)) for other in others]
        rows = zip(self, *columns, strict=True)
        return [_call(function, row, options, takes_value) for row in rows]

    return apply


def _call(
    function: Callable[..., Any], row: Sequence[Any], options: dict[str, Any], takes_value: bool
) -> Tensor:
    if takes_value and len(row) == 4:
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
    base = name.removeprefix("_foreach_").removesuffix("_")

    @wraps(function)
    def written(x: Tensor, *others: object, **options: object) -> Tensor:
        if not _write_directly(base, x, others, options):
            function(x, *others, **options)
        return x

    is_direct = base in _DIRECT or base in _ADDENDS or base in REGISTRY
    each = _each(written if is_direct else function, name)

    def apply(self: Sequence[Tensor], *others: object, **options: object) -> None:
        each(self, *others, **options)

    return apply


_DIRECT = {"add": "scalar_add", "sub": "scalar_add", "mul": "scalar_mul", "div": "scalar_div"}
"""Functions of a tensor or a number that are one op each, and the op of a number."""


def _write_directly(
    base: str, x: Tensor, others: Sequence[object], options: dict[str, object]
) -> bool:
    """Run the op `base` into the memory of `x`. False, with nothing done, where that is not all
    that its method in place would do.
    """
    if current_mode() is not EAGER or not (x.meta.dtype.is_floating_point and _is_plain(x)):
        return False
    found = _op_call(base, x, others, options)
    if found is None:
        return False
    op, operands, attrs = found
    given = (x, *operands)
    if any(y.meta != x.meta or not _is_apart(x, y) for y in operands):
        return False
    bound = bound_call(op, given, attrs, x._device, ["", op, *[id(y.meta) for y in given]])
    if not bound.is_plain or bound.out_types != (x.meta,):
        return False
    run_quietly(bound.function, np, x._array, *[y._array for y in given], **bound.keywords)
    x._version[0] += 1
    return True


def _op_call(
    base: str, x: Tensor, others: Sequence[object], options: dict[str, object]
) -> tuple[type[Op], tuple[Tensor, ...], Attrs] | None:
    """The op, its other operands and its attributes; None if several make the result."""
    if not others:
        return None if options or base in _DIRECT else (find_op(base), (), {})
    if base in _ADDENDS:
        found = _ADDENDS[base](x, *others, **options)
        return None if found is None else (find_op("add"), (found,), {})
    (other, *more), alpha = others, options.get("alpha", 1)
    if base not in _DIRECT or more or options.keys() - {"alpha"}:
        return None
    if not isinstance(alpha, (int, float)):
        return None
    if isinstance(other, Tensor):
        if alpha != 1 and other.meta == x.meta:
            other = call(find_op("scalar_mul"), other, value=float(alpha))
        return (find_op(base), (other,), {}) if alpha == 1 or other is not others[0] else None
    if not isinstance(other, (int, float)) or isinstance(other, bool):
        return None
    value = other * alpha * (-1 if base == "sub" else 1)
    return find_op(_DIRECT[base]), (), {"value": float(value)}


def _scaled(op: type[Op], a: Tensor, b: Tensor, value: object) -> Tensor | None:
    """The result of an op of two tensors of one type, times a number."""
    if type(value) not in (int, float) or a.meta != b.meta:
        return None
    made: Tensor = call(op, a, b)
    is_done = value == 1 or _write_directly("mul", made, (value,), {})
    return made if is_done else None


def _step_of_lerp(x: Tensor, end: object, weight: object) -> Tensor | None:
    """Below a half, where the result is rounded as the start plus a step."""
    if not isinstance(end, Tensor) or not isinstance(weight, float) or abs(weight) >= 0.5:
        return None
    return _scaled(find_op("sub"), end, x, weight)


def _step_of(op: str) -> Callable[..., Tensor | None]:
    def step(x: Tensor, a: object, b: object, value: object = 1) -> Tensor | None:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return _scaled(find_op(op), a, b, value)
        return None

    return step


_ADDENDS: dict[str, Callable[..., Tensor | None]] = {
    "addcdiv": _step_of("div"),
    "addcmul": _step_of("mul"),
    "lerp": _step_of_lerp,
}
"""Functions that add something to a tensor: what that is; None for a call that rounds otherwise."""


def _is_plain(x: Tensor) -> bool:
    """Whether the memory of `x` is its own, and nobody will ask for its history."""
    if x._array.__class__ is not np.ndarray or x._placement is not None or x.value is not None:
        return False
    more = x._extra
    is_own = more is None or (more.view is None and not more.copied)
    is_recorded = state.enabled and x._requires_grad
    flags = x._array.flags
    return is_own and not is_recorded and flags.c_contiguous and flags.writeable


def _is_apart(x: Tensor, y: Tensor) -> bool:
    """Whether an operand can be read while `x` is written, element by element."""
    if y._array.__class__ is not np.ndarray or (state.enabled and y._requires_grad):
        return False
    return y._array is x._array or not np.may_share_memory(x._array, y._array)


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
_foreach_clone = _each(surfaces.find("tensor", "clone"), "_foreach_clone")
_foreach_mm = _each(surfaces.find("tensor", "mm"), "_foreach_mm")


def _foreach_norm(self: Sequence[Tensor], ord: float = 2, dtype: object = None) -> list[Tensor]:
    """The norm of each tensor as one vector."""
    return [surfaces.find("linalg", "vector_norm")(x, ord, dtype=dtype) for x in self]


def _foreach_max(self: Sequence[Tensor]) -> list[Tensor]:
    """The largest element of each tensor."""
    return [surfaces.find("tensor", "max")(x) for x in self]


def _foreach_powsum(self: Sequence[Tensor], ord: float = 2, dtype: object = None) -> list[Tensor]:
    """The sum of the powers of the absolute values of each tensor."""
    total = surfaces.find("flow", "sum")
    return [total(x.abs() ** ord, dtype=dtype) for x in self]


def _amp_foreach_non_finite_check_and_unscale_(
    self: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor
) -> None:
    """Multiply each tensor in place by one number, and fill `found_inf` with 1 if an element is
    infinite or NaN. Raises CallError for an argument that is no tensor.
    """
    for x in [*self, found_inf, inv_scale]:
        if not isinstance(x, Tensor):
            raise CallError(
                f"_amp_foreach_non_finite_check_and_unscale_: expected tensors, got {x!r:.80}"
            )
    for x in self:
        if not bool(x.isfinite().all()):
            found_inf.fill_(1.0)
        x.mul_(inv_scale.to(x.dtype))
