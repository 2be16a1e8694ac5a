"""Whether a worker's process moves: judged by its pulse (oneflow/services/pulse.py) and by the
kernel's state of it.

* Stopped (SIGSTOP): as a peer that is frozen. One that a debugger holds is left alone.
* Its pulse stands still: its interpreter is stuck. One that never had a pulse, or has ended it, is
  not judged by it.

A rank whose process stands still for too long is asked where it is stuck, and given up.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oneflow.core.log import get_logger
from oneflow.core.processes import stat_fields
from oneflow.launcher.daemon.events import Event, StoodStill
from oneflow.launcher.daemon.logs import read_piece
from oneflow.launcher.processes import send_signal
from oneflow.launcher.supervision import DUMP_SIGNAL
from oneflow.scheduler.jobs.messages import AttemptKey

if TYPE_CHECKING:
    from oneflow.launcher.daemon.workers import Worker

PULSE_NBYTES = 4096
OWN_STALL_S = 1.0
MAX_STACKS_NBYTES = 256 << 10
DUMP_LOOK_S, MAX_DUMP_S = 0.05, 1.0  # for the stacks of a stuck rank to come into its log
FROZEN, STUCK = (137, "NODE_LOST"), (80, "HANG")
"""Exit code and reason of a rank whose process is stopped (as a peer that sees no heartbeat says of
it), or does not come out of a call."""
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+) in ([^\n]+)')
_MAIN = "Current thread"

log = get_logger(__name__)


@dataclass(frozen=True)
class Patience:
    """Seconds. A process that is stopped or stuck for suspect_s is named in the log, after
    stopped_s or stuck_s it is given up.
    """

    suspect_s: float
    stopped_s: float
    stuck_s: float


@dataclass(frozen=True)
class Still:
    """A process stands still. is_final: for too long."""

    is_stopped: bool
    seconds: float
    is_final: bool

    def __str__(self) -> str:
        if self.is_stopped:
            return f"it has been stopped (SIGSTOP) for {self.seconds:.1f} s"
        return f"its interpreter has been stuck for {self.seconds:.1f} s"


class Judge:
    """Pure: of one process. Each finding is told once, when it begins and when it is final."""

    def __init__(self, patience: Patience, now: float) -> None:
        self._patience = patience
        self._looked_at = self._moved_at = self._running_at = now
        self._has_pulse = False
        self._is_suspect = self._is_over = False

    @property
    def is_suspect(self) -> bool:
        return self._is_suspect

    def look(self, now: float, beats: int | None, state: str) -> Still | None:
        """Judge a process by its beats.

        beats: since the last look; None: it has closed its pipe. state: as /proc has it.
        """
        self._forgive(now)
        if beats is None:
            self._has_pulse = False
        elif beats:
            self._has_pulse, self._moved_at = True, now
        if state != "T":
            self._running_at = now
        if state in ("T", "t"):
            self._moved_at = now
        still = self.still()
        if still is None:
            self._is_suspect = False
            return None
        is_news = not self._is_over if still.is_final else not self._is_suspect
        self._is_suspect, self._is_over = True, self._is_over or still.is_final
        return still if is_news else None

    def _forgive(self, now: float) -> None:
        """We were frozen ourselves for a while."""
        overslept_s = now - self._looked_at
        if overslept_s > OWN_STALL_S:
            self._moved_at += overslept_s
            self._running_at += overslept_s
        self._looked_at = now

    def still(self) -> Still | None:
        """Return the state that the last look found."""
        now = self._looked_at
        stopped_s, stuck_s = now - self._running_at, now - self._moved_at
        if stopped_s >= self._patience.suspect_s:
            return Still(True, stopped_s, stopped_s >= self._patience.stopped_s)
        if self._has_pulse and stuck_s >= self._patience.suspect_s:
            return Still(False, stuck_s, stuck_s >= self._patience.stuck_s)
        return None


class Pulse:
    """The daemon's end of one process's pulse."""

    def __init__(self, pipe: int, pid: int, patience: Patience, now: float) -> None:
        self._pipe, self._pid = pipe, pid
        self._judge = Judge(patience, now)
        self._is_open = True
        os.set_blocking(pipe, False)

    @property
    def is_suspect(self) -> bool:
        return self._judge.is_suspect

    @property
    def is_open(self) -> bool:
        """Whether the process may still beat: it has neither ended nor become another program."""
        return self._is_open

    def look(self, now: float) -> Still | None:
        """Return a change: the process stands still, or has done so for too long."""
        state, *_ = stat_fields(self._pid) or ["X"]
        return self._judge.look(now, self._beats(), state)

    def still(self) -> Still | None:
        """Whether it stands still, as of the last look."""
        return self._judge.still()

    def _beats(self) -> int | None:
        if not self._is_open:
            return None
        beats = 0
        try:
            while data := os.read(self._pipe, PULSE_NBYTES):
                beats += len(data)
                if len(data) < PULSE_NBYTES:
                    return beats
        except BlockingIOError:
            return beats
        self.close()
        return None

    def close(self) -> None:
        if self._is_open:
            os.close(self._pipe)
            self._is_open = False


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
        """Look several times a second; return a process that has stood still for too long."""
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
        """Its peers may have failed because it stands still: its end, or its waking up,
        ends all that shows where.
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


def has_main_stack(text: str) -> bool:
    """Whether the stack of the main thread, which comes last, has begun."""
    start = text.rfind(_MAIN)
    return start >= 0 and _FRAME.search(text, start) is not None


def stuck_frame(text: str) -> str:
    """`train.py:12 in step`: where the main thread is, of the last stacks in a process's output;
    "" if there are none.
    """
    start = text.rfind(_MAIN)
    found = _FRAME.search(text, max(start, 0))
    if found is None:
        return ""
    return f"{os.path.basename(found[1])}:{found[2]} in {found[3].strip()}"
