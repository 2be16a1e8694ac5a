"""An op bound to one rank: the one place where a call becomes kernel, local types and attributes.

Eager ops on local tensors, eager ops on global ones, segments of a plan and tests all prepare their
kernels here. A local tensor is a whole one: without shards the parts are the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oneflow.boxing.boxes import shard_box
from oneflow.core.config import current_config
from oneflow.core.op import Box, Op, expression_of
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.rng import Rng
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import (
    Kernel,
    KernelFunction,
    ViewFunction,
    find_view,
    num_kernels,
    select,
)

Types = tuple[TensorType, ...]
ArrayKind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and NumPy dtype of an array to be made."""


@dataclass(frozen=True, slots=True)
class Shards:
    """The parts of global tensors on one placement that `rank` holds. inputs, outputs: layouts."""

    placement: Placement
    rank: int
    inputs: Sequence[NdSbp]
    outputs: Sequence[NdSbp]

    def boxes(self, types: Types, nd_sbps: Sequence[NdSbp]) -> tuple[Box, ...]:
        pairs = zip(types, nd_sbps, strict=True)
        return tuple([shard_box(t.shape, s, self.placement, self.rank) for t, s in pairs])


@dataclass(frozen=True, slots=True)
class BoundOp:
    """The computation of one rank's part of an op.

    attrs: of its shards.  in_types, out_types, workspace: of its arrays.  outs, work: the same of
    the arrays that a call makes.  out_boxes: its parts of the outputs.  whole_shape: of the whole
    first output, which random ops draw for.
    view: makes an array that shares the input's memory, or None if it cannot; None: no view.
    is_plain: the kernel on new arrays is all there is to do: nothing is random or overwritten, and
    there is no view and no workspace.  keywords: attrs that the kernel, unless it was bound to
    them, is called with.
    """

    op: type[Op]
    attrs: Attrs
    in_types: Types
    out_types: Types
    workspace: Types
    outs: tuple[ArrayKind, ...]
    work: tuple[ArrayKind, ...]
    out_boxes: tuple[Box, ...]
    whole_shape: tuple[int, ...]
    function: KernelFunction
    view: ViewFunction | None
    is_plain: bool
    keywords: Attrs

    @property
    def formula(self) -> Any:
        """The expression of the result, or of each; None without a formula."""
        return expression_of(self.op, self.in_types, self.attrs)

    def run(
        self,
        xp: ArrayModule,
        arrays: Sequence[Array],
        seed: int = 0,
        empty: Callable[..., Array] | None = None,
    ) -> list[Array]:
        """Run the kernel on this rank's arrays; return its part of the outputs.

        seed: of a random op.  empty: (shape, dtype) -> a new array; None: as xp makes one. NumPy's
        warnings are the caller's to silence.
        """
        mutates, empty = self.op.mutates, empty or xp.empty
        outs = []
        for i, kind in enumerate(self.outs):
            outs.append(arrays[mutates[i]] if i in mutates else empty(*kind))
        work = [empty(*kind) for kind in self.work] if self.work else ()
        attrs = self.keywords
        if self.op.is_random:
            rng = Rng(seed, self.whole_shape, self.out_boxes[0].starts)
            attrs = {**attrs, "seed": seed, "rng": rng}
        self.function(xp, *outs, *arrays, *work, **attrs)
        return outs


def bind(
    op: type[Op],
    types: Types,
    out_types: Types,
    attrs: Attrs,
    device: str,
    shards: Shards | None = None,
    kernel: Kernel | None = None,
) -> BoundOp:
    """`op` on one rank. types, out_types: of the whole tensors.  device: its kind, cpu or cuda.

    shards: of global tensors; None: the tensors are local.  kernel: the one to use; None: the one
    that `select` takes.
    """
    local, ins, outs = attrs, types, out_types
    if shards is None:
        out_boxes = tuple([Box((0,) * t.ndim, t.shape) for t in out_types])
    else:
        in_boxes = shards.boxes(types, shards.inputs)
        out_boxes = shards.boxes(out_types, shards.outputs)
        ins, outs = _within(types, in_boxes), _within(out_types, out_boxes)
        if op.localize is not None:
            local = op.localize(attrs, in_boxes, out_boxes)
    if kernel is None:
        kernel = select(op.name, device, ins, max([t.numel for t in (*ins, *outs)], default=0))
    function = kernel.bound(ins, local)
    if op.positions is not None:
        from oneflow.kernels.positions import guarded  # here: most programs begin without

        function = guarded(op, function, types, attrs, len(outs), device)
    if current_config().waits_for_kernels:
        from oneflow.kernels.watching import watched  # here: few programs look for a defect

        function = watched(op.name, function, len(outs), len(ins))
    workspace = tuple(kernel.workspace(ins, local)) if kernel.workspace else ()
    view = find_view(op.name) if op.is_view else None
    return BoundOp(
        op,
        local,
        ins,
        outs,
        workspace,
        tuple([(t.shape, t.dtype.np) for t in outs]),
        tuple([(t.shape, t.dtype.np) for t in workspace]),
        out_boxes,
        out_types[0].shape if out_types else (),
        function,
        view,
        not (workspace or view or op.is_random or op.mutates),
        local if kernel.bind is None else {},
    )


_bound: dict[Hashable, BoundOp] = {}
MOST_BOUND = 8192
"""Distinct calls that are remembered; beyond it all are forgotten."""


def bind_alike(
    op: type[Op],
    types: Types,
    out_types: Types,
    attrs: Attrs,
    device: str,
    shards: Shards,
    kind_key: str,
) -> BoundOp:
    """`bind` for a call of a graph. Equal calls, as those of repeated blocks, share one BoundOp:
    kernels keep no arrays between calls.

    kind_key: see `Node.kind_key`. Random ops may differ in their `seed`, which no kernel is
    prepared for.
    """
    key = (
        op,
        types,
        out_types,
        kind_key,
        device,
        shards.placement,
        shards.rank,
        tuple(shards.inputs),
        tuple(shards.outputs),
        num_kernels(op.name, device),
    )
    found = _bound.get(key)
    if found is None:
        if len(_bound) >= MOST_BOUND:
            _bound.clear()
        found = _bound[key] = bind(op, types, out_types, attrs, device, shards)
    if not op.is_random or found.attrs.get("seed") == attrs.get("seed"):
        return found
    seed = {"seed": attrs["seed"]}
    keywords = {**found.keywords, **seed} if found.keywords else found.keywords
    return replace(found, attrs={**found.attrs, **seed}, keywords=keywords)


def _within(types: Types, boxes: tuple[Box, ...]) -> Types:
    return tuple([t.with_shape(b.shape) for t, b in zip(types, boxes, strict=True)])
