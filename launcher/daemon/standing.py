"""Ranks whose process stands still: noticed, asked where it is stuck, told to the daemon's mind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from oneflow.core.log import get_logger
from oneflow.launcher.daemon.events import Event, StoodStill
from oneflow.launcher.daemon.logs import read_piece
from oneflow.launcher.daemon.pulse import Still, has_main_stack, stuck_frame
from oneflow.launcher.daemon.workers import Worker
from oneflow.launcher.processes import send_signal
from oneflow.launcher.supervision import DUMP_SIGNAL
from oneflow.scheduler.jobs.messages import AttemptKey

MAX_STACKS_NBYTES = 256 << 10
DUMP_LOOK_S, MAX_DUMP_S = 0.05, 1.0  # for the stacks of a stuck rank to come into its log
FROZEN, STUCK = (137, "NODE_LOST"), (80, "HANG")
"""Exit code and reason of a rank whose process is stopped (as a peer that sees no heartbeat says of
it), or does not come out of a call."""

log = get_logger(__name__)


class Standing:
    """Judges the process of one rank.

    folder: of its logs.  log_size: bytes of its standard error so far.
    """

    def __init__(
        self,
        key: AttemptKey,
        folder: Path,
        log_size: Callable[[], int],
        post: Callable[[Event], None],
    ) -> None:
        self._key, self._folder, self._log_size, self._post = key, folder, log_size, post
        self._at_end: Still | None = None  # when it was told to end
        self._frame = ""  # where it was stuck

    def look(self, worker: Worker) -> Still | None:
        """Several times a second; returns what has stood still for too long."""
        was_suspect = worker.pulse.is_suspect
        still = worker.pulse.look(time.monotonic())
        if still is None:
            if was_suspect and not worker.pulse.is_suspect:
                log.warning("%s (process %d) goes on", self._key, worker.pid)
            return None
        log.warning("%s (process %d): %s", self._key, worker.pid, still)
        return still if still.is_final else None

    async def give_up(self, worker: Worker, still: Still) -> None:
        """Tells that it has failed by standing still, and where."""
        if not still.is_stopped and not self._frame:
            self._frame = await self._dumped_frame(worker)
        self._say(worker, still)

    async def note_at_end(self, worker: Worker) -> None:
        """Its peers may have failed because it stands still: what ends it, or wakes it up, ends all
        that shows where.
        """
        self._at_end = worker.pulse.still()
        if self._at_end is not None and not self._at_end.is_stopped and not worker.is_over:
            self._frame = await self._dumped_frame(worker)

    def say_noted(self, worker: Worker) -> None:
        """We have ended it, but it was why we had to."""
        if self._at_end is not None:
            self._say(worker, self._at_end)

    def _say(self, worker: Worker, still: Still) -> None:
        kind, cause = FROZEN if still.is_stopped else STUCK, f"{still}"
        if not still.is_stopped and self._frame:
            cause += f", at {self._frame}"
        word = "frozen" if still.is_stopped else "stuck"
        self._post(StoodStill(self._key, *kind, f"{word}: {cause}", worker.pid, still.seconds))

    async def _dumped_frame(self, worker: Worker) -> str:
        """It writes the stacks of its threads into its log; where its main thread is."""
        log_size = self._log_size()
        send_signal([worker.pid], DUMP_SIGNAL)
        deadline = time.monotonic() + MAX_DUMP_S
        while True:
            await asyncio.sleep(DUMP_LOOK_S)
            piece = read_piece(self._folder, "stderr", log_size, MAX_STACKS_NBYTES)
            text = piece.data.decode(errors="replace")
            if has_main_stack(text) or time.monotonic() >= deadline:
                return stuck_frame(text)
