"""Expressions in NumPy and CuPy: one ufunc after the other, into planned temporaries.

The plan of an op call says which functions write into which arrays; temporaries are declared as
workspace and shared by values that do not live at the same time. Numbers of the call (scalars,
constants and values made of them) are computed first, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any, TypeAlias

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import ArgumentError
from oneflow.core.expression import (
    CAST,
    COLUMN,
    COLUMN_TOTAL,
    CONSTANT,
    FUNCTIONS,
    INPUT,
    REDUCTIONS,
    ROW,
    SCALAR,
    WORD,
    ElementType,
    Expression,
    compared_dtype,
    dtypes_of,
    uniform_nodes,
    walk,
)
from oneflow.core.rng import Rng
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import device_of, to_host
from oneflow.kernels.normal import erfc_of, erfcx_of
from oneflow.kernels.sums import is_long_chain, sum_in_blocks

Scalar: TypeAlias = float | Array
"""A number of a call, or a 0-d array, which stays on its device."""

UFUNCS = {
    "neg": "negative", "exp": "exp", "exp_down": "exp", "exp2": "exp2", "expm1": "expm1",
    "log": "log",
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
    "hypot": "hypot", "copysign": "copysign", "nextafter": "nextafter", "gcd": "gcd", "lcm": "lcm",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
}  # fmt: skip
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint"}


# ---- functions without a ufunc -------------------------------------------------------------------


def _rounding(name: str) -> Callable[..., None]:
    def run(xp: ArrayModule, out: Array, x: Array) -> None:
        if x.dtype.kind in "iub":  # round already; not every NumPy has the loops
            out[...] = x
        else:
            getattr(xp, name)(x, out=out)

    return run


def _relu(xp: ArrayModule, out: Array, x: Array) -> None:
    xp.maximum(x, x.dtype.type(0), out=out)


def _rsqrt(xp: ArrayModule, out: Array, x: Array) -> None:
    xp.sqrt(x, out=out)
    xp.reciprocal(out, out=out)


def _sigmoid(xp: ArrayModule, out: Array, x: Array) -> None:
    # exp(-x) may overflow to infinity, whose reciprocal is the right 0; the form with tanh would
    # lose the tail.
    xp.negative(x, out=out)
    xp.exp(out, out=out)
    xp.add(out, x.dtype.type(1), out=out)
    xp.reciprocal(out, out=out)


def _special(name: str, of_host: Callable[[Array], Array]) -> Callable[..., None]:
    """A function that NumPy has not: ours on the host, CuPy's on its GPUs."""

    def run(xp: ArrayModule, out: Array, x: Array) -> None:
        if xp is np:
            out[...] = of_host(x)
        elif xp.__name__ == "cupy":
            import cupyx.scipy.special

            getattr(cupyx.scipy.special, name)(x, out=out)
        else:
            device_of(out).copy(out, of_host(to_host(x)).astype(out.dtype))

    return run


def _erf_of(x: Array) -> Array:
    found: Array = np.fromiter(map(math.erf, x.flat), np.float64, x.size).reshape(x.shape)
    return found


_scaled_tail = _special("erfcx", erfcx_of)


def _gauss(xp: ArrayModule, out: Array, x: Array) -> None:
    xp.square(x, out=out)
    xp.multiply(out, x.dtype.type(-0.5), out=out)
    xp.exp(out, out=out)


def _normal_tail(xp: ArrayModule, out: Array, x: Array) -> None:
    _scaled_tail(xp, out, x * x.dtype.type(math.sqrt(0.5)))
    xp.multiply(out, x.dtype.type(0.5), out=out)


def _where(xp: ArrayModule, out: Array, condition: Array, a: Array, b: Array) -> None:
    xp.copyto(out, b)
    xp.copyto(out, a, where=condition)


def _reduction(name: str, dims: tuple[int, ...]) -> Callable[..., None]:
    """The sum or maximum over dims. NumPy's methods take a microsecond longer than the ufunc."""

    def run_total(xp: ArrayModule, out: Array, x: Array) -> None:
        if xp is np:
            np.add.reduce(x, dims, out.dtype, out, keepdims=True)
        else:
            x.sum(axis=dims, keepdims=True, dtype=out.dtype, out=out)

    def run_largest(xp: ArrayModule, out: Array, x: Array) -> None:
        if xp is not np:
            x.max(axis=dims, keepdims=True, out=out)
        elif x.size:
            np.maximum.reduce(x, dims, None, out, keepdims=True)

    return run_total if name == "total" else run_largest


def _sum_over_rows(lead: int) -> Callable[..., None]:
    """The sum over the dims before a row's."""

    def run(xp: ArrayModule, out: Array, x: Array) -> None:
        dims = tuple(range(lead))
        if is_long_chain(xp, x, dims):
            out[...] = sum_in_blocks(x, dims, out.dtype).reshape(out.shape)
        else:
            x.sum(axis=dims, dtype=out.dtype, out=out)

    return run


_OWN: dict[str, Callable[..., None]] = {
    **{name: _rounding(function) for name, function in _ROUNDINGS.items()},
    "relu": _relu, "rsqrt": _rsqrt, "sigmoid": _sigmoid, "erf": _special("erf", _erf_of),
    "erfc": _special("erfc", erfc_of),
    "erfcx": _scaled_tail, "gauss": _gauss, "normal_tail": _normal_tail, "where": _where,
}  # fmt: skip
_READS_AFTER_WRITING = ("where", "total", "largest", COLUMN_TOTAL, "erf", "erfc", "erfcx", "round",
                         "floor", "ceil", "trunc", CAST)  # fmt: skip


_SEVERAL_STEPS = (*REDUCTIONS, COLUMN_TOTAL, "rsqrt", "sigmoid", "gauss", "normal_tail")


def _copy(xp: ArrayModule, out: Array, x: Array) -> None:
    xp.copyto(out, x, casting="unsafe")


# ---- planning ------------------------------------------------------------------------------------


Arg: TypeAlias = int | tuple[Expression, DType]
"""A slot, or a number and the dtype in which it is taken."""


@dataclass
class Step:
    """function(xp, out, *args), or the ufunc of that name. target: a slot.  args: slots, or
    (number, dtype it is taken in).

    Slots: outputs, then inputs, then temporaries; -3: positions of rows; -2: positions in
    a row; -1: random words.
    """

    function: Callable[..., None] | str
    target: int
    args: tuple[Arg, ...]


@dataclass
class Plan:
    """The steps of one op call and the types of its temporaries."""

    steps: list[Step]
    workspace: tuple[TensorType, ...]
    numbers: list[Expression] = field(default_factory=list)


class Planner:
    """Plans `outputs` for inputs of certain types.

    mutates: output index -> input whose array it is; it is written when nothing reads it any more.
    lead: number of dims before those of a row.
    """

    def __init__(
        self,
        outputs: tuple[Expression, ...],
        names: tuple[str, ...],
        in_types: tuple[TensorType, ...],
        out_types: tuple[TensorType, ...],
        kinds: dict[str, type],
        mutates: dict[int, int],
        lead: int,
    ) -> None:
        self.lead = lead
        self.outputs, self.in_types, self.out_types = outputs, in_types, out_types
        self.slot_of = {name: len(outputs) + i for i, name in enumerate(names)}
        self.shapes = dict(zip(names, (t.shape for t in in_types), strict=True))
        self.types = dtypes_of(
            outputs, dict(zip(names, (t.dtype for t in in_types), strict=True)), kinds
        )
        self.order = list(walk(*outputs))
        self.numbers = uniform_nodes(*outputs)
        self.whole = np.broadcast_shapes(*(t.shape for t in (*in_types, *out_types)))
        self.mutates = mutates
        self.wide = self._is_widened()

    def _is_widened(self) -> bool:
        """Is half precision computed in float32? One function of NumPy's rounds once anyway."""
        found = [n.function for n in self.order if n.args and n not in self.numbers]
        return len(found) > 1 or any(name in _SEVERAL_STEPS for name in found)

    def _dtype(self, node: Expression) -> DType:
        kind = self.types[node]
        assert isinstance(kind, DType)
        if self.wide and kind.is_floating_point and kind.bytes < 4:
            return dtypes.float32
        return kind

    def _shape(self, node: Expression, known: dict[Expression, tuple[int, ...]]) -> tuple[int, ...]:
        if node.function == INPUT:
            return self.shapes[node.value]
        if node.function == WORD:
            return self.out_types[0].shape
        if node.function == COLUMN:
            return (self.whole[-1],)
        if node.function == ROW:
            return (self.whole[-2], 1)
        shape = np.broadcast_shapes(*(known[a] for a in node.args if a not in self.numbers))
        if node.function == COLUMN_TOTAL:
            return shape[self.lead :]
        if node.function not in REDUCTIONS:
            return shape
        own = self._lead_of(shape)
        return (*shape[:own], *(1,) * (len(shape) - own))

    def _lead_of(self, shape: tuple[int, ...]) -> int:
        """The number of dims before those of a row, which are the last ones, of a value that may
        lack some of them."""
        return max(len(shape) - (len(self.whole) - self.lead), 0)

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
            if node.function in (WORD, COLUMN, ROW):
                place[node] = (ROW, COLUMN, WORD).index(node.function) - 3
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
        if node.function in REDUCTIONS:
            shape = self.shape_of[node.args[0]]
            dims = tuple(d for d in range(self._lead_of(shape), len(shape)) if shape[d] != 1)
            self.steps.append(Step(_reduction(node.function, dims), target, args))
            return
        if node.function == COLUMN_TOTAL:
            self.steps.append(Step(_sum_over_rows(self.lead), target, args))
            return
        own = _OWN.get(node.function)
        self.steps.append(Step(own or UFUNCS[node.function], target, args))

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


def _rounded_to(dtype: DType) -> Callable[..., None]:
    def run(xp: ArrayModule, out: Array, x: Array) -> None:
        out[...] = x.astype(dtype.np)

    return run


# ---- the function of a plan ----------------------------------------------------------------------


_ZERO = "zero"
ARRAY = "x_{}"
"""The name of an input's array in the text."""


@lru_cache(maxsize=1024)
def _code(text: str, title: str) -> CodeType:
    return compile(text, __file__.replace("numpy_form", title), "exec")


class Writer:
    """Writes a plan as the text of one Python function, so that a call is that and NumPy's work.

    As steps that a loop goes through, six small ufuncs took 30 us; as text they take 8. Values that
    follow from numbers known beforehand are computed here, in float64; those that follow from 0-d
    arrays, in each call, on their device.
    """

    def __init__(self, plan: Plan, names: Sequence[str], numbers: dict[str, float]) -> None:
        self._names = names
        self._numbers, self._scalars, self._steps = plan.numbers, numbers, plan.steps
        self._lines: list[str] = []
        self.values: dict[str, Any] = {"words_of": _words}
        self._known: dict[Expression, Any] = {}
        self._places: dict[tuple[Expression, DType | None], str] = {}
        for step in plan.steps:
            args = [self._argument(a) for a in step.args]
            target = names[step.target]
            if isinstance(step.function, str):
                self._lines.append(f"xp.{step.function}({', '.join(args)}, out={target})")
            else:
                own = self._value(step.function)
                self._lines.append(f"{own}(xp, {', '.join([target, *args])})")

    def function(
        self, parameters: Sequence[str], first: Sequence[str], title: str
    ) -> Callable[..., None]:
        """`function(xp, *arrays, rng=..., **attrs)`. parameters: names of all arrays of a call.
        first: lines that come before all others.
        """
        head = f"def kernel(xp, {', '.join(parameters)}, rng=None, **_):"
        text = "\n    ".join([head, *first, *self._lines, "return None"])
        exec(_code(text, title), self.values)
        made: Callable[..., None] = self.values["kernel"]
        if not first:
            made.__dict__["ufunc"] = self._one_ufunc(parameters)
        return made

    def _one_ufunc(self, parameters: Sequence[str]) -> tuple[Any, ...]:
        """The ufunc that a call is, then its arguments: places of parameters, arrays of numbers, or
        0.0 for the zero of their dtype; () for any other call. Machine code calls it at once
        (oneflow/tensor/shortcuts.py)."""
        if len(self._steps) != 1:
            return ()
        (step,) = self._steps
        function = "maximum" if step.function is _relu else step.function
        if not isinstance(function, str):
            return ()
        args = [self._argument(a) for a in step.args] + ([_ZERO] if step.function is _relu else [])
        known: dict[str, Any] = {name: place for place, name in enumerate(parameters)}
        known |= {name: np.array(x) for name, x in self.values.items() if np.isscalar(x)}
        known[_ZERO] = 0.0
        found = [known.get(name) for name in (*args, self._names[step.target])]
        if any(x is None for x in found):
            return ()
        return getattr(np, function), *found

    def _argument(self, arg: Arg) -> str:
        if isinstance(arg, tuple):
            return self._number(*arg)
        return self._names[arg] if arg >= 0 else ("rows", "columns", "words")[arg]

    def _value(self, value: object) -> str:
        name = f"k{len(self.values)}"
        self.values[name] = value
        return name

    def _number(self, node: Expression, dtype: DType | None = None) -> str:
        """The name of a number's value, in a dtype or in the widest of its kind."""
        found = self._places.get((node, dtype))
        if found is None:
            found = self._places[node, dtype] = self._computed(node, dtype)
        return found

    def _computed(self, node: Expression, dtype: DType | None) -> str:
        if self._is_known(node):
            value = self._evaluated(node)
            return self._value(value if dtype is None else value.astype(dtype.np))
        if dtype is not None:
            return self._line(f"{self._number(node)}.astype({self._value(dtype.np)})")
        if node.function == SCALAR:
            array = ARRAY.format(node.value)
            kind = f"{array}.dtype.kind not in 'biu'"
            wide = f"{self._value(np.float64)} if {kind} else {self._value(np.int64)}"
            return self._line(f"{array}.astype({wide})[()]")
        args = [self._number(a) for a in node.args]
        if node.function == CAST:
            return self._line(f"{args[0]}.astype({self._value(dtype_of(node.value).np)})")
        name = {**UFUNCS, **_ROUNDINGS, "where": "where"}[node.function]
        end = "[()]" if node.function == "where" else ""
        return self._line(f"xp.{name}({', '.join(args)}){end}")

    def _line(self, text: str) -> str:
        name = f"v{len(self._lines)}"
        self._lines.append(f"{name} = {text}")
        return name

    def _is_known(self, node: Expression) -> bool:
        return all(n.value in self._scalars for n in walk(node) if n.function == SCALAR)

    def _evaluated(self, node: Expression) -> Any:
        if node in self._known:
            return self._known[node]
        args = [self._evaluated(a) for a in node.args]
        if node.function == CONSTANT:
            found: Any = _wide(node.value)
        elif node.function == SCALAR:
            found = _wide(self._scalars[node.value])
        elif node.function == CAST:
            found = args[0].astype(dtype_of(node.value).np)
        elif node.function in UFUNCS or node.function == "where":
            with np.errstate(all="ignore"):
                found = getattr(np, UFUNCS.get(node.function, "where"))(*args)[()]
        else:  # of numbers alone, as the sigmoid of a beta of 0 is
            place = np.empty(np.broadcast_shapes(*map(np.shape, args)), np.float64)
            with np.errstate(all="ignore"):
                _OWN[node.function](np, place, *map(np.asarray, args))
            found = place[()]
        self._known[node] = found
        return found


def _wide(value: float) -> np.generic:
    """A number in the widest type of its kind."""
    wide: np.generic
    if isinstance(value, bool):
        wide = np.bool_(value)
    elif isinstance(value, int):
        try:
            wide = np.int64(value)
        except OverflowError:
            raise ArgumentError(
                f"Overflow when unpacking long: {value} has more than 64 bits"
            ) from None
    else:
        wide = np.float64(value)
    return wide


def _words(xp: ArrayModule, rng: Rng, out: Array) -> Array:
    words: Array = rng.words(out.shape)[0].astype(np.int64)
    return words if xp is np else xp.asarray(words)
