"""Waits of the actors of running graph jobs, as their ranks report them about once a second.

Only the last moment is kept, and nothing of it is durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oneflow.protos import cluster_pb2 as pb

MAX_SHARES = 8  # of a rank, the largest ones
MIN_SHARE = 0.005


@dataclass(frozen=True)
class RankWaits:
    """The last report of one rank on what its actors wait for.

    waiting: the actor that waits now, and for what. shares: "<kind> <cause>" -> share of the time
    since the report before in which the rank was idle because of it.
    """

    rank: int
    waiting: str
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Told:
    attempt: int
    at: float
    seconds: Mapping[str, float]
    waits: RankWaits


class ActorWaits:
    """The last reports of all ranks, by job and rank."""

    def __init__(self) -> None:
        self._told: dict[str, dict[int, _Told]] = {}

    def note(self, said: pb.Progress, at: float) -> None:
        """A report of a rank; one without actors says nothing of them."""
        if not said.actors and not said.waiting:
            return
        rank, attempt = said.id.rank, said.id.attempt
        ranks = self._told.setdefault(said.id.job_id, {})
        before = ranks.get(rank)
        seconds = {f"{a.kind} no_input": a.no_input_s for a in said.actors}
        seconds |= {f"{a.kind} no_free_register": a.no_free_register_s for a in said.actors}
        is_same = before is not None and before.attempt == attempt
        shares = _shares(before, seconds, at) if before is not None and is_same else {}
        ranks[rank] = _Told(attempt, at, seconds, RankWaits(rank, said.waiting, shares))

    def forget(self, job_id: str) -> None:
        """It does not run any more."""
        self._told.pop(job_id, None)

    def of(self, job_id: str) -> list[RankWaits]:
        """Return the reports of a job's ranks, in the order of the ranks."""
        return [told.waits for _, told in sorted(self._told.get(job_id, {}).items())]


def _shares(before: _Told, seconds: Mapping[str, float], at: float) -> dict[str, float]:
    passed_s = at - before.at
    if passed_s <= 0:
        return dict(before.waits.shares)
    found = {k: (s - before.seconds.get(k, 0.0)) / passed_s for k, s in seconds.items()}
    largest = sorted(found.items(), key=lambda item: -item[1])[:MAX_SHARES]
    return {k: min(share, 1.0) for k, share in largest if share >= MIN_SHARE}
