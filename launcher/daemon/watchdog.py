"""Watches over a daemon from a process of its own: `python -m oneflow.launcher.daemon.watchdog`.

The daemon's loop moves a counter, in a memory file that is the standard input of that process.

* The counter stands still for stuck_s: the daemon's loop is stuck. It is asked for its stacks,
  then killed; one that somebody has stopped (SIGSTOP), or that wants to run and gets no processor,
  is left alone, for it does nothing wrong.
* The daemon is gone: its leftovers are swept. Its own child has died with it; this finds the
processes
  that the child had started.
"""

from __future__ import annotations

import asyncio
import faulthandler
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from oneflow.core.processes import stat_fields
from oneflow.launcher.daemon.orphans import sweep
from oneflow.launcher.supervision import DUMP_SIGNAL
from oneflow.services.metrics_daemon import DAEMON

ARGV = (sys.executable, "-m", "oneflow.launcher.daemon.watchdog")
BEAT_S = 0.2
LOOK_S = 0.5
STACKS_S = 0.5  # for the daemon to write them
SWEEPS, SWEEP_PAUSE_S = 20, 0.02


class Watchdog:
    """The daemon's side: the counter, and the process that reads it."""

    def __init__(self, stuck_s: float) -> None:
        self._stuck_s = stuck_s
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
        self._guard = subprocess.Popen(
            [*ARGV, str(os.getpid()), f"{self._stuck_s:g}"],
            env=os.environ | {"PYTHONSAFEPATH": "1"},
            cwd="/",
            stdin=self._memory,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
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


def guard(pid: int, stuck_s: float) -> None:
    """Runs in the process beside the daemon, until that is gone and swept."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    with suppress(ProcessLookupError), mmap.mmap(0, 8, prot=mmap.PROT_READ) as counter:
        watch(os.pidfd_open(pid), pid, stuck_s, counter)
    for _ in range(SWEEPS):  # until nothing is found: a process may be born while we look
        if not any(sweep()):
            return
        time.sleep(SWEEP_PAUSE_S)


def watch(daemon: int, pid: int, stuck_s: float, counter: mmap.mmap) -> None:
    """Until the daemon is gone, of itself or by us."""
    poll = select.poll()
    poll.register(daemon, select.POLLIN)
    loop = Loop(time.monotonic())
    while not poll.poll(LOOK_S * 1000):
        (count,) = struct.unpack("<Q", counter[:8])
        fields = stat_fields(pid, pid)  # of the main thread, which runs the loop
        if not fields:
            continue
        ticks = int(fields[11]) + int(fields[12])
        still_s = loop.look(time.monotonic(), count, fields[0], ticks)
        if still_s >= stuck_s:
            end_stuck(daemon, pid, still_s)


class Loop:
    """The time for which the daemon's loop stands still without an excuse: nobody has stopped it,
    it was not kept from the processor, and we have looked.
    """

    def __init__(self, now: float) -> None:
        self._looked_at = self._moved_at = now
        self._count = self._ticks = -1

    def look(self, now: float, count: int, state: str, ticks: int) -> float:
        """Return seconds since it moved.

        count: of its beats. state: of its thread, as /proc has it. ticks: processor time it had.
        """
        self._moved_at += max(now - self._looked_at - 2 * LOOK_S, 0.0)  # it was we who slept
        is_starved = state == "R" and ticks == self._ticks
        if count != self._count or state in ("T", "t") or is_starved:
            self._moved_at = now
        self._looked_at, self._count, self._ticks = now, count, ticks
        return now - self._moved_at


def end_stuck(daemon: int, pid: int, stuck_s: float) -> None:
    print(
        f"oneflow: the daemon's loop (pid {pid}) has not moved for {stuck_s:.1f} s: "
        "its stacks follow, then it is killed",
        file=sys.stderr,
        flush=True,
    )
    signal.pidfd_send_signal(daemon, DUMP_SIGNAL)
    time.sleep(STACKS_S)
    signal.pidfd_send_signal(daemon, signal.SIGKILL)


if __name__ == "__main__":
    guard(int(sys.argv[1]), float(sys.argv[2]))
