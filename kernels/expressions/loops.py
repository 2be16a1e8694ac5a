"""The compiled CPU loop of a set of expressions, as LLVM IR.

One function per spec: nested loops over `depth` dims, the innermost in vectors. A reduction over
the last dim ends a pass over the row; the passes of a row follow each other while it is in the
cache, and the last one writes the outputs. A sum over rows is added to its array. The function
reads addresses and flags out of the array objects themselves, so that a call costs no Python per
array:

    int f(PyObject *array..., scalar..., int64 *table, int64 check, int64 begin, int64 end)

arrays: outputs, then inputs. table: sizes of the dims, then byte strides of every array, then, if
random words are drawn, the index of the first element and the index strides. check: refuse (return
1) arrays that are not contiguous. [begin, end): of the outermost dim.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from oneflow.core.dtype import DType, dtype_of
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
    walk,
)
from oneflow.kernels.array import DATA_AT
from oneflow.kernels.expressions.functions import apply_function
from oneflow.kernels.expressions.passes import Passes
from oneflow.kernels.native.llvm_code import (
    BITS,
    FLOATS,
    Code,
    Value,
    narrowed,
    vector_type,
    widened,
)
from oneflow.kernels.native.llvm_math import VECTORS

CONTIGUOUS, SAME, STRIDED = "1", "0", "s"
"""The steps of an array along the innermost dim: one element, none, its stride."""

_ELEMENTS = {
    "bool": "i1", "int8": "i8", "uint8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "float", "bfloat16": "float", "float32": "float", "float64": "double",
}  # fmt: skip
_STORED = {"bool": "i8", "float16": "half", "bfloat16": "i16"}
COMPILED_DTYPES = frozenset(_ELEMENTS)

VECTOR_ELEMENTS = 16
"""Multiple of the numbers of lanes of all vectors."""

ROW_ELEMENTS, MOST_ROWS = 2048, 64
"""Elements, and rows, that one pass visits before the next pass visits the same ones."""

_FLAGS_AT = DATA_AT + 48  # behind: nd, dimensions, strides, base, descr
ARRAY_NBYTES = _FLAGS_AT + 8
"""The part of an array object that a loop reads."""

_READY = 0x101  # C-contiguous and aligned


@dataclass(frozen=True)
class LoopArray:
    """An array of a loop.

    name: of an input, "" for an output. moves: CONTIGUOUS, SAME or STRIDED.
    """

    name: str
    dtype: DType
    moves: str = CONTIGUOUS


@dataclass(frozen=True)
class Spec:
    """Everything that the code of a loop depends on.

    outputs: an expression and its array each. scalars: (name, kind) where kind is "float" or "int"
    for a number, or the dtype's name for a 0-d array. whole: every run of the innermost dim is a
    multiple of VECTOR_ELEMENTS, which needs no code for single elements and half the time to
    compile.
    """

    outputs: tuple[tuple[Expression, LoopArray], ...]
    inputs: tuple[LoopArray, ...]
    scalars: tuple[tuple[str, str], ...] = ()
    depth: int = 1
    whole: bool = False

    @property
    def roots(self) -> tuple[Expression, ...]:
        return tuple(root for root, _ in self.outputs)

    @property
    def draws(self) -> bool:
        return any(node.function == WORD for node in walk(*self.roots))


def loop_parameters(arrays: int, scalars: Sequence[tuple[str, str]], draws: bool) -> str:
    """Parameters of a loop before its table, a letter each: "O" an object, else as in struct."""
    kinds = {"float": "d", "int": "q"}
    return "O" * arrays + "".join(kinds.get(kind, "O") for _, kind in scalars) + "Q" * draws


def element_of(kind: ElementType) -> str:
    """The LLVM type in which values of a dtype are computed."""
    if isinstance(kind, DType):
        return _ELEMENTS[kind.name]
    return "i64" if kind is int else "double"


def is_signed(kind: ElementType) -> bool:
    return not isinstance(kind, DType) or kind.is_signed


_Turn = Callable[[Value, list[Value]], None]
_Bases = Sequence[Value]


class Loop:
    """Writes the function of one spec. vector_bytes: of the widest registers."""

    def __init__(self, spec: Spec, vector_bytes: int) -> None:
        self.spec = spec
        self.code = Code()
        kinds = {
            name: int if kind == "int" or kind.startswith(("int", "uint")) else float
            for name, kind in spec.scalars
        }
        self.types = dtypes_of(spec.roots, {a.name: a.dtype for a in spec.inputs}, kinds)
        self.arrays = [*(array for _, array in spec.outputs), *spec.inputs]
        whole = {a.name for a in spec.inputs if a.moves == SAME}
        self.passes = passes = Passes(spec.roots, whole)
        self.order, self.numbers, self.fixed = passes.order, passes.numbers, passes.fixed
        self.level, self.last = passes.level, passes.last
        self.lanes = self._width(vector_bytes)
        self.kept = self._kept_between_passes()
        # Values by (node, element type, lanes), of the whole call or of the current row.
        self._values: dict[tuple[Expression, str, int], Value] = {}

    # ---- analysis ------------------------------------------------------------------------------

    def _width(self, vector_bytes: int) -> int:
        widest = 32
        for node in self.order:
            if node not in self.fixed and node.function not in (WORD, COLUMN):
                kind = self.types[node]
                if isinstance(kind, DType) and kind.name == "float64":
                    widest = 64
        return max(2, vector_bytes * 8 // widest)

    def _kept_between_passes(self) -> dict[Expression, int]:
        """Values of an earlier pass that later ones need again: they wait in an output.

        Maps to the output's index. An output is written there at once; a costly value waits in an
        output that is free until the last pass. Only float32 and float64 outputs can hold a
        computed value.
        """
        if self.last == 0:
            return {}
        needed = self.passes.needed(self.spec.roots)
        costly = [
            n for n in needed
            if n.function in VECTORS and n not in self.fixed and self.level[n] < self.last
        ]  # fmt: skip
        free = [
            i for i, (root, array) in enumerate(self.spec.outputs)
            if root not in self.fixed and array.moves == CONTIGUOUS
            and root.function != COLUMN_TOTAL
        ]  # fmt: skip
        kept: dict[Expression, int] = {}
        for i in free:
            root, array = self.spec.outputs[i]
            holds = array.dtype is self.types[root] and array.dtype.name in ("float32", "float64")
            if holds and root.args and self.level[root] < self.last:
                kept.setdefault(root, i)
        for node in costly:
            if node in kept:
                continue
            for i in free:
                if self.spec.outputs[i][1].dtype is self.types[node] and i not in kept.values():
                    kept[node] = i
                    break
        return kept

    def _known(self, stage: int) -> Container[Expression]:
        """Values that a pass finds in an output."""
        return {n: i for n, i in self.kept.items() if self.level[n] < stage}

    # ---- the function --------------------------------------------------------------------------

    def text(self, name: str) -> str:
        """The module's IR."""
        code = self.code
        parameters = [f"ptr %o{i}" for i in range(len(self.arrays))]
        parameters += [f"{_scalar_type(kind)} %s_{n}" for n, kind in self.spec.scalars]
        if self.spec.draws:
            parameters.append("i64 %seed")
        parameters += ["ptr %table", "i64 %check", "i64 %begin", "i64 %end"]
        code.label("entry")
        for node in self.order:
            if node.function in REDUCTIONS:
                element = element_of(self.types[node])
                code.do(f"%r{self.order.index(node)} = alloca {element}, i64 {MOST_ROWS}")
        self._read_arrays()
        self._read_table()
        self._choose_rows()
        self._compute_numbers()
        self._rows(0, self._bases, self._first_index())
        code.do("ret i32 0")
        lines = [f"define i32 @{name}({', '.join(parameters)}) nounwind {{", *code.lines, "}"]
        return "\n".join([*code.declarations.values(), *lines, ""])

    def _read_arrays(self) -> None:
        code = self.code
        is_ready = Value(code, "true", "i1")
        self._bases = []
        for i in range(len(self.arrays)):
            data = code.let(f"getelementptr i8, ptr %o{i}, i64 {DATA_AT}", "ptr")
            at = code.let(f"getelementptr i8, ptr %o{i}, i64 {_FLAGS_AT}", "ptr")
            self._bases.append(code.let(f"load ptr, ptr {data.name}", "ptr"))
            flags = code.let(f"load i32, ptr {at.name}", "i32")
            is_ready = is_ready & (flags & _READY).compare("eq", _READY)
        unchecked = Value(code, "%check", "i64").compare("eq", 0)
        ok = is_ready | unchecked
        code.do(f"br i1 {ok.name}, label %run, label %refuse")
        code.label("refuse")
        code.do("ret i32 1")
        code.label("run")
        self._block = "run"

    def _table(self, index: int) -> Value:
        at = self.code.let(f"getelementptr i64, ptr %table, i64 {index}", "ptr")
        return self.code.let(f"load i64, ptr {at.name}", "i64")

    def _read_table(self) -> None:
        depth, count = self.spec.depth, len(self.arrays)
        self._sizes = [self._table(d) if d else None for d in range(depth)]
        self._strides = [
            [
                self._table(depth + i * depth + d) if self._needs_stride(i, d) else None
                for d in range(depth)
            ]
            for i in range(count)
        ]
        if self.spec.draws:
            at = depth * (count + 1)
            self._first = self._table(at)
            self._index_strides = [self._table(at + 1 + d) for d in range(depth)]

    def _needs_stride(self, i: int, d: int) -> bool:
        return d < self.spec.depth - 1 or self.arrays[i].moves == STRIDED

    def _choose_rows(self) -> None:
        """Number of rows that are visited together: the steps of one short row wait for each
        other, those of several do not."""
        columns = self._sizes[-1]
        if columns is None or self.last == 0:
            return
        some = columns.compare("gt", 0).choose(columns, 1)
        count = self.code.let(f"sdiv i64 {ROW_ELEMENTS}, {some.name}", "i64")
        count = count.compare("gt", 1).choose(count, 1)
        self._at_once = count.compare("lt", MOST_ROWS).choose(count, MOST_ROWS)

    def _first_index(self) -> Value | None:
        return self._first if self.spec.draws else None

    # ---- numbers of the call -------------------------------------------------------------------

    def _compute_numbers(self) -> None:
        """Everything made of scalars and constants, once, and its conversions."""
        code = self.code
        for node in self.order:
            if node not in self.numbers:
                continue
            if node.function == CONSTANT:
                value = code.constant(node.value, element_of(self.types[node]))
            elif node.function == SCALAR:
                value = self._scalar(node.value)
            else:
                value = self._computed(node, 1)
            self._set_fixed(node, value)
        self._convert_numbers()

    def _scalar(self, name: str) -> Value:
        kind = dict(self.spec.scalars)[name]
        if kind in ("float", "int"):
            return Value(self.code, f"%s_{name}", "double" if kind == "float" else "i64")
        at = self.code.let(f"getelementptr i8, ptr %s_{name}, i64 {DATA_AT}", "ptr")
        data = self.code.let(f"load ptr, ptr {at.name}", "ptr")
        value = self._loaded(data, dtype_of(kind), 1)
        return value.to("double" if value.is_float else "i64", signed=is_signed(dtype_of(kind)))

    def _convert_numbers(self) -> None:
        for node in self.order:
            if node in self.numbers:
                continue
            for i, arg in enumerate(node.args):
                if arg in self.numbers:
                    for lanes in (1, self.lanes):
                        self._operand(arg, self._argument_element(node, i), lanes)
        for root, array in self.spec.outputs:
            if root in self.numbers:
                for lanes in (1, self.lanes):
                    self._operand(root, _ELEMENTS[array.dtype.name], lanes)

    def _set_fixed(self, node: Expression, value: Value) -> None:
        for lanes in (1, self.lanes):
            self._values[node, value.element, lanes] = value.splat(lanes)

    # ---- rows ----------------------------------------------------------------------------------

    def _for(
        self, start: str, stop: str, step: str, body: _Turn, bases: _Bases = (), dim: int = 0
    ) -> None:
        """A loop over a dim around the code that `body` writes for one value of the counter, and
        for the addresses of the arrays there. bases: those at 0. Addresses go on from turn to turn;
        to find out that they may would take LLVM a third of its time (native.py).
        """
        code = self.code
        begin, by = Value(code, start, "i64"), Value(code, step, "i64")
        strides = [s[dim] for s in self._strides] if bases else []
        moving = [
            (self._moved(base, begin * stride), stride)
            for base, stride in zip(bases, strides, strict=True)
            if stride is not None
        ]
        steps = [stride if step == "1" else stride * by for _, stride in moving]
        head, inside, done = code.fresh("rows"), code.fresh("row"), code.fresh("done")
        before = self._block
        code.do(f"br label %{head}")
        code.label(head)
        first = [begin, *(place for place, _ in moving)]
        at = len(code.lines)
        # Written below, when the block that comes back is known.
        counter, *places = [code.let("phi", x.element) for x in first]
        more = code.let(f"icmp slt i64 {counter.name}, {stop}", "i1")
        code.do(f"br i1 {more.name}, label %{inside}, label %{done}")
        code.label(inside)
        self._block = inside
        here = iter(places)
        body(counter, [b if s is None else next(here) for b, s in zip(bases, strides, strict=True)])
        following = [counter + by]
        following += [self._moved(x, d) for x, d in zip(places, steps, strict=True)]
        code.do(f"br label %{head}")
        for k, (phi, x, y) in enumerate(zip((counter, *places), first, following, strict=True)):
            ways = f"[ {x.name}, %{before} ], [ {y.name}, %{self._block} ]"
            code.lines[at + k] = f"  {phi.name} = phi {phi.type} {ways}"
        code.label(done)
        self._block = done

    def _rows(self, dim: int, bases: list[Value], index: Value | None) -> None:
        """Loops over dims `dim` .. depth - 2, then the passes over rows, some rows together."""
        if dim == self.spec.depth - 1:
            for stage in range(self.last + 1):
                self._row(stage, bases, index, Value(self.code, "0", "i64"))
            return
        size = self._sizes[dim]
        start, stop = ("%begin", "%end") if size is None else ("0", size.name)

        def index_at(here: Value) -> Value | None:
            self._row_number = here
            return None if index is None else index + here * self._index_strides[dim]

        if dim < self.spec.depth - 2 or self.last == 0:

            def of_row(here: Value, places: list[Value]) -> None:
                self._rows(dim + 1, places, index_at(here))

            self._for(start, stop, "1", of_row, bases, dim)
            return

        def together(first: Value, _: list[Value]) -> None:
            last = first + self._at_once
            end = Value(self.code, stop, "i64")
            end = last.compare("lt", end).choose(last, end)
            for stage in range(self.last + 1):

                def visit(here: Value, places: list[Value], stage: int = stage) -> None:
                    self._row(stage, places, index_at(here), here - first)

                self._for(first.name, end.name, "1", visit, bases, dim)

        self._for(start, stop, self._at_once.name, together)

    def _moved(self, base: Value, by: Value) -> Value:
        return self.code.let(f"getelementptr i8, ptr {base.name}, i64 {by.name}", "ptr")

    def _row(self, stage: int, bases: list[Value], index: Value | None, slot: Value) -> None:
        """One pass over one row. slot: of the row among those that are visited together."""
        self._row_bases, self._row_index = bases, index
        outer = dict(self._values)
        self._fix_row(stage, slot)
        for node, value in self._pass(stage).items():
            place = self._result_place(node, slot)
            self.code.do(f"store {value.type} {value.name}, ptr {place.name}")
        if stage == self.last:
            self._store_row_results()
        self._values = outer

    def _result_place(self, node: Expression, slot: Value) -> Value:
        """The memory in which a row's reduction waits for the next pass."""
        name = f"%r{self.order.index(node)}"
        element = element_of(self.types[node])
        return self.code.let(f"getelementptr {element}, ptr {name}, i64 {slot.name}", "ptr")

    def _fix_row(self, stage: int, slot: Value) -> None:
        """Row invariants that a pass reads; reductions of earlier passes are there."""
        for node in self.passes.row_numbers(self._stage_roots(stage), self._known(stage)):
            if node.function == INPUT:
                self._set_fixed(node, self._load(node, None, 1))
            elif node.function == ROW:
                # Dims before the last but one may be counted with it.
                text = f"urem i64 {self._row_number.name}, %s_rows"
                self._set_fixed(node, self.code.let(text, "i64"))
            elif node.function in REDUCTIONS:
                element, place = element_of(self.types[node]), self._result_place(node, slot)
                self._set_fixed(node, self.code.let(f"load {element}, ptr {place.name}", element))
            else:
                self._set_fixed(node, self._computed(node, 1))
            self._convert_fixed(node)

    def _convert_fixed(self, node: Expression) -> None:
        """A row's number in every type in which its pass uses it."""
        for user in self.order:
            for i, arg in enumerate(user.args):
                if arg is node and user.function not in REDUCTIONS:
                    for lanes in (1, self.lanes):
                        self._operand(node, self._argument_element(user, i), lanes)

    def _store_row_results(self) -> None:
        for i, (root, array) in enumerate(self.spec.outputs):
            if root in self.fixed and array.moves == SAME:
                value = self._operand(root, _ELEMENTS[array.dtype.name], 1)
                self._store(value, array.dtype, self._row_bases[i])

    def _stored(self, stage: int) -> dict[Expression, int]:
        """Values that a pass leaves in an output for the last one."""
        return {n: i for n, i in self.kept.items() if self.level[n] == stage < self.last}

    def _stage_roots(self, stage: int) -> list[Expression]:
        """Values that a pass is there for."""
        roots = [n.args[0] for n in self.passes.reduced(stage)]
        return [*roots, *self._stored(stage), *(self.spec.roots if stage == self.last else ())]

    # ---- one pass over a row -------------------------------------------------------------------

    def _pass(self, stage: int) -> dict[Expression, Value]:
        """One pass over the current row; its reductions."""
        reduced, stored = self.passes.reduced(stage), self._stored(stage)
        results: list[tuple[int, Expression]] = []
        if stage == self.last:
            results = [
                (i, root) for i, (root, a) in enumerate(self.spec.outputs)
                if a.moves != SAME and not (self.kept.get(root) == i and self.level[root] < stage)
            ]  # fmt: skip
        if not (reduced or results):
            return {}
        needed = self.passes.needed(self._stage_roots(stage), self._known(stage))
        sums = {n: self._start_of(n).splat(self.lanes) for n in reduced}
        depth = self.spec.depth
        at = Value(self.code, "%begin" if depth == 1 else "0", "i64")
        size = self._sizes[-1]
        end = Value(self.code, "%end", "i64") if size is None else size
        unroll = 4 if reduced and len(needed) <= 6 else 1
        plan = [(self.lanes, unroll)] if unroll > 1 else []
        for lanes, times in [*plan, (self.lanes, 1)]:
            at, sums = self._loop(at, end, lanes, times, needed, stored, results, sums)
        sums = {n: _folded(n.function, x) for n, x in sums.items()}
        if self.spec.whole:
            return sums
        return self._loop(at, end, 1, 1, needed, stored, results, sums)[1]

    def _start_of(self, node: Expression) -> Value:
        element = element_of(self.types[node])
        if node.function == "total":
            return self.code.constant(0, element)
        lowest = float("-inf") if element in FLOATS else -(1 << (BITS[element] - 1))
        return self.code.constant(lowest, element)

    def _loop(
        self,
        start: Value,
        end: Value,
        lanes: int,
        times: int,
        needed: list[Expression],
        stored: dict[Expression, int],
        results: list[tuple[int, Expression]],
        sums: dict[Expression, Value],
    ) -> tuple[Value, dict[Expression, Value]]:
        """Goes on from `start` in steps of lanes * times while whole steps fit.

        Returns where it stopped and the reductions up to there, of as many lanes as `sums`.
        """
        code, step = self.code, lanes * times
        count = end - start
        stop = end if step == 1 else start + (count & -step)
        body, after, before = code.fresh("loop"), code.fresh("after"), self._block
        enter = start.compare("lt", stop)
        neutral = {n: self._start_of(n).splat(lanes) for n in (sums if times > 1 else ())}
        begun = {
            (n, u): neutral[n] if u else known for n, known in sums.items() for u in range(times)
        }
        code.do(f"br i1 {enter.name}, label %{body}, label %{after}")
        code.label(body)
        following = f"%next_{body}"
        j = code.let(f"phi i64 [ {start.name}, %{before} ], [ {following}, %{body} ]", "i64")
        partial: dict[tuple[Expression, int], Value] = {}
        holes: dict[tuple[Expression, int], int] = {}
        for node in sums:
            for u in range(times):
                holes[node, u] = len(code.lines)
                partial[node, u] = code.let("phi", sums[node].element, lanes)
        phis = dict(partial)
        for u in range(times):
            position = j if u == 0 else j + u * lanes
            values = self._pass_values(needed, position, lanes, stored)
            for node in sums:
                value = self._in_pass(node.args[0], values, lanes, sums[node].element)
                partial[node, u] = _combined(node.function, partial[node, u], value)
            for node, i in stored.items():
                self._write(i, values[node], position)
            for i, root in results:
                element = _ELEMENTS[self.arrays[i].dtype.name]
                value = self._in_pass(root, values, lanes, element)
                if root.function == COLUMN_TOTAL:  # the rows before are in the array
                    value = value + self._loaded(
                        self._place(i, position), self.arrays[i].dtype, lanes
                    )
                self._write(i, value, position)
        code.do(f"{following} = add i64 {j.name}, {step}")
        again = code.let(f"icmp slt i64 {following}, {stop.name}", "i1")
        for (node, u), line in holes.items():
            first = begun[node, u].name
            code.lines[line] = (
                f"  {phis[node, u].name} = phi {phis[node, u].type} [ {first}, %{before} ], "
                f"[ {partial[node, u].name}, %{body} ]"
            )
        code.do(f"br i1 {again.name}, label %{body}, label %{after}")
        code.label(after)
        self._block = after
        out: dict[Expression, Value] = {}
        ended = {}
        for node in sums:
            for u in range(times):
                p = partial[node, u]
                ended[node, u] = code.let(
                    f"phi {p.type} [ {begun[node, u].name}, %{before} ], [ {p.name}, %{body} ]",
                    p.element,
                    lanes,
                )
        for node in sums:
            whole = ended[node, 0]
            for u in range(1, times):
                whole = _combined(node.function, whole, ended[node, u])
            out[node] = whole
        return stop, out

    def _pass_values(
        self, needed: list[Expression], at: Value, lanes: int, stored: dict[Expression, int]
    ) -> dict[Expression, Value]:
        values: dict[Expression, Value] = {}
        for node in needed:
            if node in self.kept and node not in stored:
                out = self.kept[node]
                array = self.arrays[out]
                values[node] = self._loaded(self._place(out, at), array.dtype, lanes)
            elif node.function == INPUT:
                values[node] = self._load(node, at, lanes)
            elif node.function == WORD:
                values[node] = self._word(at, lanes)
            elif node.function == COLUMN:
                values[node] = self._counted(at, lanes)
            else:
                values[node] = self._computed(node, lanes, values)
        return values

    def _in_pass(
        self, node: Expression, values: dict[Expression, Value], lanes: int, element: str
    ) -> Value:
        if node in self.fixed:
            return self._operand(node, element, lanes)
        return values[node].to(element, signed=is_signed(self.types[node]))

    # ---- values --------------------------------------------------------------------------------

    def _argument_element(self, node: Expression, i: int) -> str:
        """The type in which `node` takes its argument i."""
        if node.function == CAST or node.function in REDUCTIONS:
            return element_of(self.types[node.args[i]])
        kind = FUNCTIONS[node.function].kind
        if kind == "logic" or (kind == "choice" and i == 0):
            return "i1"
        if kind == "bool":
            if node in self.numbers:
                return "double"
            return element_of(compared_dtype([self.types[a] for a in node.args]))
        return element_of(self.types[node])

    def _computed(
        self, node: Expression, lanes: int, values: dict[Expression, Value] | None = None
    ) -> Value:
        args = []
        for i, arg in enumerate(node.args):
            element = self._argument_element(node, i)
            if arg in self.fixed:
                args.append(self._operand(arg, element, lanes))
            else:
                assert values is not None
                args.append(values[arg].to(element, signed=is_signed(self.types[arg])))
        if node.function == COLUMN_TOTAL:
            return args[0]
        source = self.types[node.args[0]]
        if node.function == CAST:
            return self._cast(args[0], source, dtype_of(node.value))
        if node.function in ("maximum", "minimum") and node.args[1].function == CONSTANT:
            # One instruction, where two that may be NaN take four.
            how = "lt" if node.function == "maximum" else "gt"
            signed = is_signed(self.types[node])
            return args[0].compare(how, args[1], signed=signed).choose(args[1], args[0])
        if FUNCTIONS[node.function].kind != "bool":
            return apply_function(node.function, args, is_signed(self.types[node]))
        kinds = [self.types[a] for a in node.args]
        unsigned = any(isinstance(k, DType) and not k.is_signed for k in kinds)
        return apply_function(node.function, args, not unsigned)

    def _operand(self, node: Expression, element: str, lanes: int) -> Value:
        """A fixed value in a type; converted once where it became known."""
        key = (node, element, lanes)
        if key not in self._values:
            if lanes > 1:
                self._values[key] = self._operand(node, element, 1).splat(lanes)
            else:
                own = element_of(self.types[node])
                value = self._values[node, own, 1]
                self._values[key] = value.to(element, signed=is_signed(self.types[node]))
        return self._values[key]

    def _cast(self, x: Value, source: ElementType, target: DType) -> Value:
        element = _ELEMENTS[target.name]
        y = x.to(element, signed=is_signed(target) if x.is_float else is_signed(source))
        if target.name == "float16" and source is not target:
            return y.to("half").to("float")
        if target.name == "bfloat16" and source is not target:
            return widened(narrowed(y))
        return y

    # ---- memory --------------------------------------------------------------------------------

    def _array_index(self, name: str) -> int:
        outputs = len(self.spec.outputs)
        return outputs + next(i for i, a in enumerate(self.spec.inputs) if a.name == name)

    def _place(self, i: int, at: Value) -> Value:
        size = self.arrays[i].dtype.bytes
        return self._moved(self._row_bases[i], at * size)

    def _load(self, node: Expression, at: Value | None, lanes: int) -> Value:
        i = self._array_index(node.value)
        array = self.arrays[i]
        if at is None:
            return self._loaded(self._row_bases[i], array.dtype, 1)
        if array.moves == CONTIGUOUS:
            return self._loaded(self._place(i, at), array.dtype, lanes)
        stride = self._strides[i][-1]
        assert stride is not None
        if lanes == 1:
            return self._loaded(self._moved(self._row_bases[i], at * stride), array.dtype, 1)
        element = _ELEMENTS[array.dtype.name]
        result = Value(self.code, "poison", element, lanes)
        for lane in range(lanes):
            place = self._moved(self._row_bases[i], (at + lane) * stride)
            one = self._loaded(place, array.dtype, 1)
            text = f"insertelement {result.type} {result.name}, {element} {one.name}, i64 {lane}"
            result = self.code.let(text, element, lanes)
        return result

    def _loaded(self, place: Value, dtype: DType, lanes: int) -> Value:
        stored = _STORED.get(dtype.name, _ELEMENTS[dtype.name])
        kind = vector_type(stored, lanes)
        raw = self.code.let(f"load {kind}, ptr {place.name}, align 1", stored, lanes)
        if dtype.name == "bool":
            return raw.compare("ne", 0)
        if dtype.name == "bfloat16":
            return widened(raw)
        return raw.to(_ELEMENTS[dtype.name])

    def _write(self, i: int, value: Value, at: Value) -> None:
        array = self.arrays[i]
        if array.moves == CONTIGUOUS:
            self._store(value, array.dtype, self._place(i, at))
            return
        stride = self._strides[i][-1]
        assert stride is not None
        for lane in range(value.lanes):
            one = value if value.lanes == 1 else value.lane(lane)
            place = self._moved(self._row_bases[i], (at + lane) * stride)
            self._store(one, array.dtype, place)

    def _store(self, value: Value, dtype: DType, place: Value) -> None:
        if dtype.name == "bfloat16":
            value = narrowed(value)
        elif dtype.name in _STORED:
            value = value.to(_STORED[dtype.name])
        self.code.do(f"store {value.type} {value.name}, ptr {place.name}, align 1")

    def _counted(self, first: Value, lanes: int, step: Value | None = None) -> Value:
        """`lanes` numbers from `first` on."""
        if lanes == 1:
            return first
        ramp = Value(self.code, f"<{', '.join(f'i64 {i}' for i in range(lanes))}>", "i64", lanes)
        return first.splat(lanes) + (ramp if step is None else ramp * step.splat(lanes))

    def _word(self, at: Value, lanes: int) -> Value:
        """The first Philox word of each element's global index (oneflow/core/rng.py)."""
        code = self.code
        stride = self._index_strides[-1]
        assert self._row_index is not None
        index = self._counted(self._row_index + at * stride, lanes, stride)
        seed = Value(code, "%seed", "i64").splat(lanes)
        low = 0xFFFFFFFF
        left, right, key = index & low, (index >> 32) ^ (seed >> 32), seed & low
        for _ in range(10):
            product = left * 0xD256D193
            left, right = (product >> 32) ^ key ^ right, product & low
            key = (key + 0x9E3779B9) & low
        return left


def _scalar_type(kind: str) -> str:
    return {"float": "double", "int": "i64"}.get(kind, "ptr")


def _combined(function: str, a: Value, b: Value) -> Value:
    if function == "total":
        return a + b
    if a.is_float:
        return a.larger(b)
    return a.compare("gt", b).choose(a, b)


def _folded(function: str, x: Value) -> Value:
    """The lanes of x combined, halves first, so that the order of sums is fixed."""
    while x.lanes > 1:
        half = x.lanes // 2
        x = _combined(function, x.part(0, half), x.part(half, half))
    return x
