"""Events of a daemon, and the actions that follow from them.

`daemon.Daemon.step(event, now)` turns the first into the second and does nothing itself. The
scheduler's words to a daemon, and its answers, are the messages of protos/cluster.proto themselves
(see scheduler/jobs/messages.py); here are the events of its own machine, and its actions there.
"""

from __future__ import annotations

from dataclasses import dataclass

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey

# ---- events --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disconnected:
    """The line to the scheduler broke, or there is none yet."""


@dataclass(frozen=True)
class Gathered:
    """All is ready to start. master_port: reserved, if this is rank 0; else 0."""

    key: AttemptKey
    master_port: int


@dataclass(frozen=True)
class NotGathered:
    key: AttemptKey
    error: str
    reason: str
    exit_code: int = 0


@dataclass(frozen=True)
class Launched:
    key: AttemptKey
    pid: int


@dataclass(frozen=True)
class Progressed:
    """A rank reported how far it is; the report goes on to the scheduler as it is."""

    key: AttemptKey
    report: pb.Progress


@dataclass(frozen=True)
class ProcessExited:
    """The rank's own process ended; others that it started may still live.

    exit_code: as a shell shows it.  reason, cause: as the process itself or the kernel tells.
    """

    key: AttemptKey
    exit_code: int
    reason: str
    cause: str
    pid: int


@dataclass(frozen=True)
class StoodStill:
    """The rank's process does nothing any more, and will not: it is to be ended.

    exit_code, reason, cause: of the rank, whichever its process ends with.  since_s: so long.
    """

    key: AttemptKey
    exit_code: int
    reason: str
    cause: str
    pid: int
    since_s: float = 0.0


@dataclass(frozen=True)
class TreeEnded:
    """Nothing of the rank lives any more, but for `num_left` processes that cannot be killed."""

    key: AttemptKey
    num_left: int = 0


@dataclass(frozen=True)
class LeftoversGone:
    """The processes that could not be killed are gone at last: the device can work again."""


@dataclass(frozen=True)
class ShutdownAsked:
    """A signal asks the daemon to end: the first time in order, then at once."""


@dataclass(frozen=True)
class Ticked:
    """Time passes; several times a second."""


Event = (
    pb.SchedulerMessage
    | Disconnected
    | Gathered
    | NotGathered
    | Launched
    | Progressed
    | ProcessExited
    | StoodStill
    | TreeEnded
    | LeftoversGone
    | ShutdownAsked
    | Ticked
)

# ---- actions, to be done in order; a message of the daemon is one to be sent ---------------------


@dataclass(frozen=True)
class Gather:
    """Make all ready for a rank: files, folders, the port of rank 0, a worker.

    Answered by `Gathered` or `NotGathered`.
    """

    key: AttemptKey
    work: pb.Prepare


@dataclass(frozen=True)
class Drop:
    """Forget the files gathered or being gathered."""

    key: AttemptKey


@dataclass(frozen=True)
class Launch:
    """Run the rank. Answered by `Launched`, later by `ProcessExited`, or by the latter alone."""

    key: AttemptKey
    master_addr: str
    master_port: int


@dataclass(frozen=True)
class EndTree:
    """Ask all processes of the rank to end, kill them after `grace_s`. Answered by `TreeEnded`.

    Said again with a shorter grace, it shortens the one before.
    """

    key: AttemptKey
    grace_s: float


@dataclass(frozen=True)
class Rejoin:
    """Attach anew after a pause; with a new incarnation if the device was of no use before."""

    pause_s: float
    is_new: bool = False


@dataclass(frozen=True)
class Leave:
    """Say farewell and end the daemon. exit_code: of its process."""

    exit_code: int = 0


Action = pb.DaemonMessage | Gather | Drop | Launch | EndTree | Rejoin | Leave
