"""Says of each job that was kept long enough what went with it: nothing is lost silently."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.core.log import get_logger
from oneflow.scheduler.cluster.audit import Audit
from oneflow.scheduler.jobs.events import Action, Event, Remove
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.retention import may_go_on

log = get_logger(__name__)


class Retired:
    """A `Listener` of the driver."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._why: dict[str, str] = {}

    def stepped(self, event: Event, actions: Sequence[Action]) -> None:
        self._why |= {a.job_id: a.why for a in actions if isinstance(a, Remove) and a.why}

    def changed(self, before: JobRecord | None, now: JobRecord | None) -> None:
        if before is None or now is not None or (why := self._why.pop(before.id, "")) == "":
            return
        checkpoint = before.last_checkpoint if may_go_on(before) else ""
        self._audit.note("retire", "", "", job=before.id, why=why, checkpoint=checkpoint)
        if checkpoint:
            step = before.last_checkpoint_step
            log.warning(
                "job %s (%s) is removed: %s; its checkpoint of step %d (%s) goes with it",
                before.id, before.state, why, step, checkpoint,
            )  # fmt: skip
        else:
            log.info("job %s (%s) is removed: %s", before.id, before.state, why)
