"""Ops on plain NumPy arrays: runs one kernel, whole or on one rank's shard, and a mode in which
gradients can be called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import oneflow.ops  # noqa: F401  (declares all)
from oneflow.boxing.boxes import shard_box
from oneflow.core.dispatch import Mode, use_mode
from oneflow.core.dtype import dtype_of
from oneflow.core.op import Box, Op, find_op, infer_types
from oneflow.core.placement import Placement
from oneflow.core.rng import Rng
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import registry

Array = np.ndarray[Any, Any]
Attrs = dict[str, Any]


def type_of(array: Array) -> TensorType:
    return TensorType(array.shape, dtype_of(array.dtype))


def garbage(t: TensorType) -> Array:
    """An array that shows any element a kernel forgot to write."""
    array = np.empty(t.shape, t.dtype.np)
    array.fill(np.nan if t.dtype.is_floating_point else 1)
    return array


def run_kernel(
    op: type[Op],
    kernel: registry.Kernel,
    inputs: tuple[Array, ...],
    out_types: tuple[TensorType, ...],
    attrs: Attrs,
    rng: Rng | None,
) -> tuple[Array, ...]:
    """Outputs of one kernel. Inputs that the op mutates are copied first."""
    attrs = op.defaults | attrs
    inputs = tuple(x.copy() if i in op.mutates.values() else x for i, x in enumerate(inputs))
    outs = [garbage(t) for t in out_types]
    for out, source in op.mutates.items():
        outs[out] = inputs[source]
    types = tuple(map(type_of, inputs))
    spare = [garbage(t) for t in (kernel.workspace(types, attrs) if kernel.workspace else ())]
    extra = {"rng": rng} if op.is_random else {}
    with np.errstate(all="ignore"):
        kernel.bound(types, attrs)(np, *outs, *inputs, *spare, **attrs, **extra)
    return tuple(outs)


def run_whole(name: str, inputs: tuple[Array, ...], attrs: Attrs) -> tuple[Array, ...]:
    """Outputs of op `name` with the kernel that `select` takes."""
    op = find_op(name)
    attrs = op.defaults | attrs
    types = tuple(map(type_of, inputs))
    out_types = infer_types(op, types, attrs)
    numel = max((t.numel for t in (*types, *out_types)), default=0)
    kernel = registry.select(name, "cpu", types, numel)
    return run_kernel(op, kernel, inputs, out_types, attrs, whole_rng(op, out_types, attrs))


def whole_rng(op: type[Op], out_types: tuple[TensorType, ...], attrs: Attrs) -> Rng | None:
    if not op.is_random:
        return None
    shape = out_types[0].shape
    return Rng(attrs["seed"], shape, (0,) * len(shape))


# ---- on ranks ------------------------------------------------------------------------------------


def run_ranks(
    name: str, inputs: tuple[Array, ...], attrs: Attrs, sbp: SbpSignature, num_ranks: int
) -> list[Array]:
    """Outputs of op `name` put together from what each rank computes on its shards under `sbp`."""
    op = find_op(name)
    attrs = op.defaults | attrs
    placement = Placement("cpu", list(range(num_ranks)))
    out_types = infer_types(op, tuple(map(type_of, inputs)), attrs)
    parts = [scatter(x, s, placement) for x, s in zip(inputs, sbp.inputs, strict=True)]
    results = []
    for rank in range(num_ranks):
        in_boxes = tuple(
            shard_box(x.shape, (s,), placement, rank)
            for x, s in zip(inputs, sbp.inputs, strict=True)
        )
        out_boxes = tuple(
            shard_box(t.shape, (s,), placement, rank)
            for t, s in zip(out_types, sbp.outputs, strict=True)
        )
        shards = tuple(p[rank] for p in parts)
        results.append(_run_rank(op, shards, attrs, out_types, in_boxes, out_boxes))
    return [put_together([r[i] for r in results], s) for i, s in enumerate(sbp.outputs)]


def _run_rank(
    op: type[Op],
    shards: tuple[Array, ...],
    attrs: Attrs,
    out_types: tuple[TensorType, ...],
    in_boxes: tuple[Box, ...],
    out_boxes: tuple[Box, ...],
) -> tuple[Array, ...]:
    local_attrs = op.localize(attrs, in_boxes, out_boxes) if op.localize else attrs
    local_types = tuple(t.with_shape(b.shape) for t, b in zip(out_types, out_boxes, strict=True))
    rng = None
    if op.is_random:
        rng = Rng(attrs["seed"], out_types[0].shape, out_boxes[0].starts)
    view = registry.find_view(op.name) if op.is_view else None
    if view is not None and (seen := view(shards[0], **local_attrs)) is not None:
        return (seen,)
    types = tuple(map(type_of, shards))
    numel = max((t.numel for t in (*types, *local_types)), default=0)
    kernel = registry.select(op.name, "cpu", types, numel)
    return run_kernel(op, kernel, shards, local_types, local_attrs, rng)


def scatter(x: Array, sbp: Any, placement: Placement) -> list[Array]:
    """The shard of each rank; partial sums are random with the right total."""
    if not sbp.is_partial:
        boxes = [shard_box(x.shape, (sbp,), placement, r) for r in range(placement.size)]
        return [np.array(x[b.slices]) for b in boxes]
    rng = np.random.default_rng(0)
    parts = [
        (rng.normal(size=x.shape) if x.dtype.kind == "f" else rng.integers(-3, 4, x.shape)).astype(
            x.dtype
        )
        for _ in range(placement.size - 1)
    ]
    rest = x - sum(parts) if parts else x
    return [*parts, np.asarray(rest, x.dtype)]


def put_together(parts: list[Array], sbp: Any) -> Array:
    if sbp.is_split:
        return np.concatenate(parts, sbp.dim)
    if sbp.is_partial:
        return np.asarray(sum(parts[1:], parts[0]))
    for part in parts[1:]:
        np.testing.assert_allclose(part, parts[0])
    return parts[0]


# ---- gradients -----------------------------------------------------------------------------------


@dataclass(eq=False)
class Value:
    """What this mode calls a tensor: ops may ask it for `.type` only."""

    array: Array

    @property
    def type(self) -> TensorType:
        return type_of(self.array)


class NumpyMode(Mode):
    """Runs every op at once on whole arrays."""

    def run(self, op: type[Op], inputs: tuple[Value, ...], attrs: Attrs) -> Any:
        outs = tuple(map(Value, run_whole(op.name, tuple(x.array for x in inputs), attrs)))
        return outs[0] if op.num_outputs == 1 else outs


def gradients(
    name: str,
    d_outs: list[Array | None],
    inputs: tuple[Array, ...],
    outs: tuple[Array, ...],
    attrs: Attrs,
) -> list[Array | None]:
    """What `op.grad` says for every input."""

    def value(array: Array | None) -> Value | None:
        return None if array is None else Value(array)

    op = find_op(name)
    attrs = op.defaults | attrs
    with use_mode(NumpyMode()):
        found = op.grad(*map(value, d_outs), *map(Value, inputs), *map(Value, outs), **attrs)
        found = tuple(g() if callable(g) else g for g in found)
    return [None if g is None else g.array for g in found]
