"""How a worker is asked to stop: by SIGTERM or by its daemon. Before training it stops at once;
while it trains, at a step that all ranks agree on.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from oneflow.core.errors import OneFlowError


class StoppedError(OneFlowError):
    """The job was told to stop, and has stopped in order. is_agreed: all ranks have."""

    is_agreed = False
    exit_code = 143
    reason = "PREEMPTED"


class Stop:
    """requested: by whom; "" as long as nobody did."""

    def __init__(self) -> None:
        self.requested = ""
        self._may_wait = False
        self._lock = threading.Lock()

    def install(self) -> None:
        """SIGTERM asks to stop; to be called on the main thread."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = self.requested or "SIGTERM"
        if not self._may_wait:
            raise StoppedError(f"stopped by {self.requested} before the first step")

    def ask(self, by: str) -> None:
        """From any thread."""
        with self._lock:
            self.requested = self.requested or by
        if not self._may_wait:
            os.kill(os.getpid(), signal.SIGTERM)

    def begin_steps(self) -> None:
        """From here on whoever runs the steps looks at `requested`."""
        self._may_wait = True
        if self.requested:
            self._may_wait = False
            raise StoppedError(f"stopped by {self.requested} before the first step")
