"""Expressions as CUDA C: one thread an element, or a block a row where there are reductions;
broadcasting by strides.

CuPy compiles the text with NVRTC at the first launch.

Numbers of a call are computed by every thread in double, so that a learning rate on the device is
never waited for. Half precision is read into float and rounded when it is stored.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from time import perf_counter
from typing import Any

import numpy as np

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
)
from oneflow.core.op import Op
from oneflow.core.rng import Rng
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule, address
from oneflow.kernels.expressions.formula import Formula, formula_of
from oneflow.kernels.expressions.layout import Layout, broadcast_strides, contiguous_strides
from oneflow.kernels.expressions.passes import Passes

_STORED = {
    "bool": "bool", "uint8": "unsigned char", "int8": "signed char", "int16": "short",
    "int32": "int", "int64": "i64", "float16": "u16", "bfloat16": "u16", "float32": "float",
    "float64": "double",
}  # fmt: skip
_COMPUTED = {**_STORED, "float16": "float", "bfloat16": "float"}
THREADS, MAX_BLOCKS = 256, 4096
LANES, GROUPS = 32, 8  # threads of a sum over rows: columns, and rows at once

HALVES = r"""
__device__ float from_float16(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ unsigned short to_float16(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
__device__ float from_bfloat16(unsigned short x) { return __uint_as_float((unsigned)x << 16); }
__device__ unsigned short to_bfloat16(float x) {
  unsigned bits = (unsigned)__float_as_int(x);
  if (x != x) return (unsigned short)((bits >> 16) | 0x40);
  return (unsigned short)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
"""

PRELUDE = (
    HALVES
    + r"""
typedef long long i64;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

// Reductions over the block; every thread gets the result. They lead and end with a barrier, so
// that they may follow each other.
#define BLOCK_REDUCE(name, combine)                                                 \
  template <class T> __device__ T name(T value) {                                   \
    __shared__ T part[32];                                                          \
    for (int o = 16; o > 0; o >>= 1) {                                              \
      T other = (T)__shfl_xor_sync(0xffffffffu, value, o);                          \
      value = combine(value, other);                                                \
    }                                                                               \
    __syncthreads();                                                                \
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;                      \
    __syncthreads();                                                                \
    value = part[0];                                                                \
    for (int w = 1; w < (int)blockDim.x / 32; ++w) value = combine(value, part[w]); \
    return value;                                                                   \
  }
template <class T> __device__ T plus(T a, T b) { return a + b; }
template <class T> __device__ T larger(T a, T b) { return (a > b || a != a) ? a : b; }
BLOCK_REDUCE(block_total, plus)
BLOCK_REDUCE(block_largest, larger)
template <class T> __device__ T smaller(T a, T b) { return (a < b || a != a) ? a : b; }
template <class T> __device__ T sign_of(T x) { return x != x ? x : T((x > T(0)) - (x < T(0))); }
template <class T> __device__ T magnitude(T x) { return x < T(0) ? -x : x == T(0) ? T(0) : x; }
template <class T> __device__ T sigmoid_of(T x) { return T(1) / (T(1) + exp(-x)); }
template <class T> __device__ T gauss_of(T x) { return exp(x * x * T(-0.5)); }
template <class T> __device__ T normal_tail_of(T x) {
  return erfcx(x * T(0.70710678118654752)) * T(0.5);
}
template <class T> __device__ T floor_quotient(T a, T b) {
  T rest = fmod(a, b), quotient = (a - rest) / b;
  if (rest != T(0) && ((rest < T(0)) != (b < T(0)))) quotient -= T(1);
  T whole = floor(quotient);
  if (quotient - whole > T(0.5)) whole += T(1);
  return b == T(0) ? a / b : quotient == T(0) ? a / b * T(0) : whole;
}

// The first word of Philox2x32-10 (oneflow/core/rng.py).
__device__ i64 first_word(u64 index, u64 seed) {
  u32 left = (u32)index, right = (u32)(index >> 32) ^ (u32)(seed >> 32), key = (u32)seed;
  for (int i = 0; i < 10; ++i) {
    u64 made = (u64)left * 0xD256D193ull;
    left = (u32)(made >> 32) ^ key ^ right;
    right = (u32)made;
    key += 0x9E3779B9u;
  }
  return (i64)left;
}
"""
)

_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "logical_and": "&&", "logical_or": "||", "logical_xor": "!=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
_TEMPLATES = {
    "neg": "-{0}", "relu": "({0} < 0 ? 0 : {0})", "square": "{0} * {0}", "reciprocal": "1 / {0}",
    "where": "({0} ? {1} : {2})", "logical_not": "!{0}", "bitwise_not": "~{0}",
    "isnan": "{0} != {0}", "isinf": "isinf({0})", "isfinite": "isfinite({0})",
}  # fmt: skip
_CALLS = {
    "exp_down": "exp", "abs": "magnitude", "sign": "sign_of",
    "maximum": "larger", "minimum": "smaller",
    "round": "rint", "sigmoid": "sigmoid_of", "floor_divide": "floor_quotient",
    "gauss": "gauss_of", "normal_tail": "normal_tail_of",
}  # fmt: skip


@dataclass(frozen=True)
class CudaSpec:
    """Everything that the text depends on. arrays: dtypes of outputs, then inputs. scalars: (name,
    kind) with kind "float", "int" or the dtype's name of a 0-d array.
    """

    outputs: tuple[Expression, ...]
    names: tuple[str, ...]
    dtypes: tuple[DType, ...]
    scalars: tuple[tuple[str, str], ...]
    depth: int
    draws: bool
    is_row: bool = False
    per_row: frozenset[str] = frozenset()


def spec_of(formula: Formula, depth: int, chosen: tuple[int, ...] | None = None) -> CudaSpec:
    """chosen: positions of the outputs that the function writes; None: all."""
    numbers = formula.numbers.items()
    scalars = [(n, "float" if isinstance(v, float) else "int") for n, v in numbers]
    scalars += [(n, formula.types[i].dtype.name) for n, i in formula.fed.items()]
    chosen = tuple(range(len(formula.outputs))) if chosen is None else chosen
    outs = [formula.out_types[i] for i in chosen]
    dtypes = tuple(t.dtype for t in (*outs, *formula.array_types))
    roots = tuple(formula.outputs[i] for i in chosen)
    known = formula.arrays, dtypes, tuple(scalars), depth, formula.draws
    return CudaSpec(roots, *known, formula.is_row, formula.per_row)


def parts_of(formula: Formula) -> list[tuple[int, ...]]:
    """The outputs that one function writes: sums over rows go over the elements another way."""
    plain = tuple(i for i in range(len(formula.outputs)) if i not in formula.sums)
    return [part for part in (plain, formula.sums) if part]


def source_of(spec: CudaSpec) -> str:
    """The text of the function `run`."""
    return PRELUDE + Writer(spec).text()


def source_of_many(spec: CudaSpec) -> str:
    """The same for several calls of one formula in a launch; element by element."""
    return PRELUDE + Writer(spec).many_text()


class Writer:
    """Writes one kernel, a line per node."""

    def __init__(self, spec: CudaSpec) -> None:
        self.spec = spec
        count = len(spec.outputs)
        inputs = dict(zip(spec.names, spec.dtypes[count:], strict=True))
        kinds = {n: int if k.startswith(("int", "uint")) else float for n, k in spec.scalars}
        self.types = dtypes_of(spec.outputs, inputs, kinds)
        self.passes = Passes(spec.outputs, spec.per_row)
        self.numbers, self.order = self.passes.numbers, self.passes.order
        self.names = {node: f"v{i}" for i, node in enumerate(self.order)}

    def text(self) -> str:
        spec, count = self.spec, len(self.spec.outputs)
        parameters = []
        for i, dtype in enumerate(spec.dtypes):
            constant = "" if i < count else "const "
            parameters.append(f"{constant}{_STORED[dtype.name]}* p{i}")
        parameters += self.scalars()
        parameters += ["i64 n", "const i64* table"] + (
            ["u64 seed", "const u64* recorded"] if spec.draws else []
        )
        lines = [f'extern "C" __global__ void run({", ".join(parameters)}) {{']
        if spec.draws:
            lines.append("  if (recorded) seed = *recorded;")
        lines += [f"  {line}" for line in self.constants()]
        if spec.outputs[0].function == COLUMN_TOTAL:
            return "\n".join([*lines, *self._columns(), "}", ""])
        if spec.is_row:
            return "\n".join([*lines, *self._rows(), "}", ""])
        step = "(i64)gridDim.x * blockDim.x"
        first = "blockIdx.x * (i64)blockDim.x + threadIdx.x"
        lines.append(f"  for (i64 i = {first}; i < n; i += {step}) {{")
        lines += [f"    {line}" for line in self._offsets()]
        lines += [f"    {line}" for line in self.elements()]
        lines += [f"    {self._store(i)}" for i in range(len(spec.outputs))]
        return "\n".join([*lines, "  }", "}", ""])

    def many_text(self) -> str:
        """The same for the arrays of several calls, which have no gaps: a block does a part of one.

        plan: for each block, the call and the first element; then for each call the addresses of
        its arrays and their size.
        """
        spec, count = self.spec, len(self.spec.outputs)
        parameters = ["const i64* plan", "i64 blocks", "i64 part"]
        parameters += self.scalars()
        lines = [f'extern "C" __global__ void run({", ".join(parameters)}) {{']
        lines += [f"  {line}" for line in self.constants()]
        lines.append("  const i64 first = plan[2 * blockIdx.x + 1];")
        own = len(spec.dtypes) + 1
        lines.append(f"  const i64* call = plan + 2 * blocks + plan[2 * blockIdx.x] * {own};")
        for k, dtype in enumerate(spec.dtypes):
            kind = f"{'' if k < count else 'const '}{_STORED[dtype.name]}*"
            lines.append(f"  {kind} p{k} = ({kind})call[{k}];")
        lines.append(f"  const i64 n = call[{own - 1}], end = first + part < n ? first + part : n;")
        lines.append("  for (i64 i = first + threadIdx.x; i < end; i += blockDim.x) {")
        lines.append("    const i64 " + ", ".join(f"at{k} = i" for k in range(own - 1)) + ";")
        lines += [f"    {line}" for line in self.elements()]
        lines += [f"    {self._store(i)}" for i in range(count)]
        return "\n".join([*lines, "  }", "}", ""])

    def scalars(self) -> list[str]:
        """The parameters of the numbers that are the same for all elements."""
        made = []
        for name, kind in self.spec.scalars:
            plain = {"float": "double", "int": "i64"}.get(kind)
            made.append(f"{plain} s_{name}" if plain else f"const {_STORED[kind]}* s_{name}")
        return made

    def constants(self) -> list[str]:
        """A line for each node that is the same for all elements."""
        return [self._line(n) for n in self.order if n in self.numbers]

    def elements(self) -> list[str]:
        """A line for each other node; input k is read at p{k}[at{k}], outputs counted first."""
        return [self._line(n) for n in self.order if n not in self.numbers]

    def _store(self, i: int) -> str:
        root, dtype = self.spec.outputs[i], self.spec.dtypes[i]
        value = f"({_COMPUTED[dtype.name]}){self.names[root]}"
        if dtype.name in _HALF:
            value = f"to_{dtype.name}({value})"
        return f"p{i}[{self._at(root, i)}] = {value};"

    def _at(self, node: Expression, i: int) -> str:
        """The position in array i; at{i} is that of a row's first element."""
        return (
            f"at{i} + j * step{i}"
            if self.spec.is_row and node not in self.passes.fixed
            else f"at{i}"
        )

    def _rows(self) -> list[str]:
        """A block per row; its threads go over the row once for each pass. Every thread computes
        the numbers of the row."""
        depth, count = self.spec.depth, len(self.spec.dtypes)
        passes, outputs = self.passes, self.spec.outputs
        strides = [f"step{k} = table[{depth * (k + 2) - 1}]" for k in range(count)]
        lines = [f"const i64 columns = table[{depth - 1}], {', '.join(strides)};"]
        lines.append("for (i64 i = blockIdx.x; i < n; i += gridDim.x) {")
        lines += [f"  {line}" for line in self._offsets(depth - 1)]
        known: set[Expression] = set()
        for stage in range(passes.last + 1):
            ends = passes.reduced(stage)
            roots = [n.args[0] for n in ends] + (list(outputs) if stage == passes.last else [])
            for node in passes.row_numbers(roots, ()):
                if node not in known and node.function not in REDUCTIONS:
                    lines.append(f"  {self._line(node)}")
                known.add(node)
            body = [self._line(n) for n in passes.needed(roots)]
            for node in ends:
                kind = self._c_type(self.types[node])
                lines.append(f"  {kind} {self.names[node]} = {self._start(node)};")
                value = f"({kind}){self.names[node.args[0]]}"
                combine = "plus" if node.function == "total" else "larger"
                body.append(f"{self.names[node]} = {combine}({self.names[node]}, {value});")
            if stage == passes.last:
                varying = [i for i, root in enumerate(outputs) if root not in passes.fixed]
                body += [self._store(i) for i in varying]
            if body:
                lines.append("  for (i64 j = threadIdx.x; j < columns; j += blockDim.x) {")
                lines += [*(f"    {line}" for line in body), "  }"]
            for node in ends:
                name = self.names[node]
                lines.append(f"  {name} = block_{node.function}({name});")
        for i, root in enumerate(outputs):
            if root in passes.fixed:
                lines.append(f"  if (threadIdx.x == 0) {self._store(i)}")
        return [f"  {line}" for line in (*lines, "}")]

    def _columns(self) -> list[str]:
        """Sums over rows: a block of 32 x 8 threads per 32 columns, so that reads are coalesced and
        the order of the sums is fixed."""
        depth, count = self.spec.depth, len(self.spec.dtypes)
        passes, outputs = self.passes, self.spec.outputs
        steps = [f"step{k} = table[{depth * (k + 2) - 1}]" for k in range(count)]
        lines = [f"const i64 columns = table[{depth - 1}], {', '.join(steps)};"]
        lines.append(f"const i64 j = blockIdx.x * (i64){LANES} + threadIdx.x;")
        body = [f"    {line}" for line in self._offsets(depth - 1)]
        roots = [root.args[0] for root in outputs]
        body += [f"    {self._line(n)}" for n in passes.row_numbers(roots, ())]
        body += [f"    {self._line(n)}" for n in passes.needed(roots)]
        last = []
        for i, root in enumerate(outputs):
            kind, name = self._c_type(self.types[root]), self.names[root]
            lines.append(f"__shared__ {kind} part{i}[{GROUPS}][{LANES}];")
            lines.append(f"{kind} {name} = 0;")
            body.append(f"    {name} += ({kind}){self.names[root.args[0]]};")
            last.append(f"  for (int w = 1; w < {GROUPS}; ++w) {name} += part{i}[w][threadIdx.x];")
            last.append(f"  const i64 at{i} = 0; {self._store(i)}")
        lines += [
            f"if (j < columns) for (i64 i = threadIdx.y; i < n; i += {GROUPS}) {{",
            *body,
            "}",
        ]
        for i, root in enumerate(outputs):
            lines.append(f"part{i}[threadIdx.y][threadIdx.x] = {self.names[root]};")
        lines += ["__syncthreads();", "if (threadIdx.y == 0 && j < columns) {", *last, "}"]
        return [f"  {line}" for line in lines]

    def _start(self, node: Expression) -> str:
        """The reduction of nothing."""
        kind = self.types[node]
        assert isinstance(kind, DType)
        if node.function == "total":
            return "0"
        return number_text(-math.inf) if kind.is_floating_point else str(int(np.iinfo(kind.np).min))

    def _offsets(self, counted: int | None = None) -> list[str]:
        """Write where this element lies in every array. table: sizes, then strides of each, in
        elements; then, for random words, the first index and the index strides. counted: number of
        dims that `i` runs over.
        """
        depth, count = self.spec.depth, len(self.spec.dtypes)
        names = [f"at{i}" for i in range(count)] + (["index"] if self.spec.draws else [])
        lines = [f"i64 rest = i, {', '.join(f'{n} = 0' for n in names)};"]
        if self.spec.draws:
            lines.append(f"index = table[{depth * (count + 1)}];")
        for d in reversed(range(depth if counted is None else counted)):
            last = d == 0
            lines.append(f"i64 x{d} = {'rest' if last else f'rest % table[{d}]'};")
            if not last:
                lines.append(f"rest /= table[{d}];")
            for k in range(count):
                lines.append(f"at{k} += x{d} * table[{depth * (k + 1) + d}];")
            if self.spec.draws:
                lines.append(f"index += x{d} * table[{depth * (count + 1) + 1 + d}];")
        return lines

    def _line(self, node: Expression) -> str:
        kind = self._c_type(self.types[node])
        return f"{kind} {self.names[node]} = {self._value(node)};"

    def _c_type(self, kind: ElementType) -> str:
        if isinstance(kind, DType):
            return _COMPUTED[kind.name]
        return "i64" if kind is int else "double"

    def _value(self, node: Expression) -> str:
        function = node.function
        if function == CONSTANT:
            return number_text(node.value)
        if function == SCALAR:
            kind = dict(self.spec.scalars)[node.value]
            return f"s_{node.value}" if kind in ("float", "int") else f"*s_{node.value}"
        if function == WORD:
            if not self.spec.is_row:
                return "first_word((u64)index, seed)"
            step = self.spec.depth * (
                len(self.spec.dtypes) + 2
            )  # `index` is that of the row's first
            return f"first_word((u64)(index + j * table[{step}]), seed)"
        if function in (COLUMN, ROW):
            return "j" if function == COLUMN else "i % s_rows"
        if function == INPUT:
            i = len(self.spec.outputs) + self.spec.names.index(node.value)
            dtype = self.spec.dtypes[i]
            value = f"p{i}[{self._at(node, i)}]"
            return f"from_{dtype.name}({value})" if dtype.name in _HALF else value
        args = [self._argument(node, i) for i in range(len(node.args))]
        if function == CAST:
            return self._cast(args[0], dtype_of(node.value))
        return self._applied(node, args)

    def _applied(self, node: Expression, args: list[str]) -> str:
        function = node.function
        if function in _SIGNS:
            return f"{args[0]} {_SIGNS[function]} {args[1]}"
        if function in _TEMPLATES:
            return _TEMPLATES[function].format(*args)
        kind = self.types[node]
        is_float = not isinstance(kind, DType) or kind.is_floating_point
        if function in ("floor", "ceil", "trunc", "round") and not is_float:
            return args[0]
        return f"{_CALLS.get(function, function)}({', '.join(args)})"

    def _argument(self, node: Expression, i: int) -> str:
        arg = node.args[i]
        name = self.names[arg]
        if node.function == CAST:
            return name
        kind = FUNCTIONS[node.function].kind
        if kind == "logic" or (kind == "choice" and i == 0):
            return f"(bool){name}"
        wanted = self.types[node]
        if kind == "bool":
            types = [self.types[a] for a in node.args]
            wanted = float if node in self.numbers else compared_dtype(types)
        return f"({self._c_type(wanted)}){name}"

    def _cast(self, value: str, dtype: DType) -> str:
        if dtype.name in _HALF:
            return f"from_{dtype.name}(to_{dtype.name}((float){value}))"
        return f"({_COMPUTED[dtype.name]}){value}"


_HALF = ("float16", "bfloat16")


def number_text(value: float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value}ll"
    if math.isfinite(value):
        return repr(value)
    bits = "0x7ff8000000000000" if math.isnan(value) else "0x7ff0000000000000"
    text = f"__longlong_as_double({bits}ll)"
    return f"-{text}" if value == -math.inf else text


# ---- compiling -----------------------------------------------------------------------------------

LONG_S = 2.0
"""Seconds of compiling from which a process says why its first steps take long."""


@dataclass
class Spent:
    """The functions that this process has compiled or loaded, and the seconds that took. NVRTC
    takes 50 to 100 ms a kernel; CuPy keeps compiled kernels on the disk.
    """

    functions: int = 0
    seconds: float = 0.0
    has_said: bool = False

    def add(self, seconds: float) -> None:
        """One more function."""
        self.functions += 1
        self.seconds += seconds
        if self.seconds >= LONG_S and not self.has_said:
            self.has_said = True
            logging.getLogger(__name__).warning(
                "compiling kernels for the GPU takes long: %d so far, %.1f s. Each is compiled "
                "once and kept on the disk (CUPY_CACHE_DIR, ~/.cupy/kernel_cache)",
                self.functions,
                self.seconds,
            )


SPENT = Spent()


def cuda_function(text: str, name: str) -> Any:
    """The function `name` of a CUDA C text, ready to be launched on the current GPU."""
    start = perf_counter()
    function = _module(text).get_function(name)
    SPENT.add(perf_counter() - start)
    return function


@lru_cache(maxsize=4096)
def _module(text: str) -> Any:
    import cupy

    return cupy.RawModule(code=text, options=("-std=c++17",))


# ---- launching -----------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _function(spec: CudaSpec, is_many: bool = False) -> Any:
    return cuda_function(source_of_many(spec) if is_many else source_of(spec), "run")


class CudaKernel:
    """One op call with inputs of certain types, launched through CuPy."""

    reads_seed = True
    """Random numbers may follow a seed on the GPU: see `Rng.recorded`."""

    def __init__(self, op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Any]) -> None:
        formula = formula_of(op, types, attrs)
        self.launches = [_Launch(formula, part) for part in parts_of(formula)]

    def __call__(
        self, xp: ArrayModule, *arrays: Array, rng: Rng | None = None, **_: object
    ) -> None:
        for launch in self.launches:
            launch(xp, arrays, rng)


class _Launch:
    """Launches the function that writes some outputs of a formula. chosen: their positions."""

    def __init__(self, formula: Formula, chosen: tuple[int, ...]) -> None:
        self.formula, self.chosen = formula, chosen
        positions, count = formula.positions(), len(formula.outputs)
        kept = [*chosen, *range(count, len(positions))]
        self.positions = [positions[i] for i in kept]
        short = formula.missing_dims()
        self.missing = {k: short[i] for k, i in enumerate(kept) if i in short}
        self.is_sum = chosen == formula.sums
        self.fed_at = list(formula.fed_positions().values())
        self.numbers = [
            np.float64(v) if isinstance(v, float) else np.int64(v) for v in formula.numbers.values()
        ]
        self.tables: dict[tuple[object, ...], tuple[Layout, Array]] = {}

    def __call__(self, xp: ArrayModule, arrays: tuple[Array, ...], rng: Rng | None) -> None:
        formula = self.formula
        used = [arrays[i] for i in self.positions]
        for i, extra in self.missing.items():
            used[i] = used[i].reshape((*used[i].shape, *(1,) * extra))
        if formula.is_row and formula.row_dims != 1:
            used = [a.reshape(formula.joined(a.shape)) for a in map(xp.ascontiguousarray, used)]
        shape = np.broadcast_shapes(*(a.shape for a in used))
        size = prod(shape[:-1] if formula.is_row else shape)
        if not size:
            return
        starts = (rng.starts, rng.global_shape) if rng is not None else None
        key = (*((a.shape, a.strides) for a in used), starts)
        found = self.tables.get(key)
        if found is None:
            layout = _layout_of(used, rng, shape, formula.is_row)
            found = self.tables[key] = layout, xp.asarray(_table_of(layout, used, rng))
        layout, table = found
        seed: tuple[object, ...] = ()
        if rng is not None:
            place = np.uint64(0) if rng.recorded is None else rng.recorded
            seed = np.uint64(rng.seed & (1 << 64) - 1), place
        fed = [arrays[i] for i in self.fed_at]
        blocks = size if formula.is_row else min(MAX_BLOCKS, -(-size // THREADS))
        block: tuple[int, ...] = (THREADS,)
        if self.is_sum:
            blocks, block = -(-layout.sizes[-1] // LANES), (LANES, GROUPS)
        function = _function(spec_of(formula, layout.depth, self.chosen))
        function((blocks,), block, (*used, *self.numbers, *fed, np.int64(size), table, *seed))


PART = 1 << 14
"""Elements that a block does of one of several calls."""


class ManyKernel:
    """Several calls of one formula, element by element over arrays of one shape each, in a launch.

    calls: the kernel of each, for arrays with gaps.  Called with the outputs of all calls, then
    with the inputs of all.
    """

    def __init__(self, formula: Formula, calls: list[Callable[..., None]]) -> None:
        self.formula, self.calls = formula, calls
        self.positions = formula.positions()
        self.fed_at = list(formula.fed_positions().values())
        self.numbers = [
            np.float64(v) if isinstance(v, float) else np.int64(v) for v in formula.numbers.values()
        ]
        self.plans: dict[tuple[int, ...], tuple[int, Array]] = {}

    def __call__(self, xp: ArrayModule, *arrays: Array, **_: object) -> None:
        own = self.formula.by_call(arrays)
        if not all(a.flags.c_contiguous for call in own for a in call):
            for kernel, call in zip(self.calls, own, strict=True):
                kernel(xp, *call)
            return
        used = [[call[i] for i in self.positions] for call in own]
        key = tuple([address(a) for call in used for a in call])
        found = self.plans.get(key)
        if found is None:
            found = self.plans[key] = self._plan(xp, used, key)
        blocks, plan = found
        fed = [own[0][i] for i in self.fed_at]
        function = _function(spec_of(self.formula, 1), True)
        sizes = np.int64(blocks), np.int64(PART)
        function((blocks,), (THREADS,), (plan, *sizes, *self.numbers, *fed))

    def _plan(
        self, xp: ArrayModule, used: list[list[Array]], addresses: tuple[int, ...]
    ) -> tuple[int, Array]:
        blocks = [
            (c, first) for c, call in enumerate(used) for first in range(0, call[0].size, PART)
        ]
        count = len(self.positions)
        numbers = [n for block in blocks for n in block]
        for c, call in enumerate(used):
            numbers += [*addresses[c * count : (c + 1) * count], call[0].size]
        return len(blocks), xp.asarray(np.array(numbers, np.int64))


def _layout_of(
    arrays: list[Array], rng: Rng | None, shape: tuple[int, ...], is_row: bool
) -> Layout:
    strides = [broadcast_strides(a.shape, a.strides, shape) for a in arrays]
    sizes = [a.itemsize for a in arrays]
    if rng is not None:
        steps = contiguous_strides(rng.global_shape, 1)
        strides.append(broadcast_strides(shape, steps, shape))
        sizes.append(1)
    return Layout(shape, strides, sizes, is_row)


def _table_of(layout: Layout, arrays: list[Array], rng: Rng | None) -> Array:
    numbers = list(layout.sizes)
    for array, moves in zip(arrays, layout.moves, strict=False):
        numbers += [m // array.itemsize for m in moves]
    if rng is not None:
        steps = contiguous_strides(rng.global_shape, 1)
        numbers.append(sum(a * b for a, b in zip(rng.starts, steps, strict=True)))
        numbers += layout.moves[-1]
    return np.array(numbers, np.int64)


def cuda_kernel(
    op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> Callable[..., None]:
    return CudaKernel(op, types, attrs)
