"""The update of all local parameters of a group in one pass over their arrays.

As an op per parameter, the update of a small network costs more in dispatch than in arithmetic: six
updates took 375 us of a step of 1,800. Here the kernels are bound once; a step collects arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from oneflow.boxing.bound_op import BoundOp, bind
from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import float64, int64
from oneflow.core.location import located
from oneflow.core.op import Op, infer_types
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.quiet import run_quietly
from oneflow.kernels.registry import select
from oneflow.tensor.tensor import Tensor

_NUMBERS = {"lr": TensorType((), float64), "step": TensorType((), int64)}


class GroupPass:
    """The kernels of one group, kept for as long as op, attributes and types stay the same."""

    def __init__(self) -> None:
        self._op: type[Op] | None = None
        self._attrs: Attrs = {}
        self._types: list[TensorType] = []
        self._kernels: list[BoundOp] = []

    def __reduce__(self) -> tuple[type[GroupPass], tuple[()]]:
        """A copy starts anew: machine code is not copied."""
        return GroupPass, ()

    def run(
        self,
        op: type[Op],
        attrs: Attrs,
        rows: Sequence[tuple[Tensor, ...]],
        rate: float,
        steps: Sequence[int],
    ) -> bool:
        """Updates each row: a parameter, its gradient, its states. False, with nothing done, if one
        of them is no local tensor on the CPU. steps: the number of each row's update.
        """
        types, arrays = [], []
        for row in rows:
            for x in row:
                if x._placement is not None or x._array.__class__ is not np.ndarray:
                    return False
                types.append(x.meta)
            arrays.append([x._array for x in row])
        if types != self._types or attrs != self._attrs or op is not self._op:
            self._kernels = _bind(op, attrs, [tuple([x.meta for x in row]) for row in rows])
            self._op, self._attrs, self._types = op, attrs, types
        known: dict[int, list[Any]] = {}
        for row_arrays, step in zip(arrays, steps, strict=True):
            if step not in known:
                known[step] = _numbers(op, rate, step)
            row_arrays += known[step]
        note = current_mode().note_kernels
        if note is None:
            run_quietly(_run, self._kernels, arrays)
        else:
            note(self._kernels, run_quietly(_run_timed, self._kernels, arrays))
        written = op.mutates.values()
        for row in rows:
            for i in written:
                row[i]._version[0] += 1
        return True


def _run(kernels: list[BoundOp], rows: list[list[Any]]) -> None:
    for kernel, arrays in zip(kernels, rows, strict=True):
        kernel.run(np, arrays)


def _run_timed(kernels: list[BoundOp], rows: list[list[Any]]) -> list[int]:
    """The nanosecond at which the first kernel began, and at which each ended."""
    times = [perf_counter_ns()]
    for kernel, arrays in zip(kernels, rows, strict=True):
        kernel.run(np, arrays)
        times.append(perf_counter_ns())
    return times


def _numbers(op: type[Op], rate: float, step: int) -> list[Any]:
    """The scalars of an update, in the order of the op's operands."""
    numbers = [np.array(rate)] if "lr" in op.operands else []
    return [*numbers, np.array(step, np.int64)] if "step" in op.operands else numbers


@located
def _bind(op: type[Op], attrs: Attrs, rows: list[tuple[TensorType, ...]]) -> list[BoundOp]:
    """A kernel for each row: the one for all the elements of the group, which are one job."""
    attrs = op.defaults | attrs
    numbers = [_NUMBERS[name] for name in ("lr", "step") if name in op.operands]
    elements = sum([row[0].numel for row in rows])
    kernels = []
    for row in rows:
        types = (*row, *numbers)
        chosen = select(op.name, "cpu", types, elements if row[0].numel else 0)
        kernels.append(bind(op, types, infer_types(op, types, attrs), attrs, "cpu", kernel=chosen))
    return kernels
