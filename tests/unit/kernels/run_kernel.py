"""Runs one kernel of one op on NumPy arrays, with outputs and workspace full of garbage."""

from __future__ import annotations

from typing import Any

import numpy as np

import oneflow.ops  # noqa: F401  (declares all)
from oneflow.boxing.bound_op import bind
from oneflow.core.dtype import dtype_of
from oneflow.core.op import find_op, infer_types
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import registry

Array = np.ndarray[Any, Any]


def type_of(array: Array) -> TensorType:
    return TensorType(array.shape, dtype_of(array.dtype))


def garbage(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array that shows any element a kernel forgot to write."""
    array = np.empty(shape, dtype)
    array.fill(np.nan if dtype_of(array.dtype).is_floating_point else 1)
    return array


def run(name: str, *inputs: Array, which: int | None = None, **attrs: Any) -> tuple[Array, ...]:
    """Outputs of op `name`. which: number of the kernel variant; None: the one `select` takes."""
    op, types = find_op(name), tuple(type_of(x) for x in inputs)
    attrs = op.defaults | attrs
    kernel = None if which is None else registry.variants(name, "cpu")[which]
    bound = bind(op, types, infer_types(op, types, attrs), attrs, "cpu", kernel=kernel)
    with np.errstate(all="ignore"):
        return tuple(bound.run(np, inputs, attrs.get("seed", 0), garbage))
