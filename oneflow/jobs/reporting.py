"""Reports of a worker's progress to its daemon: never more than a few messages a second, with
several points of the curve in each, and never waiting for a daemon that does not read.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence

from oneflow.actors import running_jobs
from oneflow.actors.gpu_faults import is_fault
from oneflow.core.errors import DeviceFaultError
from oneflow.core.frames import Frames
from oneflow.core.log import get_logger
from oneflow.core.metrics import METRICS
from oneflow.core.metrics_samples import Exporter
from oneflow.protos import cluster_pb2 as pb
from oneflow.services.curve import Curve, CurvePoint

log = get_logger(__name__)

INTERVAL_S = 0.1
ACTORS_S = 1.0
"""So often the daemon hears what actors do, also of a rank that waits within a step."""
MAX_SHARE = 0.005
"""Largest share of a core's time that goes into looking at actors, however many there are."""
MAX_WAITING_CHARS = 300
MAX_WARNING_CHARS = 1000


class Reporter:
    """Sends from a thread of its own. id: of the attempt.  total_steps: of the job."""

    def __init__(
        self, frames: Frames[pb.WorkerCommand], id: pb.AttemptId, total_steps: int
    ) -> None:
        self._frames, self._id, self._total = frames, id, total_steps
        self._news = threading.Condition()
        self._latest: tuple[int, dict[str, float]] | None = None
        self._curve = Curve()
        self._closed = False
        self._warning = ""
        self._last: tuple[int, dict[str, float]] = (0, {})
        self._teller = Exporter(METRICS)
        self._telling = threading.Lock()
        self._actors_due = time.monotonic() + ACTORS_S
        self.last_step = 0
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """So many steps are done, and the last one gave this."""
        with self._news:
            self._latest = self._last = step, dict(metrics)
            if metrics:
                self._curve.add(*self._latest)
            self.last_step = step
            self._news.notify()

    def checkpoint(self, path: str, step: int) -> None:
        """A checkpoint is complete. Sent before it returns, since older ones are removed then."""
        self._warning = ""
        try:
            self._send(self.last_step, {}, path, step)
        except OSError as error:
            log.warning("the daemon does not hear of checkpoint %s: %s", path, error)

    def warn(self, text: str) -> None:
        """Warn those that look at the job; the warning stands until the next checkpoint is
        complete.
        """
        with self._news:
            self._warning = text[:MAX_WARNING_CHARS]
            self._latest = self._latest or self._last
            self._news.notify()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send the messages that are left."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._news:
                while not (self._latest or self._closed or time.monotonic() >= self._actors_due):
                    self._news.wait(max(self._actors_due - time.monotonic(), 0.0))
                latest, self._latest = self._latest, None
                points = self._curve.take()
                closed = self._closed
            try:
                if latest is not None or not closed:
                    self._send(*(latest or (self.last_step, {})), points=points)
                if closed:
                    self._tell_counts()
            except OSError as error:  # the reader of commands sees it too, and ends the process
                log.warning("the daemon does not listen: %s", error)
                return
            if closed and not self._latest:
                return
            with self._news:
                self._news.wait_for(lambda: self._closed, INTERVAL_S)

    def _send(
        self,
        step: int,
        metrics: Mapping[str, float],
        checkpoint: str = "",
        at: int = 0,
        points: Sequence[CurvePoint] = (),
    ) -> None:
        progress = pb.Progress(
            id=self._id,
            step=step,
            total_steps=self._total,
            metrics=metrics,
            checkpoint=checkpoint,
            checkpoint_step=at,
            warning=self._warning,
        )
        now, told = time.monotonic(), -1
        for p in points:
            left_out, told = p.number - told - 1, p.number
            progress.points.add(step=p.step, metrics=p.metrics, age_s=now - p.at, left_out=left_out)
        is_due = time.monotonic() >= self._actors_due
        if is_due:
            started = time.monotonic()
            self._tell_counts()
            pause_s = max(ACTORS_S, (time.monotonic() - started) / MAX_SHARE)
            self._actors_due = time.monotonic() + pause_s
        if is_due or self._closed:
            for kind, waited in running_jobs.actor_waits().items():
                progress.actors.add(kind=kind, **{f"{cause}_s": s for cause, s in waited.items()})
            progress.waiting = running_jobs.waiting()[:MAX_WAITING_CHARS]
        self._frames.send(pb.WorkerMessage(progress=progress))

    def _tell_counts(self) -> None:
        with self._telling:  # a checkpoint is told from another thread
            counts = [pb.Counted(**dataclasses.asdict(told)) for told in self._teller.news()]
            self._frames.send(pb.WorkerMessage(counts=pb.WorkerCounts(counts=counts)))


def note_device_error(error: Exception) -> None:
    """Count a failure of a GPU; that it has no memory left is no error of it."""
    if isinstance(error, DeviceFaultError) or is_fault(error):
        METRICS.device_errors["launch"] += 1
