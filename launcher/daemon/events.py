"""Events of a daemon, and the actions that follow from them.

`daemon.Daemon.step(event, now)` turns the first into the second and does nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oneflow.core.metrics import ActorWaits
from oneflow.scheduler.jobs.messages import AttemptKey as AttemptKey

# ---- events: from the scheduler ------------------------------------------------------------------


@dataclass(frozen=True)
class Welcomed:
    """The scheduler took us in; what we say from now on carries this epoch."""

    epoch: int


@dataclass(frozen=True)
class Fenced:
    """We have been given up: end what runs at once, and join anew."""

    why: str


@dataclass(frozen=True)
class PrepareTold:
    """work: what `Gather` needs; the machine does not look into it."""

    key: AttemptKey
    work: Any


@dataclass(frozen=True)
class StartTold:
    key: AttemptKey
    master_addr: str
    master_port: int


@dataclass(frozen=True)
class StopTold:
    key: AttemptKey
    grace_s: float
    why: str


@dataclass(frozen=True)
class NotedTold:
    """The end of this rank is durable at the scheduler."""

    key: AttemptKey


@dataclass(frozen=True)
class DrainTold:
    """number: the scheduler's, by which it tells old drains from new ones."""

    is_on: bool = True
    number: int = 0


# ---- events: of this machine ---------------------------------------------------------------------


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
    """A rank reported how far it is.

    checkpoint: one that is now complete, or "". actors, waiting: what they do, now and then.
    points: of the curve, as messages; handed on as they are. warning: why it has no checkpoint.
    """

    key: AttemptKey
    step: int
    total_steps: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint: str = ""
    checkpoint_step: int = 0
    actors: tuple[ActorWaits, ...] = ()
    waiting: str = ""
    points: tuple[Any, ...] = ()
    warning: str = ""


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

    exit_code, reason, cause: of the rank, whatever its process ends with.  since_s: so long.
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
    Welcomed
    | Fenced
    | PrepareTold
    | StartTold
    | StopTold
    | NotedTold
    | DrainTold
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

# ---- actions, to be done in order ----------------------------------------------------------------


@dataclass(frozen=True)
class Gather:
    """Make all ready for a rank: files, folders, the port of rank 0, a worker.

    Answered by `Gathered` or `NotGathered`.
    """

    key: AttemptKey
    work: Any


@dataclass(frozen=True)
class Drop:
    """Forget what was or is being gathered."""

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

    Said again with a shorter grace, it shortens what was said before.
    """

    key: AttemptKey
    grace_s: float


@dataclass(frozen=True)
class SayPrepared:
    key: AttemptKey
    master_port: int = 0
    error: str = ""
    reason: str = ""
    exit_code: int = 0


@dataclass(frozen=True)
class SayProgress:
    key: AttemptKey
    step: int = 0
    total_steps: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint: str = ""
    checkpoint_step: int = 0
    actors: tuple[ActorWaits, ...] = ()
    waiting: str = ""
    points: tuple[Any, ...] = ()
    warning: str = ""


@dataclass(frozen=True)
class SayExited:
    key: AttemptKey
    exit_code: int
    reason: str
    cause: str
    last_step: int = 0
    pid: int = 0
    leaving: bool = False  # the daemon takes no more work
    failed_at: float = 0.0  # as far as we saw; 0: it did not fail


@dataclass(frozen=True)
class SayFailing:
    """The rank has failed; what is left of it is being cleared away, and `SayExited` follows."""

    end: SayExited


@dataclass(frozen=True)
class Rejoin:
    """Attach anew after a pause; with a new incarnation if the device was of no use before."""

    pause_s: float
    is_new: bool = False


@dataclass(frozen=True)
class Leave:
    """Say farewell and end the daemon. exit_code: of its process."""

    exit_code: int = 0


Action = (
    Gather
    | Drop
    | Launch
    | EndTree
    | SayPrepared
    | SayProgress
    | SayFailing
    | SayExited
    | Rejoin
    | Leave
)


@dataclass(frozen=True)
class Running:
    """A rank that a daemon works on, as the daemon says when it attaches. phase: prepared, running,
    stopping.
    """

    key: AttemptKey
    phase: str
    pid: int
    last_step: int
