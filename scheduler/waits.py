"""Ranks that wait for each other in a circle, proven: no rank that is merely slow is ever accused.

A rank that has waited for long says so, again and again: in which call, at which place (a set of
ranks counts its calls), for whom, and how many calls it has begun at every place. It follows:

* Rank a waits in call n of a place for rank b, and b has begun fewer calls there: a cannot go on
  before b has left its own wait. Had b begun call n, the message that a lacks may be on its way.
* A rank asks again only after its last question was answered. If it then still names the same call,
  it was in that call for the whole time from its first question to that answer.
* If there is a circle of such waits, and a moment that lies in the time of all of them, then nobody
  of the circle can ever go on.

Pure: `step(event, now)`. A question is answered at once if the wait is hopeless, or if asking again
would complete a proof; else after a while, which is longer for old waits and many ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from oneflow.core.control_channel import MAX_KEY_CHARS
from oneflow.core.errors import DesyncError, InternalError, ProtocolError
from oneflow.scheduler.rendezvous import Tick
from oneflow.scheduler.store import SAME_CODE_ADVICE, CallDropped, Fail, RankGone, Reply

HOLD_S = 1.0
MAX_HOLD_S = 5.0
HOLD_SHARE = 0.2  # of the time that the rank has waited
HOLD_S_PER_RANK = 0.002  # so that many ranks that wait for one do not keep the scheduler busy
STALE_S = 2.0  # who does not ask again for so long has gone on
RANKS_NAMED = 8


@dataclass(frozen=True)
class WaitAsked:
    """A peer asks why another rank keeps it waiting.

    call: of this question. number: of the rank's call at `place`. reached: place -> number.
    """

    call: int
    rank: int
    place: str
    number: int
    text: str
    missing: tuple[int, ...]
    reached: Mapping[str, int] = field(default_factory=dict)


Event = WaitAsked | CallDropped | RankGone | Tick
Action = Reply | Fail


@dataclass
class _Wait:
    """One rank's wait, as far as it is known: it lasted at least from `since` to `until`."""

    asked: WaitAsked
    asked_at: float
    since: float
    until: float = -math.inf
    answered_at: float | None = None
    verdict: DesyncError | None = None

    def is_same(self, event: WaitAsked) -> bool:
        return (self.asked.place, self.asked.number) == (event.place, event.number)


class Waits:
    """The long waits of all ranks of one job."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._least_hold_s = max(HOLD_S, HOLD_S_PER_RANK * world_size)
        self._waits: dict[int, _Wait] = {}

    def step(self, event: Event, now: float) -> list[Action]:
        match event:
            case WaitAsked():
                return self._ask(event, now)
            case CallDropped(call=call):
                return self._drop(call)
            case RankGone(rank=rank):
                self._waits.pop(rank, None)
                return []
            case Tick():
                return self._tick(now)
        raise InternalError(f"waits cannot take {event}")

    def _ask(self, event: WaitAsked, now: float) -> list[Action]:
        if not 0 <= event.rank < self._world_size or len(event.place) > MAX_KEY_CHARS:
            text = (
                f"wait of rank {event.rank} at {event.place[:64]!r}: ranks are 0 to "
                f"{self._world_size - 1}, and a place has at most {MAX_KEY_CHARS} characters"
            )
            return [Fail(event.call, ProtocolError(text))]
        before = self._waits.get(event.rank)
        wait = _Wait(event, now, since=now)
        if before is not None and before.is_same(event):
            wait.since, wait.verdict = before.since, before.verdict
            wait.until = before.until if before.answered_at is None else before.answered_at
        self._waits[event.rank] = wait
        if wait.verdict is not None:
            return self._refuse([event.rank])
        return self._judge(event.rank, now)

    def _drop(self, call: int) -> list[Action]:
        for rank, wait in list(self._waits.items()):
            if wait.asked.call == call and wait.answered_at is None:
                del self._waits[rank]
        return []

    def _tick(self, now: float) -> list[Action]:
        replies: list[Action] = []
        for rank, wait in list(self._waits.items()):
            if wait.answered_at is None:
                if now - wait.asked_at >= self._hold_s(wait, now):
                    replies += self._reply(wait, now)
            elif now - wait.answered_at > STALE_S:
                del self._waits[rank]
        return replies

    def _hold_s(self, wait: _Wait, now: float) -> float:
        return max(self._least_hold_s, min(MAX_HOLD_S, HOLD_SHARE * (now - wait.since)))

    def _reply(self, wait: _Wait, now: float) -> list[Action]:
        wait.answered_at = now
        return [Reply(wait.asked.call)]

    def _refuse(self, ranks: Iterable[int]) -> list[Action]:
        """Tells those of `ranks` that have asked; the others when they ask."""
        fails: list[Action] = []
        for rank in ranks:
            wait = self._waits[rank]
            if wait.verdict is not None and wait.answered_at is None:
                del self._waits[rank]
                fails.append(Fail(wait.asked.call, wait.verdict))
        return fails

    # ---- the proof -------------------------------------------------------------------------------

    def _judge(self, rank: int, now: float) -> list[Action]:
        """Look for a circle of waits that the news about `rank` closes; only one through `rank` can
        be new.
        """
        circle = self._circle(rank)
        if not circle:
            return []
        waits = [self._waits[r] for r in circle]
        moment = max(wait.since for wait in waits)
        unsure = [wait for wait in waits if wait.until < moment]
        if unsure:
            asking = [wait for wait in unsure if wait.answered_at is None]
            return [reply for wait in asking for reply in self._reply(wait, now)]
        return self._refuse(self._condemn(circle))

    def _condemn(self, circle: Sequence[int]) -> list[int]:
        """Gives the circle, and all who wait for it, the verdict; returns their ranks."""
        error = DesyncError(self._describe(circle))
        stuck, condemned = list(circle), list(circle)
        while stuck:
            for rank in stuck:
                self._waits[rank].verdict = error
            known = set(condemned)
            stuck = [
                rank
                for rank, wait in self._waits.items()
                if rank not in known and known.intersection(self._held_up_by(wait))
            ]
            condemned += stuck
        return condemned

    def _circle(self, rank: int) -> list[int]:
        """The shortest circle of waits through `rank`; empty if there is none."""
        came_from: dict[int, int] = {}
        front = [rank]
        while front:
            following = []
            for r in front:
                for other in self._held_up_by(self._waits[r]):
                    if other == rank:
                        return _path(came_from, rank, r)
                    if other not in came_from:
                        came_from[other] = r
                        following.append(other)
            front = following
        return []

    def _held_up_by(self, wait: _Wait) -> Iterator[int]:
        """Yield the ranks that must leave their own waits before `wait` can end."""
        asked = wait.asked
        for rank in asked.missing:
            other = self._waits.get(rank)
            if other is not None and other.asked.reached.get(asked.place, -1) < asked.number:
                yield rank

    def _describe(self, circle: Sequence[int]) -> str:
        lines = [self._line(rank) for rank in sorted(circle)[:RANKS_NAMED]]
        if len(circle) > len(lines):
            lines.append(f"and {len(circle) - len(lines)} more ranks")
        return (
            f"the ranks {sorted(circle)} make different collective calls and wait for each other: "
            f"{'; '.join(lines)}. {SAME_CODE_ADVICE}"
        )

    def _line(self, rank: int) -> str:
        wait = self._waits[rank]
        others = ", ".join(map(str, sorted(self._held_up_by(wait))[:RANKS_NAMED]))
        return f"rank {rank}: {wait.asked.text} (waits for rank {others})"


def _path(came_from: Mapping[int, int], start: int, end: int) -> list[int]:
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path
