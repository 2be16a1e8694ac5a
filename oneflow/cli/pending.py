"""The reason for which a job that is waited for does not run, or does not end, said once for each
change.
"""

from __future__ import annotations

import re
import threading
import time

from oneflow.cli.output import say
from oneflow.cluster.job import Job
from oneflow.core.errors import OneFlowError
from oneflow.scheduler.jobs.records import JobRecord, JobState

AFTER_S = 5.0  # most waits are shorter, and nobody wants to read of them
LOOK_S = 5.0  # between looks at a job that is pending
IDLE_LOOK_S = 30.0  # and at one that runs: it may be restarted
_NUMBER = re.compile(r"\d+")
WAITING = (JobState.QUEUED, JobState.RESTARTING, JobState.RUNNING, JobState.CANCELLING)


class WhyPending:
    """Says it from a thread of its own, in a `with`, once it has been so for `after_s`.

    Callers that see the job's records anyway give them to `take`; else `looks`, and it asks for
    them.
    """

    def __init__(self, job: Job, looks: bool = False, after_s: float = AFTER_S) -> None:
        self._job, self._looks, self._after_s = job, looks, after_s
        self._look_at = time.monotonic()
        self._line, self._since = "", 0.0
        self._said: set[str] = set()
        self._is_over, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="pending", daemon=True)

    def __enter__(self) -> WhyPending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(1.0)  # it may be asking a scheduler that is away

    def take(self, record: JobRecord) -> None:
        """Tell the state of the job now."""
        line = ""
        if record.state in WAITING and record.pending:
            line = f"job={record.id} state={record.state} {record.pending}"
        with self._lock:
            if _shape(line) != _shape(self._line):
                self._since = time.monotonic()
            self._line = line
            self._look_at = time.monotonic() + (LOOK_S if line else IDLE_LOOK_S)

    def tell(self, record: JobRecord) -> None:
        """The same, and says it at once."""
        self.take(record)
        self._say_what_is_due(0.0)

    def _run(self) -> None:
        while not self._is_over.wait(min(self._after_s / 2, 1.0)):
            is_due = self._what_is_due(self._after_s) != ""
            if self._looks and (is_due or time.monotonic() >= self._look_at):
                self._look()  # it may have begun since
            self._say_what_is_due(self._after_s)

    def _look(self) -> None:
        try:
            record = self._job.status()
        except OneFlowError:  # whoever waits for the job is told the same
            self._looks = False
            return
        if not self._is_over.is_set():
            self.take(record)

    def _what_is_due(self, after_s: float) -> str:
        """Return the line that is to be said now; "": none."""
        line, is_early = self._line, time.monotonic() < self._since + after_s
        return "" if is_early or _shape(line) in self._said else line

    def _say_what_is_due(self, after_s: float) -> None:
        with self._lock:
            if not (line := self._what_is_due(after_s)):
                return
            self._said.add(_shape(line))
        say(line)


def _shape(line: str) -> str:
    """The line without its numbers, which may change each second while daemons join."""
    return _NUMBER.sub("0", line)
