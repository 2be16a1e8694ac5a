"""The daemons of a cluster: those attached, the last sign of each, and those given up.

Rules that the code cannot show:
* Every joining gets a new epoch, larger than all before it. Messages with another one are refused.
* A daemon is silent -> suspect -> lost. Once lost it is fenced: even if it comes back, it
  must end its ranks and join anew with nothing running.
* A broken connection alone loses nothing: the same incarnation may come back until it is lost.
* In a large cluster each line beats less often, and may be silent for longer. The pace that
  it was told counts, by the Welcomes of its daemons or by the answer to one of its beats, which
  is told to all of them again if the daemon through which it was told has joined anew since.
* Of two processes with one name the one that is here stays, while it is heard.
* A drain and its undoing are durable before the daemon hears of them, and are told again after
  every Welcome, which ends a drain on the daemon's side. They are of one incarnation: a daemon that
  is started anew works again. A daemon's own reasons to take no work are not durable
  here, as it repeats them itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import NamedTuple

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.events import (
    Action,
    SaveDrain,
    SaveEpoch,
    Tell,
    TellFenced,
    TellPace,
    TellWelcome,
    Told,
)
from oneflow.scheduler.jobs.records import DaemonRecord, DaemonState
from oneflow.scheduler.jobs.settings import Silence
from oneflow.scheduler.jobs.step_context import StepContext

_GONE = DaemonState.LOST


class _Pace(NamedTuple):
    """The pace of a line (see settings.py), and the daemon through which it was told."""

    slow_s: float
    daemon: str
    epoch: int


class Fleet:
    """The daemons; `desk` collects the messages to them.  drained: incarnations of daemons that
    an operator drained.
    """

    def __init__(
        self, desk: StepContext, epoch: int, drained: Iterable[tuple[str, int]] = ()
    ) -> None:
        self.desk = desk
        self.epoch = epoch
        self.daemons: dict[str, DaemonRecord] = {}
        self.away: set[str] = set()  # their connection ended
        self.drain_until: dict[str, float] = {}  # of those here that take no work, whoever wants it
        self._drained = dict(drained)
        self._all_until: float | None = None  # newcomers are drained as well
        self._lost_at: dict[str, float] = {}
        self.slow_s = desk.settings.slow_s(0)  # the pace of a cluster of as many lines as this
        self._paces: dict[str, _Pace] = {}  # of each line
        self._lines: dict[str, str] = {}  # of those that are not lost
        self._sharing: Counter[str] = Counter()  # daemons of each line

    # -- asking ------------------------------------------------------------------------------------

    def is_current(self, daemon: str, epoch: int) -> bool:
        """Whether a message with this epoch is from the daemon as it is now."""
        known = self.daemons.get(daemon)
        return known is not None and known.state is not _GONE and known.epoch == epoch

    def is_reachable(self, daemon: str) -> bool:
        known = self.daemons.get(daemon)
        return known is not None and known.state is not _GONE and daemon not in self.away

    def is_alive(self, daemon: str) -> bool:
        """Connected and heard lately."""
        if not self.is_reachable(daemon):
            return False
        return self._silent_s(daemon) <= self.silence(daemon).suspect_s

    def is_lost(self, daemon: str) -> bool:
        known = self.daemons.get(daemon)
        return known is None or known.state is _GONE

    def silence(self, daemon: str) -> Silence:
        """Return the limits of its silence, as they follow from the pace that it was told."""
        pace = self._paces.get(self._lines.get(daemon, ""))
        return self.desk.settings.silence(pace.slow_s if pace is not None else 0.0)

    def _silent_s(self, daemon: str) -> float:
        return self.desk.now - self.daemons[daemon].heard_at

    def tell(self, daemon: str, message: pb.SchedulerMessage) -> None:
        """Have a daemon told this if it is connected. Others are told when they are back, as
        far as it is still so then.
        """
        if self.is_reachable(daemon):
            self.desk.tell(Tell(daemon, message))

    def addressed(self, action: Action) -> Action:
        """Return the action with the present epoch of the daemon that is meant."""
        if isinstance(action, Told):
            return replace(action, epoch=self.daemons[action.daemon].epoch)
        return action

    # -- joining and leaving -----------------------------------------------------------------------

    def join(self, hello: pb.Hello, job: str, line: str) -> DaemonRecord:
        """Takes the daemon in under a new epoch. job: that still holds its device, or "". line: the
        one that it shares, or "".
        """
        self.epoch += 1
        record = DaemonRecord(
            id=hello.daemon,
            node=hello.node,
            device_type=hello.device_type,
            device_index=hello.device_index,
            address=hello.address,
            incarnation=hello.incarnation,
            epoch=self.epoch,
            job=job,
            heard_at=self.desk.now,
            version=hello.version,
            pid=hello.pid,
            folder=hello.folder,
            labels=tuple(sorted(hello.labels)),
        )
        known = self.daemons.get(hello.daemon)
        if known is None or known.incarnation != hello.incarnation:
            self.drain_until.pop(hello.daemon, None)
        if self._drained.get(hello.daemon) != hello.incarnation:
            self._note_drain(hello.daemon, 0)
        self.daemons[hello.daemon] = record
        self.away.discard(hello.daemon)
        self._lost_at.pop(hello.daemon, None)
        self._note_line(hello.daemon, line := line or hello.daemon)
        self.desk.is_queue_stale = True
        self.desk.tell(SaveEpoch(self.epoch))
        slow_s = self._paces.setdefault(line, _Pace(self.slow_s, record.id, self.epoch)).slow_s
        self.desk.tell(TellWelcome(hello.daemon, self.epoch, hello.incarnation, slow_s))
        self._go_on_draining(hello)
        self.look_at(hello.daemon)
        return record

    def _note_line(self, daemon: str, line: str) -> None:
        """The daemon has this line from now on. "": none."""
        before = self._lines.pop(daemon, "")
        self._sharing[before] -= 1
        if self._sharing[before] <= 0:
            del self._sharing[before]
            self._paces.pop(before, None)
        if line:
            self._lines[daemon] = line
            self._sharing[line] += 1
        self.slow_s = self.desk.settings.slow_s(len(self._sharing))

    def _go_on_draining(self, hello: pb.Hello) -> None:
        if self._all_until is not None:
            self._note_drain(hello.daemon, hello.incarnation)
        is_drained = hello.daemon in self._drained
        if is_drained:
            self.tell(hello.daemon, pb.SchedulerMessage(drain=True))
        if is_drained or hello.draining:
            grace_s = self.desk.settings.grace_s
            until = self._all_until or self.desk.now + grace_s
            self.drain_until.setdefault(hello.daemon, until)

    def _note_drain(self, daemon: str, incarnation: int) -> None:
        """An operator drained this incarnation of a daemon; 0: or undid it."""
        if self._drained.get(daemon, 0) != incarnation:
            self._drained[daemon] = incarnation
            if not incarnation:
                del self._drained[daemon]
            self.desk.tell(SaveDrain(daemon, incarnation))

    def connection_ended(self, daemon: str) -> None:
        self.away.add(daemon)
        self._set(daemon, state=DaemonState.SUSPECT)

    def leave(self, daemon: str) -> None:
        """It left in order, or its loss is known: nothing is expected of it any more."""
        self.daemons.pop(daemon, None)
        self.away.discard(daemon)
        self.drain_until.pop(daemon, None)
        self._note_drain(daemon, 0)
        self._lost_at.pop(daemon, None)
        self._note_line(daemon, "")
        self.desk.is_queue_stale = True

    def died(self, daemon: str) -> None:
        """Its process is gone: it is shown as lost until it is back, unless it was drained."""
        if daemon in self.drain_until:
            self.leave(daemon)
        else:
            self._lose(daemon)

    def give_up(self, daemon: str, why: str) -> None:
        """Give a daemon up as lost: it is fenced from now on."""
        self._lose(daemon)
        self.desk.tell(TellFenced(daemon, self.daemons[daemon].incarnation, why))

    def _lose(self, daemon: str) -> None:
        self._set(daemon, state=_GONE, job="")
        self._lost_at[daemon] = self.desk.now
        self._note_line(daemon, "")

    # -- time --------------------------------------------------------------------------------------

    def hear(self, daemon: str) -> None:
        known = self.daemons[daemon]
        known.heard_at = self.desk.now
        if known.state is DaemonState.SUSPECT:
            self.look_at(daemon)
        line = self._lines[daemon]
        told = self._paces[line]
        is_told = told.slow_s == self.slow_s and self.is_current(told.daemon, told.epoch)
        if not is_told and self.is_reachable(daemon):
            self._paces[line] = _Pace(self.slow_s, daemon, known.epoch)
            self.desk.tell(TellPace(daemon, self.slow_s))

    def forgive(self, gap_s: float) -> None:
        """We were not there to listen for so long: nobody was silent in that time."""
        self._forgive(self.daemons, gap_s)

    def forgive_away(self, gap_s: float) -> None:
        """Excuse those away: they may have come in that time, and have been put off."""
        self._forgive(self.away & self.daemons.keys(), gap_s)

    def _forgive(self, daemons: Iterable[str], gap_s: float) -> None:
        for daemon in daemons:
            known = self.daemons[daemon]
            known.heard_at = min(known.heard_at + gap_s, self.desk.now)

    def look(self) -> list[str]:
        """Whom to give up now; the others' states are brought up to date."""
        settings, now = self.desk.settings, self.desk.now
        for daemon, at in list(self._lost_at.items()):
            if now - at > settings.keep_lost_s:
                self.leave(daemon)
        heard_before = now - settings.suspect_s
        late = [d for d in self.daemons.values() if d.heard_at <= heard_before]
        silent = [d.id for d in late if d.state is not _GONE]
        for daemon in silent:
            self.look_at(daemon)
        return [d for d in silent if self._silent_s(d) >= self.silence(d).act_s]

    def due_at(self) -> float:
        """Return the time at which the next silent daemon is to be given up; infinity if there is
        none.
        """
        silence, daemons = self.desk.settings.silence, self.daemons
        act_s = {line: silence(pace.slow_s).act_s for line, pace in self._paces.items()}
        lines = self._lines.items()
        return min((daemons[daemon].heard_at + act_s[line] for daemon, line in lines), default=inf)

    def look_at(self, daemon: str) -> None:
        """Set a daemon's state, as it follows from its last sign."""
        suspect_s = self.silence(daemon).suspect_s
        if daemon in self.away or self._silent_s(daemon) >= suspect_s:
            self._set(daemon, state=DaemonState.SUSPECT)
        elif daemon in self.drain_until:
            self._set(daemon, state=DaemonState.DRAINING)
        else:
            self._set(daemon, state=DaemonState.UP)

    # -- work --------------------------------------------------------------------------------------

    def hold(self, daemon: str, job: str) -> None:
        self._set(daemon, job=job)

    def release(self, daemon: str, job: str) -> None:
        if daemon in self.daemons and self.daemons[daemon].job == job:
            self._set(daemon, job="")

    def drain(self, node: str, grace_s: float) -> int:
        """Those of the node, or all, take no new work. Returns how many they are."""
        until = self.desk.now + max(grace_s, 0.0)
        if not node:
            self._all_until = until
        found = [d.id for d in self.daemons.values() if node in ("", d.node, d.id)]
        for daemon in found:
            if not self.is_lost(daemon):
                self._note_drain(daemon, self.daemons[daemon].incarnation)
                self.tell(daemon, pb.SchedulerMessage(drain=True))
            self.start_draining(daemon, until)
        return len(found)

    def undrain(self, node: str) -> int:
        """Let those of the node, or all, take work again, and drain newcomers no longer; a daemon
        that leaves, or cannot work, will say so when it is given some. Returns how many they are.
        """
        found = {d.id for d in self.daemons.values() if node in ("", d.node, d.id)}
        away = {daemon for daemon in self._drained if node in ("", daemon, daemon.split("/")[0])}
        if found or away or not node:
            self._all_until = None
        for daemon in sorted(found | away):
            self._note_drain(daemon, 0)
            if self.drain_until.pop(daemon, None) is not None and not self.is_lost(daemon):
                self.tell(daemon, pb.SchedulerMessage(drain=False))
                self.look_at(daemon)
        return len(found | away)

    def start_draining(self, daemon: str, until: float) -> None:
        """Begin to drain a daemon. A lost one is forgotten: its drain means that nobody expects it
        back.
        """
        if self.is_lost(daemon):
            self.leave(daemon)
            return
        self.drain_until[daemon] = until
        self.look_at(daemon)

    def overdue(self) -> list[str]:
        """Daemons whose work may not go on any longer, because they are drained."""
        return [daemon for daemon, until in self.drain_until.items() if self.desk.now >= until]

    def _set(self, daemon: str, state: DaemonState | None = None, job: str | None = None) -> None:
        known = self.daemons[daemon]
        state = known.state if state is None else state
        job = known.job if job is None else job
        if (state, job) != (known.state, known.job):
            self.daemons[daemon] = replace(known, state=state, job=job)
            self.desk.is_queue_stale = True
