"""Events of a cluster, and the actions that follow from them.

`table.Table.step(event, now)` turns the first into the second and does nothing itself: clock,
sockets, storage and random numbers stay with the caller, so that a whole cluster can be simulated
in one process.

life, of whatever speaks of a job: how many jobs of its id were removed before (see JobRecord).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oneflow.scheduler.jobs.records import JobRecord, JobSpec

# ---- events --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submitted:
    """A job was submitted.

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
class RemoveAsked:
    """A job that ended shall be forgotten."""

    job_id: str


@dataclass(frozen=True)
class Running:
    """An attempt that a daemon says it is working on.

    phase: preparing, prepared, running or stopping.
    """

    job_id: str
    attempt: int
    rank: int
    phase: str
    last_step: int = 0
    life: int = 0


@dataclass(frozen=True)
class DaemonJoined:
    """A daemon joined the cluster.

    running: what goes on there, as far as it survived. folder: where it keeps jobs. kept: names of
    folders in it. drain_number: of the drain it obeys; 0: it has reasons of its own.
    """

    daemon: str
    node: str
    device_type: str
    device_index: int
    address: str
    incarnation: int
    version: str
    pid: int
    last_epoch: int
    running: tuple[Running, ...] = ()
    draining: bool = False
    folder: str = ""
    kept: tuple[str, ...] = ()
    drain_number: int = 0


@dataclass(frozen=True)
class DaemonBeat:
    daemon: str
    epoch: int


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

    node: "" is all. Its daemons take no new work; what runs may go on for grace_s.
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
class RankPrepared:
    """A rank is ready to start, or cannot be made ready.

    error: "" if the rank is ready to start. master_port: of rank 0. exit_code: of the error; 0: as
    its reason means.
    """

    daemon: str
    epoch: int
    job_id: str
    attempt: int
    rank: int
    master_port: int = 0
    error: str = ""
    reason: str = "INTERNAL"
    exit_code: int = 0
    life: int = 0


@dataclass(frozen=True)
class RankExited:
    """leaving: the daemon was told to end, and takes no more work."""

    daemon: str
    epoch: int
    job_id: str
    attempt: int
    rank: int
    exit_code: int
    reason: str
    cause: str
    last_step: int = 0
    at: float = 0.0
    pid: int = 0
    leaving: bool = False
    seen_s: float = 0.0  # it failed so long before it was told; 0: it did not fail
    life: int = 0


@dataclass(frozen=True)
class RankFailing:
    """The rank has failed; what is left of it is being cleared away, and `end` itself follows."""

    end: RankExited

    @property
    def daemon(self) -> str:
        return self.end.daemon

    @property
    def epoch(self) -> int:
        return self.end.epoch


@dataclass(frozen=True)
class CurvePoint:
    """The metrics of one step. left_out: points just before it that nobody was told of."""

    step: int
    at: float
    values: Mapping[str, float]
    left_out: int = 0


@dataclass(frozen=True)
class RankProgressed:
    """A rank reported how far it is.

    checkpoint: one that is now complete, or "". waiting: the actor that waits now, for what.
    actor_waits: (kind, seconds of no_input, seconds of no_free_register) since the rank began.
    points: of the curve; metrics are those of the last one. warning: why it has no checkpoint.
    """

    daemon: str
    epoch: int
    job_id: str
    attempt: int
    rank: int
    step: int
    total_steps: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint: str = ""
    checkpoint_step: int = 0
    at: float = 0.0
    waiting: str = ""
    actor_waits: tuple[tuple[str, float, float], ...] = ()
    points: tuple[CurvePoint, ...] = ()
    warning: str = ""
    life: int = 0


@dataclass(frozen=True)
class Ticked:
    """Time passes; at least once a heartbeat. at: wall clock."""

    at: float


Event = (
    Submitted
    | CancelAsked
    | RestartAsked
    | RemoveAsked
    | DaemonJoined
    | DaemonBeat
    | DaemonGone
    | DrainAsked
    | UndrainAsked
    | RankPrepared
    | RankFailing
    | RankExited
    | RankProgressed
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
class SaveUndrained:
    """Make durable that no older drain of this node (or daemon; "" is all) counts any more.

    number: an epoch that is taken for it.
    """

    node: str
    number: int


@dataclass(frozen=True)
class TellWelcome:
    """Welcome a daemon: all that this incarnation says from now on, and all that is told to it, is
    of this epoch.
    """

    daemon: str
    epoch: int
    incarnation: int = 0


@dataclass(frozen=True)
class TellFenced:
    """This incarnation has been given up: it must end what it runs and join anew."""

    daemon: str
    incarnation: int
    why: str


@dataclass(frozen=True)
class TellPrepare:
    daemon: str
    record: JobRecord
    rank: int
    local_rank: int
    resume_from: str
    epoch: int = 0


@dataclass(frozen=True)
class TellStart:
    daemon: str
    job_id: str
    attempt: int
    rank: int
    master_addr: str
    master_port: int
    epoch: int = 0
    life: int = 0


@dataclass(frozen=True)
class TellStop:
    daemon: str
    job_id: str
    attempt: int
    rank: int
    grace_s: float
    why: str
    epoch: int = 0
    life: int = 0


@dataclass(frozen=True)
class TellNoted:
    """The end of this rank is durable: the daemon need not tell it again."""

    daemon: str
    job_id: str
    attempt: int
    rank: int
    epoch: int = 0
    life: int = 0


@dataclass(frozen=True)
class TellForget:
    """Remove the logs and files of a job."""

    daemon: str
    job_id: str
    epoch: int = 0
    life: int = 0


@dataclass(frozen=True)
class TellDrain:
    """Tell a daemon to drain, or to take work again.

    is_on: False: it may take work again. number: not less than that of any undo before it.
    """

    daemon: str
    epoch: int = 0
    is_on: bool = True
    number: int = 0


@dataclass(frozen=True)
class Rejected:
    """The event was refused: the message says why. reason: of the rejection counter (stale_epoch,
    duplicate, unknown), or "" for what a user asked in vain."""

    event: Event
    message: str
    reason: str = ""


Told = TellPrepare | TellStart | TellStop | TellNoted | TellForget | TellDrain

Action = (
    Save
    | Remove
    | SaveEpoch
    | SaveUndrained
    | TellWelcome
    | TellFenced
    | TellPrepare
    | TellStart
    | TellStop
    | TellNoted
    | TellForget
    | TellDrain
    | Rejected
)
