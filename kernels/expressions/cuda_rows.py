"""Updates of rows of a table where they lie in the memory of a GPU: CUDA C from the expressions of
dense parameters' updates.

A row is the parameter, then its states; a thread does one number of a row and of its states.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from oneflow.core.dtype import float32, float64, int64
from oneflow.core.op import find_op
from oneflow.core.operand import Attr
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array
from oneflow.kernels.expressions.cuda_form import (
    MAX_BLOCKS,
    PRELUDE,
    THREADS,
    Writer,
    cuda_function,
    number_text,
    spec_of,
)
from oneflow.kernels.expressions.formula import Formula

_CATCH_UP = """
    double seen = lines[place * pitch + pitch - 1];
    double missed = seen > 0.0 ? (double)*step - 1.0 - seen : 0.0;
    double top = (double)x1 * (B1 < 1.0 ? B1 * (1.0 - pow(B1, missed)) / (1.0 - B1) : missed);
    double root = sqrt(x2);
    if (CORRECTS) {
      double last = seen > 1.0 ? seen : 1.0;
      top /= 1.0 - pow(B1, last);
      root /= sqrt(1.0 - pow(B2, last));
    }
    x0 -= (float)(*lr * top / (root + EPS));
    x1 *= (float)pow(B1, missed);
    x2 *= (float)pow(B2, missed);"""


@dataclass(frozen=True)
class RowRule:
    """An update of rows: see `Rule` in kernels/open_tables.py, which says the same of all devices.

    name: of the op of dense parameters.  options: its attrs, (name, value) each.
    """

    name: str
    options: tuple[tuple[str, Attr], ...]
    first_states: tuple[float, ...]
    catches_up: bool

    def formula(self) -> Formula:
        op = find_op(self.name)
        row = TensorType((1, 1), float32)
        numbers = {"lr": TensorType((), float64), "step": TensorType((), int64)}
        types = tuple(numbers.get(name, row) for name in op.operands)
        return Formula(op, types, op.defaults | dict(self.options))

    def text(self) -> str:
        """The function `run`."""
        formula = self.formula()
        spec = spec_of(formula, 1)
        writer = Writer(spec)
        parts = [0, *range(1, 1 + len(self.first_states))]
        of_input = {0: "x0", 1: "grad"} | {k + 1: f"x{k}" for k in parts[1:]}
        first = {0: 0.0} | {k + 1: value for k, value in enumerate(self.first_states)}
        given = "float* lines, i64 pitch, i64 size, const i64* places, i64 n, const float* sums"
        numbers = "const float* scale, const double* lr, const i64* step"
        lines = [
            f'extern "C" __global__ void run({", ".join([given, numbers, *writer.scalars()])}) {{',
            *(f"  {line}" for line in writer.constants()),
            "  i64 first = blockIdx.x * (i64)blockDim.x + threadIdx.x;",
            "  for (i64 i = first; i < n * size; i += (i64)gridDim.x * blockDim.x) {",
            "    i64 place = places[i / size];",
            "    if (place < 0) continue;",
            "    float* line = lines + place * pitch + i % size;",
            "    float grad = sums[i] * *scale;",
        ]
        lines += [f"    float x{k} = {_plus(f'line[{k} * size]', first[k])};" for k in parts]
        if self.catches_up:
            lines.append(self._catching_up())
        count = len(spec.outputs)
        for k, name in enumerate(spec.names):
            known = of_input[formula.names.index(name)]
            lines.append(f"    const float* p{count + k} = &{known}; i64 at{count + k} = 0;")
        lines += [f"    {line}" for line in writer.elements()]
        for root, at in zip(spec.outputs, formula.at, strict=True):
            k = max(0, formula.op.mutates[at] - 1)
            value = f"(float){writer.names[root]}"
            lines.append(f"    line[{k} * size] = {_plus(value, -first[k])};")
        return PRELUDE + "\n".join([*lines, "  }", "}", ""])

    def _catching_up(self) -> str:
        told = find_op(self.name).defaults | dict(self.options)
        made = _CATCH_UP
        for word, name in (("B1", "beta1"), ("B2", "beta2"), ("EPS", "eps")):
            made = made.replace(word, number_text(float(told[name])))
        return made.replace("CORRECTS", number_text(bool(told["do_bias_correction"])))


def _plus(text: str, value: float) -> str:
    """A sum that is rounded by itself, as on a CPU."""
    return f"__fadd_rn({text}, (float){number_text(value)})" if value else text


@lru_cache(maxsize=256)
def _function(rule: RowRule) -> tuple[Any, list[Any], list[int]]:
    """The function, its numbers, and the places of lr (0) and step (1) that it is fed."""
    formula = rule.formula()
    numbers = [
        np.float64(v) if isinstance(v, float) else np.int64(v) for v in formula.numbers.values()
    ]
    made = cuda_function(rule.text(), "run")
    return made, numbers, [("lr", "step").index(name) for name in formula.fed]


def update_rows(
    rule: RowRule, lines: Array, places: Array, sums: Array, scale: Array, lr: Array, step: Array
) -> None:
    """Overwrite the rows at places, int64[n], -1 for none, by gradients scale · sums.

    lines: float32 (rows, numbers of a row with its states).  sums: float32 (n, size).  scale:
    float32[1].  lr, step: float64[] and int64[], all on the device.
    """
    if not sums.size:
        return
    function, numbers, fed = _function(rule)
    pitch, (n, size) = lines.shape[1], sums.shape
    shape = np.int64(pitch), np.int64(size)
    blocks = min(MAX_BLOCKS, -(-sums.size // THREADS))
    given = lines, *shape, places, np.int64(n), sums, scale, lr, step
    function((blocks,), (THREADS,), (*given, *numbers, *((lr, step)[i] for i in fed)))
