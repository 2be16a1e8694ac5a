"""Functions of expressions as LLVM instructions, on values of one type."""

from __future__ import annotations

import math
from collections.abc import Callable

from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.llvm_math import VECTORS

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_LIBRARY = {
    "exp2": "exp2", "log2": "log2", "log10": "log10", "sin": "sin", "cos": "cos", "tan": "tan",
    "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "pow": "pow", "atan2": "atan2",
    "fmod": "fmod",
}  # fmt: skip
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven"}


def apply_function(name: str, args: list[Value], signed: bool) -> Value:
    """Raises NotImplementedError for a function that only NumPy has for these types."""
    x = args[0]
    if name in _COMPARISONS:
        return x.compare(name, args[1], signed=signed and x.element != "i1")
    if x.is_float and name in VECTORS:
        return VECTORS[name](x)
    if x.is_float and name in _LIBRARY:
        return x.code.library(_LIBRARY[name], *args)
    if name in _ROUNDINGS:
        return x.code.intrinsic(_ROUNDINGS[name], x) if x.is_float else x
    if name in ("maximum", "minimum"):
        return _extreme(name, x, args[1], signed)
    rule = _PLAIN.get(name)
    if rule is None or (name in _FLOAT_ONLY and not x.is_float):
        raise NotImplementedError(f"{name} of {x.type}")
    return rule(*args)


def _extreme(name: str, a: Value, b: Value, signed: bool) -> Value:
    if a.is_float:
        return a.larger(b) if name == "maximum" else a.smaller(b)
    if a.element == "i1":
        return a | b if name == "maximum" else a & b
    return a.compare("gt" if name == "maximum" else "lt", b, signed=signed).choose(a, b)


def _add(a: Value, b: Value) -> Value:
    return a | b if a.element == "i1" else a + b


def _mul(a: Value, b: Value) -> Value:
    return a & b if a.element == "i1" else a * b


def _sign(x: Value) -> Value:
    above, below = x.compare("gt", 0), x.compare("lt", 0)
    y = above.choose(x.like(1), below.choose(x.like(-1), x.like(0)))
    return x.compare("ne", x).choose(x, y) if x.is_float else y


def _abs(x: Value) -> Value:
    return x.absolute() if x.is_float else x.compare("lt", 0).choose(-x, x)


def _isfinite(x: Value) -> Value:
    return x.absolute().compare("lt", math.inf)


def _not(x: Value) -> Value:
    return x ^ (1 if x.element == "i1" else -1)


def _floor_divide(a: Value, b: Value) -> Value:
    """floor(a / b) as NumPy rounds it: through the remainder, so that it is exact."""
    rest = a.code.library("fmod", a, b)
    quotient = (a - rest) / b
    is_low = rest.compare("ne", 0) & (rest.compare("lt", 0) ^ b.compare("lt", 0))
    quotient = is_low.choose(quotient - 1.0, quotient)
    floor = a.code.intrinsic("floor", quotient)
    floor = (quotient - floor).compare("gt", 0.5).choose(floor + 1.0, floor)
    floor = quotient.compare("eq", 0).choose((a / b) * 0.0, floor)
    return b.compare("eq", 0).choose(a / b, floor)


_FLOAT_ONLY = ("div", "sqrt", "rsqrt", "reciprocal", "floor_divide", "isinf",
               "isfinite")  # fmt: skip
_PLAIN: dict[str, Callable[..., Value]] = {
    "neg": lambda x: -x,
    "abs": _abs,
    "relu": lambda x: x.compare("lt", 0).choose(x.like(0), x),
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1.0 / x,
    "sqrt": lambda x: x.sqrt(),
    "rsqrt": lambda x: 1.0 / x.sqrt(),
    "add": _add,
    "sub": lambda a, b: a - b,
    "mul": _mul,
    "div": lambda a, b: a / b,
    "floor_divide": _floor_divide,
    "sign": _sign,
    "where": lambda c, a, b: c.choose(a, b),
    "isnan": lambda x: x.compare("ne", x),
    "isinf": lambda x: x.absolute().compare("eq", math.inf),
    "isfinite": _isfinite,
    "logical_not": _not,
    "logical_and": lambda a, b: a & b,
    "logical_or": lambda a, b: a | b,
    "logical_xor": lambda a, b: a ^ b,
    "bitwise_not": _not,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
}
