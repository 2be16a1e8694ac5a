"""Kernels of every op that is declared by a formula: NumPy's for small arrays, compiled loops for
large ones, CUDA (see expressions/); calls of its array module on other kinds of devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import oneflow.ops  # noqa: F401  (declares all)
from oneflow.core.expression import REDUCTIONS, WORD, uniform_nodes, walk
from oneflow.core.op import REGISTRY, Op
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.expressions.binding import (
    compiled_kernel,
    compiled_workspace,
    computes_half,
    numpy_kernel,
    numpy_workspace,
)
from oneflow.kernels.expressions.cuda_form import cuda_kernel
from oneflow.kernels.expressions.formula import Formula, formula_of
from oneflow.kernels.registry import EVERY, Kernel, KernelFunction, add_kernel, checked, is_checked

LEAST = 512
"""Elements from which a compiled loop beats NumPy's passes: the gradient of 16 rows of 64 by relu
takes 7.6 us in NumPy and 4.5 in a loop."""
MOST_IN_A_ROW = 1 << 18
"""Elements of a row that a compiled loop adds up, in float32; NumPy adds pairs of pairs."""
LEAST_OF_ROWS = 128
"""The same of formulas with reductions, of which NumPy makes many passes: the cross entropy of 16
rows of 10 takes 21 us where a compiled loop takes 6."""


def _native(op: type[Op], native: Callable[..., KernelFunction], least: int) -> Kernel:
    """Machine code of this device; NumPy or CuPy for dtypes that it does not compute with. least:
    the number of elements that it is for.
    """
    numpy = numpy_workspace(op)

    def is_native(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> bool:
        made = formula_of(op, types, attrs)
        if not made.can_compile or made.is_one_ufunc():
            return False
        if least == LEAST_OF_ROWS and not made.is_row:
            return False
        if made.is_row and native is compiled_kernel and _row_size(made) > MOST_IN_A_ROW:
            return False
        if native is compiled_kernel and made.has_half() and not computes_half():
            return False
        return native is compiled_kernel or _fits_cuda(made)

    def binder(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> KernelFunction:
        made = (native if is_native(types, attrs) else numpy_kernel)(op, types, attrs)
        return checked(op.name, made, op.defaults | attrs) if native is compiled_kernel else made

    def workspace(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
        if not is_native(types, attrs):
            return numpy(types, attrs)
        return compiled_workspace(formula_of(op, types, attrs)) if native is compiled_kernel else ()

    return Kernel(_unbound, workspace, least, (), binder)


def _row_size(made: Formula) -> int:
    return math.prod(made.whole[made.lead :])


def _fits_cuda(made: Formula) -> bool:
    """Does a GPU have a kernel of its own for a formula? A block of threads does a row: one row
    alone would leave all others idle. A sum over rows is made of no other reduction.
    """
    if not made.is_row:
        return True
    nodes = walk(*(made.outputs[i] for i in made.sums))
    return made.num_rows > 1 and not any(n.function in (*REDUCTIONS, WORD) for n in nodes)


def can_fuse(
    op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Any], device: str
) -> bool:
    """May a call of `op` become a part of a larger kernel on a device? Reductions must be over the
    last dim. A call whose operand is checked first stays alone.
    """
    if op.positions is not None:
        return False
    made = formula_of(op, types, attrs)
    if made.fed or made.row_dims > 1 or not made.can_compile or not math.prod(made.whole):
        return False
    if not uniform_nodes(*made.outputs).isdisjoint(made.outputs):
        return False
    if device == "cuda":
        return _fits_cuda(made)
    if device != "cpu":
        return False  # no compiler for its machine code
    if is_checked(op.name):
        return False
    return computes_half() or not made.has_half()


def _unbound(*_: object, **__: object) -> None:
    raise TypeError("a kernel of a formula is bound to types first: kernel.bound(types, attrs)")


def _register(op: type[Op]) -> None:
    def plain(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> KernelFunction:
        return checked(op.name, numpy_kernel(op, types, attrs), op.defaults | attrs)

    add_kernel(op.name, "cpu", Kernel(_unbound, numpy_workspace(op), bind=plain))
    add_kernel(op.name, "cpu", _native(op, compiled_kernel, LEAST_OF_ROWS))
    add_kernel(op.name, "cpu", _native(op, compiled_kernel, LEAST))
    add_kernel(op.name, "cuda", _native(op, cuda_kernel, 0))
    anywhere = partial(numpy_kernel, op)
    add_kernel(op.name, EVERY, Kernel(_unbound, numpy_workspace(op), bind=anywhere))


for _op in REGISTRY.values():
    if _op.formula is not None:
        _register(_op)
