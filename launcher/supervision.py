"""The decision when a job's processes are stopped, and whose fault the end was.

Pure: `step(event, now)` returns signals to send or the verdict. Rules that the code cannot show:
* The first rank that ends with something else than 0 ends the job: TERM to all, KILL after the
  grace period.
* The rank to blame is chosen as everywhere (core/blame.py): a rank that only follows (exit code 85)
  is taken as the cause only if nobody has a better one within SETTLE_S; a rank that has written
  down its error and still runs is on its way out, and has TOLD_S to get there.
* If all we have is followers, a rank that still runs is stuck: before it is ended, it is asked to
  show where.
* Exit codes after we began to stop ranks are our doing and never the cause, unless all we
  had was an 85.
* Orphans of ranks are children of ours (subreaper) and count as alive; also after a success they
  are ended.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from oneflow.core.blame import FOLLOWER_CODE, SETTLE_S, Blame

DUMP_SIGNAL = signal.SIGUSR2  # the worker bootstrap answers it with the stacks of all threads
TOLD_S = 10.0
DUMP_S = 1.0  # for a stuck rank to write its stacks, on a busy machine too
KILL_WAIT_S = 5.0  # a process that survives KILL for so long is reported, not waited for


class Phase(Enum):
    RUNNING = "running"
    SETTLING = "settling"
    DUMPING = "dumping"
    STOPPING = "stopping"
    KILLING = "killing"
    DONE = "done"


@dataclass(frozen=True)
class Exited:
    """A rank's process ended. status: exit code, or minus the signal that killed it."""

    rank: int
    pid: int
    status: int

    @property
    def exit_code(self) -> int:
        """Return the exit code as a shell shows it: 128+n for signal n."""
        return self.status if self.status >= 0 else 128 - self.status


@dataclass(frozen=True)
class Signalled:
    """The launcher itself got a signal."""

    signum: int


@dataclass(frozen=True)
class Looked:
    """A look at the job: how many of its processes live, orphans included.

    has_told: a rank that runs has written down the error that ends it.
    """

    num_alive: int
    has_told: bool = False


@dataclass(frozen=True)
class ToldToEnd:
    """The job's other nodes want these ranks ended: all start again in another number."""


@dataclass(frozen=True)
class SendSignal:
    """Send a signal to every process of the job."""

    signum: int


@dataclass(frozen=True)
class DumpStacks:
    """Every rank that still runs shall write the stacks of its threads."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of an attempt.

    cause: the rank at fault; signum: the signal that ended the launcher. was_told: the ranks were
    ended because other nodes wanted it.
    """

    cause: Exited | None
    signum: int | None
    num_unkillable: int
    was_told: bool = False

    @property
    def exit_code(self) -> int:
        if self.signum is not None:
            return 128 + self.signum
        return self.cause.exit_code if self.cause else 0


Event = Exited | Signalled | Looked | ToldToEnd
Action = SendSignal | DumpStacks | Verdict


class Supervision:
    """One attempt of `num_ranks` local ranks."""

    def __init__(self, num_ranks: int, grace_s: float) -> None:
        self.phase = Phase.RUNNING
        self._num_running = num_ranks
        self._grace_s = grace_s
        self._deadline = 0.0
        self._blame: Blame[Exited] = Blame()
        self._signum: int | None = None
        self._sent: set[int] = set()
        self._was_told = False

    def expect(self, num_ranks: int) -> None:
        """So many ranks have been started: fewer than wanted, if a signal came before them."""
        self._num_running = num_ranks

    def step(self, event: Event, now: float) -> list[Action]:
        match event:
            case Exited():
                return self._exited(event, now)
            case Signalled(signum=signum):
                return self._signalled(signum, now)
            case ToldToEnd():
                return self._told_to_end(now)
            case Looked():
                return self._looked(event.num_alive, event.has_told, now)

    def _exited(self, event: Exited, now: float) -> list[Action]:
        self._num_running -= 1
        if self._may_be_cause(event):
            self._blame.hear(event, event.status == FOLLOWER_CODE, now)
        has_cause = self._blame.cause is not None
        if self.phase is Phase.RUNNING and has_cause:
            if self._blame.is_weak and self._num_running:
                self.phase, self._deadline = Phase.SETTLING, now + SETTLE_S
                return []
            return self._stop(signal.SIGTERM, now)
        is_settling = self.phase in (Phase.SETTLING, Phase.DUMPING)
        if is_settling and has_cause and not self._blame.is_weak:
            return self._stop(signal.SIGTERM, now)
        if (is_settling or self.phase is Phase.RUNNING) and self._num_running == 0:
            return self._stop(signal.SIGTERM, now)
        return []

    def _may_be_cause(self, event: Exited) -> bool:
        if event.status == 0 or self._signum is not None or -event.status in self._sent:
            return False
        if event.exit_code - 128 in self._sent:  # it caught our signal and said so in its exit code
            return False
        return self._blame.cause is not None or self.phase is Phase.RUNNING

    def _signalled(self, signum: int, now: float) -> list[Action]:
        if self.phase is Phase.DONE:
            return []
        if self._signum is not None:  # the second one: no more patience
            return self._kill(now)
        self._signum = signum
        if self.phase is Phase.STOPPING:
            return []
        return self._stop(signum, now)

    def _told_to_end(self, now: float) -> list[Action]:
        if self.phase in (Phase.STOPPING, Phase.KILLING, Phase.DONE):
            return []
        self._was_told = True
        return self._stop(signal.SIGTERM, now)

    def _looked(self, num_alive: int, has_told: bool, now: float) -> list[Action]:
        match self.phase:
            case Phase.SETTLING if has_told and now < self._deadline + TOLD_S:
                return []
            case Phase.SETTLING if now >= self._deadline:
                self.phase, self._deadline = Phase.DUMPING, now + DUMP_S
                self._sent.add(DUMP_SIGNAL)  # it ends a rank that is in the middle of its exit
                return [DumpStacks()]
            case Phase.DUMPING if now >= self._deadline:
                return self._stop(signal.SIGTERM, now)
            case Phase.STOPPING | Phase.KILLING if num_alive == 0 and self._num_running == 0:
                return self._finish(0)
            case Phase.STOPPING if now >= self._deadline:
                return self._kill(now)
            case Phase.KILLING if now >= self._deadline:
                return self._finish(num_alive)
            case Phase.KILLING:  # again: a process may have been born between two looks
                return [SendSignal(signal.SIGKILL)]
        return []

    def _stop(self, signum: int, now: float) -> list[Action]:
        self.phase, self._deadline = Phase.STOPPING, now + self._grace_s
        self._sent.add(signum)
        return [SendSignal(signum)]

    def _kill(self, now: float) -> list[Action]:
        self.phase, self._deadline = Phase.KILLING, now + KILL_WAIT_S
        self._sent.add(signal.SIGKILL)
        return [SendSignal(signal.SIGKILL)]

    def _finish(self, num_unkillable: int) -> list[Action]:
        self.phase = Phase.DONE
        return [Verdict(self._blame.cause, self._signum, num_unkillable, self._was_told)]
