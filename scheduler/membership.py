"""The membership of the ranks of a job: heartbeats, broken streams, reported failures, orderly
leaves.

The first real failure ends the job. Pure: `step(event, now)`. Rules that the code cannot show:
* A rank whose stream breaks although it was heard just now is dead (its kernel closed the
  connection): it gets RECONNECT_S to come back. One that had been silent before is frozen or cut
  off: it keeps its full `act_s`.
* The rank to blame is chosen as everywhere (core/blame.py): a report of a rank that only follows
  waits for the real cause. A rank that is lost is a real cause.
* If nobody called `step` for a while, it is we who were frozen; everybody's silence is forgiven
  that time.
"""

from __future__ import annotations

from dataclasses import dataclass

from oneflow.core.blame import FOLLOWER_CODE, Blame
from oneflow.core.errors import InternalError, PeerLostError
from oneflow.protos import control_pb2 as pb
from oneflow.scheduler.rendezvous import Tick, named

RECONNECT_S = 1.0
OWN_STALL_S = 1.0


@dataclass(frozen=True)
class Admitted:
    members: tuple[pb.Member, ...]


@dataclass(frozen=True)
class BeatHeard:
    rank: int
    incarnation: int
    progress: int


@dataclass(frozen=True)
class StreamBroken:
    rank: int
    incarnation: int


@dataclass(frozen=True)
class FailureReported:
    failure: pb.Failure


@dataclass(frozen=True)
class RankLeft:
    rank: int
    incarnation: int


@dataclass(frozen=True)
class Abort:
    """Tell every rank but the failed one; the job is over."""

    failure: pb.Failure


@dataclass(frozen=True)
class NotifyLeft:
    rank: int


@dataclass(frozen=True)
class Suspect:
    rank: int
    silent_s: float


@dataclass(frozen=True)
class Recovered:
    rank: int
    silent_s: float


Event = Admitted | BeatHeard | StreamBroken | FailureReported | RankLeft | Tick
Action = Abort | NotifyLeft | Suspect | Recovered


@dataclass
class _Peer:
    member: pb.Member
    heard_at: float
    broken_at: float | None = None
    suspect: bool = False
    left: bool = False
    progress: int = 0
    moved_at: float = 0.0  # when the progress counter last grew


class Membership:
    """Liveness of the admitted ranks; times in seconds."""

    def __init__(self, suspect_s: float, act_s: float) -> None:
        self.suspect_s = suspect_s
        self.act_s = act_s
        self.failure: pb.Failure | None = None
        self._peers: dict[int, _Peer] = {}
        self._blame: Blame[pb.Failure] = Blame()
        self._stepped_at: float | None = None

    def step(self, event: Event, now: float) -> list[Action]:
        self._forgive_own_stall(now)
        match event:
            case Admitted(members=members):
                for member in members:
                    self._peers.setdefault(member.rank, _Peer(member, now, moved_at=now))
                return []
            case BeatHeard():
                return self._heard(event, now)
            case StreamBroken(rank=rank, incarnation=incarnation):
                return self._broken(rank, incarnation, now)
            case FailureReported(failure=failure):
                return self._reported(failure, now)
            case RankLeft(rank=rank, incarnation=incarnation):
                return self._left(rank, incarnation)
            case Tick():
                return self._judge(now)
        raise InternalError(f"membership cannot take {event}")

    @property
    def left_ranks(self) -> list[int]:
        """Ranks that left in order."""
        return [rank for rank, peer in self._peers.items() if peer.left]

    @property
    def is_under_way(self) -> bool:
        """Whether no rank has failed or lost a peer, and some have yet to leave."""
        return self._blame.cause is None and any(not peer.left for peer in self._peers.values())

    def progress(self) -> dict[int, int]:
        """The last progress counter of each rank."""
        return {rank: peer.progress for rank, peer in self._peers.items()}

    def describe(self, rank: int, now: float) -> str:
        """Describe a rank that others wait for: frozen, idle or busy elsewhere."""
        peer = self._peers.get(rank)
        if peer is None:
            return f"rank {rank} never joined"
        if peer.left:
            return f"{named(peer.member)} has left"
        return (
            f"{named(peer.member)}: last heartbeat {now - peer.heard_at:.1f} s ago, progress "
            f"{peer.progress} unchanged for {now - peer.moved_at:.1f} s"
        )

    def oldest_heartbeat_s(self, now: float) -> float:
        """Age of the oldest last heartbeat of a rank that has not left; 0 if there is none."""
        return max((now - p.heard_at for p in self._peers.values() if not p.left), default=0.0)

    def _forgive_own_stall(self, now: float) -> None:
        last, self._stepped_at = self._stepped_at, now
        if last is None or now - last <= OWN_STALL_S:
            return
        for peer in self._peers.values():
            peer.heard_at += now - last
            if peer.broken_at is not None:
                peer.broken_at += now - last

    def _find(self, rank: int, incarnation: int) -> _Peer | None:
        peer = self._peers.get(rank)
        return peer if peer and peer.member.incarnation == incarnation else None

    def _heard(self, event: BeatHeard, now: float) -> list[Action]:
        peer = self._find(event.rank, event.incarnation)
        if peer is None:
            return []  # of an earlier attempt
        silent_s, was_suspect = now - peer.heard_at, peer.suspect
        peer.heard_at, peer.broken_at, peer.suspect = now, None, False
        if event.progress != peer.progress:
            peer.progress, peer.moved_at = event.progress, now
        return [Recovered(event.rank, silent_s)] if was_suspect else []

    def _broken(self, rank: int, incarnation: int, now: float) -> list[Action]:
        peer = self._find(rank, incarnation)
        if peer and not peer.left:
            peer.broken_at = now
        return []

    def _reported(self, failure: pb.Failure, now: float) -> list[Action]:
        self._blame.hear(failure, failure.exit_code == FOLLOWER_CODE, now)
        return self._decide(now)

    def _left(self, rank: int, incarnation: int) -> list[Action]:
        peer = self._find(rank, incarnation)
        if peer is None or peer.left:
            return []
        peer.left = True
        return [NotifyLeft(rank)]

    def _judge(self, now: float) -> list[Action]:
        if self.failure:
            return []  # who falls silent now only follows
        actions: list[Action] = []
        for peer in self._peers.values():
            if not peer.left:
                actions += self._judge_one(peer, now)
        return actions + self._decide(now)

    def _judge_one(self, peer: _Peer, now: float) -> list[Action]:
        silent_s = now - peer.heard_at
        if peer.broken_at is not None and peer.broken_at - peer.heard_at < self.suspect_s:
            if now - peer.broken_at >= RECONNECT_S:
                return self._lose(peer, "its connection to the scheduler broke", now)
        elif silent_s >= self.act_s:
            return self._lose(peer, f"it sent no heartbeat for {silent_s:.1f} s", now)
        if silent_s >= self.suspect_s and not peer.suspect:
            peer.suspect = True
            return [Suspect(peer.member.rank, silent_s)]
        return []

    def _lose(self, peer: _Peer, how: str, now: float) -> list[Action]:
        cause, code = f"{named(peer.member)} is gone: {how}", PeerLostError.exit_code
        lost = pb.Failure(
            rank=peer.member.rank,
            host=peer.member.host,
            cause=cause,
            exit_code=code,
            reason="NODE_LOST",
        )
        self._blame.hear(lost, False, now)
        return self._decide(now)

    def _decide(self, now: float) -> list[Action]:
        """End the job once the rank to blame is settled."""
        if self.failure is not None or not self._blame.is_settled(now):
            return []
        self.failure = self._blame.cause
        assert self.failure is not None  # is_settled
        return [Abort(self.failure)]
