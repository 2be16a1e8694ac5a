"""Does what the table decides: tells daemons, over whatever line they have now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.core.log import get_logger
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.lines import Lines
from oneflow.scheduler.cluster.metrics import ClusterMetrics
from oneflow.scheduler.cluster.settings import SchedulerSettings
from oneflow.scheduler.jobs.events import (
    Action,
    DaemonJoined,
    Rejected,
    Tell,
    TellFenced,
    TellPrepare,
    TellWelcome,
    Told,
)
from oneflow.scheduler.jobs.messages import prepare_message
from oneflow.services.failpoints import failpoint

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.plans import Plans

log = get_logger(__name__)


class Performer:
    """plans: set once, before the first action; None: every plan is compiled by rank 0."""

    def __init__(self, lines: Lines, metrics: ClusterMetrics, settings: SchedulerSettings) -> None:
        self._lines, self._metrics, self._settings = lines, metrics, settings
        self.plans: Plans | None = None

    def perform(self, action: Action) -> None:
        """Any action that is not the store's."""
        match action:
            case TellWelcome():
                self._welcome(action)
            case TellFenced():
                for line in self._lines.of_incarnation(action.daemon, action.incarnation):
                    line.send(pb.SchedulerMessage(fenced=action.why))
                    line.close(action.why)
            case Rejected(event=event, message=message, reason=reason):
                level = log.warning if isinstance(event, DaemonJoined) else log.info
                level("refused (%s): %s", reason or "asked in vain", message)
            case TellPrepare() if self.plans is not None:
                self.plans.tell_prepare(action)
            case TellPrepare():
                self._send(action, prepare_message(action, ""))
            case Tell():
                self._send(action, action.message)

    def send_prepare(self, action: TellPrepare, plan: str) -> None:
        """plan: its digest, or ""."""
        failpoint("scheduler.plan")
        self._send(action, prepare_message(action, plan))

    def _send(self, action: Told, message: pb.SchedulerMessage) -> None:
        """Send to the daemon that is meant, if it is still the same one."""
        line = self._lines.current(action.daemon)
        if line is not None and line.epoch == action.epoch:
            line.send(message)

    def _welcome(self, action: TellWelcome) -> None:
        line = self._lines.welcome(action.daemon, action.incarnation, action.epoch)
        if line is None:
            return
        table = self._settings.table
        line.send(
            pb.SchedulerMessage(
                welcome=pb.Welcome(
                    epoch=action.epoch,
                    heartbeat_s=self._settings.heartbeat_s,
                    suspect_s=table.suspect_s,
                    act_s=table.act_s,
                )
            )
        )
