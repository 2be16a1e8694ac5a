"""An all_reduce of a graph as a call of the backend that eager code uses.

The actor waits until all ranks of its group have filled their registers, as one that reads them
does; then all of them make the call, in an order that the plan fixes
(scheduler/compiler/schedule/order.py). So no rank waits in a call for one that cannot come to it,
and NCCL serves graphs as it serves eager code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from oneflow.actors.boxing import Call, Channel, flat_runs, joined, read_value
from oneflow.actors.registers import RegisterMemory
from oneflow.core.plan import ActorSpec

if TYPE_CHECKING:
    from oneflow.boxing.collectives.base import Collectives


class AllReduce:
    """One lowered all_reduce on one rank.

    channels: of the actor.  memory: (register id, rank) -> that rank's memory; only the own rank's
    is used.  group: the backend, of the ranks that the sum is over.
    """

    def __init__(
        self,
        actor: ActorSpec,
        rank: int,
        channels: Sequence[Channel],
        memory: Mapping[tuple[int, int], RegisterMemory],
        group: Collectives,
    ) -> None:
        self._actor, self._rank, self._memory, self._group = actor, rank, memory, group
        self._channels = channels

    def build(self, in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> list[Call]:
        """The calls of one act: one for each run of values that lie side by side."""
        sources: dict[int, Any] = {}
        for channel, slot in zip(self._channels, in_slots, strict=True):
            if channel.source == self._rank:
                sources.update(self._memory[channel.register.id, self._rank].arrays[slot])
        targets: dict[int, Any] = {}
        for register, slot in zip(self._actor.outputs, out_slots, strict=True):
            targets.update(self._memory[register.id, self._rank].arrays[slot])
        what = f"all_reduce of {self._actor.name}"
        return [
            partial(
                self._group.all_reduce,
                joined([sources[read_value(self._actor, n).id] for n in nodes]),
                out=joined([targets[n.outputs[0].id] for n in nodes]),
                what=f"{what} {k}" if k else what,
            )
            for k, nodes in enumerate(flat_runs(self._actor, self._rank))
        ]
