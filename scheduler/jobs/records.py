"""Records of jobs, daemons and tokens. Plain data; every change makes a new record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from oneflow.core.job_config import Overrides
from oneflow.core.reasons import REASONS as REASONS


class JobState(str, Enum):
    """QUEUED -> STARTING -> RUNNING -> a final state, with RESTARTING and CANCELLING between."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATES

    def __str__(self) -> str:
        return self.value


FINAL_STATES = frozenset(
    {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT}
)

FREE_REASONS = frozenset({"NODE_LOST", "PREEMPTED", "RENDEZVOUS_TIMEOUT"})
"""Causes that are not the program's: a restart for them spends nothing of `max_restarts`."""

MAX_FUTILE_RESTARTS = 3
"""So many restarts in a row without a new checkpoint, and a job is given up, whatever the cause."""


DEFAULT_QUEUE = "default"
"""The queue of jobs that name none; it is there without being configured."""


class JobKind(str, Enum):
    SCRIPT = "script"
    GRAPH = "graph"
    INFERENCE = "inference"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Before:
    """A job that another one comes after. is_any: it may end in any way, else it must succeed."""

    job_id: str
    is_any: bool


@dataclass(frozen=True)
class JobSpec:
    """A user's request; see JobSpec in protos/cluster.proto for each field."""

    kind: JobKind = JobKind.SCRIPT
    name: str = ""
    devices: int = 1
    device_type: str = "cpu"
    nodes: int = 0
    priority: int = 0
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    archive: str = ""
    graph: str = ""
    steps: int = 0
    max_restarts: int = 0
    restart_on: tuple[str, ...] = ()
    time_limit_s: float = 0.0
    checkpoint_every: int = 0
    checkpoint_keep: int = 0
    checkpoint_dir: str = ""
    resume_from: str = ""
    auto_parallel: bool = False
    zero: int = 0
    amp: str = ""
    after: str = ""
    hold: bool = False
    queue: str = ""
    preemptible: bool = False
    array: str = ""
    array_index: int = 0
    array_limit: int = 0
    array_size: int = 0
    only_nodes: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    require_labels: tuple[str, ...] = ()
    max_devices: int = 0
    cpus: float = 0.0
    memory_nbytes: int = 0
    requirements: str = ""

    @property
    def files(self) -> set[str]:
        """Return the digests of the uploaded files that it needs."""
        return {self.archive, self.graph, self.requirements} - {""}

    @property
    def most(self) -> int:
        """Return the most devices that it runs on: as many as `devices` unless it is elastic."""
        return max(self.devices, self.max_devices)

    @property
    def size(self) -> str:
        """Return its number of devices for people: 3, or 3:4 of an elastic job."""
        return str(self.devices) if self.most == self.devices else f"{self.devices}:{self.most}"

    @property
    def where(self) -> str:
        """Say which nodes it may run on, for people: ` with gpu=h200`; "" if on any."""
        parts = [f" on {' or '.join(self.only_nodes)}"] if self.only_nodes else []
        parts += [f" not on {', '.join(self.exclude_nodes)}"] if self.exclude_nodes else []
        parts += [f" with {', '.join(self.require_labels)}"] if self.require_labels else []
        return "".join(parts)

    @property
    def overrides(self) -> Overrides:
        """The settings that take the place of those in the job file."""
        return Overrides(self.auto_parallel, self.zero, self.amp)

    @property
    def befores(self) -> tuple[Before, ...]:
        """The jobs that it comes after, as `after` names them."""
        words = [word.partition(":") for word in self.after.split(",")] if self.after else []
        return tuple(Before(job_id, end == "any") for job_id, _, end in words)


@dataclass(frozen=True)
class Assignment:
    """The device that runs a rank. folder: where its daemon keeps jobs, on its node; "":
    not told.
    """

    rank: int
    daemon: str
    node: str
    device: str
    folder: str = ""


@dataclass(frozen=True)
class JobRecord:
    """A job at one moment. Times are seconds since the epoch, 0: not yet.

    life: grows with each job of this id. Messages, memories and files of a job elsewhere
    name its life too, so that nothing of an earlier one is taken for its own. It grows, too, when
    the job begins anew after the journal was restored: attempts may have run that are not known.

    journal: number of the journal when it was last known that no attempt is missing.
    """

    id: str
    spec: JobSpec
    state: JobState = JobState.QUEUED
    reason: str = "NONE"
    cause: str = ""
    exit_code: int = 0
    first_failed_rank: int = -1
    host: str = ""
    pid: int = 0
    attempt: int = 0
    restarts_spent: int = 0
    futile_restarts: int = 0
    last_step: int = 0
    total_steps: int = 0
    last_checkpoint: str = ""
    last_checkpoint_step: int = 0
    pending: str = ""
    owner: str = ""
    job_key: str = ""  # the secret of this attempt's ranks; never shown
    assignments: tuple[Assignment, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    submitted_at: float = 0.0
    started_at: float = 0.0
    attempt_started_at: float = 0.0
    ran_s: float = 0.0  # of the attempts before this one: they count for the time limit
    first_step_at: float = 0.0
    finished_at: float = 0.0
    eta_s: float = 0.0  # to the last step; filled in for who looks, never stored; 0: not known
    warning: str = ""  # it goes on all the same: why it has no newer checkpoint
    life: int = 0
    journal: int = 0
    is_due: bool = False  # the jobs that it comes after have ended so, whatever becomes of them
    met: tuple[str, ...] = ()  # those of them that have
    is_held: bool = False
    priority_shift: int = 0  # since it was submitted

    @property
    def priority(self) -> int:
        return self.spec.priority + self.priority_shift

    @property
    def queue(self) -> str:
        return self.spec.queue or DEFAULT_QUEUE

    def is_same_as(self, other: JobRecord) -> bool:
        """Whether both are of one submission, whose life may have grown since."""
        return self.life == other.life or self.submitted_at == other.submitted_at


@dataclass(frozen=True)
class Use:
    """The devices that one attempt of a job had, and how long. Kept when its job is forgotten.

    started_at: seconds since the epoch.
    """

    job_id: str
    life: int
    attempt: int
    owner: str
    name: str
    device_type: str
    devices: int
    started_at: float
    ran_s: float
    queue: str = ""


class DaemonState(str, Enum):
    UP = "up"
    SUSPECT = "suspect"
    DRAINING = "draining"
    LOST = "lost"

    def __str__(self) -> str:
        return self.value


@dataclass
class DaemonRecord:
    """One daemon: one device.

    epoch: grows with every joining; messages with an older one are refused.  job: of the attempt
    that holds the device, "" if it is free.  heard_at: on the monotonic clock; it alone changes in
    place, as it does so thousands of times a second.
    """

    id: str
    node: str
    device_type: str
    device_index: int
    address: str
    incarnation: int
    epoch: int
    state: DaemonState = DaemonState.UP
    job: str = ""
    heard_at: float = 0.0
    version: str = ""
    pid: int = 0
    folder: str = ""  # where it keeps jobs
    labels: tuple[str, ...] = ()  # name=value, of its node

    @property
    def device(self) -> str:
        return f"{self.device_type}:{self.device_index}"


ROLES = ("admin", "submit", "view", "daemon")


@dataclass(frozen=True)
class TokenRecord:
    """A token, without its secret.

    digest: of the secret, which is stored nowhere. expires_at: 0 is never.
    """

    name: str
    role: str
    digest: bytes
    created_at: float
    expires_at: float = 0.0
    revoked: bool = False
