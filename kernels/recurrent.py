"""Recurrent layers over whole sequences: a matrix product and a fused step for every position.

The step is the kernel of an op with a formula (oneflow/ops/recurrent.py): a compiled loop on a CPU,
CUDA on a GPU, NumPy where there is little to do. It reads and writes the gates where they lie in
the arrays of the whole sequence. Steps of packed sequences have fewer and fewer rows; the states of
rows that have ended stay where they are.

On a CPU steps of equally many rows are one call of machine code (expressions/chain.py), with the
weight packed once for all of them: the 50 steps of a layer of 128 with 20 rows take 0.85 ms and
their gradients 1.43, where a call of BLAS and of the loop for every step took 1.70 and 2.35.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import accumulate, groupby
from types import ModuleType
from typing import TYPE_CHECKING, Any

from oneflow.core import dtype as dtypes
from oneflow.core.errors import InternalError
from oneflow.core.op import find_op, infer_types
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.expressions.binding import CompiledKernel
from oneflow.kernels.matmul import matrix_product
from oneflow.kernels.registry import EVERY, Kernel, KernelFunction, add_kernel, select
from oneflow.ops.recurrent_step import CELLS

if TYPE_CHECKING:
    from oneflow.kernels.expressions.chain import Chain

Types = tuple[TensorType, ...]
_STEPS = {"LSTM": "lstm_step", "GRU": "gru_step"}
_NUM_OPERANDS = {
    "lstm_step": 9, "lstm_step_grad": 9, "gru_step": 10, "gru_step_grad": 7,
    "rnn_step": 2, "rnn_step_grad": 3,
}  # fmt: skip


def _chains() -> ModuleType:
    """Machine code for many steps; llvmlite takes a moment to import."""
    from oneflow.kernels.expressions import chain

    return chain


# ---- one step ------------------------------------------------------------------------------------


class _Step:
    """The kernel of one step of a layer, with its workspace.

    rows, hidden: of the largest step. length: of the sequence; short work of few elements is not
    worth a compiler.
    """

    def __init__(
        self, mode: str, suffix: str, rows: int, hidden: int, length: int, dtype: Any, device: str
    ) -> None:
        self.name = _STEPS.get(mode, "rnn_step") + suffix
        self.attrs: Attrs = {} if mode in _STEPS else {"relu": mode == "RNN_RELU"}
        self.hidden, self.dtype = hidden, dtype
        self.kernel: Kernel = select(
            self.name, device, self.types(rows), max(rows, 1) * hidden * length
        )
        make = self.kernel.workspace
        self.workspace: Types = make(self.types(rows), self.attrs) if make else ()
        self._calls: dict[int, tuple[Callable[..., object], bool]] = {}
        self._chains: dict[int, Chain] = {}
        function = self.kernel.bound(self.types(rows), self.attrs) if rows else None
        self.is_compiled = isinstance(function, CompiledKernel) and device == "cpu"

    def types(self, rows: int) -> Types:
        one = TensorType((rows, self.hidden), self.dtype)
        return (one,) * _NUM_OPERANDS[self.name]

    def bound(
        self, xp: ArrayModule, rows: int, arrays: list[Array], spare: tuple[Array, ...]
    ) -> Callable[..., object]:
        """The call for all steps of `rows` rows; arrays: those of the first one."""
        found = self._calls.get(rows)
        if found is None:
            function: KernelFunction = self.kernel.bound(self.types(rows), self.attrs)
            if isinstance(function, CompiledKernel):
                found = function.fixed(arrays), True
            else:
                found = function, False
            self._calls[rows] = found
        call, is_fixed = found
        if is_fixed:
            return call
        # Spare arrays are of this call: nodes of a graph that share this step each have their own.
        own = [a[:rows] for a in spare]
        return lambda *given: call(xp, *given, *own)

    def chain(self, rows: int, operands: list[Array], *, product_first: bool, adds: bool) -> Chain:
        """Many steps of `rows` rows and the products between them; operands: of the first one."""
        found = self._chains.get(rows)
        if found is None:
            kernel: KernelFunction = self.kernel.bound(self.types(rows), self.attrs)
            if not isinstance(kernel, CompiledKernel):
                raise InternalError(f"{self.name}: a chain needs a compiled loop, got {kernel}")
            found = _chains().Chain(kernel, operands, rows, product_first, adds)
            self._chains[rows] = found
        return found


# ---- sequences -----------------------------------------------------------------------------------


def _positions(sizes: tuple[int, ...], length: int, n: int, reverse: bool) -> list[tuple[int, int]]:
    """(first row, number of rows) of every step, in the order of computation."""
    if not sizes:
        sizes = (n,) * length
    found = list(zip((0, *accumulate(sizes)), sizes, strict=False))
    return found[::-1] if reverse else found


def _runs(steps: list[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    """(number of rows, first row of each step) of the neighbours with equally many rows."""
    return [(rows, [at for at, _ in some]) for rows, some in groupby(steps, lambda step: step[1])]


CHAINED_WORK = 1 << 24
"""Multiplications of a step up to which products are made here. Larger ones are left to BLAS, which
loses little by packing the weight for each of them and may use several threads."""


def _before(target: Array, source: Array, first: Array, steps: list[tuple[int, int]]) -> None:
    """The state before each step: `source` of the step before it, for rows that begin `first`."""
    (first_at, n), (last_at, last) = steps[0], steps[-1]
    if n == last:  # nothing is packed: all at once
        forward = first_at <= last_at
        target[n if forward else 0 :][: last_at or first_at] = source[0 if forward else n :][
            : last_at or first_at
        ]
        target[first_at : first_at + n] = first
        return
    start, had = 0, 0
    for at, rows in steps:
        kept = min(rows, had)
        target[at : at + kept] = source[start : start + kept]
        target[at + kept : at + rows] = first[kept:rows]
        start, had = at, rows


def _flat(xp: ArrayModule, x: Array) -> Array:
    """(steps and rows, columns). Copies only arrays with gaps."""
    whole: Array = xp.ascontiguousarray(x)
    return whole.reshape(-1, x.shape[-1])


def _gates(x: Array, count: int) -> list[Array]:
    """Views of the columns of each gate."""
    size = x.shape[-1] // count
    return [x[:, i * size : (i + 1) * size] for i in range(count)]


class _Sequence(ABC):
    """The common part of both directions, for inputs of certain types.

    workspace: of the call, the copies in float32 of half-precision arrays last.
    """

    suffix = ""

    def __init__(self, device: str, types: Types, attrs: Attrs) -> None:
        op = find_op("recurrent" + self.suffix)
        attrs = op.defaults | attrs
        self.mode, self.cell = attrs["mode"], CELLS[attrs["mode"]]
        self.outs, self.types = infer_types(op, types, attrs), types
        self.narrow = types[0].dtype.bytes < 4
        self.dtype = dtypes.float32 if self.narrow else types[0].dtype
        given, state, weight = self.operands()
        length, n = (0, state.shape[0]) if attrs["sizes"] else given.shape[:2]
        self.steps = _positions(attrs["sizes"], length, n, attrs["reverse"])
        self.runs = _runs(self.steps)
        self.n, self.rows = n, sum(rows for _, rows in self.steps)
        self.columns, self.size = weight.shape
        self.hidden = self.columns // self.cell.gates
        work = max(len(self.steps), 1)
        self.step = _Step(self.mode, self.suffix, n, self.hidden, work, self.dtype, device)
        self.is_projected = self.cell.has_cell and len(types) > (9 if self.suffix else 4)
        self.is_chained = (
            self.step.is_compiled
            and self.dtype is dtypes.float32
            and not self.is_projected
            and n * self.columns * self.size <= CHAINED_WORK
        )
        own = [TensorType(shape, self.dtype) for shape in self.spare_shapes()]
        self.num_spare = len(own)
        copies = [t.with_dtype(self.dtype) for t in (*self.outs, *types)] if self.narrow else []
        self.workspace: Types = (*own, *self.step.workspace, *copies)

    @abstractmethod
    def operands(self) -> tuple[TensorType, TensorType, TensorType]:
        """An array of every step, the first state, the weight."""

    @abstractmethod
    def spare_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the workspace of this direction."""

    @abstractmethod
    def run(
        self,
        xp: ArrayModule,
        outs: tuple[Array, ...],
        ins: tuple[Array, ...],
        spare: tuple[Array, ...],
        scratch: tuple[Array, ...],
    ) -> None:
        """scratch: the workspace of a step."""

    def __call__(self, xp: ArrayModule, *arrays: Array, **_: object) -> None:
        count, total = len(self.outs), len(self.outs) + len(self.types)
        outs, ins = arrays[:count], arrays[count:total]
        spare = arrays[total : total + self.num_spare]
        end = total + self.num_spare + len(self.step.workspace)
        scratch = arrays[total + self.num_spare : end]
        if not self.narrow:
            self.run(xp, outs, ins, spare, scratch)
            return
        wide_outs, wide_ins = arrays[end : end + count], arrays[end + count :]
        for wide, x in zip(wide_ins, ins, strict=True):
            wide[...] = x
        self.run(xp, wide_outs, wide_ins, spare, scratch)
        for out, wide in zip(outs, wide_outs, strict=True):
            out[...] = wide


TRANSPOSED_FROM = 16
"""Steps from which the weight is transposed once: (20, 128) times (128, 512) then takes 24 us, and
37 by a view of the weight (OpenBLAS for AVX-512; with its code for AVX2 both take 32)."""


class _Forward(_Sequence):
    def operands(self) -> tuple[TensorType, TensorType, TensorType]:
        return self.types[0], self.types[1], self.types[2]

    def spare_shapes(self) -> list[tuple[int, ...]]:
        """Shares of the state in the gates; the weight, packed or transposed; outputs to be
        projected.
        """
        if self.is_chained:
            return [
                (self.n, _chains().padded(self.columns)),
                _chains().packed_shape(self.size, self.columns),
            ]
        shapes: list[tuple[int, ...]] = [(self.n, self.columns)]
        self.transposes = len(self.steps) >= TRANSPOSED_FROM
        if self.transposes:
            shapes.append((self.size, self.columns))
        if self.is_projected:
            shapes.append((self.n, self.hidden))
        return shapes

    def run(
        self,
        xp: ArrayModule,
        outs: tuple[Array, ...],
        ins: tuple[Array, ...],
        spare: tuple[Array, ...],
        scratch: tuple[Array, ...],
    ) -> None:
        cell = self.cell
        x, h0, weight, *rest = ins
        out, h_last = _flat(xp, outs[0]), outs[1]
        h_last[...] = h0
        if cell.has_cell:
            outs[2][...] = rest[0]
        if not self.rows:
            return
        share = spare[0]
        parts = _gates(_flat(xp, x), cell.gates)
        shares = _gates(share[:, : self.columns], cell.gates)
        made = [*_gates(_flat(xp, outs[2 + cell.has_cell]), cell.saved)] if cell.saved else []
        if cell.has_cell:
            made.append(_flat(xp, outs[4]))
        made.append(spare[-1] if self.is_projected else out)
        biases = self._biases(xp, rest)

        def operands(at: int, rows: int, h: Array, c: Array | None) -> list[Array]:
            here = slice(at, at + rows)
            results = [a[here] for a in made]
            if self.is_projected:
                results[-1] = made[-1][:rows]
            found = [*results, *[a[here] for a in parts], *[a[:rows] for a in shares]]
            found += [b[:rows] for b in biases]
            if c is not None:
                found.append(c)
            elif biases:
                found.append(h)
            return found

        def state(at: int, rows: int) -> tuple[Array, Array | None]:
            here = slice(at, at + rows)
            return out[here], made[4][here] if cell.has_cell else None

        run = self._chained if self.is_chained else self._by_steps
        call = run(xp, weight, rest, spare, scratch, operands, state)
        h, c, held = h_last, outs[2] if cell.has_cell else None, self.n
        for rows, places in self.runs:
            if rows != held:
                h, c = self._keep(outs, h, c, held, rows)
                held = rows
            call(rows, places, h, c)
            h, c = state(places[-1], rows)
        self._keep(outs, h, c, held, held)

    def _by_steps(
        self,
        xp: ArrayModule,
        weight: Array,
        rest: list[Array],
        spare: tuple[Array, ...],
        scratch: tuple[Array, ...],
        operands: Callable[..., list[Array]],
        state: Callable[[int, int], tuple[Array, Array | None]],
    ) -> Callable[..., None]:
        """The steps of equally many rows, one after the other."""
        weight_t = weight.T
        if self.transposes:
            weight_t = spare[1]
            weight_t[...] = weight.T
        projection_t = rest[1].T if self.is_projected else None

        def call(rows: int, places: list[int], h: Array, c: Array | None) -> None:
            step: Callable[..., object] | None = None
            for at in places:
                matrix_product(xp, h, weight_t, spare[0][:rows])
                given = operands(at, rows, h, c)
                step = step or self.step.bound(xp, rows, given, scratch)
                step(*given)
                h, c = state(at, rows)
                if projection_t is not None:
                    matrix_product(xp, given[5], projection_t, h)

        return call

    def _chained(
        self,
        xp: ArrayModule,
        weight: Array,
        rest: list[Array],
        spare: tuple[Array, ...],
        scratch: tuple[Array, ...],
        operands: Callable[..., list[Array]],
        state: Callable[[int, int], tuple[Array, Array | None]],
    ) -> Callable[..., None]:
        """The same in two calls: the first step reads its states elsewhere than the others."""
        share, packed = spare
        _chains().pack(packed, weight.T)

        def call(rows: int, places: list[int], h: Array, c: Array | None) -> None:
            given = operands(places[0], rows, h, c)
            chain = self.step.chain(rows, given, product_first=True, adds=False)
            target = share[:rows], share[:rows]
            chain.run(1, packed, (h, h), target, [(a, a) for a in given])
            if len(places) == 1:
                return

            def turn(k: int) -> tuple[Array, list[Array]]:
                before = state(places[k - 1], rows)
                return before[0], operands(places[k], rows, *before)

            (h, given), (then_h, then) = turn(1), turn(min(2, len(places) - 1))
            turns = list(zip(given, then, strict=True))
            chain.run(len(places) - 1, packed, (h, then_h), target, turns)

        return call

    def _biases(self, xp: ArrayModule, rest: list[Array]) -> list[Array]:
        """The biases of h's share, for each row; only a GRU cannot add them to those of x."""
        if self.mode != "GRU":
            return []
        bias = rest[0] if rest else xp.zeros(self.columns, self.dtype.np)
        return _gates(xp.broadcast_to(bias, (self.n, self.columns)), 3)

    @staticmethod
    def _keep(
        outs: tuple[Array, ...], h: Array, c: Array | None, held: int, rows: int
    ) -> tuple[Array, Array | None]:
        """Put the states of `held` rows to the others; return those of the first `rows`."""
        if h is not outs[1]:
            outs[1][:held] = h
        if c is None:
            return outs[1][:rows], None
        if c is not outs[2]:
            outs[2][:held] = c
        return outs[1][:rows], outs[2][:rows]


class _Backward(_Sequence):
    suffix = "_grad"

    def operands(self) -> tuple[TensorType, TensorType, TensorType]:
        return self.types[0], self.types[2], self.types[3]

    def spare_shapes(self) -> list[tuple[int, ...]]:
        """States before each step; then LSTM: cells before each step, and projected: gradients and
        values of the projected states, of all rows and of a step, and zeros; GRU: gradients of h's
        share in the gates, and their share for a step. Last, the state's gradient and the packed
        weight if steps are chained.
        """
        n, rows = self.n, self.rows
        shapes: list[tuple[int, ...]] = [(rows, self.size)]
        if self.cell.has_cell:
            shapes.append((rows, self.hidden))
            if self.is_projected:
                shapes += [(rows, self.size), (rows, self.hidden), (n, self.hidden)]
                shapes.append((n, self.hidden))
        elif self.cell.saved:
            shapes += [(rows, self.columns), (n, self.size)]
        if self.is_chained:
            shapes += [
                (n, _chains().padded(self.size)),
                _chains().packed_shape(self.columns, self.size),
            ]
        return shapes

    def run(
        self,
        xp: ArrayModule,
        outs: tuple[Array, ...],
        ins: tuple[Array, ...],
        spare: tuple[Array, ...],
        scratch: tuple[Array, ...],
    ) -> None:
        cell = self.cell
        d_out, d_h_last, h0, _weight, out, *rest = ins
        d_x, d_h, d_weight = _flat(xp, outs[0]), outs[1], outs[2]
        d_h[...] = d_h_last
        d_share = d_x if cell.has_cell or not cell.saved else spare[1]
        if cell.has_cell:
            outs[3][...] = rest[2]
        if self.rows:
            flat_out = _flat(xp, out)
            _before(spare[0], flat_out, h0, self.steps)
            kept = [*_gates(_flat(xp, rest[0]), cell.saved)] if cell.saved else []
            if cell.has_cell:
                cells = _flat(xp, rest[1])
                _before(spare[1], cells, rest[3], self.steps)
                kept += [cells, spare[1]]
            else:
                kept.append(spare[0] if cell.saved else flat_out)
            self._steps(xp, outs, _flat(xp, d_out), kept, ins, spare, scratch)
        matrix_product(xp, d_share.T, spare[0], d_weight)
        if self.is_projected:
            matrix_product(xp, spare[2].T, self._hidden(xp, rest, spare[3]), outs[4])
        elif cell.saved and not cell.has_cell and len(outs) > 3:
            xp.sum(d_share, axis=0, out=outs[3])

    def _steps(
        self,
        xp: ArrayModule,
        outs: tuple[Array, ...],
        d_out: Array,
        kept: list[Array],
        ins: tuple[Array, ...],
        spare: tuple[Array, ...],
        scratch: tuple[Array, ...],
    ) -> None:
        """Go from the last step to the first. kept: arrays of the forward pass that it reads."""
        cell, step, weight = self.cell, self.step, ins[3]
        is_gru = bool(cell.saved) and not cell.has_cell
        d_gates, d_h = _flat(xp, outs[0]), outs[1]
        d_share = spare[1] if is_gru else d_gates
        made = _gates(d_gates, cell.gates) + (_gates(d_share, 3) if is_gru else [])
        carried = d_h
        if self.is_chained:
            carried = spare[-2][:, : self.size]
            carried[...] = d_h
        projection = ins[9] if self.is_projected else None
        if projection is not None:
            spare[5][...] = 0

        def operands(at: int, rows: int) -> list[Array]:
            here = slice(at, at + rows)
            results, states = [a[here] for a in made], [d_out[here], carried[:rows]]
            if projection is not None:
                states = [spare[4][:rows], spare[5][:rows]]
            if cell.has_cell:
                states.append(outs[3][:rows])
                results.append(states[-1])
            elif is_gru:
                results.append(carried[:rows])
            return [*results, *states, *[a[here] for a in kept]]

        if self.is_chained:
            self._chained(weight, d_share, spare, operands)
            d_h[...] = carried
            return
        call: Callable[..., object] | None = None
        called = 0
        for at, rows in reversed(self.steps):
            here = slice(at, at + rows)
            given = operands(at, rows)
            if projection is not None:
                xp.add(d_out[here], carried[:rows], out=spare[2][here])
                matrix_product(xp, spare[2][here], projection, spare[4][:rows])
            if call is None or rows != called:
                call, called = step.bound(xp, rows, given, scratch), rows
            call(*given)
            if is_gru:
                share = spare[2][:rows]
                matrix_product(xp, d_share[here], weight, share)
                carried[:rows] += share
            else:
                matrix_product(xp, d_share[here], weight, carried[:rows])

    def _chained(
        self,
        weight: Array,
        d_share: Array,
        spare: tuple[Array, ...],
        operands: Callable[[int, int], list[Array]],
    ) -> None:
        """All steps of equally many rows in a call."""
        carried, packed = spare[-2:]
        _chains().pack(packed, weight)
        adds = self.mode == "GRU"  # whose step leaves there what goes around the gates
        for rows, places in reversed(self.runs):
            order = places[::-1]
            given, then = (operands(at, rows) for at in (order[0], order[min(1, len(order) - 1)]))
            chain = self.step.chain(rows, given, product_first=False, adds=adds)
            a, following = (d_share[at : at + rows] for at in (order[0], order[len(order) > 1]))
            out = carried[:rows], carried[:rows]
            turns = list(zip(given, then, strict=True))
            chain.run(len(order), packed, (a, following), out, turns)

    def _hidden(self, xp: ArrayModule, rest: list[Array], out: Array) -> Array:
        """Compute again the values that were projected: o tanh(c)."""
        xp.tanh(_flat(xp, rest[1]), out=out)
        xp.multiply(out, _gates(_flat(xp, rest[0]), 4)[3], out=out)
        return out


def _kernel_of(name: str, make: type[_Sequence], device: str) -> Kernel:
    made: dict[tuple[object, ...], _Sequence] = {}

    def prepared(types: Types, attrs: Attrs) -> _Sequence:
        key = (types, *attrs.items())
        if key not in made:
            if len(made) >= 1024:
                made.clear()
            made[key] = make(device, types, attrs)
        return made[key]

    def workspace(types: Types, attrs: Attrs) -> Types:
        return prepared(types, attrs).workspace

    return Kernel(_unbound, workspace, bind=prepared)


def _unbound(xp: ArrayModule, *arrays: Array, **attrs: Any) -> None:
    raise InternalError("a recurrent layer is bound to types first: kernel.bound(types, attrs)")


for _name, _make in (("recurrent", _Forward), ("recurrent_grad", _Backward)):
    _of_kind = partial(_kernel_of, _name, _make)
    add_kernel(_name, EVERY, Kernel(_unbound, for_device=_of_kind))
