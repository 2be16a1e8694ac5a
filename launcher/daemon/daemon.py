"""The daemon as a pure state machine: `step(event, now)` returns actions and does nothing itself.

Rules that the code cannot show:
* One rank at a time. Everything may be told twice and is done once: a Prepare of a prepared attempt
is answered with the same port, a Start of a running one with its progress, a Stop of one that ended
(or was never heard of, and then is never begun) with its end.
* An end is told after every Welcome until the scheduler has noted it.
* A rank that ends because it was told to has the reason PREEMPTED, with any exit code; one that
  had ended by itself before keeps its own.
* That a rank fails is told as soon as it is seen. Its end is told when nothing of it lives
  any more, or when the rest cannot be killed: then the device takes no work until that is gone.
* Without a scheduler a rank goes on for `away_s`; then it is stopped in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from oneflow.launcher.daemon.events import (
    Action,
    Disconnected,
    Drop,
    EndTree,
    Event,
    Gather,
    Gathered,
    Launch,
    Launched,
    Leave,
    LeftoversGone,
    NotGathered,
    ProcessExited,
    Progressed,
    Rejoin,
    ShutdownAsked,
    StoodStill,
    Ticked,
    TreeEnded,
)
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import MAX_CAUSE_CHARS, AttemptKey, key_of

STOPPED_CODE = 143
LOST_CODE = 137
MAX_ENDS = 256  # that are remembered


class Phase(Enum):
    IDLE = "idle"
    PREPARING = "preparing"
    PREPARED = "prepared"
    RUNNING = "running"
    STOPPING = "stopping"  # told to end, or its process ended and others are being cleared away


class Ended(NamedTuple):
    """The end of a rank, and its moment on the clock of `step`."""

    end: pb.Exited
    at: float


@dataclass(frozen=True)
class Times:
    """The daemon's patience, in seconds. away_s: so long a rank goes on without a scheduler.
    leftover_grace_s: for processes that outlive the one that started them. noted_s: a daemon that
    leaves waits so long until the end of its rank is noted. rejoin_s: pause before joining anew
    after a refusal.
    """

    away_s: float = 600.0
    away_grace_s: float = 60.0
    shutdown_grace_s: float = 10.0
    leftover_grace_s: float = 1.0
    noted_s: float = 5.0
    rejoin_s: float = 2.0


class Daemon:
    """One daemon's mind."""

    def __init__(self, times: Times | None = None) -> None:
        self.times = times or Times()
        self.phase = Phase.IDLE
        self.key: AttemptKey | None = None
        self.epoch = 0
        self.is_connected = False
        self.is_draining = False
        self.is_unhealthy = False
        self.is_leaving = False
        self.ends: dict[AttemptKey, Ended] = {}  # not noted yet
        self.over: dict[AttemptKey, Ended] = {}  # all that ended lately: never begun again
        self._left_at = 0.0
        self._exit_code = 0
        self._away_since = 0.0
        self._is_fenced = False
        self._port = 0
        self._pid = 0
        self._last = pb.Progress()
        self._stop_why: tuple[str, str] | None = None  # reason, cause; None: nobody stopped it
        self._exit: ProcessExited | None = None
        self._still: StoodStill | None = None
        self._now = 0.0

    def step(self, event: Event, now: float) -> list[Action]:
        """The only way a daemon changes. now: seconds on the monotonic clock.

        Raises ProtocolError, with nothing changed, for a message of which a rank cannot be.
        """
        self._now = now
        if isinstance(event, pb.SchedulerMessage):
            name = TOLD.get(event.WhichOneof("kind") or "")
            if name is None:
                return []
        else:
            name = _HANDLERS[type(event)]
        handler: Callable[[Any], list[Action]] = getattr(self, name)
        return handler(event)

    @property
    def refuses_work(self) -> bool:
        return self.is_draining or self.is_unable

    @property
    def is_unable(self) -> bool:
        """Whether the daemon takes no work for a reason of its own, not because it is drained."""
        return self.is_leaving or self.is_unhealthy

    def running(self) -> list[pb.RunningAttempt]:
        """Return the attempts that the daemon names when it attaches: one that is not to go on
        with them is fenced.
        """
        if self.key is None:
            return []
        id_, step = self.key.wire, self._last.step
        phase, pid = self.phase.value, self._pid
        return [pb.RunningAttempt(id=id_, phase=phase, pid=pid, last_step=step)]

    # -- the line ----------------------------------------------------------------------------------

    def _welcomed(self, told: pb.SchedulerMessage) -> list[Action]:
        self.epoch, self.is_connected = told.welcome.epoch, True
        self.is_draining = False  # or the scheduler says so anew
        said: list[Action] = [*self.unnoted_ends()]
        if self.phase in (Phase.RUNNING, Phase.STOPPING):
            said.append(self._say_last())
        return said

    def unnoted_ends(self) -> list[pb.DaemonMessage]:
        """Return the messages that tell of all ends that are not noted yet."""
        return [self._say_end(ended) for ended in self.ends.values()]

    def _say_end(self, ended: Ended) -> pb.DaemonMessage:
        """Tell how a rank ended, and how long ago: the scheduler may have been away."""
        said = pb.DaemonMessage(exited=ended.end)
        said.exited.seen_s = self._now - ended.at
        return said

    def _say_last(self) -> pb.DaemonMessage:
        return pb.DaemonMessage(progress=self._last)

    def _disconnected(self, event: Disconnected) -> list[Action]:
        if self.is_connected or not self._away_since:
            self._away_since = self._now
        self.is_connected = False
        return [Leave(self._exit_code)] if self._may_leave() else []

    def _fenced(self, told: pb.SchedulerMessage) -> list[Action]:
        self.is_connected, self._away_since = False, self._now
        self.ends.clear()
        key = self.key
        if self.phase in (Phase.RUNNING, Phase.STOPPING) and key is not None:
            self._is_fenced, self.phase = True, Phase.STOPPING
            return [EndTree(key, 0.0)]
        dropped = self._drop()
        if self.is_leaving:
            return [*dropped, Leave(self._exit_code)]
        return [*dropped, Rejoin(0.0 if dropped else self.times.rejoin_s)]

    # -- preparing and starting --------------------------------------------------------------------

    def _prepare(self, told: pb.SchedulerMessage) -> list[Action]:
        key = key_of(told.prepare.id)
        if key in self.over:
            return [self._say_end(self.over[key])]
        if key == self.key:
            is_ready = self.phase is not Phase.PREPARING
            return [_prepared(key, self._port)] if is_ready else []
        if self.refuses_work:
            return [_prepared(key, error=self._why_not(), reason="PREEMPTED")]
        if self.phase in (Phase.RUNNING, Phase.STOPPING):
            error = f"it is still busy with {self.key}"
            return [_prepared(key, error=error, reason="INTERNAL")]
        dropped = self._drop()  # the scheduler gave up what was not started
        self._begin(key)
        return [*dropped, Gather(key, told.prepare)]

    def _why_not(self) -> str:
        if self.is_unhealthy:
            return "processes of an earlier rank cannot be killed"
        return "the daemon is leaving" if self.is_leaving else "the daemon is being drained"

    def _begin(self, key: AttemptKey) -> None:
        self.key, self.phase = key, Phase.PREPARING
        self._port = self._pid = 0
        self._last = pb.Progress(id=key.wire)
        self._stop_why = self._exit = self._still = None

    def _gathered(self, event: Gathered) -> list[Action]:
        if event.key != self.key or self.phase is not Phase.PREPARING:
            return [Drop(event.key)]
        self.phase, self._port = Phase.PREPARED, event.master_port
        return [_prepared(event.key, event.master_port)]

    def _not_gathered(self, event: NotGathered) -> list[Action]:
        if event.key != self.key or self.phase is not Phase.PREPARING:
            return []
        self._forget()
        said = _prepared(event.key, 0, event.error, event.reason, event.exit_code)
        return [Drop(event.key), said, *self._leave_if_over()]

    def _start(self, told: pb.SchedulerMessage) -> list[Action]:
        key = key_of(told.start.id)
        if key in self.over:
            return [self._say_end(self.over[key])]
        if key == self.key and self.phase in (Phase.RUNNING, Phase.STOPPING):
            return [self._say_last()]
        if key == self.key and self.phase is Phase.PREPARED:
            self.phase = Phase.RUNNING
            return [Launch(key, told.start.master_addr, told.start.master_port)]
        if key == self.key:
            return []  # not ready yet; it is told again once we have said that we are
        cause = "it was told to start what it had not prepared"
        return [self._note_end(_end(key, LOST_CODE, "NODE_LOST", cause))]

    def _launched(self, event: Launched) -> list[Action]:
        if event.key != self.key:
            return []
        self._pid = event.pid
        return [self._say_last()]

    def _progressed(self, event: Progressed) -> list[Action]:
        if event.key != self.key:
            return []
        report, last = event.report, self._last
        self._last = pb.Progress()
        self._last.CopyFrom(report)
        if (
            not report.checkpoint
        ):  # it may have been lost on its way: it is told again after a break
            self._last.checkpoint = last.checkpoint
            self._last.checkpoint_step = last.checkpoint_step
        self._last.step = max(last.step, report.step)
        for name in last.metrics.keys() - report.metrics.keys():
            self._last.metrics[name] = last.metrics[name]
        self._last.ClearField("points")
        return [pb.DaemonMessage(progress=report)]

    # -- stopping and ending -----------------------------------------------------------------------

    def _stop(self, told: pb.SchedulerMessage) -> list[Action]:
        key = key_of(told.stop.id)
        if key in self.over:
            return [self._say_end(self.over[key])]
        why = told.stop.why or "the scheduler stopped it"
        if key != self.key:
            end = _end(key, STOPPED_CODE, "PREEMPTED", f"{why}; it was never begun here")
            return [self._note_end(end)]
        return self._end_rank(max(told.stop.grace_s, 0.0), "PREEMPTED", why)

    def _end_rank(self, grace_s: float, reason: str, why: str) -> list[Action]:
        """Stop the attempt that goes on, in any state."""
        key = self.key
        if key is None:
            return []
        if self.phase in (Phase.PREPARING, Phase.PREPARED):
            end = _end(key, STOPPED_CODE, reason, f"{why}; it had not been started")
            return [*self._drop(), self._note_end(end)]
        self.phase = Phase.STOPPING
        if self._exit is None and self._stop_why is None:
            self._stop_why = reason, why
        return [EndTree(key, grace_s)]

    def _exited_process(self, event: ProcessExited) -> list[Action]:
        if event.key != self.key or self._exit is not None:
            return []
        self._exit = event
        grace_s = 0.0 if self._is_fenced else self.times.leftover_grace_s
        self.phase = Phase.STOPPING
        has_failed = event.exit_code != 0 and self._stop_why is None and self._still is None
        failing = self._failing() if has_failed else []
        return [*failing, EndTree(event.key, grace_s)]

    def _stood_still(self, event: StoodStill) -> list[Action]:
        """Give up a worker that stands still: it would not heed a request to stop either."""
        if event.key != self.key or self._exit is not None or self._still is not None:
            return []
        if self.phase not in (Phase.RUNNING, Phase.STOPPING):
            return []
        if self.is_leaving:  # it would have gone on, maybe
            return [EndTree(event.key, 0.0)]
        self._still, self.phase = event, Phase.STOPPING
        return [*self._failing(event.since_s), EndTree(event.key, 0.0)]

    def _failing(self, since_s: float = 0.0) -> list[Action]:
        if self.key is None or self._is_fenced:
            return []
        end = self._end_of(TreeEnded(self.key))
        end.seen_s = since_s
        return [pb.DaemonMessage(failing=end)]

    def _tree_ended(self, event: TreeEnded) -> list[Action]:
        if event.key != self.key:
            return []
        end = self._end_of(event)
        self.is_unhealthy = self.is_unhealthy or event.num_left > 0
        self._forget()
        if self._is_fenced:
            self._is_fenced = False
            self._remember(event.key, Ended(end, self._now))
            return [Leave(self._exit_code)] if self.is_leaving else [Rejoin(0.0)]
        return [self._note_end(end), *self._leave_if_over()]

    def _end_of(self, event: TreeEnded) -> pb.Exited:
        unknown = ProcessExited(event.key, LOST_CODE, "SIGNAL", "", self._pid)
        found = self._still or self._exit or unknown
        reason, cause = found.reason, found.cause
        if self._stop_why is not None and self._still is None:
            reason, why = self._stop_why
            cause = f"{why} ({cause})" if cause else why
        if event.num_left:
            cause = f"{cause}; {event.num_left} of its processes cannot be killed"
        end = _end(event.key, found.exit_code, reason, cause)
        end.last_step, end.pid, end.leaving = self._last.step, found.pid, self.is_leaving
        return end

    def _note_end(self, end: pb.Exited) -> pb.DaemonMessage:
        key, ended = key_of(end.id), Ended(end, self._now)
        self.ends[key] = ended
        self._remember(key, ended)
        return self._say_end(ended)

    def _remember(self, key: AttemptKey, ended: Ended) -> None:
        self.over[key] = ended
        for known in (self.ends, self.over):
            while len(known) > MAX_ENDS:
                del known[next(iter(known))]

    def _noted(self, told: pb.SchedulerMessage) -> list[Action]:
        self.ends.pop(key_of(told.noted), None)
        return self._leave_if_over()

    def _drop(self) -> list[Action]:
        """Give up an attempt that was not started yet."""
        if self.phase not in (Phase.PREPARING, Phase.PREPARED) or self.key is None:
            return []
        dropped: list[Action] = [Drop(self.key)]
        self._forget()
        return dropped

    def _forget(self) -> None:
        self.key, self.phase = None, Phase.IDLE

    # -- draining, leaving, time -------------------------------------------------------------------

    def _drain(self, told: pb.SchedulerMessage) -> list[Action]:
        self.is_draining = told.drain
        return []

    def _leftovers_gone(self, event: LeftoversGone) -> list[Action]:
        """A new incarnation: the scheduler drains the one that was of no use."""
        self.is_unhealthy = False
        if self.is_leaving or self.phase is not Phase.IDLE:
            return []
        return [Rejoin(0.0, is_new=True)]

    def _shutdown(self, event: ShutdownAsked) -> list[Action]:
        if self.is_leaving:
            self._exit_code = STOPPED_CODE
            self._left_at = self._now
            if self.phase in (Phase.RUNNING, Phase.STOPPING) and self.key is not None:
                return [EndTree(self.key, 0.0)]
            return [*self._drop(), Leave(self._exit_code)]
        self.is_leaving = True
        self._left_at = self._now + self.times.noted_s
        why = "its daemon was told to end"
        ended = self._end_rank(self.times.shutdown_grace_s, "PREEMPTED", why)
        return [*ended, *self._leave_if_over()]

    def _leave_if_over(self) -> list[Action]:
        if self.is_leaving and self.phase is Phase.IDLE:
            self._left_at = max(self._left_at, self._now + self.times.noted_s)
        return [Leave(self._exit_code)] if self._may_leave() else []

    def _may_leave(self) -> bool:
        if not self.is_leaving or self.phase is not Phase.IDLE:
            return False
        return not self.ends or not self.is_connected or self._exit_code != 0

    def _tick(self, event: Ticked) -> list[Action]:
        if self.is_leaving and self.phase is Phase.IDLE and self._now >= self._left_at:
            return [Leave(self._exit_code)]
        if self.is_connected or self.phase is Phase.IDLE or not self._away_since:
            return []
        away_s = self._now - self._away_since
        if away_s < self.times.away_s or self.phase is Phase.STOPPING:
            return []
        why = f"the scheduler was away for {away_s:.0f} s"
        return self._end_rank(self.times.away_grace_s, "NODE_LOST", why)


def _prepared(
    key: AttemptKey, master_port: int = 0, error: str = "", reason: str = "", exit_code: int = 0
) -> pb.DaemonMessage:
    said = pb.Prepared(id=key.wire, master_port=master_port, error=error[:MAX_CAUSE_CHARS])
    said.reason, said.exit_code = reason, exit_code
    return pb.DaemonMessage(prepared=said)


def _end(key: AttemptKey, code: int, reason: str, cause: str) -> pb.Exited:
    return pb.Exited(id=key.wire, exit_code=code, reason=reason, cause=cause[:MAX_CAUSE_CHARS])


TOLD = {
    "welcome": "_welcomed",
    "fenced": "_fenced",
    "prepare": "_prepare",
    "start": "_start",
    "stop": "_stop",
    "noted": "_noted",
    "drain": "_drain",
}
"""The messages of the scheduler that are for the mind; the others are requests."""

_HANDLERS = {
    Disconnected: "_disconnected",
    Gathered: "_gathered",
    NotGathered: "_not_gathered",
    Launched: "_launched",
    Progressed: "_progressed",
    ProcessExited: "_exited_process",
    StoodStill: "_stood_still",
    TreeEnded: "_tree_ended",
    LeftoversGone: "_leftovers_gone",
    ShutdownAsked: "_shutdown",
    Ticked: "_tick",
}
