"""Boxing actors bound to a rank: reading peers' registers in place, box by box.

Each kind comes down to a list of copies and additions between arrays that are known when the plan
is bound, one list for each combination of slots. Nothing is negotiated: the Ready messages said
that all arrays are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any

import numpy as np

from oneflow.actors.memory import aligned
from oneflow.actors.registers import (
    RegisterMemory,
    SlotLayout,
    local_value_type,
    slot_layout,
)
from oneflow.boxing.boxes import Pull
from oneflow.boxing.collectives.exchange import combine_all, is_half
from oneflow.boxing.parts import node_plan
from oneflow.boxing.row_moves import RowMove, span
from oneflow.boxing.transitions import (
    RouteStep,
    group_of,
    leaves_gaps,
    make_step,
    phases,
    step_axes,
)
from oneflow.core.actor_kinds import FLAT_KINDS, SECOND_HALVES, ActorKind
from oneflow.core.graph import Node, Value
from oneflow.core.operand import Attr
from oneflow.core.plan import ActorSpec, RegisterSpec
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.exchange_rows import row_list
from oneflow.kernels.hardware import Hardware, address_of, class_of, hardware_class
from oneflow.services.failpoints import failpoint, is_armed

Call = Callable[[], Any]
CHUNK_NBYTES = 256 * 1024
"""A sum of several ranks goes through the parts one by one, so that the part just written is
still in cache.
"""


@dataclass(frozen=True)
class Channel:
    """Input channel of a boxing actor: a register as made by one rank."""

    register: RegisterSpec
    source: int


def node_step(actor: ActorSpec, node: Node) -> RouteStep:
    """Return this actor's step of a node's route."""
    source, target = node.inputs[0], node.outputs[0]
    assert source.sbp is not None and target.sbp is not None
    step = make_step(source.sbp, source.placement, target.sbp, target.placement)
    if actor.kind in FLAT_KINDS:
        return step
    return replace(step, kind="transfer" if actor.kind is ActorKind.BOXING else "sum_and_spread")


def node_reads(actor: ActorSpec, node: Node, rank: int) -> list[tuple[Value, Pull]]:
    """List the reads of `rank`, box by box, for a node, each with the value that it reads."""
    if node.op == "parts":
        return [(node.inputs[i], pull) for i, pull in node_plan(node).reads(rank)]
    if node.op == "exchange":  # any row of anybody; which, only the sizes say
        return [(v, _whole(v, source)) for source in node.placement.rank_ids for v in node.inputs]
    pulls_of = phases(node_step(actor, node))[actor.kind is ActorKind.BOX_SPREAD]
    value = read_value(actor, node)
    return [(value, pull) for pull in pulls_of(node.inputs[0].type.shape, rank)]


def _whole(value: Value, rank: int) -> Pull:
    everything = tuple(slice(0, n) for n in local_value_type(value, rank).shape)
    return Pull(rank, everything, everything, False)


def node_sources(actor: ActorSpec, node: Node, rank: int, values: Container[int]) -> set[int]:
    """The ranks whose memory of some values, by id, `rank` reads to do this node; a second half
    works in its own too."""
    if actor.kind in FLAT_KINDS:
        held = read_value(actor, node).id in values
        return set(group_of(node_step(actor, node), rank)) if held else set()
    reads = node_reads(actor, node, rank)
    found = {pull.source_rank for value, pull in reads if value.id in values}
    if actor.kind in SECOND_HALVES and read_value(actor, node).id in values:
        found.add(rank)
    return found


def channels_of(actor: ActorSpec, rank: int) -> list[Channel]:
    """The channels of `actor` on `rank`, in a fixed order. All but boxing actors read registers of
    their own rank.
    """
    result = []
    for register in actor.inputs:
        if not register.values:  # it only orders two actors of each rank
            if rank in register.producer.placement:
                result.append(Channel(register, rank))
            continue
        values = {v.id for v in register.values}
        sources = sorted({s for n in actor.nodes for s in node_sources(actor, n, rank, values)})
        result += [Channel(register, s) for s in sources]
    return result


def part_of(array: Array, slices: tuple[slice, ...]) -> Array:
    """A view of a part of an array, of one without dims too."""
    return array[slices + (Ellipsis,)]  # noqa: RUF005  (a star in an index is Python 3.11)


class Boxing:
    """One boxing actor of this rank.

    memory: (register id, rank) -> that rank's memory of the register, for all channels and for the
    own outputs.
    """

    def __init__(
        self,
        actor: ActorSpec,
        rank: int,
        hardware: Hardware,
        channels: list[Channel],
        memory: Mapping[tuple[int, int], RegisterMemory],
    ) -> None:
        self._actor = actor
        self._rank = rank
        self._xp = hardware.xp
        self._channels = channels
        self._memory = memory
        self.remote_nbytes = 0
        """Bytes read from other ranks in one act: in the last one, if only the acts know."""

    def build(self, in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> list[Call]:
        """The copies and additions of one act."""
        calls = self._build(in_slots, out_slots)
        if self.remote_nbytes and is_armed("transfer.half"):
            calls.insert(len(calls) // 2, partial(failpoint, "transfer.half"))
        return calls

    def _build(self, in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> list[Call]:
        self.remote_nbytes = 0
        sources = self._sources(in_slots)
        targets = self._targets(out_slots)
        kind = self._actor.kind
        calls: list[Call] = []
        if kind not in FLAT_KINDS:
            for node in self._actor.nodes:
                if node.op == "exchange":
                    self._build_exchange(node, sources, targets, calls)
                elif node.outputs[0].id in targets:
                    self._build_pulls(node, sources, targets[node.outputs[0].id], calls)
            return calls
        for group, parts, target in self._flat_runs(sources, targets):
            self._build_flat(kind, group, parts, target, calls)
        return calls

    def _sources(self, in_slots: tuple[int, ...]) -> dict[tuple[int, int], Array]:
        """(value id, rank) -> array."""
        result = {}
        for channel, slot in zip(self._channels, in_slots, strict=True):
            memory = self._memory[channel.register.id, channel.source]
            for value, array in memory.arrays[slot].items():
                result[value, channel.source] = array
        return result

    def _targets(self, out_slots: tuple[int, ...]) -> dict[int, Array]:
        result = {}
        for register, slot in zip(self._actor.outputs, out_slots, strict=True):
            memory = self._memory[register.id, self._rank]
            result.update(memory.arrays[slot])
        return result

    def _build_pulls(
        self, node: Node, sources: dict[tuple[int, int], Array], target: Array, calls: list[Call]
    ) -> None:
        fill = self._fill_of(node)
        if fill is not None:
            calls.append(_Fill(target, fill))
        for sum_ in _sums(node_reads(self._actor, node, self._rank)):
            parts = [part_of(sources[v.id, p.source_rank], p.source_slices) for v, p in sum_]
            self._build_sum(parts, part_of(target, sum_[0][1].target_slices), calls)
            for (_, pull), part in zip(sum_, parts, strict=True):
                if pull.source_rank != self._rank:
                    self.remote_nbytes += part.nbytes

    def _build_exchange(
        self,
        node: Node,
        sources: dict[tuple[int, int], Array],
        targets: dict[int, Array],
        calls: list[Call],
    ) -> None:
        """Appends the exchange; values that nobody reads are written apart."""
        ranks = node.placement.rank_ids
        of_ranks = [[sources[v.id, rank] for v in node.inputs] for rank in ranks]
        outs = [self._target(v, targets) for v in node.outputs]
        move = RowMove(self._xp, ranks.index(self._rank), of_ranks, outs[0], outs[1:], node)
        calls.append(partial(self._move_rows, move, node is self._actor.nodes[0]))

    def _target(self, value: Value, targets: dict[int, Array]) -> Array:
        found = targets.get(value.id)
        if found is None:
            made = local_value_type(value, self._rank)
            found = self._xp.empty(made.shape, made.dtype.np)
        return found

    def _move_rows(self, move: RowMove, is_first: bool) -> None:
        nbytes = move()
        self.remote_nbytes = nbytes if is_first else self.remote_nbytes + nbytes

    def _fill_of(self, node: Node) -> Attr:
        """The value of the cells of a node's output that no read fills; None if there are none."""
        if node.op == "parts":
            return node_plan(node).parts.fill
        if self._actor.kind is ActorKind.BOX_SPREAD:
            return None
        step = node_step(self._actor, node)
        return 0 if leaves_gaps(node.inputs[0].type.shape, step, self._rank) else None

    # ---- all_reduce over the bytes of a register -------------------------------------------------

    def _flat_runs(
        self, sources: dict[tuple[int, int], Array], targets: dict[int, Array]
    ) -> list[tuple[tuple[int, ...], list[Array], Array]]:
        """(ranks of the group, their flat arrays, the flat target) of each run."""
        result = []
        for nodes in flat_runs(self._actor, self._rank):
            group = group_of(node_step(self._actor, nodes[0]), self._rank)
            keys = [read_value(self._actor, n).id for n in nodes]
            parts = [joined([sources[k, r] for k in keys]) for r in group]
            target = joined([targets[n.outputs[0].id] for n in nodes])
            result.append((group, parts, target))
        return result

    def _build_flat(
        self,
        kind: ActorKind,
        group: tuple[int, ...],
        parts: list[Array],
        target: Array,
        calls: list[Call],
    ) -> None:
        mine = group.index(self._rank)
        if kind is ActorKind.FLAT_ALL_GATHER:
            for k, part in enumerate(parts):
                if k != mine:
                    a, b = _share(target.size, len(group), k)
                    calls.append(_Copy(self._xp, target[a:b], part[a:b]))
                    self.remote_nbytes += (b - a) * target.itemsize
            return
        a, b = 0, target.size
        if kind is ActorKind.FLAT_REDUCE_SCATTER:
            a, b = _share(target.size, len(group), mine)
        self._build_sum([p[a:b] for p in parts], target[a:b], calls)
        self.remote_nbytes += (b - a) * target.itemsize * (len(group) - 1)

    def _build_sum(self, parts: list[Array], target: Array, calls: list[Call]) -> None:
        """target = parts[0] + parts[1] + ..., in rank order, so that all ranks get the same
        bits.
        """
        if len(parts) == 1:
            calls.append(_Copy(self._xp, target, parts[0]))
            return
        if len(parts) == 2:
            calls.append(_Add(self._xp, target, *parts))
            return
        if is_half(target.dtype):
            pieces = [([p[at] for p in parts], target[at]) for at in self._chunks(target)]
            calls += [partial(combine_all, np.add, of, into) for of, into in pieces]
            return
        # In place, a summand that is not the first would be overwritten before its turn.
        is_later = target.size and (
            not class_of(target).joins_neighbours
            or any(address_of(p) == address_of(target) for p in parts[2:])
        )
        chunks = self._chunks(target)
        apart = self._xp.empty_like(target[chunks[0]]) if is_later else None
        for at in chunks:
            made = target[at]
            total = made if apart is None else apart[: len(made)]
            calls.append(_Add(self._xp, total, parts[0][at], parts[1][at]))
            for part in parts[2:]:
                last = made if part is parts[-1] else total
                calls.append(_Add(self._xp, last, total, part[at]))

    def _chunks(self, target: Array) -> list[EllipsisType] | list[slice]:
        """Indices of pieces of `target` that stay in cache, along its first dim."""
        if target.ndim == 0 or self._xp.__name__ != "numpy":  # a GPU wants few large launches
            return [...]
        row_nbytes = max(target.nbytes // max(len(target), 1), 1)
        rows = max(CHUNK_NBYTES // row_nbytes, 1)
        return [slice(start, start + rows) for start in range(0, len(target), rows)]


def _sums(reads: list[tuple[Value, Pull]]) -> list[list[tuple[Value, Pull]]]:
    """The reads that are added up, together."""
    result: list[list[tuple[Value, Pull]]] = []
    for read in reads:
        if read[1].add:
            result[-1].append(read)
        else:
            result.append([read])
    return result


def _share(size: int, num_parts: int, k: int) -> tuple[int, int]:
    """Part k of `size` elements cut in `num_parts`, at multiples of 16 elements (a cache line of
    float32).
    """
    lines = -(-size // 16)
    return min(lines * k // num_parts * 16, size), min(lines * (k + 1) // num_parts * 16, size)


def read_value(actor: ActorSpec, node: Node) -> Value:
    """Return the value that an actor reads of peers to do a boxing node: its input, or in a second
    half the result of the first.
    """
    return node.outputs[0] if actor.kind in SECOND_HALVES else node.inputs[0]


def flat_runs(actor: ActorSpec, rank: int) -> list[list[Node]]:
    """Nodes of an all_reduce whose values lie side by side, in the registers read and in the one
    written alike.

    A run is reduced as one flat array. It follows from the layouts alone, so all ranks of a group
    find the same runs; and both phases of an all_reduce must cut the same runs, so the second asks
    for those of the first.
    """
    if actor.kind is ActorKind.FLAT_ALL_GATHER:
        return flat_runs(actor.inputs[0].producer, rank)
    joins = hardware_class(actor.placement.type).joins_neighbours
    places: dict[int, tuple[int, int, int]] = {}  # value -> register, offset, end
    for register in actor.inputs:
        layout = slot_layout(register, rank)
        for value, offset in layout.offsets.items():
            places[value] = register.id, offset, offset + aligned(layout.types[value].nbytes)
    written = next((slot_layout(r, rank) for r in actor.outputs if r.values), None)
    runs: list[list[Node]] = []
    for node in actor.nodes:
        if (
            joins
            and runs
            and written is not None
            and _follows(actor, runs[-1][-1], node, places, written)
        ):
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs


def _follows(
    actor: ActorSpec,
    before: Node,
    node: Node,
    places: dict[int, tuple[int, int, int]],
    written: SlotLayout,
) -> bool:
    a, b = read_value(actor, before).id, read_value(actor, node).id
    out_a, out_b = before.outputs[0].id, node.outputs[0].id
    end = written.offsets[out_a] + aligned(written.types[out_a].nbytes)
    return (
        places[a][0] == places[b][0]
        and places[a][2] == places[b][1]
        and end == written.offsets[out_b]
        and step_axes(node_step(actor, before)) == step_axes(node_step(actor, node))
    )


def joined(arrays: list[Array]) -> Array:
    """One flat array over neighbours in memory and the padding between them, which is zero on
    all ranks.
    """
    arrays = [x for x in arrays if x.size] or arrays[:1]  # one without elements lies anywhere
    first, last = arrays[0].reshape(-1), arrays[-1].reshape(-1)
    if len(arrays) == 1:
        return first
    size = (address_of(last) - address_of(first)) // first.itemsize + last.size
    if hasattr(first, "__cuda_array_interface__"):
        import cupy

        # It starts there; the end is not checked.
        flat: Array = cupy.ndarray((size,), first.dtype, first.data)
        return flat
    return np.lib.stride_tricks.as_strided(first, (size,), (first.itemsize,))


def read_parts(
    actor: ActorSpec, reader: int, source: int, register: RegisterSpec, arrays: Mapping[int, Array]
) -> list[Array]:
    """The parts of `source`'s slot of a register that `actor` on rank `reader` reads, in a fixed
    order.

    arrays: of that slot, by value id. Sender and receiver of a register that travels between hosts
    both list them. Rows that follow sizes are left to `read_rows`.
    """
    held = {v.id for v in register.values}
    if actor.kind not in FLAT_KINDS:
        return [
            part_of(arrays[value.id], pull.source_slices)
            for node in actor.nodes
            for value, pull in node_reads(actor, node, reader)
            if value.id in held and pull.source_rank == source
            if node.op != "exchange" or value is node.inputs[0]
        ]
    parts = []
    for nodes in flat_runs(actor, reader):
        if read_value(actor, nodes[0]).id not in held:
            continue
        flat = joined([arrays[read_value(actor, n).id] for n in nodes])
        group = group_of(node_step(actor, nodes[0]), reader)
        a, b = 0, flat.size
        if actor.kind is ActorKind.FLAT_REDUCE_SCATTER:
            a, b = _share(flat.size, len(group), group.index(reader))
        elif actor.kind is ActorKind.FLAT_ALL_GATHER:
            a, b = _share(flat.size, len(group), group.index(source))
        parts.append(flat[a:b])
    return parts


def read_rows(
    actor: ActorSpec, reader: int, register: RegisterSpec, arrays: Mapping[int, Array]
) -> Callable[[], list[Array]] | None:
    """A function that lists the rows that `actor` on rank `reader` reads of a slot, once the sizes
    in it are there; None if it reads no rows."""
    held = {v.id for v in register.values}
    nodes = [n for n in actor.nodes if n.op == "exchange" and n.inputs[0].id in held]
    if not nodes:
        return None
    index = actor.placement.rank_ids.index(reader)
    tables = [
        (arrays[n.inputs[0].id], [row_list(arrays[v.id], n.attrs["lead"]) for v in n.inputs[1:]])
        for n in nodes
    ]

    def wanted() -> list[Array]:
        found = []
        for sizes, xs in tables:
            first, last = span(sizes, index)
            found += [x[first:last] for x in xs]
        return found

    return wanted


class _Copy:
    __slots__ = ("_copyto", "_source", "_target")

    def __init__(self, xp: ArrayModule, target: Array, source: Array) -> None:
        self._copyto, self._target, self._source = xp.copyto, target, source

    def __call__(self) -> None:
        self._copyto(self._target, self._source)


class _Add:
    __slots__ = ("_a", "_add", "_b", "_target")

    def __init__(self, xp: ArrayModule, target: Array, a: Array, b: Array) -> None:
        self._add, self._target, self._a, self._b = xp.add, target, a, b

    def __call__(self) -> None:
        self._add(self._a, self._b, self._target)


class _Fill:
    __slots__ = ("_target", "_value")

    def __init__(self, target: Array, value: Attr) -> None:
        self._target, self._value = target, value

    def __call__(self) -> None:
        self._target[...] = self._value
