"""Whether a worker's process moves: judged by its pulse (oneflow/services/pulse.py) and by what the
kernel says of it.

* Stopped (SIGSTOP): as a peer that is frozen. One that a debugger holds is left alone.
* Its pulse stands still: its interpreter is stuck. One that never had a pulse, or has ended it, is
  not judged by it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from oneflow.core.processes import stat_fields

PULSE_NBYTES = 4096
OWN_STALL_S = 1.0
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+) in ([^\n]+)')
_MAIN = "Current thread"


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
        """Return what is new: the process stands still, or has done so for too long."""
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


def has_main_stack(text: str) -> bool:
    """Whether the stack of the main thread, which comes last, has begun."""
    start = text.rfind(_MAIN)
    return start >= 0 and _FRAME.search(text, start) is not None


def stuck_frame(text: str) -> str:
    """`train.py:12 in step`: where the main thread is, of the last stacks in what a process wrote;
    "" if there are none.
    """
    start = text.rfind(_MAIN)
    found = _FRAME.search(text, max(start, 0))
    if found is None:
        return ""
    return f"{os.path.basename(found[1])}:{found[2]} in {found[3].strip()}"
