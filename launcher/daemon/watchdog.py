"""Shows a process beside us (guard.py) that our loop moves, and has it started again if it ends."""

from __future__ import annotations

import asyncio
import faulthandler
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from oneflow.launcher.daemon.guard import DUMP_SIGNAL
from oneflow.launcher.daemon.leftovers import own_mark
from oneflow.services.metrics_daemon import DAEMON

BEAT_S = 0.2


class Watchdog:
    """The counter in shared memory, and the process that reads it."""

    def __init__(self, stuck_s: float, group_folders: Iterable[Path]) -> None:
        self._stuck_s = stuck_s
        self._group_folders = [str(folder) for folder in group_folders]
        self._memory = os.memfd_create("oneflow-daemon-loop", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, 8)
        self._counter = mmap.mmap(self._memory, 8)
        self._count = 0
        self._guard: subprocess.Popen[bytes] | None = None
        faulthandler.register(DUMP_SIGNAL, all_threads=True)

    @property
    def pid(self) -> int:
        """Return the process id of the guard; 0 if there is none."""
        return self._guard.pid if self._guard else 0

    def start(self) -> None:
        """Starts the guard. It outlives us, hence neither our session nor a parent's death."""
        guard = Path(__file__).with_name("guard.py")
        argv = [sys.executable, "-I", "-S", str(guard)]
        argv += [str(os.getpid()), f"{self._stuck_s:g}", own_mark(), *self._group_folders]
        env = {"TMPDIR": tempfile.gettempdir()}
        self._guard = subprocess.Popen(
            argv, env=env, stdin=self._memory, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def ended(self, pid: int, status: int) -> bool:
        """Whether the child that was reaped was the guard; then there is a new one."""
        if self._guard is None or pid != self._guard.pid:
            return False
        self._guard.returncode = status
        self.start()
        return True

    async def beat(self, tick: Callable[[], None]) -> None:
        """Moves the counter for as long as the loop runs, and measures how late that is."""
        while True:
            self._count += 1
            self._counter[:8] = struct.pack("<Q", self._count)
            tick()
            started = time.monotonic()
            await asyncio.sleep(BEAT_S)
            DAEMON.loop_lag.observe(max(time.monotonic() - started - BEAT_S, 0.0))
