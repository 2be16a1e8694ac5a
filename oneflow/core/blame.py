"""Rules for the first failure, shared by the launcher, a job's own scheduler and a cluster's.

* The first real cause stays, regardless of later ones.
* Exit code 85 says "another rank failed, I only follow". Such a cause is weak: it gives way to the
  first that is not, and counts only if none has come within SETTLE_S.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from oneflow.core.reasons import CODES

FOLLOWER_CODE = CODES["PEER_LOST"]
SETTLE_S = 1.0

Cause = TypeVar("Cause")


class Blame(Generic[Cause]):
    """The cause of an end, as far as it is known. since: when it was heard."""

    def __init__(self) -> None:
        self.cause: Cause | None = None
        self.is_weak = False
        self.since = 0.0

    def hear(self, cause: Cause, is_weak: bool, now: float) -> bool:
        """Hear of a cause; whether it is to blame from now on."""
        if self.cause is not None and (is_weak or not self.is_weak):
            return False
        self.cause, self.is_weak, self.since = cause, is_weak, now
        return True

    def is_settled(self, now: float, settle_s: float = SETTLE_S) -> bool:
        """Whether no better cause is waited for."""
        return self.cause is not None and (not self.is_weak or now - self.since >= settle_s)
