"""Starting, finding and signalling the processes of a job on Linux.

The launcher becomes a subreaper: a process that a rank leaves behind, even in a session of its
own, becomes a child of the launcher and is found in the tree below it. Each rank dies with the
launcher (PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from oneflow.core.processes import stat_fields

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans below this process become its children from now on."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process, a child of that one, when that one dies."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(137)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdin: int | None,
    stdout: int | IO[bytes] | None,
    stderr: int | IO[bytes] | None,
    *,
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
    before_exec: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a rank in a session of its own that dies with this process. Call it from the main
    thread.

    PDEATHSIG follows the thread that forks, hence the main thread.
    before_exec: runs in the child; it must not import or take locks.
    """
    parent = os.getpid()

    def in_child() -> None:
        die_with_parent(parent)
        if before_exec is not None:
            before_exec()

    return subprocess.Popen(
        argv,
        env=dict(env),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=in_child,
    )


def descendants(root: int, besides: Iterable[int] = ()) -> list[int]:
    """Living processes below `root`, without those in or below `besides`; zombies do not count."""
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    for pid, parent, state in _process_table():
        children.setdefault(parent, []).append(pid)
        if state in "ZX":
            dead.add(pid)
    skipped, found, queue = set(besides), [], [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid in skipped:
                continue
            queue.append(pid)
            if pid not in dead:
                found.append(pid)
    return found


def send_signal(pids: Iterable[int], signum: int) -> None:
    """Signal each process; one that is gone already is fine, one that may not be signalled is left
    alone.
    """
    for pid in pids:
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            continue


def reap() -> list[tuple[int, int]]:
    """(pid, status) of children that have ended; status as in `Exited`."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def num_oom_kills() -> int:
    """Count how often the kernel killed something in this control group for memory; 0 where it does
    not tell.
    """
    for name in ("memory.events", "memory/memory.oom_control"):
        try:
            lines = (Path("/sys/fs/cgroup") / name).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _process_table() -> Iterable[tuple[int, int, str]]:
    """(pid, parent, state) of every process."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        if fields := stat_fields(int(name)):
            yield int(name), int(fields[1]), fields[0]
