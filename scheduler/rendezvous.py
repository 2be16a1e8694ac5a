"""The rendezvous: all ranks of a job are admitted together, or the deadline names the missing ones.

Pure: `step(event, now)` returns messages and their receivers; `call` is an opaque number of a
waiting request. A rank whose connection breaks before all are there counts as not joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from oneflow.core.control_channel import LATE_S, PROTOCOL
from oneflow.core.errors import (
    ConfigError,
    InternalError,
    OneFlowError,
    PeerLostError,
    RendezvousError,
)
from oneflow.core.exits import exited_early
from oneflow.protos import control_pb2 as pb

NAMES_SHOWN = 16


@dataclass(frozen=True)
class JoinAsked:
    call: int
    member: pb.Member
    world_size: int
    epoch: int
    protocol: int
    timeout_s: float


@dataclass(frozen=True)
class JoinDropped:
    """The request was cancelled or its connection broke."""

    call: int


@dataclass(frozen=True)
class RanksExited:
    """These ranks' processes ended with 0, says the launcher; they may have joined before."""

    ranks: frozenset[int]


@dataclass(frozen=True)
class Tick:
    pass


@dataclass(frozen=True)
class Admit:
    call: int
    members: tuple[pb.Member, ...]


@dataclass(frozen=True)
class Refuse:
    call: int
    error: OneFlowError


@dataclass(frozen=True)
class Late:
    """Worth a line in the log: these ranks are still missing."""

    text: str


Event = JoinAsked | JoinDropped | RanksExited | Tick
Action = Admit | Refuse | Late


@dataclass(frozen=True)
class _Waiting:
    call: int
    member: pb.Member
    deadline: float
    timeout_s: float


class Rendezvous:
    """The join phase of one job attempt (`epoch`) of `world_size` ranks."""

    def __init__(self, world_size: int, epoch: int) -> None:
        self.world_size = world_size
        self.epoch = epoch
        self.members: tuple[pb.Member, ...] = ()  # by rank, once complete
        self._waiting: dict[int, _Waiting] = {}  # by rank
        self._first_at: float | None = None
        self._late_said = False

    def step(self, event: Event, now: float) -> list[Action]:
        match event:
            case JoinAsked():
                return self._asked(event, now)
            case JoinDropped(call=call):
                self._waiting = {r: w for r, w in self._waiting.items() if w.call != call}
                return []
            case RanksExited(ranks=ranks):
                return self._lose(ranks)
            case Tick():
                return self._expire(now)
        raise InternalError(f"rendezvous cannot take {event}")

    def missing(self) -> list[int]:
        """Ranks that have not asked to join."""
        return [] if self.members else [r for r in range(self.world_size) if r not in self._waiting]

    def _asked(self, event: JoinAsked, now: float) -> list[Action]:
        problem = self._problem(event)
        if problem:
            return [Refuse(event.call, ConfigError(problem))]
        if self.members:
            return [Admit(event.call, self.members)]  # a retry: its first answer was lost
        if self._first_at is None:
            self._first_at = now
        rank = event.member.rank
        self._waiting[rank] = _Waiting(
            event.call, event.member, now + event.timeout_s, event.timeout_s
        )
        if len(self._waiting) < self.world_size:
            return []
        return self._complete()

    def _complete(self) -> list[Action]:
        waiting = [self._waiting[rank] for rank in range(self.world_size)]
        self.members = tuple(entry.member for entry in waiting)
        self._waiting.clear()
        return [Admit(entry.call, self.members) for entry in waiting]

    def _problem(self, event: JoinAsked) -> str | None:
        member = event.member
        if event.protocol != PROTOCOL:
            return (
                f"{named(member)} speaks protocol {event.protocol}, rank 0 speaks {PROTOCOL}; "
                "install the same version everywhere"
            )
        if event.epoch != self.epoch:
            return (
                f"{named(member)} belongs to attempt {event.epoch} of the job, but this is attempt "
                f"{self.epoch}"
            )
        if event.world_size != self.world_size:
            return (
                f"{named(member)} has WORLD_SIZE={event.world_size}, but rank 0 has "
                f"{self.world_size}; check --nnodes and --nproc_per_node on every node"
            )
        if not 0 <= member.rank < self.world_size:
            return f"{named(member)} is outside a world of {self.world_size}"
        return self._duplicate(member)

    def _duplicate(self, member: pb.Member) -> str | None:
        waiting = self._waiting.get(member.rank)
        known = self.members[member.rank] if self.members else waiting and waiting.member
        if known and known.incarnation != member.incarnation:
            return (
                f"{named(member)} wants to join, but {named(known)} already has; check --node_rank "
                "on every node"
            )
        return None

    def _lose(self, exited: frozenset[int]) -> list[Action]:
        """Release at once those who wait for a rank that can no longer come."""
        gone = sorted(exited.intersection(self.missing()))
        if not gone:
            return []
        waiting, self._waiting = self._waiting, {}
        return [
            Refuse(entry.call, PeerLostError(exited_early(gone[0], needed_by=rank)))
            for rank, entry in waiting.items()
        ]

    def _expire(self, now: float) -> list[Action]:
        if not self._waiting:
            return []
        expired = [entry for entry in self._waiting.values() if now >= entry.deadline]
        if not expired:
            return self._say_late(now)
        text = self._describe_missing(expired[0].timeout_s)
        calls = [
            entry.call for entry in self._waiting.values()
        ]  # none of them can succeed any more
        self._waiting.clear()
        return [Refuse(call, RendezvousError(text)) for call in calls]

    def _say_late(self, now: float) -> list[Action]:
        if self._late_said or self._first_at is None or now - self._first_at < LATE_S:
            return []
        self._late_said = True
        return [Late(self._describe_missing(LATE_S))]

    def _describe_missing(self, timeout_s: float) -> str:
        missing = self.missing()
        return (
            f"{len(missing)} of {self.world_size} ranks did not join within {timeout_s:.3g} s: "
            f"{name_ranks(missing)}; were they started, and can they reach rank 0?"
        )


def named(member: pb.Member) -> str:
    """One rank's process, for messages."""
    return f"rank {member.rank} (host {member.host}, pid {member.pid})"


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 3` or `ranks 1, 4-6`, cut after a few names."""
    ordered = sorted(ranks)
    runs: list[tuple[int, int]] = []
    for rank in ordered:
        if runs and runs[-1][1] == rank - 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:NAMES_SHOWN]]
    more = f" and {len(runs) - NAMES_SHOWN} more runs" if len(runs) > NAMES_SHOWN else ""
    return f"rank{'s' if len(ordered) != 1 else ''} {', '.join(shown)}{more}"
