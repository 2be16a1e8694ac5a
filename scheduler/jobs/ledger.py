"""The use of devices by queues and their users: devices that they hold now, and device-seconds of
late.

Use fades: a device-second counts half as much after each half-life. With the rate r at which it
fades, an account that holds n devices changes by dv/dt = n - r v, so that its value follows from
the last change alone: v(t) = v e^(-rt) + n (1 - e^(-rt)) / r. Nothing is counted as time passes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from oneflow.scheduler.jobs.records import DEFAULT_QUEUE, JobRecord, Use

Key: TypeAlias = tuple[str, ...]  # type of device and queue, or these and a user
FORGOTTEN = 20  # half-lives, after which what is left is a millionth


def keys_of(job: JobRecord) -> tuple[Key, Key]:
    """Return the keys of the job's queue, and of its user there, for its type of device."""
    kind = job.spec.device_type
    return (kind, job.queue), (kind, job.queue, job.owner)


@dataclass
class _Account:
    """used: device-seconds, as much as was left of them at `at`."""

    held: int = 0
    used: float = 0.0
    at: float = 0.0


class Ledger:
    """An account for each queue, and for each user in it. half_life_s: 0: no use is remembered."""

    def __init__(self, half_life_s: float = 0.0) -> None:
        self._rate = math.log(2) / half_life_s if half_life_s else math.inf
        self._accounts: defaultdict[Key, _Account] = defaultdict(_Account)

    @property
    def remembers(self) -> bool:
        return self._rate < math.inf

    def held(self, key: Key) -> int:
        """Return the number of devices that attempts hold now."""
        return self._accounts[key].held if key in self._accounts else 0

    def used(self, key: Key, now: float) -> float:
        """Return the device-seconds, as much as is left of them."""
        account = self._accounts.get(key)
        if account is None:
            return 0.0
        since_s = max(now - account.at, 0.0)
        return account.used * self._left(since_s) + account.held * self._sum(since_s)

    def add(self, job: JobRecord, devices: int, now: float, before_s: float = 0.0) -> None:
        """Note that an attempt of the job holds these devices now; a negative number: no more.

        before_s: seconds for which it has held them.
        """
        for key in keys_of(job):
            account = self._accounts[key]
            account.used = self.used(key, now) + devices * self._sum(before_s)
            account.held, account.at = account.held + devices, now

    def remember(self, uses: Iterable[Use], now: float, wall: float) -> None:
        """Take in attempts that are over, with times of the wall clock, as it is now."""
        for use in uses:
            age_s = max(wall - use.started_at - use.ran_s, 0.0)
            queue = (use.device_type, use.queue or DEFAULT_QUEUE)
            for key in (queue, (*queue, use.owner)):
                account = self._accounts[key]
                left = use.devices * self._sum(use.ran_s) * self._left(age_s)
                account.used, account.at = self.used(key, now) + left, now

    def _left(self, since_s: float) -> float:
        return math.exp(-self._rate * since_s) if self.remembers else 0.0

    def _sum(self, seconds: float) -> float:
        """Return how much is left of one device's use in the last seconds."""
        return -math.expm1(-self._rate * seconds) / self._rate if self.remembers else 0.0
