"""Ops that are declared by a formula, written as the nodes of their expressions.

`FUNCTIONS` has a row for each function of expressions (oneflow/core/expression.py), so an op that
is a formula needs none of its own. Reductions run over the last dims of a row, whose number
`row_dims` tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.core.dtype import DType, bool_, dtype_of, float32, float64, int32, int64
from oneflow.core.expression import (
    CAST,
    COLUMN,
    COLUMN_TOTAL,
    CONSTANT,
    FUNCTIONS,
    INPUT,
    ROW,
    SCALAR,
    WORD,
    Expression,
    absolute,
    compared_dtype,
    dtypes_of,
    erfc,
    normal_tail,
    row_values,
    substitute,
    uniform_nodes,
    walk,
)
from oneflow.core.op import Op, operand_names
from oneflow.kernels.expressions.numpy_form import UFUNCS
from oneflow.onnx.writer.builder import Builder, Call, wide
from oneflow.onnx.writer.sizes import Size, product

Writer = Callable[..., str]
"""A function of (builder, dtype of the result, *names of arguments) to the name of the result."""


def _plain(kind: str) -> Writer:
    return lambda b, dtype, *args: b(kind, *args)


def _negated(kind: str) -> Writer:
    return lambda b, dtype, *args: b("Not", b(kind, *args))


def _log_over(base: float) -> Writer:
    return lambda b, dtype, x: b("Mul", b("Log", x), b.number(1 / math.log(base), dtype))


def _exp2(b: Builder, dtype: DType, x: str) -> str:
    return b("Pow", b.number(2, dtype), x)


def _expm1(b: Builder, dtype: DType, x: str) -> str:
    """tanh(x / 2) (e^x + 1), which keeps the digits of small x that e^x - 1 loses."""
    half = b("Tanh", b("Mul", x, b.number(0.5, dtype)))
    grown = b("Add", b("Exp", x), b.number(1, dtype))
    return b("Mul", half, grown)


def _log1p(b: Builder, dtype: DType, x: str) -> str:
    """log(u) x / (u - 1), where u is 1 + x as rounded: W. Kahan's way to keep small x's digits."""
    one = b.number(1, dtype)
    u = b("Add", x, one)
    is_small = b("Less", b("Abs", x), b.number(0.5, dtype))
    is_lost = b("Equal", u, one)
    rest = b("Where", is_lost, one, b("Sub", u, one))
    small = b("Where", is_lost, x, b("Div", b("Mul", b("Log", u), x), rest))
    return b("Where", is_small, small, b("Log", u))


def _trunc(b: Builder, dtype: DType, x: str) -> str:
    if not dtype.is_floating_point:
        return x
    return b("Mul", b("Sign", x), b("Floor", b("Abs", x)))


def _rounding(kind: str) -> Writer:
    return lambda b, dtype, x: b(kind, x) if dtype.is_floating_point else x


def _floor_divide(b: Builder, dtype: DType, x: str, y: str) -> str:
    if dtype.is_floating_point:
        # Through the remainder, as NumPy has it: the quotient itself may round up to a whole one.
        rest = b("Mod", x, y, fmod=1)
        is_other = b(
            "And",
            b("Not", b("Equal", rest, b.number(0, dtype))),
            b("Less", b("Mul", b("Sign", rest), b("Sign", y)), b.number(0, dtype)),
        )
        rest = b("Where", is_other, b("Add", rest, y), rest)
        return b("Round", b("Div", b("Sub", x, rest), y))
    return b("Div", b("Sub", x, b("Mod", x, y)), y)


def _atan2(b: Builder, dtype: DType, y: str, x: str) -> str:
    zero, pi = b.number(0, dtype), b.number(math.pi, dtype)
    is_left, is_below = b("Less", x, zero), b("Less", y, zero)
    turn = b("Where", is_below, b("Neg", pi), pi)
    angle = b("Add", b("Atan", b("Div", y, x)), b("Where", is_left, turn, zero))
    upright = b("Mul", b("Sign", y), b.number(math.pi / 2, dtype))
    return b("Where", b("Equal", x, zero), upright, angle)


def _copysign(b: Builder, dtype: DType, x: str, y: str) -> str:
    zero, size = b.number(0, dtype), b("Abs", x)
    infinite = b("Less", b("Reciprocal", y), zero)  # of -0.0 too, which is not below 0
    is_negative = b("Or", b("Less", y, zero), b("And", b("Equal", y, zero), infinite))
    return b("Where", is_negative, b("Neg", size), size)


def _hypot(b: Builder, dtype: DType, x: str, y: str) -> str:
    """Scaled by the larger, so that squares do not overflow."""
    x, y, zero = b("Abs", x), b("Abs", y), b.number(0, dtype)
    large, small = b("Max", x, y), b("Min", x, y)
    is_zero = b("Equal", large, zero)
    share = b("Div", small, b("Where", is_zero, b.number(1, dtype), large))
    return b("Mul", large, b("Sqrt", b("Add", b("Mul", share, share), b.number(1, dtype))))


def _bits(kind: str, logical: str) -> Writer:
    return lambda b, dtype, *args: b(logical if dtype is bool_ else kind, *args)


def _shift(is_left: bool) -> Writer:
    """Shift by a product or a floored quotient: ONNX shifts unsigned numbers only."""

    def write(b: Builder, dtype: DType, x: str, y: str) -> str:
        amount = b.cast(y, float64, dtype)
        power = b.cast(b("Pow", b.number(2, float64), amount), int64, float64)
        whole = b.cast(x, int64, dtype)
        made = b("Mul", whole, power) if is_left else _floor_divide(b, int64, whole, power)
        return b.cast(made, dtype, int64)

    return write


def _is_finite(b: Builder, dtype: DType, x: str) -> str:
    if not dtype.is_floating_point:
        return b("Equal", x, x)
    return b("Not", b("Or", b("IsInf", x), b("IsNaN", x)))


def _test(kind: str) -> Writer:
    def write(b: Builder, dtype: DType, x: str) -> str:
        return b(kind, x) if dtype.is_floating_point else b("Not", b("Equal", x, x))

    return write


def _extreme(kind: str, logical: str) -> Writer:
    return lambda b, dtype, x, y: b(logical if dtype is bool_ else kind, x, y)


def _sum_or(kind: str, logical: str) -> Writer:
    return lambda b, dtype, x, y: b(logical if dtype is bool_ else kind, x, y)


def _remainder(b: Builder, dtype: DType, x: str, y: str) -> str:
    return b("Mod", x, y, fmod=1)


def _erfc(b: Builder, dtype: DType, x: str) -> str:
    return b("Sub", b.number(1, dtype), b("Erf", x))


def _gauss(b: Builder, dtype: DType, x: str) -> str:
    return b("Exp", b("Mul", b("Mul", x, x), b.number(-0.5, dtype)))


def _square(b: Builder, dtype: DType, x: str) -> str:
    return b("Mul", x, x)


def _reciprocal_root(b: Builder, dtype: DType, x: str) -> str:
    return b("Reciprocal", b("Sqrt", x))


WRITERS: dict[str, Writer] = {
    **{name: _plain(name.capitalize()) for name in (
        "neg", "abs", "relu", "reciprocal", "sub", "div", "pow", "exp", "log", "sqrt", "sin",
        "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
        "erf", "sigmoid", "sign", "where",
    )},
    "exp_down": _plain("Exp"), "exp2": _exp2, "expm1": _expm1, "log1p": _log1p,
    "log2": _log_over(2), "log10": _log_over(10), "rsqrt": _reciprocal_root, "square": _square,
    "add": _sum_or("Add", "Or"), "mul": _sum_or("Mul", "And"),
    "maximum": _extreme("Max", "Or"), "minimum": _extreme("Min", "And"),
    "fmod": _remainder, "floor_divide": _floor_divide, "atan2": _atan2, "hypot": _hypot,
    "copysign": _copysign, "floor": _rounding("Floor"), "ceil": _rounding("Ceil"),
    "round": _rounding("Round"), "trunc": _trunc, "erfc": _erfc, "gauss": _gauss,
    "eq": _plain("Equal"), "ne": _negated("Equal"), "lt": _plain("Less"), "gt": _plain("Greater"),
    "le": _plain("LessOrEqual"), "ge": _plain("GreaterOrEqual"),
    "logical_and": _plain("And"), "logical_or": _plain("Or"), "logical_xor": _plain("Xor"),
    "logical_not": _plain("Not"), "isnan": _test("IsNaN"), "isinf": _test("IsInf"),
    "isfinite": _is_finite, "bitwise_not": _bits("BitwiseNot", "Not"),
    "bitwise_and": _bits("BitwiseAnd", "And"), "bitwise_or": _bits("BitwiseOr", "Or"),
    "bitwise_xor": _bits("BitwiseXor", "Xor"), "bitwise_left_shift": _shift(True),
    "bitwise_right_shift": _shift(False),
}  # fmt: skip

UNWRITTEN = {
    WORD: "draws random numbers",
    "erfcx": "needs erfc(x) e^(x^2), which ONNX lacks and whose factors overflow",
    "normal_tail": "needs the scaled tail of the normal distribution, which ONNX lacks",
    "nextafter": "reads the bits of floats, which ONNX does not show",
    "gcd": "needs a loop until the remainder is 0",
    "lcm": "needs a loop until the remainder is 0",
}
"""Functions of expressions that no operators of ONNX make."""


def write_formula(b: Builder, op: type[Op], call: Call) -> tuple[str, ...]:
    """The outputs of a call of an op with a formula."""
    assert op.formula is not None
    made = op.formula(*call.types, **call.attrs)
    roots = tuple(map(_joined, made if isinstance(made, tuple) else (made,)))
    return _Expressions(b, op, call, roots).outputs()


def _joined(root: Expression) -> Expression:
    """Phi's tail, which formulas write as e^(-x^2 / 2) times its scaled form, as erfc."""
    found = {}
    for node in walk(root):
        if node.function == "mul" and node.args[0].function == "gauss":
            (x,) = node.args[0].args
            if node.args[1] is normal_tail(absolute(x)):
                found[node] = erfc(absolute(x) * math.sqrt(0.5)) * 0.5
    return substitute(root, found) if found else root


class _Expressions:
    """One call's expressions on their way into the graph."""

    def __init__(self, b: Builder, op: type[Op], call: Call, roots: tuple[Expression, ...]) -> None:
        self.b, self.call, self.roots = b, call, roots
        names = operand_names(op, len(call.types))
        self.operands = dict(zip(names, call.inputs, strict=True))
        self.types = dict(zip(names, call.types, strict=True))
        self.attrs = call.attrs
        self.per_row = op.rows(call.attrs)
        nodes = list(walk(*roots))
        functions = {n.function for n in nodes}
        self.is_row = bool(self.per_row) or not functions.isdisjoint(
            ("total", "largest", COLUMN, ROW, COLUMN_TOTAL)
        )
        self.row_dims = op.row_dims(*call.types, **call.attrs) if self.is_row else 0
        self.whole = self._whole()
        self.numbers = uniform_nodes(*roots)
        kinds = {n.value: self._kind(n.value) for n in nodes if n.function == SCALAR}
        self.dtypes = dtypes_of(roots, {n: t.dtype for n, t in self.types.items()}, kinds)
        is_double = any(t.dtype is float64 for t in (*call.types, *call.results))
        self.number_dtype = float64 if is_double else float32
        self.done: dict[Expression, str] = {}
        self.known: dict[Expression, Any] = {}

    # ---- shapes ----------------------------------------------------------------------------------

    def _whole(self) -> tuple[int, ...]:
        """The shape that all operands are broadcast to."""
        shapes = [
            (*t.shape, *(1,) * self.row_dims) if n in self.per_row else t.shape
            for n, t in self.types.items()
        ]
        ndim = max((len(s) for s in shapes), default=0)
        padded = [(*(1,) * (ndim - len(s)), *s) for s in shapes]
        return tuple(max(sizes, key=int) for sizes in zip(*padded, strict=True))

    @property
    def axes(self) -> list[int]:
        return list(range(-self.row_dims, 0))

    def outputs(self) -> tuple[str, ...]:
        single = row_values(self.per_row, *self.roots) if self.is_row else set()
        made = []
        for i, (root, result) in enumerate(zip(self.roots, self.call.results, strict=True)):
            if not self.call.is_read(i):
                made.append("")
                continue
            name = self.as_dtype(root, result.dtype)
            if root in single and root.function != COLUMN_TOTAL:
                name = self.b.squeeze(name, self.axes)
            made.append(self._broadcast(name, root, result.shape))
        return tuple(made)

    def _broadcast(self, name: str, root: Expression, shape: tuple[int, ...]) -> str:
        """A result that reads fewer operands than the call has, as large as the call says."""
        read = {n.value for n in walk(root) if n.function == INPUT}
        has_all = self.is_row and bool(read)
        for n in read:
            has_all = has_all or self.types[n].shape == shape
        return (
            name if has_all or (read and self._covers(read, shape)) else self.b.expand(name, shape)
        )

    def _covers(self, read: set[str], shape: tuple[int, ...]) -> bool:
        shapes = [self.types[n].shape for n in read]
        ndim = max(map(len, shapes))
        padded = [(*(1,) * (ndim - len(s)), *s) for s in shapes]
        return tuple(max(sizes) for sizes in zip(*padded, strict=True)) == tuple(map(int, shape))

    # ---- numbers ---------------------------------------------------------------------------------

    def _kind(self, name: str) -> type:
        if name in self.types:
            return int if self.types[name].dtype.is_integer else float
        if name in ("columns", "rows"):
            return int
        return float if isinstance(self.attrs[name], float) else int

    def _scalar(self, name: str) -> Any:
        """The number of a name: of the attrs, or of the shape."""
        if name == "columns":
            return product(self.whole[len(self.whole) - self.row_dims :])
        if name == "rows":
            return self.whole[-2]
        return self.attrs[name]

    def _is_known(self, node: Expression) -> bool:
        """Whether a number is known here: made of no operand and no dynamic size."""
        return all(
            n.value not in self.types and not isinstance(self._scalar(n.value), Size)
            for n in walk(node)
            if n.function == SCALAR
        )

    def _evaluated(self, node: Expression) -> Any:
        found = self.known.get(node)
        if found is None:
            args = [self._evaluated(a) for a in node.args]
            if node.function == CONSTANT:
                found = node.value
            elif node.function == SCALAR:
                found = self._scalar(node.value)
            elif node.function == CAST:
                found = np.asarray(args[0]).astype(dtype_of(node.value).np)[()]
            else:
                found = evaluate(node.function, args)
            self.known[node] = found
        return found

    # ---- nodes -----------------------------------------------------------------------------------

    def as_dtype(self, node: Expression, dtype: DType) -> str:
        """The value of an expression as elements of `dtype`."""
        if node in self.numbers and self._is_known(node):
            return self.b.number(self._evaluated(node), dtype)
        return self.b.cast(self._write(node), dtype, self._dtype(node))

    def _dtype(self, node: Expression) -> DType:
        if node.function == SCALAR and node.value in self.types:
            return self.types[node.value].dtype
        found = self.dtypes[node]
        if isinstance(found, DType):
            return found
        return int64 if found is int else self.number_dtype

    def _write(self, node: Expression) -> str:
        made = self.done.get(node)
        if made is None:
            made = self.done[node] = self._written(node)
        return made

    def _written(self, node: Expression) -> str:
        name = node.function
        if name in UNWRITTEN:
            raise self.call.refuse(UNWRITTEN[name])
        if name == INPUT:
            x = self.operands[node.value]
            return self.b.unsqueeze(x, self.axes) if node.value in self.per_row else x
        if name == SCALAR:
            if node.value in self.types:
                return self.operands[node.value]
            return self.b.number(self._scalar(node.value), self._dtype(node))
        if name == CAST:
            return self._cast(node)
        if name in (COLUMN, ROW):
            return self._places(name)
        if name in ("total", "largest", COLUMN_TOTAL):
            return self._reduced(node)
        dtype = self._dtype(node)
        rule, args = FUNCTIONS[name], list(node.args)
        if name in ("isnan", "isinf", "isfinite"):
            source = self._dtype(args[0])
            return WRITERS[name](self.b, source, self.as_dtype(args[0], source))
        if rule.kind == "bool":
            dtype = self._compared(args)
            if dtype is bool_ and name not in ("eq", "ne"):
                dtype = int32
        elif rule.kind == "logic":
            dtype = bool_
        kinds = [bool_, dtype, dtype] if rule.kind == "choice" else [dtype] * len(args)
        inputs = [self.as_dtype(a, d) for a, d in zip(args, kinds, strict=True)]
        return WRITERS[name](self.b, dtype, *inputs)

    def _cast(self, node: Expression) -> str:
        (x,), target = node.args, dtype_of(node.value)
        source = self._dtype(x)
        return self.b.cast(self._write(x), target, source)

    def _compared(self, args: list[Expression]) -> DType:
        kinds = [self.dtypes[a] for a in args]
        if any(isinstance(k, DType) for k in kinds):
            return compared_dtype(kinds)
        return self.number_dtype if float in kinds else int64

    def _reduced(self, node: Expression) -> str:
        (x,), dtype = node.args, self._dtype(node)
        if node.function == "largest":
            return self.b.reduce("ReduceMax", self.as_dtype(x, dtype), self.axes, keepdims=True)
        summed = self.as_dtype(x, wide(dtype))
        if node.function == COLUMN_TOTAL:
            lead = len(self.whole) - self.row_dims
            made = self.b.reduce("ReduceSum", summed, list(range(lead)))
        else:
            made = self.b.reduce("ReduceSum", summed, self.axes, keepdims=True)
        return self.b.cast(made, dtype, wide(dtype))

    def _places(self, function: str) -> str:
        """int64: the position of each element in its row, or of its row among those of a matrix."""
        count = self.whole[-1] if function == COLUMN else self.whole[-2]
        zero, one = self.b.number(0, int64), self.b.number(1, int64)
        places = self.b("Range", zero, self.b.number(count, int64), one)
        return places if function == COLUMN else self.b.unsqueeze(places, [1])


def evaluate(function: str, args: list[Any]) -> Any:
    """A function of numbers, in float64."""
    with np.errstate(all="ignore"):
        if function == "where":
            return args[1] if args[0] else args[2]
        if function in UFUNCS:
            return getattr(np, UFUNCS[function])(*args)
        own: dict[str, Callable[..., Any]] = {
            "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "rsqrt": lambda x: 1 / np.sqrt(x),
            "relu": lambda x: max(x, 0), "floor": np.floor, "ceil": np.ceil, "round": np.rint,
            "trunc": np.trunc, "erf": math.erf, "erfc": math.erfc,
        }  # fmt: skip
        return own[function](*args)
