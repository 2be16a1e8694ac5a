"""The job's small shared memory: a key-value store whose readers wait, and named barriers.

Pure: `step(event, now)`. A barrier may be used again under the same name as soon as it has opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oneflow.core.control_channel import MAX_KEY_CHARS, MAX_VALUE_NBYTES
from oneflow.core.errors import (
    DesyncError,
    InternalError,
    OneFlowError,
    PeerLostError,
    ProtocolError,
    TransportError,
)
from oneflow.scheduler.rendezvous import Tick, name_ranks

MAX_KEYS = 100_000
RANKS_DESCRIBED = 4
SAME_CODE_ADVICE = (
    "Maybe executing different code in different ranks, please check if the code is branched "
    "and operates on the global tensor"
)


@dataclass(frozen=True)
class PutAsked:
    call: int
    key: str
    value: bytes


@dataclass(frozen=True)
class GetAsked:
    call: int
    key: str
    timeout_s: float


@dataclass(frozen=True)
class BarrierReached:
    call: int
    rank: int
    name: str
    timeout_s: float


@dataclass(frozen=True)
class CallDropped:
    call: int


@dataclass(frozen=True)
class RankGone:
    """A rank left in order: calls that need it can never complete."""

    rank: int


@dataclass(frozen=True)
class Reply:
    call: int
    value: bytes = b""


@dataclass(frozen=True)
class Fail:
    call: int
    error: OneFlowError


Event = PutAsked | GetAsked | BarrierReached | CallDropped | RankGone | Tick
Action = Reply | Fail


@dataclass(frozen=True)
class _Reader:
    key: str
    deadline: float
    timeout_s: float


@dataclass
class _Barrier:
    deadline: float
    timeout_s: float
    calls: dict[int, int] = field(default_factory=dict)  # rank -> call


class Store:
    """Keys and barriers of one job of `world_size` ranks.

    describe_rank: the known facts of a rank that did not come, for the error.
    """

    def __init__(
        self, world_size: int, describe_rank: Callable[[int], str] = "rank {}".format
    ) -> None:
        self.world_size = world_size
        self._describe_rank = describe_rank
        self._values: dict[str, bytes] = {}
        self._readers: dict[int, _Reader] = {}
        self._barriers: dict[str, _Barrier] = {}
        self._gone: set[int] = set()

    def step(self, event: Event, now: float) -> list[Action]:
        match event:
            case PutAsked():
                return self._put(event)
            case GetAsked():
                return self._get(event, now)
            case BarrierReached():
                return self._reach(event, now)
            case CallDropped(call=call):
                return self._drop(call)
            case RankGone(rank=rank):
                return self._rank_gone(rank)
            case Tick():
                return self._expire(now)
        raise InternalError(f"store cannot take {event}")

    def _put(self, event: PutAsked) -> list[Action]:
        if len(event.key) > MAX_KEY_CHARS or len(event.value) > MAX_VALUE_NBYTES:
            text = (
                f"put {event.key[:64]!r}: a key has at most {MAX_KEY_CHARS} characters and a value "
                f"{MAX_VALUE_NBYTES} bytes, got {len(event.key)} and {len(event.value)}"
            )
            return [Fail(event.call, ProtocolError(text))]
        if event.key not in self._values and len(self._values) >= MAX_KEYS:
            return [
                Fail(event.call, ProtocolError(f"put: the store holds {MAX_KEYS} keys already"))
            ]
        self._values[event.key] = event.value
        ready = [call for call, reader in self._readers.items() if reader.key == event.key]
        for call in ready:
            del self._readers[call]
        return [Reply(event.call), *(Reply(call, event.value) for call in ready)]

    def _get(self, event: GetAsked, now: float) -> list[Action]:
        if event.key in self._values:
            return [Reply(event.call, self._values[event.key])]
        self._readers[event.call] = _Reader(event.key, now + event.timeout_s, event.timeout_s)
        return []

    def _reach(self, event: BarrierReached, now: float) -> list[Action]:
        if self._gone:
            return [Fail(event.call, self._lost(event.name))]
        if not 0 <= event.rank < self.world_size or len(event.name) > MAX_KEY_CHARS:
            text = (
                f"barrier {event.name[:64]!r} of rank {event.rank}: ranks are 0 to "
                f"{self.world_size - 1}, and a name has at most {MAX_KEY_CHARS} characters"
            )
            return [Fail(event.call, ProtocolError(text))]
        barrier = self._barriers.setdefault(
            event.name, _Barrier(now + event.timeout_s, event.timeout_s)
        )
        if event.rank in barrier.calls:
            text = f"barrier {event.name!r}: rank {event.rank} came twice before it opened"
            return [Fail(event.call, DesyncError(text))]
        barrier.calls[event.rank] = event.call
        if len(barrier.calls) < self.world_size:
            return []
        del self._barriers[event.name]
        return [Reply(call) for call in barrier.calls.values()]

    def _drop(self, call: int) -> list[Action]:
        self._readers.pop(call, None)
        for barrier in self._barriers.values():
            barrier.calls = {r: c for r, c in barrier.calls.items() if c != call}
        self._barriers = {name: b for name, b in self._barriers.items() if b.calls}
        return []

    def _rank_gone(self, rank: int) -> list[Action]:
        self._gone.add(rank)
        waiting = list(self._barriers.items())
        self._barriers.clear()
        return [Fail(call, self._lost(name)) for name, b in waiting for call in b.calls.values()]

    def _lost(self, barrier: str) -> PeerLostError:
        return PeerLostError(
            f"{name_ranks(self._gone)} exited 0 while peers run: barrier {barrier!r} can never open"
        )

    def _expire(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for call, reader in [r for r in self._readers.items() if now >= r[1].deadline]:
            del self._readers[call]
            text = f"get {reader.key!r}: nobody put it within {reader.timeout_s:g} s"
            actions.append(Fail(call, TransportError(text)))
        for name, barrier in [b for b in self._barriers.items() if now >= b[1].deadline]:
            del self._barriers[name]
            error = DesyncError(self._describe_late(name, barrier))
            actions += [Fail(call, error) for call in barrier.calls.values()]
        return actions

    def _describe_late(self, name: str, barrier: _Barrier) -> str:
        missing = [rank for rank in range(self.world_size) if rank not in barrier.calls]
        return (
            f"barrier {name!r}: {name_ranks(missing)} did not come within {barrier.timeout_s:g} s, "
            f"{name_ranks(barrier.calls)} did. {SAME_CODE_ADVICE}"
            + describe_missing(missing, self._describe_rank)
        )


def describe_missing(missing: list[int], describe_rank: Callable[[int], str]) -> str:
    """A line on each of the first few ranks that others waited for in vain."""
    return "".join(f"\n  {describe_rank(rank)}" for rank in missing[:RANKS_DESCRIBED])
