"""Ops on plain NumPy arrays: runs one kernel, whole or on one rank's shard, and a mode in which
gradients can be called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import oneflow.ops  # noqa: F401  (declares all)
from oneflow.boxing.bound_op import BoundOp, Shards, bind
from oneflow.boxing.boxes import shard_box
from oneflow.core.dispatch import Mode, use_mode
from oneflow.core.dtype import dtype_of
from oneflow.core.op import Op, find_op, infer_types
from oneflow.core.placement import Placement
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.registry import Kernel

Array = np.ndarray[Any, Any]
Attrs = dict[str, Any]


def type_of(array: Array) -> TensorType:
    return TensorType(array.shape, dtype_of(array.dtype))


def garbage(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array that shows any element a kernel forgot to write."""
    array = np.empty(shape, dtype)
    array.fill(np.nan if dtype_of(array.dtype).is_floating_point else 1)
    return array


def run_bound(bound: BoundOp, inputs: tuple[Array, ...], seed: int = 0) -> tuple[Array, ...]:
    """Outputs of one kernel. Inputs that the op mutates are copied first."""
    mutated = bound.op.mutates.values()
    inputs = tuple(x.copy() if i in mutated else x for i, x in enumerate(inputs))
    with np.errstate(all="ignore"):
        return tuple(bound.run(np, inputs, seed, garbage))


def bind_whole(
    name: str, inputs: tuple[Array, ...], attrs: Attrs, kernel: Kernel | None = None
) -> BoundOp:
    """Op `name` on whole arrays. kernel: None: the one that `select` takes."""
    op, types = find_op(name), tuple(map(type_of, inputs))
    attrs = op.defaults | attrs
    return bind(op, types, infer_types(op, types, attrs), attrs, "cpu", kernel=kernel)


def run_whole(
    name: str, inputs: tuple[Array, ...], attrs: Attrs, kernel: Kernel | None = None
) -> tuple[Array, ...]:
    """Outputs of op `name`. kernel: None: the one that `select` takes."""
    return run_bound(bind_whole(name, inputs, attrs, kernel), inputs, attrs.get("seed", 0))


# ---- on ranks ------------------------------------------------------------------------------------


def run_ranks(
    name: str, inputs: tuple[Array, ...], attrs: Attrs, sbp: SbpSignature, num_ranks: int
) -> list[Array]:
    """Outputs of op `name` put together from the results of each rank on its shards under `sbp`."""
    op, types = find_op(name), tuple(map(type_of, inputs))
    attrs = op.defaults | attrs
    placement = Placement("cpu", list(range(num_ranks)))
    out_types = infer_types(op, types, attrs)
    layouts = [(s,) for s in sbp.inputs], [(s,) for s in sbp.outputs]
    parts = [scatter(x, s, placement) for x, s in zip(inputs, sbp.inputs, strict=True)]
    results = []
    for rank in range(num_ranks):
        shards = Shards(placement, rank, *layouts)
        bound = bind(op, types, out_types, attrs, "cpu", shards)
        results.append(_run_rank(bound, tuple(p[rank] for p in parts), attrs.get("seed", 0)))
    return [put_together([r[i] for r in results], s) for i, s in enumerate(sbp.outputs)]


def _run_rank(bound: BoundOp, shards: tuple[Array, ...], seed: int) -> tuple[Array, ...]:
    if bound.view is not None and (seen := bound.view(shards[0], **bound.attrs)) is not None:
        return (seen,)
    return run_bound(bound, shards, seed)


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
    """A tensor of this mode: ops may ask it for `.meta` only."""

    array: Array

    @property
    def meta(self) -> TensorType:
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
    refused: tuple[int, ...] = (),
) -> list[Array | None]:
    """Gradients that `op.grad` gives for every input but those `refused`."""

    def value(array: Array | None) -> Value | None:
        return None if array is None else Value(array)

    op = find_op(name)
    attrs = op.defaults | attrs
    with use_mode(NumpyMode()):
        found = op.grad(*map(value, d_outs), *map(Value, inputs), *map(Value, outs), **attrs)
        found = tuple(
            None if i in refused else g() if callable(g) else g for i, g in enumerate(found)
        )
    return [None if g is None else g.array for g in found]
