"""One worker process with all that it starts: spawned, signalled, found and killed."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from oneflow.core.errors import ConfigError
from oneflow.launcher.daemon.cgroups import Group
from oneflow.launcher.daemon.pulse import Patience, Pulse
from oneflow.launcher.daemon.settings import JobLimits
from oneflow.launcher.processes import descendants, num_oom_kills, send_signal, spawn
from oneflow.services.pulse import VARIABLE as PULSE_VARIABLE

WARM_ARGV = (sys.executable, "-u", "-m", "oneflow.jobs.worker")
OOM_SCORE = "/proc/self/oom_score_adj"
PIPE_NBYTES = 1 << 20
F_SETPIPE_SZ = 1031


@dataclass
class Worker:
    """A process of ours and its ends of pipes and socket. sock: None for a script.

    spared: other children of the daemon, which are not this worker's business.
    pulse: shows whether it moves.
    """

    process: subprocess.Popen[bytes]
    pidfd: int
    stdout: int
    stderr: int
    sock: socket.socket | None
    group: Group | None
    spared: Callable[[], Iterable[int]]
    oom_kills: int
    pulse: Pulse

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_over(self) -> bool:
        """Whether the process itself has ended and was reaped."""
        return self.process.returncode is not None

    def alive(self) -> list[int]:
        """Its living processes, whatever session they are in and whoever their parent is now."""
        if self.group is not None and self.group.can_find:
            return self.group.pids()
        return descendants(os.getpid(), besides=self.spared())

    def signal(self, signum: int) -> None:
        """Signal all processes; a stopped one is woken, for it could not heed the signal."""
        pids = self.alive()
        send_signal(pids, signum)
        send_signal(pids, signal.SIGCONT)

    def kill(self) -> None:
        if self.group is not None:
            self.group.kill()
        send_signal(self.alive(), signal.SIGKILL)

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed something of it for memory (or, if it has no group of its own,
        something beside it).
        """
        own = self.group.num_oom_kills() if self.group is not None else None
        return own > 0 if own is not None else num_oom_kills() > self.oom_kills

    def close(self) -> None:
        """Close our ends; the pipes belong to their readers."""
        os.close(self.pidfd)
        self.pulse.close()
        if self.sock is not None:
            self.sock.close()
        if self.group is not None:
            self.group.remove()


def start_worker(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    limits: JobLimits,
    group: Group | None,
    spared: Callable[[], Iterable[int]],
    patience: Patience,
    with_socket: bool = False,
) -> Worker:
    """Starts a process with pipes for its output. Raises ConfigError if it cannot be run."""
    out_read, out_write = _pipe()
    err_read, err_write = _pipe()
    pulse_read, pulse_write = os.pipe2(os.O_CLOEXEC)
    ours, theirs = socket.socketpair() if with_socket else (None, None)
    if theirs is not None:
        argv = [*argv, "--fd", str(theirs.fileno())]
    oom_kills = num_oom_kills()
    try:
        process = spawn(
            argv,
            dict(env) | {PULSE_VARIABLE: str(pulse_write)},
            subprocess.DEVNULL,
            out_write,
            err_write,
            cwd=str(cwd),
            pass_fds=[pulse_write, *([theirs.fileno()] if theirs is not None else [])],
            before_exec=_limiter(limits, group),
        )
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        for descriptor in (out_read, err_read, pulse_read):
            os.close(descriptor)
        if ours is not None:
            ours.close()
        if group is not None:
            group.remove()
        said = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot run {argv[0]!r}: {said}") from None
    finally:
        for descriptor in (out_write, err_write, pulse_write):
            os.close(descriptor)
        if theirs is not None:
            theirs.close()
        if group is not None:
            group.close_entries()
    if ours is not None:
        ours.setblocking(False)
    pidfd = os.pidfd_open(process.pid)
    pulse = Pulse(pulse_read, process.pid, patience, time.monotonic())
    return Worker(process, pidfd, out_read, err_read, ours, group, spared, oom_kills, pulse)


def start_warm(
    env: Mapping[str, str],
    cwd: Path,
    limits: JobLimits,
    group: Group | None,
    spared: Callable[[], Iterable[int]],
    patience: Patience,
) -> Worker:
    """A process that imports what graph jobs need, says that it is ready and waits for its job."""
    env = dict(env) | {"PYTHONSAFEPATH": "1"}  # nothing is imported from the folder it starts in
    return start_worker(WARM_ARGV, env, cwd, limits, group, spared, patience, with_socket=True)


def _pipe() -> tuple[int, int]:
    """A large one: whoever writes much waits less often."""
    read, write = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # this user may not have so much
        fcntl.fcntl(write, F_SETPIPE_SZ, PIPE_NBYTES)
    return read, write


def _limiter(limits: JobLimits, group: Group | None) -> Callable[[], None]:
    """Return what the child does to itself before it becomes the program."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = limits.open_files if hard == resource.RLIM_INFINITY else min(limits.open_files, hard)
    has_pids_limit = group is not None and group.bounds_pids
    processes = 0 if has_pids_limit else _processes_of_user() + limits.pids
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY:
        processes = min(processes, most)
    enter = group.enter if group is not None else None
    setrlimit = resource.setrlimit
    protects = Path(OOM_SCORE).read_text().strip() != "0"  # us, but not the rank
    nofile, nproc, core = resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE

    def limit() -> None:
        if enter is not None:
            enter()
        if protects:
            with open(OOM_SCORE, "wb", buffering=0) as file:
                file.write(b"0")
        setrlimit(nofile, (files, files))
        setrlimit(core, (0, 0))
        if processes:
            setrlimit(nproc, (processes, processes))

    return limit


def _processes_of_user() -> int:
    """Threads count for the kernel's limit, which is one for all processes of a user."""
    count = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            if entry.stat().st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{entry.name}/task"))
        except OSError:
            continue
    return count
