"""Expressions in NumPy and CuPy: one ufunc after the other, into planned temporaries.

The plan of an op call says which functions write into which arrays; temporaries are declared as
workspace and shared by values that do not live at the same time. Numbers of the call (scalars,
constants and what is made of them) are computed first, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.expression import (
    CAST,
    CONSTANT,
    FUNCTIONS,
    INPUT,
    REDUCTIONS,
    SCALAR,
    WORD,
    ElementType,
    Expression,
    compared_dtype,
    dtypes_of,
    uniform_nodes,
    walk,
)
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.normal import erfc_of, erfcx_of

UFUNCS = {
    "neg": "negative", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log",
    "log1p": "log1p", "log2": "log2", "log10": "log10", "sqrt": "sqrt", "square": "square",
    "reciprocal": "reciprocal", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "arcsin",
    "acos": "arccos", "atan": "arctan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "abs": "absolute", "sign": "sign",
    "logical_not": "logical_not", "bitwise_not": "invert", "isnan": "isnan", "isinf": "isinf",
    "isfinite": "isfinite", "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide",
    "pow": "power", "maximum": "maximum", "minimum": "minimum", "fmod": "fmod",
    "floor_divide": "floor_divide", "atan2": "arctan2", "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
}  # fmt: skip
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint"}


# ---- functions without a ufunc -------------------------------------------------------------------


def _rounding(name: str) -> Callable[..., None]:
    def run(xp: Any, out: Any, x: Any) -> None:
        if x.dtype.kind in "iub":  # round already; not every NumPy has the loops
            out[...] = x
        else:
            getattr(xp, name)(x, out=out)

    return run


def _relu(xp: Any, out: Any, x: Any) -> None:
    xp.maximum(x, x.dtype.type(0), out=out)


def _rsqrt(xp: Any, out: Any, x: Any) -> None:
    xp.sqrt(x, out=out)
    xp.reciprocal(out, out=out)


def _sigmoid(xp: Any, out: Any, x: Any) -> None:
    # exp(-x) may overflow to infinity, whose reciprocal is the right 0; the form with tanh would
    # lose the tail.
    xp.negative(x, out=out)
    xp.exp(out, out=out)
    xp.add(out, x.dtype.type(1), out=out)
    xp.reciprocal(out, out=out)


def _erf(xp: Any, out: Any, x: Any) -> None:
    if xp is not np:
        from cupyx.scipy.special import erf

        erf(x, out=out)
        return
    flat = out.reshape(-1)
    for i, value in enumerate(x.flat):
        flat[i] = math.erf(value)


def _erfc(xp: Any, out: Any, x: Any) -> None:
    if xp is not np:
        from cupyx.scipy.special import erfc

        erfc(x, out=out)
        return
    out[...] = erfc_of(x)


def _erfcx(xp: Any, out: Any, x: Any) -> None:
    if xp is not np:
        from cupyx.scipy.special import erfcx

        erfcx(x, out=out)
        return
    out[...] = erfcx_of(x)


def _where(xp: Any, out: Any, condition: Any, a: Any, b: Any) -> None:
    xp.copyto(out, b)
    xp.copyto(out, a, where=condition)


def _total(xp: Any, out: Any, x: Any) -> None:
    x.sum(axis=_reduced_dims(out, x), keepdims=True, dtype=out.dtype, out=out)


def _largest(xp: Any, out: Any, x: Any) -> None:
    if x.size:
        x.max(axis=_reduced_dims(out, x), keepdims=True, out=out)


def _reduced_dims(out: Any, x: Any) -> tuple[int, ...]:
    return tuple(d for d, (a, b) in enumerate(zip(out.shape, x.shape, strict=True)) if a != b)


_OWN: dict[str, Callable[..., None]] = {
    **{name: _rounding(function) for name, function in _ROUNDINGS.items()},
    "relu": _relu, "rsqrt": _rsqrt, "sigmoid": _sigmoid, "erf": _erf, "erfc": _erfc,
    "erfcx": _erfcx,    "where": _where, "total": _total, "largest": _largest,
}  # fmt: skip
_READS_AFTER_WRITING = ("where", "total", "largest", "erf", "erfc", "erfcx", "round",
                         "floor", "ceil", "trunc", CAST)  # fmt: skip


def _copy(xp: Any, out: Any, x: Any) -> None:
    xp.copyto(out, x, casting="unsafe")


# ---- planning ------------------------------------------------------------------------------------


@dataclass
class Step:
    """function(xp, out, *args). target: a slot.  args: slots, or (number, dtype it is taken in).

    Slots: outputs, then inputs, then temporaries; -1: the array of random words.
    """

    function: Callable[..., None]
    target: int
    args: tuple[Any, ...]


@dataclass
class Plan:
    """The steps of one op call and the types of its temporaries."""

    steps: list[Step]
    workspace: tuple[TensorType, ...]
    numbers: list[Expression] = field(default_factory=list)


class Planner:
    """Plans `outputs` for inputs of certain types.

    mutates: output index -> input whose array it is; it is written when nothing reads it any more.
    """

    def __init__(
        self,
        outputs: tuple[Expression, ...],
        names: tuple[str, ...],
        in_types: tuple[TensorType, ...],
        out_types: tuple[TensorType, ...],
        kinds: dict[str, type],
        mutates: dict[int, int],
        row_dims: int = 1,
    ) -> None:
        self.row_dims = row_dims
        self.outputs, self.in_types, self.out_types = outputs, in_types, out_types
        self.slot_of = {name: len(outputs) + i for i, name in enumerate(names)}
        self.shapes = dict(zip(names, (t.shape for t in in_types), strict=True))
        self.types = dtypes_of(
            outputs, dict(zip(names, (t.dtype for t in in_types), strict=True)), kinds
        )
        self.order = list(walk(*outputs))
        self.numbers = uniform_nodes(*outputs)
        self.mutates = mutates
        self.wide = self._is_widened()

    def _is_widened(self) -> bool:
        """Is half precision computed in float32? One function rounds once anyway."""
        count = sum(1 for n in self.order if n.args and n not in self.numbers)
        return count > 1

    def _dtype(self, node: Expression) -> DType:
        kind = self.types[node]
        assert isinstance(kind, DType)
        if self.wide and kind.is_floating_point and kind.bytes < 4:
            return dtypes.float32
        return kind

    def _shape(self, node: Expression, known: dict[Expression, tuple[int, ...]]) -> Any:
        if node.function == INPUT:
            return self.shapes[node.value]
        if node.function == WORD:
            return self.out_types[0].shape
        shape = np.broadcast_shapes(*(known[a] for a in node.args if a not in self.numbers))
        if node.function not in REDUCTIONS:
            return shape
        kept = len(shape) - self.row_dims if self.row_dims > 0 else 0
        return (*shape[:kept], *(1,) * (len(shape) - kept))

    def plan(self) -> Plan:
        uses: dict[Expression, int] = {}
        for node in self.order:
            for arg in node.args:
                uses[arg] = uses.get(arg, 0) + 1
        finals = {root: i for i, root in reversed(list(enumerate(self.outputs)))}
        last_read = {
            node.value: max(
                (k for k, user in enumerate(self.order) if node in user.args), default=-1
            )
            for node in self.order if node.function == INPUT
        }  # fmt: skip
        names = list(self.slot_of)
        self.shape_of: dict[Expression, tuple[int, ...]] = {}
        self.steps: list[Step] = []
        self.temporaries: list[TensorType] = []
        self.free: dict[TensorType, list[int]] = {}
        place: dict[Expression, int] = {}
        late: list[tuple[int, Expression]] = []
        for k, node in enumerate(self.order):
            if node in self.numbers:
                continue
            self.shape_of[node] = self._shape(node, self.shape_of)
            if node.function == INPUT:
                place[node] = self._widened_input(node)
                continue
            if node.function == WORD:
                place[node] = -1
                continue
            out = finals.get(node)
            is_safe = False
            if out is not None and self.out_types[out] == TensorType(
                self.shape_of[node], self._dtype(node)
            ):
                source = self.mutates.get(out)
                is_safe = source is None or last_read.get(names[source], -1) < k or (
                    last_read[names[source]] == k and node.function not in _READS_AFTER_WRITING
                )  # fmt: skip
            target = out if is_safe and out is not None else self._temporary(node)
            self._emit(node, target, place)
            place[node] = target
            for arg in set(node.args):
                uses[arg] -= node.args.count(arg)
                self._release(arg, place, uses, finals)
        for i, root in enumerate(self.outputs):
            if root in self.numbers or place[root] != i:
                late.append((i, root))
        for i, root in late:
            is_number = root in self.numbers
            origin: Any = (root, self.out_types[i].dtype) if is_number else place[root]
            self.steps.append(Step(_copy, i, (origin,)))
        numbers = [n for n in self.order if n in self.numbers]
        return Plan(self.steps, tuple(self.temporaries), numbers)

    def _widened_input(self, node: Expression) -> int:
        slot = self.slot_of[node.value]
        kind = self.types[node]
        if self._dtype(node) is kind:
            return slot
        target = self._temporary(node)
        self.steps.append(Step(_copy, target, (slot,)))
        return target

    def _temporary(self, node: Expression) -> int:
        wanted = TensorType(self.shape_of[node], self._dtype(node))
        free = self.free.get(wanted)
        if free:
            return free.pop()
        self.temporaries.append(wanted)
        return len(self.outputs) + len(self.in_types) + len(self.temporaries) - 1

    def _release(
        self,
        node: Expression,
        place: dict[Expression, int],
        uses: dict[Expression, int],
        finals: dict[Expression, int],
    ) -> None:
        slot = place.get(node, -1)
        first = len(self.outputs) + len(self.in_types)
        if uses[node] == 0 and slot >= first and node not in finals:
            self.free.setdefault(self.temporaries[slot - first], []).append(slot)

    def _emit(self, node: Expression, target: int, place: dict[Expression, int]) -> None:
        args = tuple(
            (arg, self._taken_as(node, i)) if arg in self.numbers else place[arg]
            for i, arg in enumerate(node.args)
        )
        if node.function == CAST:
            if self.wide and dtype_of(node.value).bytes < 4:  # rounds, and stays wide
                narrow = _rounded_to(dtype_of(node.value))
                self.steps.append(Step(narrow, target, args))
                return
            self.steps.append(Step(_copy, target, args))
            return
        own = _OWN.get(node.function)
        self.steps.append(Step(own or _ufunc(UFUNCS[node.function]), target, args))

    def _taken_as(self, node: Expression, i: int) -> DType:
        """The dtype in which a number enters a function."""
        kind = FUNCTIONS[node.function].kind
        if kind == "logic" or (kind == "choice" and i == 0):
            return dtypes.bool_
        if kind == "bool":
            return compared_dtype([self._kind(a) for a in node.args])
        return self._dtype(node)

    def _kind(self, node: Expression) -> ElementType:
        kind = self.types[node]
        return self._dtype(node) if isinstance(kind, DType) else kind


def _ufunc(name: str) -> Callable[..., None]:
    def run(xp: Any, out: Any, *args: Any) -> None:
        getattr(xp, name)(*args, out=out)

    return run


def _rounded_to(dtype: DType) -> Callable[..., None]:
    def run(xp: Any, out: Any, x: Any) -> None:
        out[...] = x.astype(dtype.np)

    return run


# ---- running -------------------------------------------------------------------------------------


def numbers_of(plan: Plan, xp: Any, scalars: dict[str, Any]) -> dict[Expression, Any]:
    """The value of each number. scalars: Python numbers, or 0-d arrays, which stay on their
    device."""
    found: dict[Expression, Any] = {}
    for node in plan.numbers:
        if node.function == CONSTANT:
            found[node] = _wide(node.value)
        elif node.function == SCALAR:
            found[node] = _wide(scalars[node.value])
        elif node.function == CAST:
            found[node] = found[node.args[0]].astype(dtype_of(node.value).np)
        elif node.function == "where":
            condition, a, b = (found[a] for a in node.args)
            found[node] = xp.where(condition, a, b)[()]
        elif node.function in _ROUNDINGS:
            found[node] = getattr(xp, _ROUNDINGS[node.function])(found[node.args[0]])
        else:
            found[node] = getattr(xp, UFUNCS[node.function])(*(found[a] for a in node.args))
    return found


def _wide(value: Any) -> Any:
    """A number in the widest type of its kind."""
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return np.int64(value)
    if isinstance(value, float):
        return np.float64(value)
    return value.astype(np.float64 if value.dtype.kind == "f" else np.int64)[()]


def run_plan(
    plan: Plan, xp: Any, arrays: tuple[Any, ...], scalars: dict[str, Any], words: Any = None
) -> None:
    """arrays: outputs, inputs, temporaries."""
    numbers = numbers_of(plan, xp, scalars) if plan.numbers else {}
    for step in plan.steps:
        args = [
            numbers[a[0]].astype(a[1].np) if isinstance(a, tuple) else words if a < 0 else arrays[a]
            for a in step.args
        ]
        step.function(xp, arrays[step.target], *args)
