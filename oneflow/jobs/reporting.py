"""What a worker tells its daemon of its progress: never more than a few messages a second, and
never waiting for a daemon that does not read.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from oneflow.actors import live
from oneflow.core.frames import Frames
from oneflow.core.log import get_logger

if TYPE_CHECKING:
    from oneflow.protos import cluster_pb2 as pb

log = get_logger(__name__)

INTERVAL_S = 0.1
ACTORS_S = 1.0
"""So often the daemon hears what actors do, also of a rank that waits within a step."""
MAX_WAITING_CHARS = 300


class Reporter:
    """Sends from a thread of its own. id: of the attempt.  total_steps: of the job."""

    def __init__(self, frames: Frames, id: Any, total_steps: int) -> None:
        self._frames, self._id, self._total = frames, id, total_steps
        self._news = threading.Condition()
        self._latest: tuple[int, dict[str, float]] | None = None
        self._closed = False
        self._actors_due = time.monotonic() + ACTORS_S
        self.last_step = 0
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """So many steps are done. Only the newest is sent if they come quickly."""
        with self._news:
            self._latest = step, dict(metrics)
            self.last_step = step
            self._news.notify()

    def checkpoint(self, path: str, step: int) -> None:
        """A checkpoint is complete. Sent before it returns, since older ones are removed then."""
        try:
            self._send(self.last_step, {}, path, step)
        except OSError as error:
            log.warning("the daemon does not hear of checkpoint %s: %s", path, error)

    def close(self, timeout_s: float = 5.0) -> None:
        """Sends what is left."""
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
                closed = self._closed
            try:
                if latest is not None or not closed:
                    self._send(*(latest or (self.last_step, {})))
            except OSError as error:  # the reader of commands sees it too, and ends the process
                log.warning("the daemon does not listen: %s", error)
                return
            if closed and not self._latest:
                return
            if not closed:
                time.sleep(INTERVAL_S)

    def _send(
        self, step: int, metrics: Mapping[str, float], checkpoint: str = "", at: int = 0
    ) -> None:
        from oneflow.protos import cluster_pb2 as pb

        progress = pb.Progress(
            id=self._id,
            step=step,
            total_steps=self._total,
            metrics=metrics,
            checkpoint=checkpoint,
            checkpoint_step=at,
        )
        if self._closed or time.monotonic() >= self._actors_due:
            self._actors_due = time.monotonic() + ACTORS_S
            progress.actors.extend(_actor_counts())
            progress.waiting = live.waiting()[:MAX_WAITING_CHARS]
        self._frames.send(pb.WorkerMessage(progress=progress))


def _actor_counts() -> Iterator[pb.ActorCounts]:
    from oneflow.protos import cluster_pb2 as pb

    for counts in live.actor_counts():
        yield pb.ActorCounts(**dataclasses.asdict(counts))
