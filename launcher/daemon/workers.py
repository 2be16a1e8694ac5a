"""One worker process with all that it starts: signalled, found and killed; and scripts, spawned."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import subprocess
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

OOM_SCORE = "/proc/{}/oom_score_adj"
PIPE_NBYTES = 1 << 20
F_SETPIPE_SZ = 1031


@dataclass
class Worker:
    """A process of ours and our ends of its pipes and socket. sock: None for a script.

    spared: other children of the daemon, which are not this worker's business.
    pulse: shows whether it moves.  status: as of Popen, once it was reaped.
    """

    pid: int
    pidfd: int
    stdout: int
    stderr: int
    sock: socket.socket | None
    group: Group | None
    spared: Callable[[], Iterable[int]]
    oom_kills: int
    pulse: Pulse
    status: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the process itself has ended and was reaped."""
        return self.status is not None

    def alive(self) -> list[int]:
        """Return its living processes, in any session and below any parent."""
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


@dataclass(frozen=True)
class Pipes:
    """The pipes between a worker and us: its standard output, its errors and its pulse.

    ours: to read from. theirs: to write to, closed here once the worker has them.
    """

    ours: tuple[int, int, int]
    theirs: tuple[int, int, int]

    @classmethod
    def open(cls) -> Pipes:
        (out, out_write), (err, err_write) = _pipe(), _pipe()
        pulse, pulse_write = os.pipe2(os.O_CLOEXEC)
        return cls((out, err, pulse), (out_write, err_write, pulse_write))

    def close_ours(self) -> None:
        for descriptor in self.ours:
            os.close(descriptor)

    def close_theirs(self) -> None:
        for descriptor in self.theirs:
            os.close(descriptor)

    def worker(
        self,
        pid: int,
        sock: socket.socket | None,
        group: Group | None,
        spared: Callable[[], Iterable[int]],
        patience: Patience,
    ) -> Worker:
        """The worker at the other ends. Raises ProcessLookupError if it was reaped already."""
        out, err, pulse_read = self.ours
        pidfd = os.pidfd_open(pid)
        pulse = Pulse(pulse_read, pid, patience, time.monotonic())
        return Worker(pid, pidfd, out, err, sock, group, spared, num_oom_kills(), pulse)


def start_script(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    limits: JobLimits,
    group: Group | None,
    spared: Callable[[], Iterable[int]],
    patience: Patience,
) -> Worker:
    """Starts a program with pipes for its output. Raises ConfigError if it cannot be run."""
    pipes = Pipes.open()
    stdout, stderr, pulse = pipes.theirs
    try:
        process = spawn(
            argv,
            dict(env) | {PULSE_VARIABLE: str(pulse)},
            subprocess.DEVNULL,
            stdout,
            stderr,
            cwd=str(cwd),
            pass_fds=[pulse],
            before_exec=_limiter(limits, group),
        )
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        pipes.close_ours()
        if group is not None:
            group.remove()
        said = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot run {argv[0]!r}: {said}") from None
    finally:
        pipes.close_theirs()
        if group is not None:
            group.close_entries()
    process.returncode = 0  # its end is ours to see, by its pid: Popen shall not wait for it
    return pipes.worker(process.pid, None, group, spared, patience)


@dataclass
class Beside:
    """A process that runs beside a worker, and our ends of its pipes, which do not block."""

    pid: int
    pidfd: int
    stdout: int
    stderr: int

    def close(self) -> None:
        for descriptor in (self.pidfd, self.stdout, self.stderr):
            os.close(descriptor)


def start_beside(
    worker: Worker, argv: Sequence[str], env: Mapping[str, str], cwd: Path, limits: JobLimits
) -> Beside:
    """Start a program in the group of a worker, so that it ends with that. Raises ConfigError if it
    cannot be run, OSError if the group is gone.
    """
    group = worker.group.entered() if worker.group is not None else None
    (out, out_write), (err, err_write) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    try:
        process = spawn(
            list(argv),
            env,
            subprocess.DEVNULL,
            out_write,
            err_write,
            cwd=str(cwd),
            before_exec=_limiter(limits, group),
        )
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        os.close(out)
        os.close(err)
        said = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot run {argv[0]!r}: {said}") from None
    finally:
        os.close(out_write)
        os.close(err_write)
        if group is not None:
            group.close_entries()
    process.returncode = 0  # its end is ours to see, by its pid: Popen shall not wait for it
    os.set_blocking(out, False)
    os.set_blocking(err, False)
    return Beside(process.pid, os.pidfd_open(process.pid), out, err)


def confine(pid: int, group: Group | None) -> None:
    """Put a process of ours where it shall be ended, and counted, by itself. Raises OSError."""
    if group is not None:
        group.take(pid)
        group.close_entries()
    if _protects_us():
        Path(OOM_SCORE.format(pid)).write_text("0")


def bound(worker: Worker, limits: JobLimits) -> None:
    """Bound one that begins its work, by its user's present number of processes, and the host's
    kills so far.

    Raises OSError.
    """
    worker.oom_kills = num_oom_kills()
    for kind, most in _bounds(limits, worker.group):
        resource.prlimit(worker.pid, kind, (most, most))


def _pipe() -> tuple[int, int]:
    """Make a large pipe: a process that writes much waits less often."""
    read, write = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # this user may not have so much
        fcntl.fcntl(write, F_SETPIPE_SZ, PIPE_NBYTES)
    return read, write


def _limiter(limits: JobLimits, group: Group | None) -> Callable[[], None]:
    """Return the function that the child calls before it becomes the program."""
    bounds, protects = _bounds(limits, group), _protects_us()
    enter = group.enter if group is not None else None
    setrlimit, score = resource.setrlimit, OOM_SCORE.format("self")

    def limit() -> None:
        if enter is not None:
            enter()
        if protects:
            with open(score, "wb", buffering=0) as file:
                file.write(b"0")
        for kind, most in bounds:
            setrlimit(kind, (most, most))

    return limit


def _protects_us() -> bool:
    """Whether the kernel spares us when memory runs out, which is not meant for a rank."""
    return Path(OOM_SCORE.format("self")).read_text().strip() != "0"


def _bounds(limits: JobLimits, group: Group | None) -> list[tuple[int, int]]:
    """Bounds of a worker, by the kernel's kinds: open files, dumps, processes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = limits.open_files if hard == resource.RLIM_INFINITY else min(limits.open_files, hard)
    found = [(resource.RLIMIT_NOFILE, files), (resource.RLIMIT_CORE, 0)]
    if group is None or not group.bounds_pids:
        processes = _processes_of_user() + limits.pids
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        bound = processes if most == resource.RLIM_INFINITY else min(processes, most)
        found.append((resource.RLIMIT_NPROC, bound))
    return found


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
