"""Eager ops on global tensors: choose a signature, box the inputs, run the kernel on this rank's
shard.

All ranks of a placement make the same calls; their decisions depend on types, attrs and layouts
only, so they decide alike without asking each other. Ranks outside follow along without data.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from oneflow.boxing.bound_op import BoundOp, Shards, bind
from oneflow.boxing.boxes import local_type, shard_box
from oneflow.boxing.execute import BoundRoute
from oneflow.boxing.link import DEVICE
from oneflow.boxing.parts import plan_parts
from oneflow.boxing.route import choose_route
from oneflow.boxing.signatures import choose
from oneflow.core.config import inputs_may_move
from oneflow.core.device import META, Device
from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import dtype_of
from oneflow.core.errors import GraphError, PlacementError
from oneflow.core.location import located
from oneflow.core.op import Op, infer_types, signatures
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, all_broadcast, check_fits, nd_sbp_str
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import array_module
from oneflow.kernels.quiet import run_quietly
from oneflow.tensor.devices import check_has_values, without_values
from oneflow.tensor.devices import to_device as to_device
from oneflow.tensor.devices import to_host as to_host
from oneflow.tensor.global_parts import BoundParts
from oneflow.tensor.global_rows import BoundRows
from oneflow.tensor.grad_mode import state
from oneflow.tensor.tape import Kept, KeptCall, record
from oneflow.tensor.tensor import Tensor, cpu_device, raw, wrap, wrap_global
from oneflow.tensor.views import copies, link_view, refresh

if TYPE_CHECKING:
    from oneflow.boxing.execute import BoundRoute

MAX_CACHED_CALLS = 8192


@dataclass(frozen=True)
class GlobalCall:
    """The way to run one op on inputs of certain types and layouts."""

    out_types: tuple[TensorType, ...]
    in_sbps: tuple[NdSbp, ...]
    out_sbps: tuple[NdSbp, ...]
    bound: BoundOp | None = None  # None outside the placement
    written_back: tuple[int, ...] = ()
    """Mutated outputs that are computed in another layout than their input's."""
    parts: BoundParts | BoundRows | None = None
    """Set if the op runs on parts of shards (global_parts.py), or moves rows (global_rows.py)."""
    moves: tuple[Move, ...] = ()
    """Moves of the inputs that must be boxed first, on the ranks of the placement."""
    plain_device: Device | None = None
    """Set if a CPU kernel on the shards as they are, into new arrays, is all there is to do."""
    kept: KeptCall | None = None
    """Set with `plain_device`: facts of inputs and outputs without their values."""


_calls: dict[tuple[Any, ...], GlobalCall] = {}
_routes: dict[tuple[Any, ...], BoundRoute] = {}
_known: dict[Any, Any] = {}
"""Types, layouts and placements by value: one object of each, so that `_calls` is found by their
identities, which are quick to hash. Held here as long as `_calls` names them."""


def run_global(op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
    """Runs one op on global tensors. Raises PlacementError if they lie in different places."""
    placement = inputs[0]._placement
    parts: list[Any] = [op, id(placement)]
    for x in inputs:
        if x._placement is not placement or x.value is not None:
            return run_global(op, brought_together(op, inputs), attrs)
        if x._extra is not None and x._extra.view is not None:
            x._extra.view.refresh(x)
        parts.append(id(x.meta))
        parts.append(id(x._sbp))
    for name, value in attrs.items():
        if name != "seed":
            parts.append((name, value, value.__class__))
    try:
        call = _calls.get(tuple(parts))
    except TypeError:  # an attr that cannot be hashed
        call = None
    if call is None:
        call = find_call(op, inputs, attrs)
    device = call.plain_device
    if device is None:
        return _run_any(op, call, inputs, attrs)
    bound: Any = call.bound
    made = [np.empty(shape, dtype) for shape, dtype in bound.outs]
    run_quietly(bound.function, np, *made, *[x._array for x in inputs], **bound.keywords)
    if len(made) == 1:
        out = raw(call.out_types[0], made[0], device)
        out._placement, out._sbp = placement, call.out_sbps[0]
        if state.enabled:
            record(op, inputs, (out,), attrs, None, call.kept)
        return out
    outs = []
    for type_, array, nd_sbp in zip(call.out_types, made, call.out_sbps, strict=True):
        out = raw(type_, array, device)
        out._placement, out._sbp = placement, nd_sbp
        outs.append(out)
    record(op, inputs, outs, attrs, None, call.kept)
    return tuple(outs)


def _run_any(op: type[Op], call: GlobalCall, inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
    """Run any op, also one that boxes inputs, makes views, overwrites, is random, or runs on a GPU
    or elsewhere.
    """
    placement = inputs[0].placement
    if placement.type == META:
        return _types_only(op, call, inputs, placement)
    if op.is_random:
        attrs = _with_common_seed(op, attrs, placement)
    shards = [x._array for x in inputs]
    for move in call.moves:
        shards[move.index] = move.run(shards[move.index])
    is_view = op.is_view and not copies(op, inputs[0], attrs)
    arrays, shared = _compute(op, call, shards, attrs, placement, is_view)
    for i in call.written_back:
        _write_back(inputs[op.mutates[i]], arrays[i], call.out_sbps[i])
    outs = [
        _mutated(inputs[op.mutates[i]])
        if i in op.mutates
        else wrap_global(array, call.out_types[i], placement, call.out_sbps[i])
        for i, array in enumerate(arrays)
    ]
    if shared:
        own = call.parts is not None or call.in_sbps[0] != inputs[0]._sbp
        link_view(op, inputs[0], outs[0], attrs, own=own)
    record(op, inputs, outs, attrs)
    return outs[0] if op.num_outputs == 1 else tuple(outs)


def _compute(
    op: type[Op],
    call: GlobalCall,
    shards: list[Any],
    attrs: Attrs,
    placement: Placement,
    is_view: bool,
) -> tuple[list[Any], bool]:
    """This rank's part of the outputs, and whether the only one is a view of the input: one that
    shares its memory, or would if the shards lay otherwise."""
    if call.parts is not None:
        return call.parts.run(shards, array_module(placement.type)), is_view
    if call.bound is None:
        return [empty_shard(t, placement) for t in call.out_types], is_view
    if is_view and call.bound.view is not None:
        array = call.bound.view(*shards, **call.bound.attrs)
        if array is not None:
            return [array], True
    return run_kernel(call.bound, shards, attrs, placement), False


class Move:
    """The way in which this rank, which is in the placement, brings one input to another layout."""

    def __init__(
        self, index: int, type_: TensorType, have: NdSbp, wanted: NdSbp, placement: Placement
    ) -> None:
        self.index = index
        self._layouts = type_, have, placement, wanted, placement
        self._route = _route(*self._layouts) if placement.type == "cpu" else None

    def run(self, shard: Array) -> Any:
        """The rank's array in the wanted layout. All ranks of the placement must call it."""
        if self._route is None:
            return relayout(shard, *self._layouts)
        return self._route.run(shard, world().collectives)


@located
def create_global(op: type[Op], attrs: Attrs, placement: Placement, nd_sbp: NdSbp) -> Tensor:
    """The result of an op without inputs, laid out as asked: the same values in every layout."""
    check_placement(placement)
    (type_,) = infer_types(op, (), attrs)
    check_fits(nd_sbp, type_.shape, op.name)
    if placement.type == META:
        return _without_values(type_, placement, nd_sbp)
    if op.is_random:
        attrs = _with_common_seed(op, attrs, placement)
    rank = world().rank
    if rank not in placement:
        return wrap_global(empty_shard(type_, placement), type_, placement, nd_sbp)
    made = nd_sbp if _may_be_cut(op, attrs, nd_sbp) else all_broadcast(placement.ndim)
    box = shard_box(type_.shape, nd_sbp, placement, rank)
    if not box.is_first:
        shard = array_module(placement.type).zeros(box.shape, type_.dtype.np)
        return wrap_global(shard, type_, placement, nd_sbp)
    made_box = shard_box(type_.shape, made, placement, rank)
    bound = bind(op, (), (type_,), attrs, placement.type, Shards(placement, rank, (), (made,)))
    (shard,) = run_kernel(bound, [], attrs, placement)
    if made_box.shape != box.shape:
        shard = array_module(placement.type).ascontiguousarray(shard[box.slices])
    return wrap_global(shard, type_, placement, nd_sbp)


@located
def from_whole(array: np.ndarray[Any, Any], placement: Placement, nd_sbp: NdSbp) -> Tensor:
    """The global tensor of an array that every rank has: each takes its part, nothing is sent."""
    check_placement(placement)
    type_ = TensorType(tuple(array.shape), dtype_of(array.dtype))
    rank = world().rank
    if rank not in placement:
        return wrap_global(empty_shard(type_, placement), type_, placement, nd_sbp)
    box = shard_box(type_.shape, nd_sbp, placement, rank)
    part = np.array(array[box.slices]) if box.is_first else np.zeros(box.shape, array.dtype)
    return wrap_global(to_device(part, placement.type), type_, placement, nd_sbp)


def relayout(
    shard: Array,
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
    if (src_sbp, src_placement) == (dst_sbp, dst_placement):
        return shard
    if dst_placement.type == META:
        return _without_values(type_, dst_placement, dst_sbp)._array
    check_has_values(src_placement.type, type_)
    here = world()
    kind = dst_placement.type
    on_device = src_placement.type == kind != "cpu"
    route = _route(type_, src_sbp, src_placement, dst_sbp, dst_placement)
    mine = shard if here.rank in src_placement else None
    if on_device and (mine is not None or here.rank in dst_placement):
        after = route.run(mine, partial(here.collectives_on, kind))
    else:
        mine = None if mine is None else to_host(mine)
        after = route.run(mine, here.collectives)
    if after is None or here.rank not in dst_placement:
        return empty_shard(type_, dst_placement)
    return after if on_device else to_device(after, kind)


def _route(
    type_: TensorType,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
) -> BoundRoute:
    """The way of this rank, found once."""
    rank = world().rank
    key = rank, type_, src_sbp, src_placement, dst_sbp, dst_placement
    found = _routes.get(key)
    if found is None:
        network = world().network
        empty = np.empty
        kind = dst_placement.type
        if src_placement.type == kind != "cpu":
            empty = array_module(kind).empty
        if src_placement.type == kind == "cuda":
            network = replace(network, near=DEVICE)
        on_cpu_src, on_cpu_dst = _as_cpu(src_placement), _as_cpu(dst_placement)
        steps = choose_route(type_, src_sbp, on_cpu_src, dst_sbp, on_cpu_dst, network)
        if len(_routes) >= MAX_CACHED_CALLS:
            _routes.clear()
        found = _routes[key] = BoundRoute(type_, steps, rank, empty)
    return found


def gather(x: Tensor) -> Tensor:
    """All values of a global tensor as a local CPU tensor. Every rank of the world must call it,
    those outside the placement too.
    """
    refresh(x)
    source = x.placement
    target, world_size = _as_cpu(source), world().world_size
    if source.size < world_size:
        target = Placement("cpu", range(world_size))
    return wrap(relayout(x._array, x.meta, x.sbp, source, all_broadcast(target.ndim), target))


# ---- placements and devices ----------------------------------------------------------------------


def check_placement(placement: Placement) -> None:
    """Raises PlacementError if it names a rank that the world does not have."""
    if placement.rank_ids[-1] >= world().world_size:
        raise PlacementError(
            "Placement is invalid because rank must be less than world size! "
            f"{placement.notation} in a world of {world().world_size}"
        )


def brought(
    shard: Array, type_: TensorType, nd_sbp: NdSbp, placement: Placement, rank: int = 0
) -> Array:
    """All of a global tensor, in the host memory of `rank`; elsewhere nothing. Ranks call it as
    `relayout`."""
    home = Placement("cpu", [rank])
    return to_host(relayout(shard, type_, nd_sbp, placement, (BROADCAST,), home))


def _types_only(
    op: type[Op], call: GlobalCall, inputs: tuple[Tensor, ...], placement: Placement
) -> Any:
    """The outputs of an op on `meta`: types and layouts. They take part in no backward pass."""
    outs = [
        _mutated(inputs[op.mutates[i]])
        if i in op.mutates
        else _without_values(type_, placement, nd_sbp)
        for i, (type_, nd_sbp) in enumerate(zip(call.out_types, call.out_sbps, strict=True))
    ]
    return outs[0] if op.num_outputs == 1 else tuple(outs)


def _without_values(type_: TensorType, placement: Placement, nd_sbp: NdSbp) -> Tensor:
    """A global tensor on `meta`."""
    shard = empty_shard(type_, placement)
    if world().rank in placement:
        part = local_type(type_, nd_sbp, placement, world().rank)
        shard = without_values(part.shape, type_.dtype.np)
    return wrap_global(shard, type_, placement, nd_sbp)


def empty_shard(type_: TensorType, placement: Placement) -> Any:
    """Return the shard of a rank outside the placement: no elements, with as many dims."""
    return np.empty((0,) * max(1, type_.ndim), type_.dtype.np)


def _as_cpu(placement: Placement) -> Placement:
    return placement if placement.type == "cpu" else Placement("cpu", placement.ranks)


def brought_together(op: type[Op], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The inputs on the placement with the highest rank (the last of several), or of the tensor
    that the op overwrites, if the user wants that; else raises PlacementError. Local numbers
    without dims are made global.
    """
    places = [x._placement for x in inputs if x._placement is not None]
    first = inputs[min(op.mutates.values())]._placement if op.mutates else next(iter(places), None)
    if first is not None:
        inputs = tuple([number_on(first, x) for x in inputs])
    for i, x in enumerate(inputs):
        if x.value is not None:
            raise GraphError(
                f"{op.name}: {x.meta} is a value of an nn.Graph under construction "
                "and has no data outside build()"
            )
        if x._placement is None or first is None:
            raise PlacementError(
                f"{op.name}: local and global tensors are mixed (positional {i}); make both global "
                "with to_global(placement, sbp), or both local with to_local()"
            )
        stays = i in op.mutates.values() or not inputs_may_move()
        if x._placement is not first and stays:
            raise PlacementError(
                f"{op.name}: Expected all tensors to be on the same placement, but found at least "
                f"two placements, {first!r} (positional 0) and {x._placement!r} (positional {i})! "
                "Move one with to_global(placement=..., sbp=...), or set "
                "ONEFLOW_ENABLE_GLOBAL_INPUTS_WITH_INCONSISTENT_PLACEMENT=1"
            )
    if not op.mutates:
        first = max(reversed(places), key=lambda place: place.rank_ids[-1], default=first)
    return tuple([_brought_to(x, cast(Placement, first)) for x in inputs])


class _Copies(threading.local):
    """Whether this thread takes local tensors for copies of one whole."""

    are_taken = False


_copies = _Copies()


@contextmanager
def local_tensors_as_copies() -> Iterator[None]:
    """A block in which a local tensor that meets global ones counts as one of their copies: it must
    be the same on all ranks, and need no gradient.
    """
    before, _copies.are_taken = _copies.are_taken, True
    try:
        yield
    finally:
        _copies.are_taken = before


def number_on(placement: Placement, x: Tensor) -> Tensor:
    """A local tensor without dims or gradients on the placement, as a Python number would be: it
    must be the same on all ranks. Any other tensor as it is, but for copies.
    """
    if x._placement is not None or x._requires_grad or x.value is not None:
        return x
    if x.meta.shape and not _copies.are_taken:
        return x
    return from_whole(to_host(x._array), placement, all_broadcast(placement.ndim))


def _brought_to(x: Tensor, placement: Placement) -> Tensor:
    """`x` there, in its own SBP; in copies if the hierarchy has another number of axes."""
    same = placement.ndim == x.placement.ndim
    found: Tensor = current_mode().lay_out(
        x, placement, x.sbp if same else all_broadcast(placement.ndim)
    )
    return found


# ---- signatures ----------------------------------------------------------------------------------


def find_call(op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> GlobalCall:
    """Looks by value; then the inputs hold the known objects, and are found quickly."""
    if len(_calls) >= MAX_CACHED_CALLS or len(_known) >= MAX_CACHED_CALLS:
        _calls.clear()
        _known.clear()
    placement = _known.setdefault(inputs[0].placement, inputs[0].placement)
    parts: list[Any] = [op, id(placement)]
    for x in inputs:
        x.meta, x._sbp = _known.setdefault(x.meta, x.meta), _known.setdefault(x.sbp, x.sbp)
        parts += (id(x.meta), id(x._sbp))
    parts += [(k, v, v.__class__) for k, v in attrs.items() if k != "seed"]
    types, sbps = tuple([x.meta for x in inputs]), tuple([x.sbp for x in inputs])
    key = tuple(parts)
    try:
        found = _calls.get(key)
    except TypeError:  # an attr that cannot be hashed
        return choose_call(op, types, sbps, attrs, placement)
    if found is None:
        found = choose_call(op, types, sbps, attrs, placement)
        found = replace(
            found,
            out_types=tuple(_known.setdefault(t, t) for t in found.out_types),
            out_sbps=tuple(_known.setdefault(s, s) for s in found.out_sbps),
        )
        _calls[key] = found
    return found


def choose_call(
    op: type[Op],
    types: tuple[TensorType, ...],
    sbps: tuple[NdSbp, ...],
    attrs: Attrs,
    placement: Placement,
) -> GlobalCall:
    """Choose how to run `op` on inputs of these types and layouts. An input that had to be moved
    although the op overwrites it is brought back to its layout afterwards.
    """
    out_types = infer_types(op, types, attrs)
    choice = choose(op, types, out_types, sbps, attrs, placement)
    in_sbps, out_sbps = choice.inputs, choice.outputs
    moves = _moves(types, sbps, in_sbps, placement)
    if choice.by_parts:
        parts: BoundParts | BoundRows | None = None
        if world().rank in placement:
            what = f"{op.name} {out_types[0]} {' '.join(map(nd_sbp_str, sbps))} {attrs}"
            if op.moves_rows:
                parts = BoundRows(types, out_types, attrs, placement, what)
            else:
                plan = plan_parts(op, types, out_types[0], sbps, attrs, placement)
                parts = BoundParts(plan, what)
        return GlobalCall(out_types, in_sbps, out_sbps, parts=parts, moves=moves)
    bound = None
    if world().rank in placement:
        shards = Shards(placement, world().rank, in_sbps, out_sbps)
        device_type = "cpu" if placement.type == META else placement.type
        bound = bind(op, types, out_types, attrs, device_type, shards)
    back = tuple(i for i, source in op.mutates.items() if in_sbps[source] != sbps[source])
    is_plain = bound is not None and bound.is_plain and placement.type == "cpu"
    if not is_plain or moves or op.num_outputs < 0:
        return GlobalCall(out_types, in_sbps, out_sbps, bound, back, moves=moves)
    device = cpu_device()
    given = _kept(types, in_sbps, placement), _kept(out_types, out_sbps, placement)
    return GlobalCall(out_types, in_sbps, out_sbps, bound, back, plain_device=device, kept=given)


def _kept(types: Sequence[TensorType], sbps: Sequence[NdSbp], placement: Placement) -> list[Kept]:
    """Facts of this rank's shards without their values."""
    return [
        Kept(t, local_type(t, s, placement, world().rank).shape, cpu_device(), placement, s, None)
        for t, s in zip(types, sbps, strict=True)
    ]


def _moves(
    types: Sequence[TensorType],
    sbps: Sequence[NdSbp],
    wanted: Sequence[NdSbp],
    placement: Placement,
) -> tuple[Move, ...]:
    if world().rank not in placement:
        return ()
    each = enumerate(zip(types, sbps, wanted, strict=True))
    return tuple(Move(i, t, have, want, placement) for i, (t, have, want) in each if have != want)


def _may_be_cut(op: type[Op], attrs: Attrs, nd_sbp: NdSbp) -> bool:
    known: set[Any] = set()
    for s in signatures(op, (), attrs):
        known.update(s.outputs)
    return all(s in known for s in nd_sbp if s.is_split)


# ---- the shard -----------------------------------------------------------------------------------


def run_kernel(bound: BoundOp, shards: list[Any], attrs: Attrs, placement: Placement) -> list[Any]:
    """Runs the kernel on this rank's shards; returns its part of the outputs."""
    xp = array_module(placement.type)
    seed = int(attrs["seed"]) if bound.op.is_random else 0
    made: list[Any] = run_quietly(bound.run, xp, shards, seed)
    return made


def _write_back(x: Tensor, shard: Array, nd_sbp: NdSbp) -> None:
    """Bring a shard computed in another layout to the memory of `x`."""
    placement = x.placement
    after = relayout(shard, x.meta, nd_sbp, placement, x.sbp, placement)
    if world().rank in placement:
        x._array[...] = after


def _mutated(x: Tensor) -> Tensor:
    x._version[0] += 1
    return x


def _with_common_seed(op: type[Op], attrs: Attrs, placement: Placement) -> Attrs:
    """The seed of the placement's first rank: the generators may have been used differently on some
    ranks."""
    if placement.size == 1 or world().rank not in placement:
        return attrs
    mine = np.array([int(attrs["seed"])], np.uint64)
    here = world().collectives(placement.rank_ids)
    common = here.all_gather(mine, what=f"seed of {op.name}")[0]
    return {**attrs, "seed": int(common)}
