"""Kernels of every op that is declared by a formula: NumPy's for small arrays, compiled loops for
large ones, CUDA (see expressions/)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oneflow.ops  # noqa: F401  (declares all)
from oneflow.core.op import REGISTRY, Op
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.expressions.binding import (
    can_compile,
    compiled_kernel,
    numpy_kernel,
    numpy_workspace,
)
from oneflow.kernels.registry import Binder, Kernel, KernelFunction, add_kernel

LEAST = 2048
"""Elements from which a compiled loop beats NumPy's passes. Smaller jobs import no compiler."""


def _binds(op: type[Op], binder: Callable[..., KernelFunction]) -> Binder:
    return lambda types, attrs: binder(op, types, attrs)


def _compiles(op: type[Op], types: tuple[TensorType, ...]) -> bool:
    return can_compile(tuple(t.dtype for t in types))


def _loop(op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Any]) -> KernelFunction:
    """A compiled loop; NumPy for dtypes that processors do not compute with."""
    binder = compiled_kernel if _compiles(op, types) else numpy_kernel
    return binder(op, types, attrs)


def _loop_workspace(op: type[Op]) -> Any:
    numpy = numpy_workspace(op)
    return lambda types, attrs: () if _compiles(op, types) else numpy(types, attrs)


def _unbound(bind: Binder) -> KernelFunction:
    def run(*_: Any, **__: Any) -> None:
        raise TypeError("a kernel of a formula is bound to types first: kernel.bound(types, attrs)")

    return run


def _register(op: type[Op]) -> None:
    plain = _binds(op, numpy_kernel)
    generic = Kernel(_unbound(plain), numpy_workspace(op), bind=plain)
    add_kernel(op.name, "cpu", generic)
    add_kernel(op.name, "cuda", generic)
    loop = _binds(op, _loop)
    add_kernel(op.name, "cpu", Kernel(_unbound(loop), _loop_workspace(op), LEAST, (), loop))


for _op in REGISTRY.values():
    if _op.formula is not None:
        _register(_op)
