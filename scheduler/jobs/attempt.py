"""One attempt of a job while it goes on: the messages to each rank, its acts, and its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

from oneflow.core.blame import Blame
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.causes import CODES, STOPPED_CODES, Failure
from oneflow.scheduler.jobs.records import Assignment


class RankPhase(Enum):
    """PREPARING -> PREPARED -> RUNNING -> ENDED; MISSING: its daemon came back without it, or is
    not back yet; LOST: with its daemon.
    """

    PREPARING = "preparing"
    PREPARED = "prepared"
    RUNNING = "running"
    MISSING = "missing"
    ENDED = "ended"
    LOST = "lost"


_OVER = (RankPhase.ENDED, RankPhase.LOST)
_NEVER_OURS = ("HANG", "NODE_LOST")
"""Reasons of a rank that did not end when its peers' failure stopped it, because it could not."""


class Intent(Enum):
    """The reason for which an attempt is stopped although nothing failed."""

    NONE = "none"
    RESCHEDULE = "reschedule"  # on more devices, or once a job of higher priority has ended
    PREEMPT = "preempt"
    TIME_LIMIT = "time limit"
    CANCEL = "cancel"


_STRENGTH = list(Intent)


@dataclass
class Rank:
    """One rank of an attempt, as the table knows it.

    assignment: its device. told_at: when it was last told something that it has not answered yet.

    missing_since: when its daemon came back without it; None: the daemon is not back. over_at: when
    it ended or was lost, which its daemon may have told later.
    """

    assignment: Assignment
    local_rank: int
    local_world_size: int
    phase: RankPhase
    told_at: float
    is_confirmed: bool = False  # the daemon said that it runs
    is_failing: bool = False  # the daemon said that it is about to end
    missing_since: float | None = None
    exit: pb.Exited | None = None
    over_at: float = 0.0

    @property
    def number(self) -> int:
        return self.assignment.rank

    @property
    def daemon(self) -> str:
        return self.assignment.daemon

    @property
    def is_over(self) -> bool:
        return self.phase in _OVER

    @property
    def exited_in_order(self) -> bool:
        return self.exit is not None and self.exit.exit_code == 0


@dataclass
class Attempt:
    """One try to run a job: its ranks, and how far they are.

    began_at: when this table first knew of it. started_at: when it was told to start; None: not
    yet. ran_s: seconds that counted for the time limit before started_at.
    """

    job_id: str
    number: int
    ranks: list[Rank]
    began_at: float
    life: int = 0  # of the job
    started_at: float | None = None
    ran_s: float = 0.0
    is_recovered: bool = False  # it began under another scheduler
    was_running: bool = False  # then: if it still runs, the journal has no later one to miss
    absent_since: float = 0.0  # then: its daemons have had time to come back since
    master_port: int = 0
    fault: Blame[Failure] = field(default_factory=Blame)
    intent: Intent = Intent.NONE
    is_stopping: bool = False
    stop_why: str = ""
    stop_grace_s: float = 0.0
    stop_at: float = 0.0
    saved_at: float = 0.0  # when its progress was last made durable
    left_early: Rank | None = None  # the first that exited 0 before any was told to stop
    left_at: float = 0.0  # when this was heard
    _num_over: int = 0  # ranks from the first on that are known to be over, which is for good
    _waits_for: int = 0  # a rank that was not prepared when it was last looked at
    _on: dict[str, Rank] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Each of thousands of ranks asks for its peers: none of the answers may look at all."""
        self._on = {rank.daemon: rank for rank in self.ranks}

    @property
    def is_started(self) -> bool:
        return self.started_at is not None

    @property
    def is_over(self) -> bool:
        while self._num_over < len(self.ranks) and self.ranks[self._num_over].is_over:
            self._num_over += 1
        return self._num_over == len(self.ranks)

    def is_prepared(self) -> bool:
        """Whether all ranks are ready to start."""
        first, count = self._waits_for, len(self.ranks)
        for number in chain(range(first, count), range(first)):
            if self.ranks[number].phase is not RankPhase.PREPARED:
                self._waits_for = number
                return False
        return True

    def ran_until(self, at: float) -> float:
        """Seconds that count for the job's time limit."""
        return max(self.ran_s + (at - self.started_at if self.started_at is not None else 0.0), 0.0)

    def began(self, ran_s: float) -> float:
        """Return when its ranks began, also under another scheduler; if they have not, when it was
        known first. ran_s: of the attempts before it.
        """
        if self.started_at is None:
            return self.began_at
        return self.started_at - (self.ran_s - ran_s)

    @property
    def over_at(self) -> float:
        """Return when its last rank was over."""
        return max(rank.over_at for rank in self.ranks)

    def live_ranks(self) -> Iterator[Rank]:
        return (rank for rank in self.ranks if not rank.is_over)

    def rank_on(self, daemon: str) -> Rank | None:
        return self._on.get(daemon)

    def id_of(self, rank: Rank) -> pb.AttemptId:
        return pb.AttemptId(
            job_id=self.job_id, attempt=self.number, rank=rank.number, life=self.life
        )

    def want(self, intent: Intent) -> None:
        """Let the stronger wish win: a cancelled job is cancelled in any case."""
        self.intent = max(self.intent, intent, key=_STRENGTH.index)

    @property
    def failure(self) -> Failure | None:
        return self.fault.cause

    def blame(self, failure: Failure, now: float) -> None:
        self.fault.hear(failure, failure.is_weak, now)

    def is_our_doing(self, exit: pb.Exited) -> bool:
        """Whether a rank ended so because we told it to."""
        if not self.is_stopping or (self.intent is Intent.NONE and exit.reason in _NEVER_OURS):
            return False
        return exit.exit_code in STOPPED_CODES or exit.reason in ("PREEMPTED", "CANCELLED", "HANG")

    def final_failure(self) -> Failure | None:
        """Return the failure to blame, now that all ranks have ended; None if nobody failed."""
        failure = self.failure
        if failure is None or not failure.is_weak:
            return failure
        # The others may have said that they lost it before its own end came: it tells them that it
        # leaves before it is gone.
        if failure.reason == "PEER_LOST" and self.left_early is not None:
            return early_exit(self.left_early)
        return failure


def early_exit(rank: Rank) -> Failure:
    cause = f"rank {rank.number} exited 0 while its peers ran"
    pid = rank.exit.pid if rank.exit else 0
    return Failure("PEER_LOST", cause, CODES["PEER_LOST"], rank.number, rank.assignment.node, pid)


def name_ranks(ranks: Iterable[Rank], limit: int = 4) -> str:
    """`rank 3 (n1/cpu:0), rank 5 (n2/cpu:1) and 2 more`."""
    named = [f"rank {rank.number} ({rank.daemon})" for rank in ranks]
    more = f" and {len(named) - limit} more" if len(named) > limit else ""
    return ", ".join(named[:limit]) + more
