"""Queues of jobs: their users, and how many devices their running jobs hold together.

* A limit is of each type of device by itself, of a queue and of each user in it.
* A job that its queue has no room for keeps its place there: no later job of the queue (or, where
  it is the user's own limit, of that user in it) gets any of it. Jobs of other queues pass it.
* A job that is too large for the devices that are present keeps nobody back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from oneflow.core.errors import JobSpecError
from oneflow.scheduler.jobs.ledger import Key, Ledger, keys_of
from oneflow.scheduler.jobs.records import DEFAULT_QUEUE, JobRecord, JobSpec

MAX_PRIORITY = 1000
MAX_ROOM = 1 << 30  # of a queue without a limit


@dataclass(frozen=True)
class Queue:
    """The limits of a queue.

    Attributes:
        devices: The most devices of a type that its running jobs hold together; 0: any number.
        user_devices: The same of one user's jobs in it.
        max_priority: The highest priority of its jobs.
        max_time_limit_s: The longest time limit, which a job has that asks for none; 0: any.
        users: Names of the tokens that may use it besides admins; None: all.
        share: Its weight among queues: see shares.py.
        user_shares: Weights of users in it; 1 of those who are not named.
        preemptible: Its jobs may be stopped for others of higher priority: see preemption.py.
    """

    devices: int = 0
    user_devices: int = 0
    max_priority: int = MAX_PRIORITY
    max_time_limit_s: float = 0.0
    users: tuple[str, ...] | None = None
    share: float = 1.0
    user_shares: Mapping[str, float] = field(default_factory=dict)
    preemptible: bool = False

    def admits(self, user: str) -> bool:
        return self.users is None or user in self.users


Queues: TypeAlias = Mapping[str, Queue]
_UNLIMITED = Queue()


def find_queue(queues: Queues, name: str) -> Queue | None:
    """Return the queue of this name ("": the default one); None if there is none."""
    name = name or DEFAULT_QUEUE
    return queues.get(name, _UNLIMITED if name == DEFAULT_QUEUE else None)


def is_preemptible(job: JobRecord, queues: Queues) -> bool:
    """Whether the job, or its queue for it, allows to stop it for one of higher priority."""
    queue = find_queue(queues, job.queue)
    return job.spec.preemptible or (queue is not None and queue.preemptible)


def check_queue(spec: JobSpec, queues: Queues) -> None:
    """Raises JobSpecError for a job that can never run in its queue."""
    name, queue = spec.queue or DEFAULT_QUEUE, find_queue(queues, spec.queue)
    if queue is None:
        known = ", ".join(sorted({DEFAULT_QUEUE, *queues}))
        raise JobSpecError(f"queue {name!r}: there is no such queue; there are {known}")
    limits = [limit for limit in (queue.devices, queue.user_devices) if limit]
    if limits and spec.devices > min(limits):
        who = "its jobs" if min(limits) == queue.devices else "the jobs of one user"
        raise JobSpecError(
            f"devices={spec.devices}: {who} in queue {name} may hold {min(limits)} together"
        )
    if spec.priority > queue.max_priority:
        raise JobSpecError(f"priority={spec.priority}: {at_most(name, queue)}")
    longest_s = queue.max_time_limit_s
    if longest_s and spec.time_limit_s > longest_s:
        raise JobSpecError(
            f"time_limit_s={spec.time_limit_s:g}: queue {name} allows {longest_s:g} seconds"
        )


def at_most(name: str, queue: Queue) -> str:
    """Say up to which priority the jobs of a queue may have."""
    return f"queue {name} allows priorities up to {queue.max_priority}"


class Quotas:
    """The room in the queues during one choice."""

    def __init__(self, queues: Queues, ledger: Ledger) -> None:
        self._queues, self._ledger = queues, ledger
        self._taken: Counter[Key] = Counter()
        self._heads: dict[Key, str] = {}  # the jobs that are to be next, by the limit in their way

    def room(self, job: JobRecord) -> int:
        """Return how many devices the job may have, at most as many as it wants."""
        if find_queue(self._queues, job.queue) is None or not self.is_first(job):
            return 0
        return min(job.spec.most, self.left(job))

    def left(self, job: JobRecord) -> int:
        """Return how many devices more the job's queue may hold, and its user there."""
        return min((limit - self._held(key) for key, limit in self._limits(job)), default=MAX_ROOM)

    def take(self, job: JobRecord, devices: int) -> None:
        """Let the job have so many devices, or keep them for it."""
        self._taken.update(dict.fromkeys(keys_of(job), devices))

    def is_first(self, job: JobRecord) -> bool:
        """Whether no job before it waits for the same limit."""
        return not any(key in self._heads for key, _ in self._limits(job))

    def would_fit(self, job: JobRecord, ended: Iterable[tuple[JobRecord, int]]) -> bool:
        """Whether the job would have room if these jobs, which hold so many devices, had ended."""
        freed: Counter[Key] = Counter()
        for other, devices in ended:
            freed.update(dict.fromkeys(keys_of(other), devices))
        return find_queue(self._queues, job.queue) is not None and all(
            key not in self._heads and limit - self._held(key) + freed[key] >= job.spec.devices
            for key, limit in self._limits(job)
        )

    def keep_place(self, job: JobRecord) -> None:
        """Let no later job have the room that this one waits for: the user's own limit, if that is
        in its way, else the queue's.
        """
        for key, _ in self._in_the_way(job)[-1:]:
            self._heads.setdefault(key, job.id)

    def _in_the_way(self, job: JobRecord) -> list[tuple[Key, int]]:
        need = job.spec.devices
        return [(k, most) for k, most in self._limits(job) if most - self._held(k) < need]

    def why_not(self, job: JobRecord) -> str:
        """Say which limit keeps the job waiting."""
        if find_queue(self._queues, job.queue) is None:
            return f"queue {job.queue} is not configured any more"
        full = [(key, most) for key, most in self._limits(job) if key in self._heads]
        key, limit = (self._in_the_way(job) or full)[-1]
        whose = f"queue {job.queue}" if len(key) == 2 else f"{job.owner} in {job.queue}"
        said = f"{whose} holds {self._held(key)} of its {limit} {job.spec.device_type} devices"
        head = self._heads.get(key, "")
        return f"{said}; after job {head}, which is before it in the queue" if head else said

    def _limits(self, job: JobRecord) -> Iterator[tuple[Key, int]]:
        queue = find_queue(self._queues, job.queue)
        if queue is not None:
            of_queue, of_user = keys_of(job)
            if queue.devices:
                yield of_queue, queue.devices
            if queue.user_devices:
                yield of_user, queue.user_devices

    def _held(self, key: Key) -> int:
        return self._ledger.held(key) + self._taken[key]
