"""Kernels of every op that is declared by a formula: NumPy's for small arrays, compiled loops for
large ones, CUDA (see expressions/)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import oneflow.ops  # noqa: F401  (declares all)
from oneflow.core.op import REGISTRY, Op
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.expressions.binding import compiled_kernel, numpy_kernel, numpy_workspace
from oneflow.kernels.expressions.cuda_form import cuda_kernel
from oneflow.kernels.expressions.formula import Formula
from oneflow.kernels.registry import Binder, Kernel, KernelFunction, add_kernel

LEAST = 2048
"""Elements from which a compiled loop beats NumPy's passes. Smaller jobs import no compiler."""


def _native(op: type[Op], native: Callable[..., KernelFunction]) -> Kernel:
    """Machine code of this device; NumPy or CuPy for dtypes that it does not compute with."""
    numpy = numpy_workspace(op)

    def is_native(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> bool:
        made = Formula(op, types, attrs)  # a block of threads does no whole array's sum
        if not made.can_compile() or made.is_one_ufunc():
            return False
        return native is compiled_kernel or not made.is_row

    def binder(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> KernelFunction:
        return (native if is_native(types, attrs) else numpy_kernel)(op, types, attrs)

    def workspace(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
        return () if is_native(types, attrs) else numpy(types, attrs)

    least = LEAST if native is compiled_kernel else 0
    return Kernel(_unbound, workspace, least, (), binder)


def _unbound(*_: Any, **__: Any) -> None:
    raise TypeError("a kernel of a formula is bound to types first: kernel.bound(types, attrs)")


def _register(op: type[Op]) -> None:
    plain: Binder = partial(numpy_kernel, op)
    add_kernel(op.name, "cpu", Kernel(_unbound, numpy_workspace(op), bind=plain))
    add_kernel(op.name, "cpu", _native(op, compiled_kernel))
    add_kernel(op.name, "cuda", _native(op, cuda_kernel))


for _op in REGISTRY.values():
    if _op.formula is not None:
        _register(_op)
