"""Exchanges of gradients on a GPU run beside its kernels, on the stream BOXING.

Messages between actors of a rank say that work was launched, not that it is done: on one stream
that is enough. An exchange waits for all that was launched before it. An actor of the other stream
waits, by an event, for the last act of each exchange that uses memory which it uses, too: to read
the sum, and before it fills the sent memory again. So segments of the backward pass that have
nothing to do with a bucket are computed while it is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from oneflow.actors.registers import storage_of
from oneflow.core.actor_kinds import ActorKind
from oneflow.core.plan import ActorSpec
from oneflow.kernels import streams
from oneflow.kernels.array import GpuEvent

Kernel = Callable[[tuple[int, ...], tuple[int, ...]], None]


class CommunicationStream:
    """The exchanges of one rank that run beside. actors: of this rank."""

    def __init__(self, actors: Sequence[ActorSpec]) -> None:
        self.meetings = meetings(actors)
        self._last: dict[int, GpuEvent] = {}

    def ordered(self, spec: ActorSpec, kernel: Kernel) -> Kernel:
        """`kernel` of an actor on its stream, behind the acts that it has to wait for."""
        if spec.kind is ActorKind.ALL_REDUCE:
            return self._exchange(spec.id, kernel)
        exchanges = self.meetings.get(spec.id)
        return self._after(exchanges, kernel) if exchanges else kernel

    def _exchange(self, actor: int, kernel: Kernel) -> Kernel:
        def run(in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> None:
            with streams.beside(streams.BOXING):
                kernel(in_slots, out_slots)
                self._last[actor] = streams.mark()

        return run

    def _after(self, exchanges: Iterable[int], kernel: Kernel) -> Kernel:
        def run(in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> None:
            for exchange in exchanges:
                event = self._last.get(exchange)
                if event is not None:
                    streams.wait(event)
            kernel(in_slots, out_slots)

        return run


def meetings(actors: Sequence[ActorSpec]) -> dict[int, tuple[int, ...]]:
    """The exchanges that use memory of each other actor, by its id."""
    users: dict[int, list[int]] = {}
    for actor in actors:
        if actor.kind is ActorKind.ALL_REDUCE:
            for memory in _memories(actor):
                users.setdefault(memory, []).append(actor.id)
    found = {}
    for actor in actors:
        if actor.kind is not ActorKind.ALL_REDUCE:
            met = {exchange for memory in _memories(actor) for exchange in users.get(memory, ())}
            if met:
                found[actor.id] = tuple(sorted(met))
    return found


def _memories(actor: ActorSpec) -> set[int]:
    return {storage_of(register).id for register in (*actor.inputs, *actor.outputs)}
