"""Runs one kernel of one op on NumPy arrays, with outputs and workspace full of garbage."""

from __future__ import annotations

from typing import Any

import numpy as np

import oneflow.ops  # noqa: F401  (declares all)
from oneflow.core.dtype import dtype_of
from oneflow.core.op import find_op, infer_types
from oneflow.core.rng import Rng
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import registry

Array = np.ndarray[Any, Any]


def type_of(array: Array) -> TensorType:
    return TensorType(array.shape, dtype_of(array.dtype))


def garbage(t: TensorType) -> Array:
    """An array that shows any element a kernel forgot to write."""
    array = np.empty(t.shape, t.dtype.np)
    array.fill(np.nan if t.dtype.is_floating_point else 1)
    return array


def run(name: str, *inputs: Array, which: int | None = None, **attrs: Any) -> tuple[Array, ...]:
    """Outputs of op `name`. which: number of the kernel variant; None: the one `select` takes."""
    op = find_op(name)
    attrs = op.defaults | attrs
    types = tuple(type_of(x) for x in inputs)
    out_types = infer_types(op, types, attrs)
    outs = [garbage(t) for t in out_types]
    for out, source in op.mutates.items():
        outs[out] = inputs[source]
    numel = max(t.numel for t in (*types, *out_types))
    kernel = (
        registry.select(name, "cpu", types, numel)
        if which is None
        else registry.variants(name, "cpu")[which]
    )
    spare = [garbage(t) for t in (kernel.workspace(types, attrs) if kernel.workspace else ())]
    extra = {}
    if op.is_random:
        shape = out_types[0].shape
        extra["rng"] = Rng(attrs["seed"], shape, (0,) * len(shape))
    with np.errstate(all="ignore"):
        kernel.bound(types, attrs)(np, *outs, *inputs, *spare, **attrs, **extra)
    return tuple(outs)
