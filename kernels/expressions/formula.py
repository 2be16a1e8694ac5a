"""One call of an op that is declared by a formula: its expressions, and their inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from oneflow.core.dtype import DType
from oneflow.core.expression import (
    COLUMN_TOTAL,
    CONSTANT,
    INPUT,
    ROW,
    ROW_FUNCTIONS,
    SCALAR,
    WORD,
    Expression,
    cast,
    dtypes_of,
    row_values,
    symbol,
    walk,
)
from oneflow.core.op import Op, infer_types, operand_names
from oneflow.core.operand import attrs_key
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array
from oneflow.kernels.expressions.passes import Passes
from oneflow.kernels.threads import LEAST_SHARED

_COMPUTED = frozenset(
    (
        "bool",
        "int8",
        "uint8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    )
)
_FASTER_COMPILED = (
    "exp", "exp_down", "expm1", "log", "log1p", "tanh", "erf", "erfc", "erfcx", "sigmoid", "where",
    "gauss", "normal_tail",
)  # fmt: skip
COSTLY = frozenset((*_FASTER_COMPILED, WORD)) - {"where"}
"""Functions that take longer than to read what they gave."""
_SCALAR = frozenset(
    ("exp2", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
     "acosh", "atanh", "pow", "atan2", "fmod")
)  # fmt: skip
"""Functions of the C library, one number at a time."""
_TIMES = {
    **dict.fromkeys((INPUT, SCALAR, CONSTANT), 0.0),
    **dict.fromkeys(COSTLY, 2.0),
    **dict.fromkeys(_SCALAR, 40.0),
    WORD: 12.0,
}
"""Times of functions, in that of an addition with its loads and stores; of all others 0.2."""
_FLOATS_ONLY = ("floor_divide", "fmod", "pow", "isinf", "isfinite", "reciprocal")

_NUMPY_ONLY = (
    "hypot", "copysign", "nextafter", "gcd", "lcm", "bitwise_left_shift", "bitwise_right_shift",
)  # fmt: skip


class Formula:
    """The expressions of one op call.

    outputs: those that are computed; at: their output indices; sums: positions of those that are
    sums over rows. An output that is the very input whose array it overwrites is left out.
    single: positions of those with one value per row.
    arrays: names of the inputs that are read.  fed: inputs that are scalars (0-d arrays), by name
    with their index.  numbers: scalars from attrs.
    array_types, out_types: those with one element per row have 1 in place of the row's dims.
    """

    def __init__(self, op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Any]) -> None:
        assert op.formula is not None
        attrs = op.defaults | attrs
        self.op, self.types = op, types
        names = operand_names(op, len(types))
        self.names = names
        made = op.formula(*types, **attrs)
        roots: tuple[Expression, ...] = made if isinstance(made, tuple) else (made,)
        kept = [
            i for i, root in enumerate(roots)
            if not (i in op.mutates and root is symbol(names[op.mutates[i]]))
        ]  # fmt: skip
        self.outputs, self.at = tuple(roots[i] for i in kept), kept
        nodes = list(walk(*self.outputs))
        wanted = [n.value for n in nodes if n.function == SCALAR]
        read = {n.value for n in nodes if n.function == INPUT}
        self.fed = {n: names.index(n) for n in wanted if n in names}
        given = [n for n in wanted if n in attrs and n not in self.fed]
        self.numbers: dict[str, float] = {n: attrs[n] for n in given}
        self.draws = any(n.function == WORD for n in nodes)
        self.per_row = per_row = op.rows(attrs)
        self.is_row = bool(per_row) or any(n.function in ROW_FUNCTIONS for n in nodes)
        self.arrays = tuple(n for n in names if n in read)
        self.sums = tuple(i for i, r in enumerate(self.outputs) if r.function == COLUMN_TOTAL)
        self.row_dims = op.row_dims(*types, **attrs) if self.is_row else 0
        self.array_types = tuple(
            self._in_rows(types[names.index(n)], n in per_row) for n in self.arrays
        )
        every = infer_types(op, types, attrs)
        self.num_outputs = len(every)
        self._full_outputs = [every[i] for i in kept]
        values = row_values(per_row, *self.outputs)
        self.single = frozenset(
            k for k, r in enumerate(self.outputs) if self.is_row and r in values
        )
        self.out_types = tuple(
            self._in_rows(every[i], k in self.single) for k, i in enumerate(kept)
        )
        shapes = [t.shape for t in (*self.array_types, *self.out_types)]
        self.whole = np.broadcast_shapes(*shapes)
        self.lead = len(self.whole) - self.row_dims
        self.num_rows = math.prod(self.whole[: self.lead])
        if any(n.function == ROW for n in nodes):
            self.numbers["rows"] = self.whole[-2]
        if "columns" in wanted:
            self.numbers["columns"] = math.prod(self.whole[self.lead :])

    def _in_rows(self, t: TensorType, is_per_row: bool) -> TensorType:
        is_short = self.is_row and is_per_row
        return t.with_shape((*t.shape, *(1,) * self.row_dims)) if is_short else t

    def joined(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape with one dim in place of those of a row."""
        lead = len(shape) - self.row_dims
        return (*shape[:lead], math.prod(shape[lead:])) if self.is_row else shape

    def missing_dims(self) -> dict[int, int]:
        """Positions among outputs, then arrays, of those that lack the row's dims, and their
        number."""
        every = (*self._full_outputs, *(self.types[self.names.index(n)] for n in self.arrays))
        short = zip((*self.out_types, *self.array_types), every, strict=True)
        return {
            i: mine.ndim - own.ndim for i, (mine, own) in enumerate(short) if mine.ndim != own.ndim
        }

    @cached_property
    def can_compile(self) -> bool:
        """Is there machine code for every function with these types? NumPy has more."""
        arrays = (*self.out_types, *self.array_types)
        if not all(t.dtype.name in _COMPUTED for t in arrays):
            return False
        inputs = {n: t.dtype for n, t in zip(self.arrays, self.array_types, strict=True)}
        types = dtypes_of(self.outputs, inputs, self.kinds())
        for node in walk(*self.outputs):
            if node.function in _NUMPY_ONLY:
                return False
            kind = types[node.args[0]] if node.args else None
            is_integer = isinstance(kind, DType) and not kind.is_floating_point
            if node.function in _FLOATS_ONLY and is_integer:
                return False
        return True

    @cached_property
    def converted(self) -> tuple[Expression, ...]:
        """The outputs in the dtypes that they are stored in. A sum over rows stays the last
        function: its array has a dtype of its own."""
        inputs = {n: t.dtype for n, t in zip(self.arrays, self.array_types, strict=True)}
        types = dtypes_of(self.outputs, inputs, self.kinds())
        pairs = zip(self.outputs, self.out_types, strict=True)
        return tuple(
            root if types[root] is t.dtype or root.function == COLUMN_TOTAL else cast(root, t.dtype)
            for root, t in pairs
        )

    @cached_property
    def passes(self) -> int:
        """Number of passes over a row that end in a reduction."""
        return Passes(self.outputs, self.per_row).last

    @cached_property
    def is_end(self) -> bool:
        """Does it reduce its inputs in one pass, and nothing else?"""
        return self.passes == 1 and len(self.single) == len(self.outputs)

    @cached_property
    def elements(self) -> int:
        """The elements that two floats are added of in the time of its loop (see `LEAST_SHARED` in
        kernels/threads.py), as measured of loops in the second cache."""
        time = 0.0
        for node in walk(*self.outputs):
            name = node.function
            time += _TIMES.get(name, 0.2)
        whole = math.prod(self.whole)
        nbytes = sum(t.nbytes for t in (*self.out_types, *self.array_types))
        return int(time * whole + nbytes / 16)

    @cached_property
    def costly(self) -> str:
        """A function that it computes which takes longer than to read its result; or ""."""
        return next((n.function for n in walk(*self.outputs) if n.function in COSTLY), "")

    def has_half(self) -> bool:
        return any(t.dtype.name == "float16" for t in (*self.out_types, *self.array_types))

    def is_one_ufunc(self) -> bool:
        """Is it one function that NumPy has and computes as fast as a loop of ours on one thread,
        and is one thread enough?"""
        made = [n for root in self.outputs for n in walk(root) if n.args or n is root]
        name = made[0].function
        if len(made) > 1 or name in _FASTER_COMPILED:
            return False
        return name in _SCALAR or self.elements < LEAST_SHARED

    def kinds(self) -> dict[str, type]:
        """Are the scalars whole numbers?"""
        fed = {n: int if self.types[i].dtype.is_integer else float for n, i in self.fed.items()}
        own = {n: float if isinstance(v, float) else int for n, v in self.numbers.items()}
        return {**own, **fed}

    def mutates(self) -> dict[int, int]:
        """Computed output -> array whose memory it is, by their positions here."""
        names = self.names
        return {
            self.at.index(out): self.arrays.index(names[source])
            for out, source in self.op.mutates.items()
            if out in self.at and names[source] in self.arrays
        }

    def positions(self) -> list[int]:
        """Return the positions of the outputs and arrays among the arguments of a kernel."""
        names = self.names
        return [*self.at, *(self.num_outputs + names.index(n) for n in self.arrays)]

    def fed_positions(self) -> dict[str, int]:
        return {n: self.num_outputs + i for n, i in self.fed.items()}

    def by_call(self, arrays: Sequence[Array]) -> list[list[Array]]:
        """The outputs, then the inputs of each of several calls. arrays: the outputs of all calls,
        then the inputs of all.
        """
        outs, ins = self.num_outputs, len(self.types)
        calls = len(arrays) // (outs + ins)
        first = calls * outs
        return [
            [*arrays[c * outs : (c + 1) * outs], *arrays[first + c * ins : first + (c + 1) * ins]]
            for c in range(calls)
        ]


_formulas: dict[tuple[object, ...], Formula] = {}
_MOST = 1024


def formula_of(op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Any]) -> Formula:
    """The formula of a call, remembered: its kernel and its workspace are both chosen by it."""
    key = op, types, attrs_key(attrs)
    found = _formulas.get(key)
    if found is None:
        if len(_formulas) >= _MOST:
            _formulas.clear()
        found = _formulas[key] = Formula(op, types, attrs)
    return found
