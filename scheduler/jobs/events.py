"""Events of a cluster, and the actions that follow from them.

`table.Table.step(event, now)` turns the first into the second and does nothing itself: clock,
sockets, storage and random numbers stay with the caller, so that a whole cluster can be simulated
in one process. The words of daemons and to daemons are the messages of protos/cluster.proto
themselves.

life, in all messages on a job: tells it from the jobs of its id before it (see JobRecord).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, Use

# ---- events --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submitted:
    """A job was submitted, whose id and spec have been checked (see limits.py).

    job_key: fresh randomness from the caller. An id that exists already changes nothing.
    """

    job_id: str
    spec: JobSpec
    owner: str
    job_key: str
    at: float  # wall clock


@dataclass(frozen=True)
class CancelAsked:
    job_id: str
    by: str
    at: float


@dataclass(frozen=True)
class RestartAsked:
    """A job that ended shall run again: it is queued, from its last checkpoint."""

    job_id: str
    by: str
    at: float


@dataclass(frozen=True)
class ChangeAsked:
    """A job that waits shall be held or released, or have another priority. None: as it is."""

    job_id: str
    is_held: bool | None = None
    priority: int | None = None


@dataclass(frozen=True)
class RemoveAsked:
    """A job that ended shall be forgotten."""

    job_id: str


@dataclass(frozen=True)
class DaemonJoined:
    """A daemon joined the cluster, or came back to it. line: the one that it shares with others of
    its node; "": it has one of its own.
    """

    hello: pb.Hello
    line: str = ""


@dataclass(frozen=True)
class Heard:
    """A daemon said something: message, as it came, within the limits of messages.py. at: wall
    clock.
    """

    daemon: str
    message: pb.DaemonMessage
    at: float = 0.0

    @property
    def epoch(self) -> int:
        return self.message.epoch

    @property
    def kind(self) -> str:
        return str(self.message.WhichOneof("kind") or "")


@dataclass(frozen=True)
class LineBeat:
    """A heartbeat of all daemons that share a line. heard: each with the epoch that it knows."""

    heard: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class DaemonGone:
    """The connection ended. reason: "left" (in order), "lost" (broken; the daemon may come back)
    or "died" (its process is known to be gone).
    """

    daemon: str
    epoch: int
    reason: str


@dataclass(frozen=True)
class DrainAsked:
    """A node, or all of them, shall be drained.

    node: "" is all. Its daemons take no new work; running ranks may go on for grace_s.
    """

    node: str
    grace_s: float


@dataclass(frozen=True)
class UndrainAsked:
    """A drain shall be undone.

    node: "" is all. Its daemons take work again.
    """

    node: str


@dataclass(frozen=True)
class CurvePoint:
    """The metrics of one step. left_out: points just before it that nobody was told of."""

    step: int
    at: float
    values: Mapping[str, float]
    left_out: int = 0


@dataclass(frozen=True)
class Ticked:
    """Time passes; at least once a heartbeat. at: wall clock. is_crowded: daemons that want to join
    have been put off, so that those away cannot be blamed for it.
    """

    at: float
    is_crowded: bool = False


Event = (
    Submitted
    | CancelAsked
    | RestartAsked
    | ChangeAsked
    | RemoveAsked
    | DaemonJoined
    | Heard
    | LineBeat
    | DaemonGone
    | DrainAsked
    | UndrainAsked
    | Ticked
)

# ---- actions, to be done in order ----------------------------------------------------------------
# epoch: of the daemon that is meant. If the connection at hand has another one when the action's
# turn comes (the store may have held it up), the action is dropped: that daemon is no more.


@dataclass(frozen=True)
class Save:
    """Make this record durable before anything that follows is done or said."""

    record: JobRecord


@dataclass(frozen=True)
class Remove:
    """Forget a job for good. why: it was kept long enough; "": somebody asked for it."""

    job_id: str
    why: str = ""
    life: int = 0


@dataclass(frozen=True)
class SaveEpoch:
    """Make durable that this epoch is taken."""

    epoch: int


@dataclass(frozen=True)
class SaveClock:
    """Make durable which time it is believed to be, in seconds since the epoch."""

    wall: float


@dataclass(frozen=True)
class SaveDrain:
    """Make durable which incarnation of a daemon is drained. 0: none."""

    daemon: str
    incarnation: int


@dataclass(frozen=True)
class SaveJournal:
    """Make the journal's number durable, and the attempts begun since a start (see journal.py)."""

    number: int
    start: str
    attempts: int


@dataclass(frozen=True)
class SaveUse:
    """Make durable the use of an attempt that is over."""

    use: Use


@dataclass(frozen=True)
class TellWelcome:
    """Welcome a daemon: all that this incarnation says from now on, and all that is told to it, is
    of this epoch.
    """

    daemon: str
    epoch: int
    incarnation: int = 0
    slow_s: float = 0.0  # by which it beats later than it could: see settings.py


@dataclass(frozen=True)
class TellFenced:
    """This incarnation has been given up: it must end its ranks and join anew."""

    daemon: str
    incarnation: int
    why: str


@dataclass(frozen=True)
class TellPrepare:
    daemon: str
    record: JobRecord
    rank: int
    local_rank: int
    local_world_size: int
    resume_from: str
    epoch: int = 0
    mark: pb.JournalMark = field(default_factory=pb.JournalMark)


@dataclass(frozen=True)
class Tell:
    """Send a daemon this: start, stop, noted, forget or drain."""

    daemon: str
    message: pb.SchedulerMessage
    epoch: int = 0


@dataclass(frozen=True)
class TellPace:
    """The cluster has another size: the daemon, and all that share its line, shall beat by so much
    later than they could.
    """

    daemon: str
    slow_s: float
    epoch: int = 0


@dataclass(frozen=True)
class Rejected:
    """The event was refused: the message says why. reason: of the rejection counter (stale_epoch,
    duplicate, unknown), or "" for a request of a user."""

    event: Event
    message: str
    reason: str = ""


Told = TellPrepare | TellPace | Tell

Action = (
    Save
    | Remove
    | SaveEpoch
    | SaveClock
    | SaveDrain
    | SaveJournal
    | SaveUse
    | TellWelcome
    | TellFenced
    | TellPrepare
    | TellPace
    | Tell
    | Rejected
)
