"""`torch.distributed.fsdp.fully_shard`: parameters in parts over the ranks that share a batch.

The parameters of a group (those of one module that no module inside of it has taken) are global
tensors, of which each rank holds a part. Before the module runs, one gather makes them whole; the
whole is forgotten, and gathered again for the backward pass. While a group runs, the one that
came after it in the pass before is gathered beside it, so that a rank holds its parts and the whole
of two groups at a time, with that of the modules around them. Gradients are summed in one exchange
that leaves each rank its part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from typing import cast as cast_type
from weakref import WeakValueDictionary

import numpy as np

from oneflow.autograd.graph import saved_tensors_hooks
from oneflow.boxing.boxes import shard_box
from oneflow.compat.torch.device_mesh import DeviceMesh
from oneflow.compat.torch.dtensor import is_meta
from oneflow.compat.torch.jit import is_tracing
from oneflow.core.config import current_config
from oneflow.core.device import META
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import AutogradError, CallError, GraphError, PlacementError
from oneflow.core.op import Box
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, Split
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.arguments import Channel
from oneflow.distributed.process_groups import line_of
from oneflow.distributed.world import world
from oneflow.graph.functions.calls import CompiledCalls
from oneflow.kernels.array import Array
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.ops.cast import cast
from oneflow.tensor.gate import Gate, Table, behind
from oneflow.tensor.grad_mode import is_grad_enabled, no_grad, state
from oneflow.tensor.tape import record_call
from oneflow.tensor.tensor import Tensor, wrap, wrap_global

__all__ = [
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "UnshardHandle",
    "fully_shard",
    "register_fsdp_forward_method",
]


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes of a group. param_dtype: of whole parameters.  reduce_dtype: in which gradients
    are summed; None: that of the parameters.  output_dtype: of the module's results.
    cast_forward_inputs: floating-point inputs get `param_dtype`.
    """

    param_dtype: DType | None = None
    reduce_dtype: DType | None = None
    output_dtype: DType | None = None
    cast_forward_inputs: bool = True


AS_THEY_ARE = MixedPrecisionPolicy()
"""Parameters and gradients in the dtypes that they have."""


class OffloadPolicy:
    """Parts stay on their device."""


class CPUOffloadPolicy(OffloadPolicy):
    """Parts in host memory: where they are on CPU ranks. pin_memory: changes nothing."""

    def __init__(self, pin_memory: bool = True) -> None:
        self.pin_memory = pin_memory


class UnshardHandle:
    """A gather that was begun."""

    def __init__(self, gather: _Gather | None = None) -> None:
        self._gather = gather

    def wait(self) -> None:
        """Return when it is done."""
        if self._gather is not None:
            self._gather.wholes.result()


@dataclass
class _Member:
    """A parameter of a group.

    places: the modules that have it, each with its name there.  held: the global tensor that is
    kept.  lies: the ranks of other axes of the grid, and the layout of the whole parameter over
    them, if it has one.  split: how it is in parts; None if that layout has taken its only dim:
    then all ranks keep their parts of it.
    """

    places: list[tuple[Module, str]]
    held: Parameter
    lies: tuple[Placement, NdSbp] | None
    split: Split | None

    @property
    def inner(self) -> tuple[Placement, NdSbp] | None:
        """The placement and the layout of the whole parameter over other axes of the grid."""
        if self.lies is None:
            return None
        ranks, sbp = self.lies  # made before the parameter had memory, perhaps
        return Placement(self.held.placement.type, ranks.ranks), sbp

    @property
    def whole(self) -> TensorType:
        """The type of the whole parameter on this rank."""
        if self.inner is None:
            return self.held.meta
        box = shard_box(self.held.meta.shape, self.inner[1], self.inner[0], current_config().rank)
        return self.held.meta.with_shape(tuple(box.shape))


class _Again:
    """The place of a saved parameter, which is gathered again."""

    def __init__(self, group: _Group, index: int) -> None:
        self.group, self.index = group, index
        self._version = group.members[index].held._version[0]

    def gather(self) -> Tensor:
        """The whole parameter. Raises AutogradError if it was overwritten since it was used."""
        held = self.group.members[self.index].held
        if held._version[0] != self._version:
            raise AutogradError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a sharded parameter {held.meta}"
            )
        return self.group.tensor(self.index, self.group.again())


CHANNEL = "fully_shard"
"""Gathers have a channel of their own, so that they can run beside other calls."""


@dataclass
class _Gather:
    """Whole parameters on their way. parts: the arrays that were sent, with their versions."""

    wholes: Future[list[Array]]
    parts: list[tuple[Array, int]]

    def holds(self, parts: list[tuple[Array, int]]) -> bool:
        """Whether these are the parts that were sent."""
        pairs = zip(self.parts, parts, strict=True)
        return all(a is b and then == now for (a, then), (b, now) in pairs)


class _Running(threading.local):
    """The group that ran last in the forward pass of a thread, and how many modules are within one
    another.
    """

    last: _Group | None = None
    depth = 0


_running = _Running()


class _Group:
    """The parameters that are gathered and reduced together.

    mesh: its last axis is that of the parts, one before it has copies.  reshards: whole parameters
    are forgotten after the forward pass.
    """

    def __init__(
        self, members: list[_Member], mesh: DeviceMesh, policy: MixedPrecisionPolicy, reshards: bool
    ) -> None:
        self.members, self.mesh, self.policy, self.reshards = members, mesh, policy, reshards
        self.syncs = True
        self.divisor: float = mesh.size()
        """Summed gradients are divided by it."""
        self.following: list[_Group] | None = None
        """The groups to gather ahead while this one runs; None: the one that ran after it."""
        self.preceding: list[_Group] | None = None
        """The same in the backward pass; None: the one that ran before it."""
        self._next: list[_Group] = []
        self._last: list[_Group] = []
        self._ahead: _Gather | None = None
        self._again: _Gather | None = None
        self._is_used_again = False
        self._depth = 0
        """The number of blocks in which the modules have whole parameters."""
        self._own: list[Array | None] = [None] * len(members)
        """Gradients that were not exchanged yet, of whole parameters."""
        self._sharers = tuple(mesh.get_group(mesh.ndim - 1).ranks)
        self._copies = tuple(mesh.get_group(0).ranks) if mesh.ndim > 1 else ()

    def begin(self) -> _Gather:
        """Begin to gather the whole parameters, in the dtype in which they are used."""
        self._adopt()
        sent = self._parts_now()
        if not self.members:
            nothing: Future[list[Array]] = Future()
            nothing.set_result([])
            return _Gather(nothing, sent)
        made = [self._part(m) for m in self.members]
        parts = [x.reshape(-1) for x, m in zip(made, self.members, strict=True) if m.split]
        flat = np.concatenate([*parts, made[0].reshape(-1)[:0]])
        line = line_of(Channel(self._sharers, CHANNEL))
        return _Gather(line.later(lambda: self._exchange(made, flat)), sent)

    def _parts_now(self) -> list[tuple[Array, int]]:
        return [(m.held._array, m.held._version[0]) for m in self.members]

    def gather(self) -> list[Array]:
        """The whole parameters, which may have been gathered ahead."""
        self._adopt()
        begun, self._ahead = self._ahead, None
        if begun is None or not begun.holds(self._parts_now()):
            begun = self.begin()
        return begun.wholes.result()

    def run_after(self, before: _Group | None) -> None:
        """Learn which group runs before this one, and gather the next one ahead."""
        if before is not None and before is not self:
            before._next, self._last = [self], [before]
        self._again, self._is_used_again = None, False
        for group in self._next if self.following is None else self.following:
            if group._ahead is None:
                group._ahead = group.begin()

    def _exchange(self, made: list[Array], flat: Array) -> list[Array]:
        boxes = [self._boxes(rank) for rank in self._sharers]
        counts = [sum(_numel(b) for _, b in of_rank) for of_rank in boxes]
        everyone = world().collectives(self._sharers, CHANNEL)
        gathered = everyone.all_gather(flat, counts, what="fully_shard: parameters")
        wholes = [
            np.empty(m.whole.shape, flat.dtype) if m.split else part
            for m, part in zip(self.members, made, strict=True)
        ]
        start = 0
        for of_rank in boxes:
            for i, box in of_rank:
                stop = start + _numel(box)
                wholes[i][_slices(box)] = gathered[start:stop].reshape(box.shape)
                start = stop
        return wholes

    def _part(self, member: _Member) -> Array:
        dtype = self._dtype(member)
        array: Array = member.held._array
        return array if array.dtype == dtype.np else array.astype(dtype.np)

    def _dtype(self, member: _Member) -> DType:
        return self.policy.param_dtype or member.held.meta.dtype

    def _boxes(self, rank: int) -> list[tuple[int, Box]]:
        """The numbers of the parameters that are in parts, and where the part of a rank lies in the
        whole parameter of this rank.
        """
        line = Placement("cpu", self._sharers)
        return [
            (i, shard_box(m.whole.shape, (m.split,), line, rank))
            for i, m in enumerate(self.members)
            if m.split is not None
        ]

    def tensors(self, arrays: list[Array]) -> list[Tensor]:
        """Whole parameters; a backward pass through them leaves each rank its gradients."""
        made = [self._tensor(m, a) for m, a in zip(self.members, arrays, strict=True)]
        held: list[Tensor] = [m.held for m in self.members]
        if is_grad_enabled() and held:
            record_call("fully_shard", held, made, self._reduce)
        return made

    def _tensor(self, member: _Member, array: Array) -> Tensor:
        if member.inner is None:
            return wrap(array)
        placement, sbp = member.inner
        type_ = TensorType(member.held.meta.shape, dtype_of(array.dtype))
        return wrap_global(array, type_, placement, sbp)

    def tensor(self, index: int, arrays: list[Array]) -> Tensor:
        """One of the whole parameters, without a history."""
        return self._tensor(self.members[index], arrays[index])

    def again(self) -> list[Array]:
        """The whole parameters, gathered once more for a backward pass."""
        self._again = self._again or self.begin()
        if not self._is_used_again:
            self._is_used_again = True
            for group in self._last if self.preceding is None else self.preceding:
                if group.reshards and group._again is None:
                    group._again = group.begin()
        return self._again.wholes.result()

    def _reduce(self, grads: list[Any]) -> list[Any]:
        """This rank's parts of the mean gradients."""
        self._again, self._is_used_again = None, False
        arrays = [self._added(i, g) for i, g in enumerate(grads)]
        if not self.syncs:
            self._own = arrays
            return [None] * len(grads)
        self._own = [None] * len(grads)
        dtype = self.policy.reduce_dtype or self._dtype(self.members[0])
        boxes = [self._boxes(rank) for rank in self._sharers]
        length = max(sum(_numel(b) for _, b in of_rank) for of_rank in boxes)
        rows = np.zeros((len(boxes), length), dtype.np)
        for row, of_rank in zip(rows, boxes, strict=True):
            start = 0
            for i, box in of_rank:
                stop = start + _numel(box)
                if (array := arrays[i]) is not None:
                    row[start:stop] = array[_slices(box)].reshape(-1)
                start = stop
        rows /= self.divisor
        everyone = world().collectives(self._sharers)
        mine = everyone.reduce_scatter(rows, what="fully_shard: gradients").reshape(-1)
        kept = [self._mean(m, a) for m, a in zip(self.members, arrays, strict=True)]
        if self._copies:
            copies = world().collectives(self._copies)
            mine = copies.all_reduce(mine, what="fully_shard: gradients of copies")
        return self._parts(mine, kept)

    def _mean(self, member: _Member, array: Array | None) -> Any:
        """The mean gradient of a parameter that is not in parts."""
        if member.split is not None:
            return None
        found = np.zeros(member.whole.shape, member.held.meta.dtype.np)
        if array is not None:
            found += array
        for ranks in (self._sharers, *([self._copies] if self._copies else [])):
            found = world().collectives(ranks).all_reduce(found, what="fully_shard: a gradient")
        return found / found.dtype.type(self.divisor)

    def _added(self, index: int, grad: Tensor | None) -> Array | None:
        """The gradient of a whole parameter, with those that were not exchanged."""
        member, own = self.members[index], self._own[index]
        if grad is None:
            return own
        if member.inner is not None:
            grad = grad.to_global(*member.inner)
        array: Array = grad._array
        return array if own is None else own + array

    def _parts(self, flat: Array, parts: list[Array]) -> list[Tensor]:
        start = 0
        for i, box in self._boxes(current_config().rank):
            stop = start + _numel(box)
            dtype = self.members[i].held.meta.dtype.np
            parts[i] = flat[start:stop].reshape(box.shape).astype(dtype)
            start = stop
        held = [m.held for m in self.members]
        return [
            wrap_global(part, h.meta, h.placement, h.sbp)
            for part, h in zip(parts, held, strict=True)
        ]

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, the modules have the whole parameters."""
        arrays = self.gather()
        self.run_after(_running.last)
        _running.last = self
        made = self.tensors(arrays)
        places = {id(x._array): i for i, x in enumerate(made)}
        outer = state.saved_hooks[-1] if state.saved_hooks else (_same, _same)

        def pack(x: Tensor) -> Any:
            index = places.get(id(x._array))
            return outer[0](x) if index is None else _Again(self, index)

        def unpack(saved: object) -> Tensor:
            if isinstance(saved, _Again):
                return saved.gather()
            return cast_type(Tensor, outer[1](saved))

        before, state.rerun_in = state.rerun_in, (*state.rerun_in, self._whole_again)
        try:
            with self._set(made):
                if self.reshards and is_grad_enabled():
                    with saved_tensors_hooks(pack, unpack):
                        yield
                else:
                    yield
        finally:
            state.rerun_in = before

    @contextmanager
    def _whole_again(self) -> Iterator[None]:
        """A block in which a checkpointed part of the modules runs in the backward pass."""
        with self._set(self.tensors(self.again())):
            yield

    @contextmanager
    def _set(self, tensors: list[Tensor]) -> Iterator[None]:
        """A block in which the modules have these tensors as their parameters."""
        places: list[tuple[Table, str, Tensor]] = []
        stand_ins: dict[int, Tensor] = {}
        for member, x in zip(self.members, tensors, strict=True):
            for owner, name in member.places:
                before: Any = owner._parameters[name]
                places.append((owner._parameters, name, before))
                stand_ins[id(before)] = x
        self._depth += 1
        try:
            with behind(Gate(places, stand_ins, shares_memory=False)):
                yield
        finally:
            self._depth -= 1

    def _adopt(self) -> None:
        """Take the parameters that the modules have now: `load_state_dict` can assign others."""
        for member in () if self._depth else self.members:
            owner, name = member.places[0]
            now = owner._parameters[name]
            if now is member.held:
                continue
            if now is None or (now.meta, now._placement, now._sbp) != (
                member.held.meta,
                member.held._placement,
                member.held._sbp,
            ):
                raise CallError(
                    f"fully_shard: parameter {name} was replaced by another one, which is not in "
                    "parts as it was; load values with load_state_dict or copy_"
                )
            member.held = now
            for owner, name in member.places:
                owner._parameters[name] = now

    def unshard(self) -> None:
        """Gather for the next forward pass."""
        self._ahead = self.begin()

    def reshard(self) -> None:
        """Forget whole parameters."""
        self._ahead = self._again = None


def _same(x: object) -> object:
    return x


def _numel(box: Box) -> int:
    return int(np.prod(box.shape))


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(box.starts, box.stops, strict=True))


class FSDPModule(Module):
    """A module that `fully_shard` has changed; its class is one of this and of its own."""

    _fsdp: _Group

    def forward(self, *args: object, **kwargs: object) -> Any:
        """The result of the module's own forward, with whole parameters."""
        if is_tracing():
            raise GraphError(
                "fully_shard: gathers of parameters cannot be traced; compile the modules inside, "
                "or take nn.Graph with config.enable_zero() of a module that is not sharded"
            )
        group, policy = self._fsdp, self._fsdp.policy
        if not _running.depth:
            _running.last = None
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            args, kwargs = _cast((args, kwargs), policy.param_dtype)
        _running.depth += 1
        try:
            with group.whole():
                own = vars(self).get("_own_forward")
                made = super().forward(*args, **kwargs) if own is None else own(*args, **kwargs)
        finally:
            _running.depth -= 1
        return made if policy.output_dtype is None else _cast(made, policy.output_dtype)

    def compile(self, *, fullgraph: bool = False, **_: object) -> None:
        """Let the module's own forward run compiled, between gathers."""
        forward = super().forward
        object.__setattr__(self, "_own_forward", CompiledCalls(forward, fullgraph))

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gather the parameters of this group for its next forward pass."""
        self._fsdp.unshard()
        handle = UnshardHandle(self._fsdp._ahead)
        if async_op:
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Forget whole parameters of this group."""
        self._fsdp.reshard()

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """Let backward passes exchange gradients, or keep them on each rank until one does."""
        for group in self._groups(recurse):
            group.syncs = requires_gradient_sync

    set_requires_all_reduce = set_requires_gradient_sync

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Let whole parameters be forgotten after the forward pass, or kept for the backward."""
        for group in self._groups(recurse):
            group.reshards = reshard_after_forward

    def set_reshard_after_backward(self, *_: object, **__: object) -> None:
        """Change nothing: whole parameters are forgotten after the backward pass."""

    def set_modules_to_forward_prefetch(self, modules: Sequence[Module]) -> None:
        """Gather the groups of these modules while this one runs forward, and no others."""
        self._fsdp.following = [m._fsdp for m in modules if isinstance(m, FSDPModule)]

    def set_modules_to_backward_prefetch(self, modules: Sequence[Module]) -> None:
        """Gather the groups of these modules while this one runs backward, and no others."""
        self._fsdp.preceding = [m._fsdp for m in modules if isinstance(m, FSDPModule)]

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide the sums of this group's gradients by `factor`, not by the number of ranks."""
        self._fsdp.divisor = factor

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Change nothing: parameters are gathered in the backward pass where it reads them."""

    def set_post_optim_event(self, event: object) -> None:
        """Change nothing: the next gather begins after the optimizer's step."""

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Change nothing: gradients are divided first, and then summed."""

    set_allocate_memory_from_process_group_for_comm = set_force_sum_reduction_for_comms
    _set_unshard_async_op = set_force_sum_reduction_for_comms

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Change nothing: gradients are exchanged in each backward pass that syncs."""

    def _groups(self, recurse: bool) -> list[_Group]:
        if not recurse:
            return [self._fsdp]
        return [m._fsdp for m in self.modules() if isinstance(m, FSDPModule)]


def _cast(values: object, dtype: DType) -> Any:
    if isinstance(values, Tensor):
        is_real = values.meta.dtype.is_floating_point
        return cast(values, dtype=dtype) if is_real else values
    if isinstance(values, dict):
        return {key: _cast(v, dtype) for key, v in values.items()}
    if isinstance(values, (list, tuple)) and not hasattr(values, "_fields"):
        return type(values)(_cast(v, dtype) for v in values)
    return values


def fully_shard(
    module: Module | Sequence[Module],
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[Parameter], Any] | None = None,
    mp_policy: MixedPrecisionPolicy = AS_THEY_ARE,
    offload_policy: OffloadPolicy | None = None,
    ignored_params: set[Parameter] | None = None,
) -> Any:
    """Let the parameters of a module that no module inside of it has taken be in parts, and return
    the module, whose class is now one of `FSDPModule` too.

    mesh: of one axis, over which parts lie, or of two, the first of which has copies; None: all
    ranks.  reshard_after_forward: forget whole parameters between forward and backward pass.
    shard_placement_fn: gives a `Shard` for a parameter that is not in parts along dim 0.
    Parameters that lie in parts over other axes of the mesh's grid (tensor parallelism) are in
    parts over both. All ranks of the parts must have equal values.

    Example::

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    """
    modules = [module] if isinstance(module, Module) else list(module)
    mesh = mesh or DeviceMesh("cpu", range(current_config().world_size))
    for top in modules:
        if isinstance(top, FSDPModule):
            raise CallError(f"fully_shard: {type(top).__name__} is sharded already")
    if mesh.ndim > 2:
        raise PlacementError(f"fully_shard: the mesh has one axis or two, got {mesh}")
    ignored = set(map(id, ignored_params or ()))
    found: dict[int, tuple[Parameter, list[tuple[Module, str]]]] = {}
    for top in modules:
        for owner, name, p in _own_parameters(top):
            places = found.setdefault(id(p), (p, []))[1]
            if id(p) not in ignored and (owner, name) not in places:
                places.append((owner, name))
    taken = [(p, places) for p, places in found.values() if places]
    _check_parameters([p for p, _ in taken], mp_policy)
    members = [_shard(places, p, mesh, shard_placement_fn) for p, places in taken]
    for p, _ in taken:
        _sharded[id(p)] = p
    group = _Group(members, mesh, mp_policy, reshard_after_forward is not False)
    for top in modules:
        kind = type(top)
        object.__setattr__(top, "_fsdp", group)
        own = vars(top).pop("forward", None)  # of an instance that was compiled
        if own is not None:
            object.__setattr__(top, "_own_forward", own)
        top.__class__ = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {})
    return module


def _own_parameters(top: Module) -> Iterator[tuple[Module, str, Parameter]]:
    """The parameters of a module but for those of modules inside that are sharded already."""
    for name, p in top._parameters.items():
        if p is not None:
            yield top, name, p
    for part in top._modules.values():
        if part is not None and not isinstance(part, FSDPModule):
            yield from _own_parameters(part)


_sharded: WeakValueDictionary[int, Parameter] = WeakValueDictionary()
"""Parameters of which a group has parts, while something else has them too."""


def _check_parameters(parameters: list[Parameter], policy: MixedPrecisionPolicy) -> None:
    for p in parameters:
        if _sharded.get(id(p)) is p:
            raise CallError(
                f"fully_shard: a parameter {p.meta} is shared with a module that was sharded "
                "apart; shard the modules that share it in one call: fully_shard([a, b])"
            )
    dtypes = {p.meta.dtype: p for p in parameters}
    if len(dtypes) > 1 and policy.param_dtype is None:
        raise CallError(
            f"fully_shard: the parameters of a group have one dtype, got {[*map(str, dtypes)]}; "
            "convert them, shard their modules apart, or give MixedPrecisionPolicy(param_dtype)"
        )


def _shard(
    places: list[tuple[Module, str]],
    p: Parameter,
    mesh: DeviceMesh,
    choose: Callable[[Parameter], Any] | None,
) -> _Member:
    chosen = None if choose is None else choose(p)
    split: Split | None = Split(0 if chosen is None else chosen.dim)
    inner = None
    if p.is_global and split in p.sbp:  # parts of parts would not be those of one grid
        split = next((s for d in range(p.ndim) if (s := Split(d)) not in p.sbp), None)
    sbp: NdSbp = (*[BROADCAST] * (mesh.ndim - 1), split or BROADCAST)
    with no_grad():
        if p.is_global:
            inner = p.placement, p.sbp
            outer = _joined(mesh, p.placement)
            whole = (BROADCAST,) * mesh.ndim + p.sbp
            made = wrap_global(p._array, p.meta, outer, whole).to_global(sbp=(*sbp, *p.sbp))
        else:
            if not p.ndim:
                name = places[0][1]
                raise PlacementError(f"fully_shard: {name} has no dims; make it one of one element")
            whole = (BROADCAST,) * mesh.ndim
            ranks = Placement(META, mesh.placement.ranks) if is_meta(p) else mesh.placement
            made = wrap_global(p._array, p.meta, ranks, whole).to_global(sbp=sbp)
        array = made._array if is_meta(p) else made._array.copy()
        own = wrap_global(array, made.meta, made.placement, made.sbp)
    held = Parameter(own, requires_grad=p.requires_grad)
    for owner, name in places:
        owner.register_parameter(name, held)
    return _Member(places, held, inner, split)


def _joined(mesh: DeviceMesh, inner: Placement) -> Placement:
    """The ranks of a mesh and of the parts of a tensor on it: axes of one grid."""
    root = mesh._root
    for axis in range(root.ndim):
        if axis not in mesh._axes and tuple(root._line((axis,)).tolist()) == inner.rank_ids:
            axes = (*mesh._axes, axis)
            if list(axes) != sorted(axes):
                break
            return Placement(inner.type, root._line(axes))
    raise PlacementError(
        f"fully_shard: a parameter lies on {inner}, which is no later axis of the grid {root}; "
        "make both meshes of one: mesh['dp'] and mesh['tp']"
    )


def register_fsdp_forward_method(module: Module, method_name: str) -> None:
    """Let another method of a sharded module run with whole parameters, as `forward` does."""
    if not isinstance(module, FSDPModule):
        return
    method = getattr(module, method_name)

    def call(*args: object, **kwargs: object) -> Any:
        with module._fsdp.whole():
            return method(*args, **kwargs)

    setattr(module, method_name, call)
