"""Boxing actors bound to a rank: reading peers' registers in place, box by box.

Each kind comes down to a list of copies and additions between arrays that are known when the plan is bound, one list for
each combination of slots. Nothing is negotiated: that all arrays are ready is what the Ready messages said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oneflow.actors.device import Hardware
from oneflow.actors.registers import RegisterMemory
from oneflow.boxing.boxes import needs_zero_fill, pulls
from oneflow.core.graph import Node, Value
from oneflow.core.plan import ActorKind, ActorSpec, RegisterSpec
from oneflow.core.placement import Placement, coordinates

Call = Callable[[], Any]
CHUNK_NBYTES = 256 * 1024
"""A sum of several ranks goes through the parts one by one, so that the part just written is still in cache."""


@dataclass(frozen=True)
class Channel:
    """Input channel of a boxing actor: a register as made by one rank."""

    register: RegisterSpec
    source: int


def node_sources(actor: ActorSpec, node: Node, rank: int) -> list[int]:
    """The ranks whose memory `rank` reads to do this node."""
    source, target = node.inputs[0], node.outputs[0]
    if actor.kind is not ActorKind.BOXING:
        return group_along(source.placement, flat_axis(node), rank)
    found = {p.source_rank for p in _pulls(source, target, rank)}
    return sorted(found)


def flat_axis(node: Node) -> int:
    """The hierarchy axis that an all_reduce runs over."""
    before, after = node.inputs[0].sbp, node.outputs[0].sbp
    assert before is not None and after is not None
    return next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a is not b)


def group_along(placement: Placement, axis: int, rank: int) -> list[int]:
    """The ranks that differ from `rank` in their place along `axis` only, ascending."""
    mine = placement.coordinate(rank)
    return [
        r
        for r, at in zip(placement.rank_ids, coordinates(placement.hierarchy), strict=True)
        if all(i == axis or a == b for i, (a, b) in enumerate(zip(at, mine, strict=True)))
    ]


def channels_of(actor: ActorSpec, rank: int) -> list[Channel]:
    """The channels of `actor` on `rank`, in a fixed order. All but boxing actors read what their own rank made."""
    result = []
    for register in actor.inputs:
        values = {v.id for v in register.values}
        if actor.kind in (ActorKind.FLAT_ALL_GATHER,):
            nodes = actor.nodes
        else:
            nodes = [n for n in actor.nodes if n.inputs[0].id in values]
        sources = sorted({s for n in nodes for s in node_sources(actor, n, rank)})
        result += [Channel(register, s) for s in sources]
    return result


def _pulls(source: Value, target: Value, rank: int) -> list[Any]:
    assert source.sbp is not None and target.sbp is not None
    return pulls(
        source.type.shape, source.sbp, source.placement, target.sbp, target.placement, rank
    )


class Boxing:
    """One boxing actor of this rank.

    memory: (register id, rank) -> that rank's memory of the register, for all channels and for the own outputs.
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
        """Bytes read from other ranks in one act."""

    def build(self, in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> list[Call]:
        """The copies and additions of one act."""
        self.remote_nbytes = 0
        sources = self._sources(in_slots)
        targets = self._targets(out_slots)
        kind = self._actor.kind
        calls: list[Call] = []
        if kind is ActorKind.BOXING:
            for node in self._actor.nodes:
                if node.outputs[0].id in targets:
                    self._build_pulls(node, sources, targets[node.outputs[0].id], calls)
            return calls
        for group, parts, target in self._flat_runs(sources, targets):
            self._build_flat(kind, group, parts, target, calls)
        return calls

    def _sources(self, in_slots: tuple[int, ...]) -> dict[tuple[int, int], Any]:
        """(value id, rank) -> array."""
        result = {}
        for channel, slot in zip(self._channels, in_slots, strict=True):
            memory = self._memory[channel.register.id, channel.source]
            for value, array in memory.arrays[slot].items():
                result[value, channel.source] = array
        return result

    def _targets(self, out_slots: tuple[int, ...]) -> dict[int, Any]:
        result = {}
        for register, slot in zip(self._actor.outputs, out_slots, strict=True):
            memory = self._memory[register.id, self._rank]
            result.update(memory.arrays[slot])
        return result

    def _build_pulls(
        self, node: Node, sources: dict[tuple[int, int], Any], target: Any, calls: list[Call]
    ) -> None:
        value, out = node.inputs[0], node.outputs[0]
        assert value.sbp is not None and out.sbp is not None
        if needs_zero_fill(
            value.type.shape, value.sbp, value.placement, out.sbp, out.placement, self._rank
        ):
            calls.append(_Fill(target))
        for pull in _pulls(value, out, self._rank):
            part = sources[value.id, pull.source_rank][pull.source_slices]
            into = target[pull.target_slices]
            calls.append(_Add(self._xp, into, into, part) if pull.add else _Copy(self._xp, into, part))
            if pull.source_rank != self._rank:
                self.remote_nbytes += part.nbytes

    # ---- all_reduce over the bytes of a register -------------------------------------------------------------------------

    def _flat_runs(
        self, sources: dict[tuple[int, int], Any], targets: dict[int, Any]
    ) -> list[tuple[list[int], list[Any], Any]]:
        """(ranks of the group, their flat arrays, the flat target), with neighbours in memory joined into one."""
        runs: list[list[Any]] = []
        is_gather = self._actor.kind is ActorKind.FLAT_ALL_GATHER
        for node in self._actor.nodes:
            group = group_along(node.placement, flat_axis(node), self._rank)
            key = (node.outputs[0] if is_gather else node.inputs[0]).id
            arrays = [sources[key, r].reshape(-1) for r in group]
            target = targets[node.outputs[0].id].reshape(-1)
            if runs and _joins(runs[-1], group, [*arrays, target]):
                runs[-1][1] = [_join(a, b) for a, b in zip(runs[-1][1], arrays, strict=True)]
                runs[-1][2] = _join(runs[-1][2], target)
            else:
                runs.append([group, arrays, target])
        return [(g, a, t) for g, a, t in runs]

    def _build_flat(
        self, kind: ActorKind, group: list[int], parts: list[Any], target: Any, calls: list[Call]
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

    def _build_sum(self, parts: list[Any], target: Any, calls: list[Call]) -> None:
        """target = parts[0] + parts[1] + ..., in rank order, so that all ranks get the same bits."""
        if len(parts) == 1:
            calls.append(_Copy(self._xp, target, parts[0]))
            return
        if len(parts) == 2:
            calls.append(_Add(self._xp, target, *parts))
            return
        chunk = max(CHUNK_NBYTES // target.itemsize, 1)
        for start in range(0, target.size, chunk):
            at = slice(start, start + chunk)
            calls.append(_Add(self._xp, target[at], parts[0][at], parts[1][at]))
            for part in parts[2:]:
                calls.append(_Add(self._xp, target[at], target[at], part[at]))


def _share(size: int, num_parts: int, k: int) -> tuple[int, int]:
    """Part k of `size` elements cut in `num_parts`, at multiples of 16 elements (a cache line of float32)."""
    lines = -(-size // 16)
    return min(lines * k // num_parts * 16, size), min(lines * (k + 1) // num_parts * 16, size)


def _joins(run: list[Any], group: list[int], arrays: list[Any]) -> bool:
    """Do these arrays follow those of the run in memory, all at the same distance?"""
    if run[0] != group:
        return False
    before = [*run[1], run[2]]
    gaps = {_address(b) - _address(a) for a, b in zip(before, arrays, strict=True)}
    if len(gaps) != 1 or before[0].dtype != arrays[0].dtype:
        return False
    gap = gaps.pop()
    return 0 <= gap - before[0].nbytes < 64 and gap % arrays[0].itemsize == 0


def _join(a: Any, b: Any) -> Any:
    """One flat array over two neighbours and the padding between them, which is zero on all ranks."""
    size = (_address(b) - _address(a)) // a.itemsize + b.size
    if hasattr(a, "__cuda_array_interface__"):
        import cupy

        memory = cupy.cuda.UnownedMemory(_address(a), size * a.itemsize, a)
        return cupy.ndarray((size,), a.dtype, cupy.cuda.MemoryPointer(memory, 0))
    import numpy as np

    joined = np.lib.stride_tricks.as_strided(a, (size,), (a.itemsize,))
    return joined


def _address(array: Any) -> int:
    if hasattr(array, "__cuda_array_interface__"):
        return int(array.data.ptr)
    return int(array.__array_interface__["data"][0])


class _Copy:
    __slots__ = ("_copyto", "_source", "_target")

    def __init__(self, xp: Any, target: Any, source: Any) -> None:
        self._copyto, self._target, self._source = xp.copyto, target, source

    def __call__(self) -> None:
        self._copyto(self._target, self._source)


class _Add:
    __slots__ = ("_a", "_add", "_b", "_target")

    def __init__(self, xp: Any, target: Any, a: Any, b: Any) -> None:
        self._add, self._target, self._a, self._b = xp.add, target, a, b

    def __call__(self) -> None:
        self._add(self._a, self._b, self._target)


class _Fill:
    __slots__ = ("_target",)

    def __init__(self, target: Any) -> None:
        self._target = target

    def __call__(self) -> None:
        self._target[...] = 0


