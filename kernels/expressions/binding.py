"""The way from an op's formula and the types of a call to a kernel: NumPy steps, a compiled loop,
or CUDA.

An op with a `formula` needs no kernel of its own: `kernels/elementwise.py` registers the function
made here under its name.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from oneflow.core.dtype import float32
from oneflow.core.errors import InternalError
from oneflow.core.expression import COLUMN, ROW, walk
from oneflow.core.op import Op
from oneflow.core.rng import Rng
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule, data_address
from oneflow.kernels.expressions.formula import Formula, formula_of
from oneflow.kernels.expressions.layout import Layout, broadcast_strides, contiguous_strides
from oneflow.kernels.expressions.loops import VECTOR_ELEMENTS, LoopArray, Spec, loop_parameters
from oneflow.kernels.expressions.numpy_form import ARRAY, Plan, Planner, Scalar, Writer
from oneflow.kernels.native.machine_code import address_at
from oneflow.kernels.threads import LEAST_SHARED, kernel_threads, num_pieces

# ---- NumPy and CuPy ------------------------------------------------------------------------------

_plans: dict[tuple[object, ...], Plan] = {}
_MOST = 4096
K = TypeVar("K")
V = TypeVar("V")


def _remember(table: dict[K, V], key: K, value: V) -> V:
    if len(table) >= _MOST:
        table.clear()
    table[key] = value
    return value


def _plan_of(formula: Formula) -> Plan:
    """Calls that differ in numbers only share a plan."""
    kinds = formula.kinds()
    key = (formula.op, formula.outputs, formula.types, formula.lead, *kinds.items())
    found = _plans.get(key)
    if found is not None:
        return found
    planner = Planner(
        formula.outputs,
        formula.arrays,
        formula.array_types,
        formula.out_types,
        kinds,
        formula.mutates(),
        formula.lead,
    )
    return _remember(_plans, key, planner.plan())


def numpy_workspace(op: type[Op]) -> Callable[..., tuple[TensorType, ...]]:
    def workspace(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
        return _plan_of(formula_of(op, types, attrs)).workspace

    return workspace


def numpy_kernel(
    op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> Callable[..., None]:
    """One NumPy or CuPy function after the other."""
    formula = formula_of(op, types, attrs)
    plan = _plan_of(formula)
    parameters = [f"out{i}" for i in range(formula.num_outputs)]
    parameters += [ARRAY.format(name) for name in formula.names]
    temporaries = [f"temporary{i}" for i in range(len(plan.workspace))]
    slots = [*[parameters[i] for i in formula.positions()], *temporaries]
    first = []
    for i, extra in formula.missing_dims().items():
        first.append(f"row{i} = {slots[i]}.reshape((*{slots[i]}.shape, {'1, ' * extra}))")
        slots[i] = f"row{i}"
    functions = {n.function for n in walk(*formula.outputs)}
    if COLUMN in functions:
        first.append(f"columns = xp.arange({formula.whole[-1]})")
    if ROW in functions:
        first.append(f"rows = xp.arange({formula.whole[-2]}).reshape(-1, 1)")
    if formula.draws:
        first.append(f"words = words_of(xp, rng, {parameters[0]})")
    writer = Writer(plan, slots, formula.numbers)
    return writer.function([*parameters, *temporaries], first, op.name)


# ---- compiled loops ------------------------------------------------------------------------------

FIRST_ARRAY = 4
"""The word of an array's address in the table of a loop, see `piece_caller`."""
NUM_PARTS = 16
"""Parts into which the rows of a large array are cut for sums over rows: their number is fixed, so
that no sum depends on threads."""


def compiled_workspace(formula: Formula) -> tuple[TensorType, ...]:
    """Rows to add to, one per part, at least float32, for each sum over rows."""
    found = []
    for i in formula.sums:
        t = formula.out_types[i]
        dtype = t.dtype if t.dtype.bytes >= 4 else float32
        found.append(TensorType((_num_parts(formula), t.numel), dtype))
    return tuple(found)


def _num_parts(formula: Formula) -> int:
    return NUM_PARTS if math.prod(formula.whole) >= LEAST_SHARED else 1


class CompiledKernel:
    """The loop of one op call with inputs of certain types; further layouts are compiled when
    arrays come that are not contiguous."""

    def __init__(self, op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Any]) -> None:
        self.formula = formula = formula_of(op, types, attrs)
        self.positions = formula.positions()
        fed = formula.fed_positions()
        self.fed_at = list(fed.values())
        self.numbers: list[Scalar] = list(formula.numbers.values())
        self.kinds = [
            (n, "float" if isinstance(v, float) else "int") for n, v in formula.numbers.items()
        ]
        self.kinds += [(n, types[i].dtype.name) for n, i in formula.fed.items()]
        arrays = (*formula.out_types, *formula.array_types)
        self.dtypes = [t.dtype for t in arrays]
        work = compiled_workspace(formula)
        for i, t in zip(formula.sums, work, strict=True):
            self.dtypes[i] = t.dtype
        first_work = formula.num_outputs + len(types)
        self.sums = [(i, first_work + k) for k, i in enumerate(formula.sums)]
        self.num_parts = _num_parts(formula)
        self._parameters = loop_parameters(len(self.dtypes), self.kinds, formula.draws)
        self._packer = struct.Struct("qqqq" + self._parameters.replace("O", "q") + "qq")
        self.is_row, self.is_joined = formula.is_row, formula.is_row and formula.row_dims != 1
        self.shapes = [formula.joined(t.shape) for t in arrays]
        self.whole = np.broadcast_shapes(*self.shapes)
        self.ndims = [len(shape) for shape in self.shapes]
        strides = [
            contiguous_strides(shape, dtype.bytes)
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        self.layout = self._layout(strides)
        self.function = self._compile(self.layout)
        self.table = self.layout.table() if self.layout.depth > 1 else None
        self.address = 0 if self.table is None else data_address(self.table)
        self.rows = self.layout.sizes[0]
        self.elements = formula.elements
        self._others: dict[tuple[object, ...], tuple[Callable[..., int], Layout]] = {}

    def _layout(self, strides: list[tuple[int, ...]]) -> Layout:
        moved = [
            broadcast_strides(shape, s, self.whole)
            for shape, s in zip(self.shapes, strides, strict=True)
        ]
        sizes = [d.bytes for d in self.dtypes]
        return Layout(self.whole, moved, sizes, self.is_row)

    def _compile(self, layout: Layout) -> Callable[..., int]:
        from oneflow.kernels.expressions import compiled_loop

        self._hand_out, self._caller = compiled_loop.hand_out_loop, compiled_loop.piece_caller
        count = len(self.formula.outputs)
        outputs = tuple(
            (root, LoopArray("", dtype, moves))
            for root, dtype, moves in zip(
                self.formula.outputs, self.dtypes, layout.inner, strict=False
            )
        )
        inputs = tuple(
            LoopArray(name, dtype, moves)
            for name, dtype, moves in zip(
                self.formula.arrays, self.dtypes[count:], layout.inner[count:], strict=False
            )
        )
        whole = layout.sizes[-1] % VECTOR_ELEMENTS == 0
        return compiled_loop.compile_spec(
            Spec(outputs, inputs, tuple(self.kinds), layout.depth, whole)
        )

    def __call__(
        self, xp: ArrayModule, *arrays: Array, rng: Rng | None = None, **_: object
    ) -> None:
        used = tuple([arrays[i] for i in self.positions])
        scalars: list[Scalar] = self.numbers
        if self.fed_at:
            scalars = [*scalars, *[arrays[i] for i in self.fed_at]]
        if rng is not None:
            self._run_drawing(used, scalars, rng)
            return
        if self.sums:
            self._run_summing(used, scalars, arrays)
            return
        if self._run(self.function, used, scalars, self.address, 1, self.layout):
            self._run_strided(used, scalars)

    def _run(
        self,
        function: Callable[..., int],
        used: tuple[Array, ...],
        scalars: Sequence[Scalar | Array],
        table: int,
        check: int,
        layout: Layout,
    ) -> int:
        """Run the loop over all of the outermost dim, in threads where it is large. Returns whether
        it refused its arrays."""
        rows = layout.sizes[0]
        # Sums over rows are of all that this call reads: `_run_summing` has arrays for each part.
        if self.sums or kernel_threads(self.elements) == 1:
            return function(*used, *scalars, table, check, 0, rows)
        # What is one long row is cut into whole vectors.
        unit = VECTOR_ELEMENTS if layout.depth == 1 else 1
        pieces = min(num_pieces(self.elements), rows // unit)
        if pieces < 2:
            return function(*used, *scalars, table, check, 0, rows)
        given = function, rows, unit, pieces
        return self._hand_out_all([self._table(given, used, scalars, table, check)], pieces)

    def _table(
        self,
        loop: tuple[Callable[..., int], int, int, int],
        used: Sequence[Array],
        scalars: Sequence[Scalar | Array],
        table: int,
        check: int,
    ) -> bytes:
        """The table of a piece of a loop. loop: function, size of the outermost dim, unit and
        number of pieces (see `hand_out_loop`)."""
        numbers = [id(s) if isinstance(s, np.ndarray) else s for s in scalars]
        head = (address_at(loop[0]), *loop[1:])
        return self._packer.pack(*head, *map(id, used), *numbers, table, check)

    def _hand_out_all(self, tables: list[bytes], pieces: int) -> int:
        stride = len(tables[0]) if len(tables) > 1 else 0
        return self._hand_out(self._parameters, b"".join(tables), stride, pieces)

    def _run_summing(
        self, used: tuple[Array, ...], scalars: list[Scalar], arrays: tuple[Array, ...]
    ) -> None:
        """Sums over rows: each part of the rows adds to rows of its own, which are added last."""
        work = [(i, arrays[at]) for i, at in self.sums]
        for _, partial in work:
            partial[...] = 0
        count, parts = self.num_parts, []
        for p in range(count):
            own = list(used)
            for i, partial in work:
                own[i] = partial[p]
            parts.append(own)
        if count > 1 and kernel_threads(self.elements) > 1:
            loop = self.function, self.rows, 1, count
            tables = [self._table(loop, own, scalars, self.address, 1) for own in parts]
            refused = self._hand_out_all(tables, count)
        else:
            refused = 0
            for p, own in enumerate(parts):
                ends = self.rows * p // count, self.rows * (p + 1) // count
                refused |= self.function(*own, *scalars, self.address, 1, *ends)
        if refused:
            own = list(used)
            for i, partial in work:
                partial[...] = 0
                own[i] = partial[0]
            self._run_strided(tuple(own), scalars)
        for i, partial in work:
            np.sum(partial, axis=0, out=used[i].reshape(-1))

    def _run_strided(self, arrays: tuple[Array, ...], scalars: list[Scalar]) -> None:
        """Arrays that are not contiguous. Reductions over several dims, and arrays that are not
        aligned, work on copies."""
        if self.is_joined or not all(a.flags.aligned for a in arrays):
            copies = tuple(np.array(a, order="C") for a in arrays)
            self.function(*copies, *scalars, self.address, 1, 0, self.rows)
            count = len(self.formula.outputs)
            for a, made in zip(arrays[:count], copies, strict=False):
                a[...] = made
            return
        key = tuple(
            [(*a.strides, *(0,) * (n - a.ndim)) for a, n in zip(arrays, self.ndims, strict=True)]
        )
        found = self._others.get(key)
        if found is None:
            layout = self._layout(list(key))
            found = self._others[key] = self._compile(layout), layout
        function, layout = found
        table = layout.table()
        self._run(function, arrays, scalars, data_address(table), 0, layout)

    def fixed(self, arrays: Sequence[Array]) -> Callable[..., object]:
        """The call for arrays with the shapes and strides of `arrays`, which it does not look at
        again: 1.5 us instead of 6 with ten arrays that are not contiguous."""
        function, table, end = self._for_layout(arrays)
        ends = (*self.numbers, data_address(table), 0, 0, end)
        positions = self.positions
        if positions == list(range(len(arrays))):
            return lambda *given, _table=table: function(*given, *ends)
        return lambda *given, _table=table: function(*[given[i] for i in positions], *ends)

    def fixed_call(self, arrays: Sequence[Array]) -> tuple[int, Array, int]:
        """The same for other machine code: (address of the function, table, end of the outermost
        dim). Only of formulas without numbers, which would be arguments."""
        if self.numbers or self.fed_at:
            raise InternalError(f"{self.formula.op.name}: its loop takes numbers")
        function, table, end = self._for_layout(arrays)
        return address_at(function), table, end

    def as_words(self) -> tuple[int, list[int]] | None:
        """The call of the loop by other machine code, for arrays that are contiguous: the address
        of a function that takes the address of words, and 0, and returns 0 unless the loop refuses
        its arrays; the words, with the place of an array among those of a call where its address is
        to be, from FIRST_ARRAY on. None for loops that do more, or run in threads."""
        if self.fed_at or self.sums or self.formula.draws or num_pieces(self.elements) > 1:
            return None
        head = address_at(self.function), self.rows, 1, 1
        packed = self._packer.pack(*head, *self.positions, *self.numbers, self.address, 1)
        return self._caller(self._parameters), list(struct.unpack(f"{len(packed) // 8}q", packed))

    def _for_layout(self, arrays: Sequence[Array]) -> tuple[Callable[..., int], Array, int]:
        used = [arrays[i] for i in self.positions]
        strides = [
            (*a.strides, *(0,) * (n - a.ndim)) for a, n in zip(used, self.ndims, strict=True)
        ]
        layout = self._layout(strides)
        return self._compile(layout), layout.table(), layout.sizes[0]

    def _run_drawing(self, arrays: tuple[Array, ...], scalars: list[Scalar], rng: Rng) -> None:
        """Elements know their global index: a shard's box moves through the whole with strides of
        its own."""
        # What has one value per row lacks the dims of a row.
        short = [n - a.ndim for a, n in zip(arrays, self.ndims, strict=True)]
        shapes = [(*a.shape, *(1,) * n) for a, n in zip(arrays, short, strict=True)]
        moves = [(*a.strides, *(0,) * n) for a, n in zip(arrays, short, strict=True)]
        shape = np.broadcast_shapes(*shapes)
        strides = [broadcast_strides(*own, shape) for own in zip(shapes, moves, strict=True)]
        steps = contiguous_strides(rng.global_shape, 1)
        index = tuple(0 if n == 1 else step for n, step in zip(shape, steps, strict=True))
        sizes = [d.bytes for d in self.dtypes]
        layout = Layout(shape, [*strides, index], [*sizes, 1], self.is_row)
        first = sum(a * b for a, b in zip(rng.starts, steps, strict=True))
        own = layout.moves.pop()
        layout.inner.pop()
        key = (layout.depth, *layout.inner)
        found = self._others.get(key)
        if found is None:
            found = self._others[key] = self._compile(layout), layout
        table = layout.table((first, own))
        seeded = [*scalars, rng.seed & (1 << 64) - 1]
        self._run(found[0], arrays, seeded, data_address(table), 0, layout)


def computes_half() -> bool:
    """Has this processor instructions that convert float16? Without them code calls a library."""
    from oneflow.kernels.native.machine_code import machine

    return machine().has_half


_compiled: dict[tuple[object, ...], CompiledKernel] = {}


class ManyLoops:
    """Several calls of one formula, one after another in compiled loops, however small each is.

    kernels: of each call.  Called with the outputs of all calls, then with the inputs of all.
    """

    def __init__(self, formula: Formula, kernels: Sequence[CompiledKernel]) -> None:
        self.formula, self.kernels = formula, kernels

    def __call__(self, xp: ArrayModule, *arrays: Array, **_: object) -> None:
        for kernel, own in zip(self.kernels, self.formula.by_call(arrays), strict=True):
            kernel(xp, *own)


def compiled_kernel(
    op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> CompiledKernel:
    """The compiled kernel of a call, remembered. A new one costs little where the machine code is
    there, which does not depend on numbers."""
    fixed = ((k, v, v.__class__) for k, v in attrs.items() if k != "seed")
    key = (op, types, *fixed)
    found = _compiled.get(key)
    if found is None:
        found = _remember(_compiled, key, CompiledKernel(op, types, attrs))
    return found
