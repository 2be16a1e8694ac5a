"""Eager ops on global tensors: choose a signature, box the inputs, run the kernel on this rank's
shard.

All ranks of a placement make the same calls; what they decide depends on types, attrs and layouts
only, so they decide
alike without asking each other. Ranks outside follow along without data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow.autograd.tape import record
from oneflow.boxing.boxes import shard_box
from oneflow.boxing.cost import boxing_seconds
from oneflow.boxing.link import GPUS_OF_ONE_HOST, ONE_HOST
from oneflow.boxing.route import choose_route
from oneflow.core.config import current_config
from oneflow.core.dtype import bool_
from oneflow.core.errors import GraphError, InternalError, PlacementError
from oneflow.core.op import Attr, Box, Op, infer_types, signatures
from oneflow.core.placement import Placement
from oneflow.core.rng import Rng
from oneflow.core.sbp import NdSbp, SbpSignature, all_broadcast, check_fits
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.kernels.cuda_device import own_device
from oneflow.kernels.registry import find_view, select
from oneflow.tensor.devices import to_device as to_device
from oneflow.tensor.devices import to_host as to_host
from oneflow.tensor.global_parts import BoundParts, plan_parts
from oneflow.tensor.tensor import Tensor, extra, wrap_global

MAX_CACHED_CALLS = 8192
MAX_COMBINATIONS = 4096
_TIE_SECONDS_PER_BYTE = 1e-12  # of two choices that move the same, the one with smaller shards


@dataclass(frozen=True)
class GlobalCall:
    """How one op runs on inputs of certain types and layouts."""

    out_types: tuple[TensorType, ...]
    in_sbps: tuple[NdSbp, ...]
    out_sbps: tuple[NdSbp, ...]
    bound: BoundKernel | None = None  # None outside the placement
    written_back: tuple[int, ...] = ()
    """Mutated outputs that are computed in another layout than their input's."""
    parts: BoundParts | None = None
    """Set if the op runs on parts of shards (global_parts.py)."""


@dataclass(frozen=True)
class BoundKernel:
    """How this rank computes its part. attrs: of the shard.  out_box: of the first output."""

    attrs: dict[str, Attr]
    function: Any
    outs: tuple[tuple[tuple[int, ...], Any], ...]  # shape and NumPy dtype
    work: tuple[tuple[tuple[int, ...], Any], ...]
    view: Any  # the view function or None
    whole_shape: tuple[int, ...]
    out_box: Box


_calls: dict[tuple[Any, ...], GlobalCall] = {}


def run_global(op: type[Op], inputs: tuple[Tensor, ...], attrs: dict[str, Attr]) -> Any:
    """Runs one op on global tensors. Raises PlacementError if they lie in different places."""
    if current_config().move_inputs_together:
        inputs = _moved_together(op, inputs)
    placement = _common_placement(op, inputs)
    call = _cached_call(op, inputs, attrs, placement)
    if op.is_random:
        attrs = _with_common_seed(attrs, placement)
    shards = [
        x._array
        if x._sbp == wanted
        else relayout(x._array, x.type, x.sbp, placement, wanted, placement)
        for x, wanted in zip(inputs, call.in_sbps, strict=True)
    ]
    if call.parts is not None:
        arrays = [call.parts.run(shards, array_module(placement))]
    elif call.bound is None:
        arrays = [empty_shard(t, placement) for t in call.out_types]
    elif call.bound.view is not None:
        array = call.bound.view(*shards, **call.bound.attrs)
        if array is not None:
            out = _view(op, inputs[0], shards[0], array, call, attrs, placement)
            record(op, inputs, (out,), attrs)
            return out
        arrays = _run_kernel(op, call.bound, shards, attrs, placement)
    else:
        arrays = _run_kernel(op, call.bound, shards, attrs, placement)
    for i in call.written_back:
        _write_back(inputs[op.mutates[i]], arrays[i], call.out_sbps[i])
    outs = [
        _mutated(inputs[op.mutates[i]])
        if i in op.mutates
        else wrap_global(array, call.out_types[i], placement, call.out_sbps[i])
        for i, array in enumerate(arrays)
    ]
    record(op, inputs, outs, attrs)
    return outs[0] if op.num_outputs == 1 else tuple(outs)


def create_global(
    op: type[Op], attrs: dict[str, Attr], placement: Placement, nd_sbp: NdSbp
) -> Tensor:
    """The result of an op without inputs, laid out as asked: same values whatever the layout."""
    check_placement(placement)
    (type_,) = infer_types(op, (), attrs)
    check_fits(nd_sbp, type_.shape, op.name)
    if op.is_random:
        attrs = _with_common_seed(attrs, placement)
    rank = world().rank
    if rank not in placement:
        return wrap_global(empty_shard(type_, placement), type_, placement, nd_sbp)
    made = nd_sbp if _may_be_cut(op, attrs, nd_sbp) else all_broadcast(placement.ndim)
    box = shard_box(type_.shape, nd_sbp, placement, rank)
    if not box.is_first:
        shard = array_module(placement).zeros(box.shape, type_.dtype.np)
        return wrap_global(shard, type_, placement, nd_sbp)
    made_box = shard_box(type_.shape, made, placement, rank)
    bound = _bind(op, (), (type_,), (), (made,), attrs, placement)
    (shard,) = _run_kernel(op, bound, [], attrs, placement)
    if made_box.shape != box.shape:
        shard = array_module(placement).ascontiguousarray(shard[box.slices])
    return wrap_global(shard, type_, placement, nd_sbp)


def from_whole(array: np.ndarray[Any, Any], placement: Placement, nd_sbp: NdSbp) -> Tensor:
    """The global tensor of an array that every rank has: each takes its part, nothing is sent."""
    from oneflow.core.dtype import dtype_of

    check_placement(placement)
    type_ = TensorType(tuple(array.shape), dtype_of(array.dtype))
    rank = world().rank
    if rank not in placement:
        return wrap_global(empty_shard(type_, placement), type_, placement, nd_sbp)
    box = shard_box(type_.shape, nd_sbp, placement, rank)
    part = np.array(array[box.slices]) if box.is_first else np.zeros(box.shape, array.dtype)
    return wrap_global(to_device(part, placement.type), type_, placement, nd_sbp)


def relayout(
    shard: Any,
    type_: TensorType,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
) -> Any:
    """This rank's array after a change of layout. All ranks of both placements must call it; no
    history.

    From GPUs to GPUs nothing goes through host memory where they can use NCCL.
    """
    from oneflow.boxing.execute import run_route

    if (src_sbp, src_placement) == (dst_sbp, dst_placement):
        return shard
    here = world()
    on_gpus = src_placement.type == dst_placement.type == "cuda"
    network = GPUS_OF_ONE_HOST if on_gpus else ONE_HOST
    on_cpu_src, on_cpu_dst = _as_cpu(src_placement), _as_cpu(dst_placement)
    route = choose_route(type_, src_sbp, on_cpu_src, dst_sbp, on_cpu_dst, network)
    mine = shard if here.rank in src_placement else None
    if on_gpus and (mine is not None or here.rank in dst_placement):
        empty = own_device().empty
        after = run_route(type_, route, here.rank, mine, here.device_collectives, empty)
    else:
        mine = None if mine is None else to_host(mine)
        after = run_route(type_, route, here.rank, mine, here.collectives)
    if after is None or here.rank not in dst_placement:
        return empty_shard(type_, dst_placement)
    return after if on_gpus else to_device(after, dst_placement.type)


def to_layout(x: Tensor, placement: Placement, nd_sbp: NdSbp) -> Tensor:
    """`x` laid out otherwise, with history."""
    from oneflow.tensor.to_global import relaid

    return relaid(x, placement, nd_sbp)


def gather(x: Tensor) -> Tensor:
    """All values of a global tensor as a local CPU tensor. Every rank of its placement must call
    it."""
    from oneflow.tensor.tensor import wrap

    placement = x.placement
    whole = relayout(
        x._array, x.type, x.sbp, placement, all_broadcast(placement.ndim), _as_cpu(placement)
    )
    return wrap(whole)


def values_everywhere(x: Tensor) -> np.ndarray[Any, Any]:
    """All values of a tensor on every rank of the world, which all must call it: for results whose
    shape depends on values, so that ranks outside the placement know it too. Local: its own."""
    values = x.numpy()
    placement = x._placement
    here = world()
    if placement is None or placement.size == here.world_size:
        return values
    if here.rank not in placement:
        values = np.empty(x.type.shape, values.dtype)
    return here.everyone.broadcast(values, placement.rank_ids[0])


# ---- placements and devices ----------------------------------------------------------------------


def check_placement(placement: Placement) -> None:
    """Raises PlacementError if it names a rank that the world does not have."""
    if placement.rank_ids[-1] >= world().world_size:
        raise PlacementError(
            "Placement is invalid because rank must be less than world size! "
            f"{placement} in a world of {world().world_size}"
        )


def empty_shard(type_: TensorType, placement: Placement) -> Any:
    """What a rank outside the placement holds: nothing, with as many dims."""
    return np.empty((0,) * max(1, type_.ndim), type_.dtype.np)


def array_module(placement: Placement) -> Any:
    """NumPy, or CuPy on this rank's GPU."""
    if placement.type == "cpu":
        return np
    return own_device()


def _as_cpu(placement: Placement) -> Placement:
    return placement if placement.type == "cpu" else Placement("cpu", placement.ranks)


def _common_placement(op: type[Op], inputs: tuple[Tensor, ...]) -> Placement:
    first = inputs[0]._placement
    for i, x in enumerate(inputs):
        if x.value is not None:
            raise GraphError(
                f"{op.name}: {x.type} is a value of an nn.Graph under construction "
                "and has no data outside build()"
            )
        if x._placement is None or first is None:
            raise PlacementError(
                f"{op.name}: local and global tensors are mixed (positional {i}); make both global "
                "with to_global(placement, sbp), or both local with to_local()"
            )
        if x._placement is not first and x._placement != first:
            raise PlacementError(
                f"{op.name}: Expected all tensors to be on the same placement, but found at least "
                f"two placements, {first!r} (positional 0) and {x._placement!r} (positional {i})! "
                "Move one with to_global(placement=..., sbp=...)"
            )
    assert first is not None
    return first


def _moved_together(op: type[Op], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Global inputs on the placement of the first, in their own SBP if it fits there. What the op
    overwrites stays where it is."""
    first = inputs[0]._placement
    if first is None:
        return inputs
    moved = list(inputs)
    for i, x in enumerate(inputs):
        if x._placement in (None, first) or i in op.mutates.values():
            continue
        fits = x.placement.ndim == first.ndim
        moved[i] = to_layout(x, first, x.sbp if fits else all_broadcast(first.ndim))
    return tuple(moved)


# ---- signatures ----------------------------------------------------------------------------------


def _cached_call(
    op: type[Op], inputs: tuple[Tensor, ...], attrs: dict[str, Attr], placement: Placement
) -> GlobalCall:
    types = tuple([x.type for x in inputs])
    sbps: tuple[NdSbp, ...] = tuple([x._sbp for x in inputs])  # type: ignore[misc]
    parts: list[Any] = [op, placement, types, sbps]
    parts += [(k, v, v.__class__) for k, v in attrs.items() if k != "seed"]
    try:
        key = tuple(parts)
        found = _calls.get(key)
    except TypeError:  # an attr that cannot be hashed
        return choose_call(op, types, sbps, attrs, placement)
    if found is None:
        found = choose_call(op, types, sbps, attrs, placement)
        if len(_calls) >= MAX_CACHED_CALLS:
            _calls.clear()
        _calls[key] = found
    return found


def choose_call(
    op: type[Op],
    types: tuple[TensorType, ...],
    sbps: tuple[NdSbp, ...],
    attrs: dict[str, Attr],
    placement: Placement,
) -> GlobalCall:
    """The signature whose inputs are the cheapest to get from `sbps`; one that fits as it is wins a
    tie. An input that the op overwrites is moved only if no signature takes it as it is; what was
    computed is then brought back to its layout."""
    out_types = infer_types(op, types, attrs)
    plan = plan_parts(op, types, out_types[0], sbps, attrs, placement) if types else None
    if plan is not None:
        parts = BoundParts(plan, out_types[0], placement) if world().rank in placement else None
        return GlobalCall(out_types, plan.in_sbps, (plan.out_sbp,), parts=parts)
    best: tuple[Any, ...] | None = None
    for combination in _combinations(op, types, attrs, placement):
        ins = tuple(tuple(s.inputs[i] for s in combination) for i in range(len(types)))
        outs = tuple(tuple(s.outputs[i] for s in combination) for i in range(len(out_types)))
        if not _is_valid((*types, *out_types), (*ins, *outs), sbps, placement):
            continue
        if op.sbp_for is not None and not _nests(op, types, attrs, combination, placement):
            continue
        moved = sum(ins[i] != sbps[i] for i in op.mutates.values())
        cost = moved, *_cost(types, sbps, ins, out_types, outs, placement)
        if best is None or cost < best[0]:
            best = cost, ins, outs
    if best is None:  # all-B is always among them
        raise InternalError(f"{op.name}: no signature for {', '.join(map(str, types))}")
    _, in_sbps, out_sbps = best
    bound = None
    if world().rank in placement:
        bound = _bind(op, types, out_types, in_sbps, out_sbps, attrs, placement)
    back = tuple(i for i, source in op.mutates.items() if in_sbps[source] != sbps[source])
    return GlobalCall(out_types, in_sbps, out_sbps, bound, back)


def _combinations(
    op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Attr], placement: Placement
) -> Any:
    """One signature per axis of the hierarchy, in every combination."""
    listed = [
        list(dict.fromkeys(signatures(op, types, attrs, size))) for size in placement.hierarchy
    ]
    if math.prod(map(len, listed)) > MAX_COMBINATIONS:
        return (
            zip(*listed, strict=True)
            if len({*map(len, listed)}) == 1
            else [[a[-1] for a in listed]]
        )
    return itertools.product(*listed)


def _is_valid(
    types: Sequence[TensorType],
    layouts: Sequence[NdSbp],
    sbps: tuple[NdSbp, ...],
    placement: Placement,
) -> bool:
    for type_, nd_sbp in zip(types, layouts, strict=True):
        parts: dict[int, int] = {}
        for sbp, size in zip(nd_sbp, placement.hierarchy, strict=True):
            if sbp.is_partial and type_.dtype is bool_:
                return False
            if sbp.is_split:
                parts[sbp.dim] = parts.get(sbp.dim, 1) * size
        if any(d >= type_.ndim for d in parts):
            return False
        if any(type_.shape[d] < n for d, n in parts.items()) and nd_sbp not in sbps:
            return False  # do not make empty shards where there were none
    return True


def _nests(
    op: type[Op],
    types: tuple[TensorType, ...],
    attrs: dict[str, Attr],
    combination: Sequence[SbpSignature],
    placement: Placement,
) -> bool:
    """A signature that depends on the number of ranks must hold for all its axes as one."""
    sizes: dict[SbpSignature, list[int]] = {}
    for chosen, size in zip(combination, placement.hierarchy, strict=True):
        sizes.setdefault(chosen, []).append(size)
    return all(
        chosen in signatures(op, types, attrs, math.prod(together))
        for chosen, together in sizes.items()
        if len(together) > 1
    )


def _cost(
    types: Sequence[TensorType],
    sbps: Sequence[NdSbp],
    ins: Sequence[NdSbp],
    out_types: Sequence[TensorType],
    outs: Sequence[NdSbp],
    placement: Placement,
) -> tuple[float, int, float]:
    seconds = sum(
        boxing_seconds(t, have, placement, want, placement)
        for t, have, want in zip(types, sbps, ins, strict=True)
        if have != want
    )
    changed = sum(have != want for have, want in zip(sbps, ins, strict=True))
    nbytes = sum(
        t.nbytes / _parts(s, placement)
        for t, s in zip((*types, *out_types), (*ins, *outs), strict=True)
    )
    return seconds, changed, nbytes * _TIE_SECONDS_PER_BYTE


def _parts(nd_sbp: NdSbp, placement: Placement) -> int:
    return math.prod(n for s, n in zip(nd_sbp, placement.hierarchy, strict=True) if s.is_split)


def _may_be_cut(op: type[Op], attrs: dict[str, Attr], nd_sbp: NdSbp) -> bool:
    known: set[Any] = set()
    for s in signatures(op, (), attrs):
        known.update(s.outputs)
    return all(s in known for s in nd_sbp if s.is_split)


# ---- the shard -----------------------------------------------------------------------------------


def _bind(
    op: type[Op],
    types: Sequence[TensorType],
    out_types: Sequence[TensorType],
    in_sbps: Sequence[NdSbp],
    out_sbps: Sequence[NdSbp],
    attrs: dict[str, Attr],
    placement: Placement,
) -> BoundKernel:
    rank = world().rank
    in_boxes = _boxes(types, in_sbps, placement, rank)
    out_boxes = _boxes(out_types, out_sbps, placement, rank)
    local = op.localize(attrs, in_boxes, out_boxes) if op.localize is not None else attrs
    ins = tuple(t.with_shape(b.shape) for t, b in zip(types, in_boxes, strict=True))
    outs = tuple(t.with_shape(b.shape) for t, b in zip(out_types, out_boxes, strict=True))
    numel = max((t.numel for t in (*ins, *outs)), default=0)
    kernel = select(op.name, placement.type, ins, numel)
    work = kernel.workspace(ins, local) if kernel.workspace else ()
    return BoundKernel(
        local,
        kernel.function,
        tuple((t.shape, t.dtype.np) for t in outs),
        tuple((t.shape, t.dtype.np) for t in work),
        find_view(op.name) if op.is_view else None,
        out_types[0].shape if out_types else (),
        out_boxes[0] if out_boxes else Box((), ()),
    )


def _run_kernel(
    op: type[Op],
    bound: BoundKernel,
    shards: list[Any],
    attrs: dict[str, Attr],
    placement: Placement,
) -> list[Any]:
    """Runs the kernel on this rank's shards; returns its part of the outputs."""
    xp = np if placement.type == "cpu" else array_module(placement)
    outs = [
        shards[op.mutates[i]] if i in op.mutates else xp.empty(shape, dtype)
        for i, (shape, dtype) in enumerate(bound.outs)
    ]
    work = [xp.empty(shape, dtype) for shape, dtype in bound.work]
    local = bound.attrs
    if op.is_random:
        seed = int(attrs["seed"])
        rng = Rng(seed, bound.whole_shape, bound.out_box.starts)
        local = {**local, "seed": seed, "rng": rng}
    with np.errstate(all="ignore"):
        bound.function(xp, *outs, *shards, *work, **local)
    return outs


def _boxes(
    types: Sequence[TensorType], nd_sbps: Sequence[NdSbp], placement: Placement, rank: int
) -> tuple[Box, ...]:
    return tuple(
        shard_box(t.shape, s, placement, rank) for t, s in zip(types, nd_sbps, strict=True)
    )


def _write_back(x: Tensor, shard: Any, nd_sbp: NdSbp) -> None:
    """Brings what was computed in another layout to the memory of `x`."""
    placement = x.placement
    after = relayout(shard, x.type, nd_sbp, placement, x.sbp, placement)
    if world().rank in placement:
        x._array[...] = after


def _mutated(x: Tensor) -> Tensor:
    x._version[0] += 1
    return x


def _view(
    op: type[Op],
    x: Tensor,
    shard: Any,
    array: Any,
    call: GlobalCall,
    attrs: dict[str, Attr],
    placement: Placement,
) -> Tensor:
    """A view of the shard; of the tensor only if the shard was not boxed first."""
    out = wrap_global(array, call.out_types[0], placement, call.out_sbps[0])
    if shard is not x._array:
        return out
    out._version = x._version
    link = extra(out)
    known = x._extra
    if known is not None and known.base is not None:
        link.base, link.replay = known.base, (*known.replay, (op, attrs))
    else:
        link.base, link.replay = x, ((op, attrs),)
    link.seen = out._version[0]
    return out


def _with_common_seed(attrs: dict[str, Attr], placement: Placement) -> dict[str, Attr]:
    """The seed of the placement's first rank: the generators may have been used differently on some
    ranks."""
    if placement.size == 1 or world().rank not in placement:
        return attrs
    mine = np.array([int(attrs["seed"])], np.uint64)
    common = world().collectives(placement.rank_ids).all_gather(mine)[0]
    return {**attrs, "seed": int(common)}
