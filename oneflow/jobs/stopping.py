"""The requests to stop a worker, by SIGTERM or by its daemon. Before training it stops at once;
while it trains, at a step that all ranks agree on.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from types import FrameType

from oneflow.core.errors import OneFlowError

AGAIN_S = 0.1
KEPT_S = 5.0
"""An error that still exists after this time has been caught and kept, and stops nothing."""


class StoppedError(OneFlowError):
    """The job was told to stop, and has stopped in order. is_agreed: all ranks have."""

    is_agreed = False
    exit_code = 143
    reason = "PREEMPTED"


def stop_behind(error: BaseException) -> StoppedError | None:
    """Return the stop that `error` is or came of: raised by a signal's handler, it may be
    taken for a defect of the data read or checked at that moment. None if there was none.
    """
    if isinstance(error, StoppedError):
        return error
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, StoppedError) and not one.is_agreed:
            return one
        seen.add(id(one))
        found += [one.__context__, one.__cause__]
    return None


class Stop:
    """requested: by whom; "" as long as nobody did.

    A signal's handler ends the main thread, and one signal may not be enough: it does not
    wake a thread that was just about to wait, and the handler's exception may be swallowed by
    the code that runs. So the daemon's word is repeated until `end`.
    """

    def __init__(self) -> None:
        self.requested = ""
        self._may_wait = False
        self._is_asked = self._is_over = False
        self._raised: weakref.ref[StoppedError] | None = None
        self._raised_at = 0.0
        self._lock = threading.Lock()

    def install(self) -> None:
        """SIGTERM asks to stop; to be called on the main thread."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = self.requested or "SIGTERM"
        if not (self._may_wait or self._is_over or self._is_on_its_way):
            raise self._error()

    def _error(self) -> StoppedError:
        error = StoppedError(f"stopped by {self.requested} before the first step")
        self._raised, self._raised_at = weakref.ref(error), time.monotonic()
        return error

    @property
    def _is_on_its_way(self) -> bool:
        """Tell whether the last exception is still raised: a swallowed one is gone at once, or
        kept.
        """
        if self._raised is None or self._raised() is None:
            return False
        return time.monotonic() - self._raised_at < KEPT_S

    def ask(self, by: str) -> None:
        """Ask for a stop, from any thread."""
        with self._lock:
            self.requested = self.requested or by
            was_asked, self._is_asked = self._is_asked, True
        if not (was_asked or self._may_wait):
            threading.Thread(target=self._insist, name="stop", daemon=True).start()

    def _insist(self) -> None:
        while not (self._may_wait or self._is_over):
            if not self._is_on_its_way:
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(AGAIN_S)

    def begin_steps(self) -> None:
        """Leave it from here on to the loop of steps to look at `requested`."""
        self._may_wait = True
        if self.requested:
            self._may_wait = False
            raise self._error()

    def end(self) -> None:
        """This process ends now, and is not to be disturbed."""
        self._is_over = True
