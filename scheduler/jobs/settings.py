"""The times and limits of the job table. All in seconds, on the monotonic clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from oneflow.core.blame import SETTLE_S
from oneflow.core.errors import ConfigError
from oneflow.scheduler.jobs.quotas import Queues, find_queue
from oneflow.scheduler.jobs.records import JobSpec

BEATS_PER_S = 400.0  # of all lines of a large cluster together
SUSPECT_BEATS, ACT_BEATS = 1.5, 4.0  # added beats by which the limits of silence grow
LEAST_SLOW_S = 0.25


class Silence(NamedTuple):
    """The silence after which a daemon is suspect, and after which it is given up."""

    suspect_s: float
    act_s: float


@dataclass(frozen=True)
class Settings:
    """The patience of the table. Each layer waits longer than the one below it."""

    suspect_s: float = 3.0  # a daemon silent for so long is shown as suspect
    act_s: float = 9.2  # and is given up after so long, so that it is named 10 s after it failed
    fast_daemons: int = 200  # so many beat as often as they can; of more, each beats less often
    prepare_s: float = 300.0  # until all ranks of an attempt are ready to start
    install_s: float = 1800.0  # the same, if nodes have to install its packages first
    grace_s: float = 10.0  # for a rank that is told to stop
    unkillable_s: float = 20.0  # beyond the grace: a daemon that cannot end a rank is given up
    settle_s: float = SETTLE_S  # a rank that only followed waits so long for a better cause
    early_exit_s: float = 10.0  # one rank may exit 0 so long before the others
    grow_s: float = 30.0  # devices are free for so long before an elastic job takes them, too
    retell_s: float = 5.0  # what is not answered is told again
    save_progress_s: float = 5.0  # steps reached are made durable so often
    keep_lost_s: float = 86400.0  # a lost daemon is shown for so long, unless it is drained
    max_queued_per_owner: int = 100
    max_time_limit_s: float = 0.0  # that a job may have, and has if it asks for none; 0: any
    queues: Queues = field(default_factory=dict)  # by name; see quotas.py
    usage_half_life_s: float = 7 * 86400.0  # 0: no use is remembered; see shares.py
    keep_jobs: int = 10_000  # that ended, the newest of them; 0: all (see retention.py)
    keep_s: float = 30 * 86400.0  # after their end; 0: for good
    keep_failed_s: float = 90 * 86400.0  # the same of those that a checkpoint is left of

    def slow_s(self, num_lines: int) -> float:
        """Return the seconds by which each line of a cluster of so many delays its beats, so that
        the scheduler has no more than BEATS_PER_S to answer. They grow in steps of a fifth: not
        every line that is new changes them for all the others.
        """
        if num_lines <= self.fast_daemons:
            return 0.0
        exact = max((num_lines - self.fast_daemons) / BEATS_PER_S, LEAST_SLOW_S)
        return float(2 ** (math.ceil(4 * math.log2(exact)) / 4))

    def silence(self, slow_s: float) -> Silence:
        """Return the limits for a daemon that beats so much later."""
        return Silence(self.suspect_s + SUSPECT_BEATS * slow_s, self.act_s + ACT_BEATS * slow_s)

    def time_limit_s(self, spec: JobSpec) -> float:
        """Return the least of the limits of a job, its queue and the cluster. 0: none."""
        queue = find_queue(self.queues, spec.queue)
        of_queue_s = queue.max_time_limit_s if queue is not None else 0.0
        limits = [s for s in (spec.time_limit_s, of_queue_s, self.max_time_limit_s) if s]
        return min(limits, default=0.0)

    def check(self) -> None:
        """Raises ConfigError if a layer would act before the one below it."""
        if not 0 < self.suspect_s < self.act_s < self.prepare_s:
            raise ConfigError(
                f"the times must grow: suspect_s ({self.suspect_s:g}) < act_s ({self.act_s:g}) "
                f"< prepare_s ({self.prepare_s:g})"
            )
        if min(self.grace_s, self.unkillable_s, self.settle_s, self.retell_s, self.grow_s) < 0:
            raise ConfigError("the times of the job table must not be negative")
        limits = (self.max_queued_per_owner, self.keep_jobs, self.keep_s, self.keep_failed_s)
        if (
            min(*limits, self.max_time_limit_s, self.usage_half_life_s) < 0
            or not self.max_queued_per_owner
        ):
            raise ConfigError("the limits of the job table must not be negative")
