"""Watches over a daemon from a process of its own; standard library only, run by its path.

    guard.py <pid> <stuck_s> <mark> [<folder of control groups>...]

Standard input is a memory file of one counter.

* The counter stands still for stuck_s: the daemon's loop is stuck. It is asked for its stacks,
  then killed; one that somebody has stopped (SIGSTOP), or that wants to run and gets no processor,
  is left alone, for it does nothing wrong.
* The daemon is gone: whatever still carries its mark is killed. Its own child has died with it;
  this finds what that one had started. Its control groups and temporary folders go too.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

LOOK_S = 0.5
STACKS_S = 0.5  # for the daemon to write them
SWEEPS = 20
DUMP_SIGNAL = signal.SIGUSR2


def main(pid: int, stuck_s: float, mark: str, group_folders: list[str]) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    leftovers = _load_leftovers()
    with suppress(ProcessLookupError), mmap.mmap(0, 8, prot=mmap.PROT_READ) as counter:
        watch(os.pidfd_open(pid), pid, stuck_s, counter)
    sweep(leftovers, mark)
    leftovers.sweep_temp_dirs()
    for folder in group_folders:
        leftovers.remove_groups(Path(folder), mark)


def watch(daemon: int, pid: int, stuck_s: float, counter: mmap.mmap) -> None:
    """Until the daemon is gone, of itself or by us."""
    poll = select.poll()
    poll.register(daemon, select.POLLIN)
    loop = Loop(time.monotonic())
    while not poll.poll(LOOK_S * 1000):
        (count,) = struct.unpack("<Q", counter[:8])
        still_s = loop.look(time.monotonic(), count, *_main_thread(pid))
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


def sweep(leftovers: ModuleType, mark: str) -> None:
    """Again until nothing is found: a process may be born while we look."""
    for _ in range(SWEEPS):
        found = leftovers.marked(mark)
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.02)


def _main_thread(pid: int) -> tuple[str, int]:
    """State and ticks of processor time of the thread that runs the loop."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "", -1
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[11]) + int(fields[12])


def _load_leftovers() -> ModuleType:
    """Load the module from the file beside this one: the package itself would cost its import."""
    path = Path(__file__).with_name("leftovers.py")
    spec = importlib.util.spec_from_file_location("leftovers", path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:])
