"""Functions of `torch` and of its tensors that are a call or two of others."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow import surfaces
from oneflow.core.dtype import DTypeLike, dtype_of, int8, int32, int64
from oneflow.core.errors import ArgumentError, CallError, DTypeError, ShapeError
from oneflow.core.operand import Number
from oneflow.functional.creation import full
from oneflow.functional.initial import _calculate_fan_in_and_fan_out
from oneflow.functional.linalg.products import matmul
from oneflow.ops.cast import cast
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.tensor import MEMBERS, Tensor

REDUCTIONS = {"sum": 0.0, "mean": float("nan"), "max": -float("inf"), "min": float("inf")}
REDUCTIONS["prod"] = 1.0
"""The value of an empty segment, for each reduction."""


def to_dense(input: Tensor, dtype: DTypeLike | None = None, *, masked_grad: bool = True) -> Tensor:
    """Return the tensor, as every tensor is dense."""
    if dtype is None:
        return input
    made: Tensor = surfaces.find("tensor", "to")(input, dtype_of(dtype))
    return made


def _identity(input: Tensor) -> int:
    """Return a number that no other tensor has while this one lives."""
    return id(input)


cdata = property(_identity)


def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> Tensor:
    """Return the sum, mean, prod, max or min of consecutive parts of `data` along `axis`.

    lengths: of the parts; its last dim goes along `axis`, those before are dims of the data.
    offsets: instead, where the parts begin, and where the last one ends.  initial: where a part
    begins to reduce, and the value of an empty one.
    """
    if not isinstance(data, Tensor):
        raise CallError(f"segment_reduce: argument 0 must be a tensor, got {data!r:.80}")
    reduce = {"amax": "max", "amin": "min"}.get(reduce, reduce)
    if not isinstance(axis, (int, np.integer)):
        raise CallError(f"segment_reduce: axis must be an int, got {axis!r:.80}")
    axis = int(axis)
    if reduce not in REDUCTIONS:
        raise ArgumentError(f"segment_reduce: reduce is one of {list(REDUCTIONS)}, got {reduce!r}")
    if (lengths is None) == (offsets is None):
        raise ArgumentError("segment_reduce: give lengths or offsets")
    if offsets is not None:
        lengths = offsets[..., 1:] - offsets[..., :-1]
    assert lengths is not None
    if lengths.ndim != axis + 1:
        raise ShapeError(
            f"segment_reduce: lengths {lengths.meta} needs {axis + 1} dims for axis {axis}"
        )
    found = [
        _segments(
            part if not unsafe else part[: int(row.sum().item())],
            reduce,
            [int(n) for n in row.tolist()],
            initial,
        )
        for part, row in zip(
            data.reshape(-1, *data.shape[axis:]),
            lengths.reshape(-1, lengths.shape[-1]),
            strict=True,
        )
    ]
    stacked: Tensor = surfaces.find("flow", "stack")(found)
    return stacked.reshape(*data.shape[:axis], *stacked.shape[1:])


def _segments(data: Tensor, reduce: str, lengths: list[int], initial: Number | None) -> Tensor:
    """Return the reductions of consecutive parts of dim 0."""
    if sum(lengths) != data.shape[0]:
        raise ShapeError(
            f"segment_reduce: lengths sum to {sum(lengths)}, but dim is {data.shape[0]}"
        )
    parts = surfaces.find("flow", "split")(data, lengths)
    made: Tensor = surfaces.find("flow", "stack")([_reduced(p, reduce, initial) for p in parts])
    return made


def _reduced(part: Tensor, reduce: str, initial: Number | None) -> Tensor:
    shape = part.shape[1:]
    where: dict[str, Any] = {"dtype": part.dtype, **layout_of(part)}
    if not part.shape[0]:
        return full(shape, REDUCTIONS[reduce] if initial is None else initial, **where)
    if initial is not None:
        start = full((1, *shape), initial, **where)
        joined = surfaces.find("flow", "cat")([start, part])
        if reduce == "mean":
            mean: Tensor = joined.sum(0) / part.shape[0]
            return mean
        part = joined
    named = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    made: Tensor = surfaces.find("tensor", named)(part, 0)
    return made


def swap_tensors(t1: Tensor, t2: Tensor) -> None:
    """Exchange two tensors: all names of the one are names of the other from now on.

    Their class, values, gradients and attributes change places.
    """
    t1.__class__, t2.__class__ = t2.__class__, t1.__class__
    t1.__dict__, t2.__dict__ = t2.__dict__, t1.__dict__
    missing = object()
    for name in MEMBERS:
        first, second = getattr(t1, name, missing), getattr(t2, name, missing)
        for target, value in ((t1, second), (t2, first)):
            if value is not missing:
                object.__setattr__(target, name, value)
            elif hasattr(target, name):
                object.__delattr__(target, name)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    """Return fan_in or fan_out of a weight."""
    kind = mode.lower()
    if kind not in ("fan_in", "fan_out"):
        raise ArgumentError(f"mode is fan_in or fan_out, got {mode!r}")
    return int(_calculate_fan_in_and_fan_out(tensor)[kind == "fan_out"])


def _convert_indices_from_coo_to_csr(
    input: Tensor, size: int, *, out_int32: bool = False
) -> Tensor:
    """Return where each row of sorted row numbers begins, and the end."""
    counts = surfaces.find("flow", "bincount")(input, minlength=size)
    made: Tensor = surfaces.find("flow", "cat")([counts.new_zeros(1), counts.cumsum(0)])
    return made.int() if out_int32 else made


def _convert_indices_from_csr_to_coo(
    crow_indices: Tensor, col_indices: Tensor, *, out_int32: bool = False, transpose: bool = False
) -> Tensor:
    """Return (row, column) of each element."""
    counts = crow_indices[1:] - crow_indices[:-1]
    rows = surfaces.find("flow", "arange")(len(counts), dtype=int64).repeat_interleave(counts)
    pair = (col_indices, rows) if transpose else (rows, col_indices)
    made: Tensor = surfaces.find("flow", "stack")([x.to(rows.dtype) for x in pair])
    return made.int() if out_int32 else made


def _int_mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the product of two int8 matrices in int32. Raises DTypeError for other dtypes."""
    if input.dtype is not int8 or mat2.dtype is not int8:
        raise DTypeError(f"_int_mm: takes int8 matrices, got {input.meta} and {mat2.meta}")
    made: Tensor = matmul(cast(input, dtype=int32), cast(mat2, dtype=int32))
    return made


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: DTypeLike | None = None,
) -> Tensor:
    """Return products of groups, one after the other.

    mat_a (rows, k) and mat_b (groups, k, n): rows up to offs[g] are of group g; (rows, n).
    mat_a (groups, rows, k) and mat_b (k, columns): columns up to offs[g]; (rows, columns).
    mat_a (m, k) and mat_b (k, n): the sums of each group; (groups, m, n).  Without offs both have
    a dim of groups.
    """
    if bias is not None:
        raise ArgumentError("grouped_mm: bias is not supported; add it to the result")
    made = (
        mat_a @ mat_b if offs is None else _grouped(mat_a, mat_b, [int(n) for n in offs.tolist()])
    )
    return made if out_dtype is None else surfaces.find("tensor", "to")(made, dtype_of(out_dtype))


def _grouped(a: Tensor, b: Tensor, ends: list[int]) -> Tensor:
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    cat, stack = surfaces.find("flow", "cat"), surfaces.find("flow", "stack")
    if a.ndim == 2 and b.ndim == 3:
        rows = [a[span] @ b[g] for g, span in enumerate(spans)]
        left = a.shape[0] - ends[-1]
        made: Tensor = cat(rows + ([a.new_zeros(left, b.shape[-1])] if left else []))
    elif a.ndim == 3 and b.ndim == 2:
        made = cat([a[g] @ b[:, span] for g, span in enumerate(spans)], 1)
    else:
        made = stack([a[:, span] @ b[span] for span in spans])
    return made


_grouped_mm = grouped_mm
