"""The order of the jobs that wait: by priority, and within one by fair share.

* Higher priority first; then jobs that have run and wait to go on, first come first.
* Of the others those of the queue come first that has used least for its share, and of these
  those of the user that has used least for its own. Use fades (ledger.py).
* A device counts for ADVANCE_S more than it was used, also one that a job further ahead in the
  order is to get: jobs that are submitted together to idle devices take turns as well.
* Between equals the order is that in which the jobs came. A user that has used nothing comes first,
  and one that waits uses nothing, so that everybody's turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oneflow.scheduler.jobs.ledger import Key, Ledger, keys_of
from oneflow.scheduler.jobs.quotas import Queue, Queues, find_queue
from oneflow.scheduler.jobs.records import JobRecord, JobState

ADVANCE_S = 60.0


def fair_order(
    jobs: Iterable[JobRecord], queues: Queues, ledger: Ledger, now: float
) -> list[JobRecord]:
    """Order jobs, given in the order they came, as they are to be started."""
    found = sorted(jobs, key=lambda job: -job.priority)
    if not ledger.remembers:
        return found

    def queue_of(job: JobRecord) -> Queue:
        return find_queue(queues, job.queue) or Queue()

    def of_user(job: JobRecord) -> tuple[Key, float]:
        return keys_of(job)[1], queue_of(job).user_shares.get(job.owner, 1.0)

    def of_queue(job: JobRecord) -> tuple[Key, float]:
        return keys_of(job)[0], queue_of(job).share

    for side in (of_user, of_queue):  # the second leaves the order of the first within a queue
        found = _in_turn(found, side, ledger, now)
    return found


def _in_turn(
    jobs: list[JobRecord],
    side: Callable[[JobRecord], tuple[Key, float]],
    ledger: Ledger,
    now: float,
) -> list[JobRecord]:
    """Order jobs by the use of their side for its weight. side: the account and the weight."""
    used: dict[Key, float] = {}
    turns: dict[str, tuple[float, ...]] = {}
    for job in jobs:
        if job.state is JobState.RESTARTING:
            turns[job.id] = (-job.priority, 0)
            continue
        key, weight = side(job)
        if key not in used:
            used[key] = ledger.used(key, now) + ADVANCE_S * ledger.held(key)
        turns[job.id] = (-job.priority, 1, used[key] / weight)
        used[key] += ADVANCE_S * job.spec.devices
    return sorted(jobs, key=lambda job: turns[job.id])
