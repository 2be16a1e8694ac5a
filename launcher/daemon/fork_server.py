"""The daemon's side of its fork server (oneflow/jobs/fork_server.py): a worker for each graph job,
forked from a process that has imported all that it needs.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from oneflow.core.errors import CODES, ConfigError, OneFlowError
from oneflow.core.frames import FrameDecoder
from oneflow.core.log import get_logger
from oneflow.core.processes import own_mark
from oneflow.launcher.daemon.cgroups import Group
from oneflow.launcher.daemon.orphans import MARK
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.daemon.workers import Pipes, Worker, bound, confine
from oneflow.launcher.processes import send_signal, spawn
from oneflow.protos import cluster_pb2 as pb
from oneflow.services.forking import ANSWER, READY, SETTLED, ask

ARGV = (sys.executable, "-u", "-m", "oneflow.jobs.fork_server")
READY_S = 120.0
FORK_S = 30.0  # it may be importing, on a busy host
END_S = 5.0
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
TAIL_NBYTES = 16 << 10

log = get_logger(__name__)


class WorkerLostError(OneFlowError):
    """A worker that waited for its job has ended: of a signal, or by a mistake of ours."""

    def __init__(self, problem: str, status: int) -> None:
        super().__init__(f"the worker ended before its job began: {problem}")
        self.reason = "SIGNAL" if status < 0 else "INTERNAL"
        self.exit_code = 128 - status if status < 0 else CODES["INTERNAL"]


@dataclass
class Server:
    """The process. words: its output, if it fails. answers: to those that asked for a worker.

    is_ready: it can fork.  is_settled: no worker that is forked later would be quicker.
    """

    pid: int
    pidfd: int
    control: socket.socket
    words: int
    started_at: float
    answers: asyncio.Queue[bytes]
    is_ready: bool = False
    is_settled: bool = False

    def close(self) -> None:
        self.control.close()
        os.close(self.pidfd)
        os.close(self.words)


class ForkServer:
    """Keeps the process, and a worker forked ahead of its job; at most one waits for its job.

    If the process ends it is started again, more slowly each time. A worker that ends before its
    job is replaced when the job comes: one that cannot live shall not be forked again and again.
    """

    def __init__(
        self,
        settings: DaemonSettings,
        make_group: Callable[[], Group | None],
        spared: Callable[[], Iterable[int]],
        watch_exit: Callable[[int], None],
    ) -> None:
        self._settings = settings
        self._make_group, self._spared, self._watch_exit = make_group, spared, watch_exit
        self._server: Server | None = None
        self._worker: Worker | None = None
        self._is_waiting = False  # the worker, for its job
        self._is_taken = False  # the one before it runs
        self._listening: asyncio.Task[None] | None = None
        self._making: asyncio.Task[None] | None = None
        self._restarting: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._failures = 0
        self._problem = ""
        self._last_status = 0  # of a worker that ended before its job

    @property
    def pids(self) -> set[int]:
        """The process, and the worker that waits for a job."""
        return {found.pid for found in (self._server, self._worker) if found is not None}

    def counts(self) -> tuple[int, int]:
        """(warming, warm): whether it imports, or can fork at once."""
        is_there = self._server is not None
        is_ready = self._server is not None and self._server.is_ready
        return int(is_there and not is_ready), int(is_ready)

    def start(self) -> None:
        """Starts the process, or has it fork the next worker, unless they are there: the last one
        that was taken has ended.
        """
        self._is_taken = False
        if self._server is None:
            self._start_server()
        else:
            self._fork_ahead(self._server)

    def _start_server(self) -> None:
        if self._restarting is not None:
            self._restarting.cancel()
            self._restarting = None
        try:
            server = self._server = self._spawn()
        except (OSError, subprocess.SubprocessError) as error:
            self._failed(f"cannot run {ARGV[0]!r}: {getattr(error, 'strerror', None) or error}")
            return
        self._watch_exit(server.pidfd)
        self._listening = asyncio.ensure_future(self._hear(server))

    async def wait_ready(self) -> None:
        """Returns when a worker waits for its job. Raises ConfigError if none gets so far."""
        deadline = time.monotonic() + READY_S
        self.start()
        before = self._failures
        while not (self._is_waiting and self._is_alive()):
            if self._failures > before + 1:
                raise ConfigError(f"no worker starts on this host: {self._problem}")
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ConfigError(f"no worker was ready within {READY_S:g} s: {self._problem}")
            server = self._server
            if server is not None:
                self._begin_to_make(server)
            self._changed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)

    def take(self) -> Worker:
        """It is a rank's from now on. Raises OSError, or WorkerLostError if it has ended."""
        worker = self._worker
        if worker is None or not self._is_waiting:
            raise WorkerLostError(self._problem, self._last_status)
        bound(worker, self._settings.limits)
        self._worker, self._is_waiting, self._is_taken = None, False, True
        if not self._settings.warm:
            self._stop_server()
        return worker

    def look(self) -> None:
        """A worker that stands still for too long is of no use: the next one is forked."""
        worker = self._worker
        still = worker.pulse.look(time.monotonic()) if worker is not None else None
        if worker is None or still is None:
            return
        log.warning("the worker that waits (process %d): %s", worker.pid, still)
        if still.is_final:
            worker.kill()

    def ended(self, pid: int, status: int) -> None:
        """A child was reaped."""
        server, worker = self._server, self._worker
        if worker is not None and worker.pid == pid:
            worker.status = status
            if self._is_waiting:
                self._lost(worker)
        elif server is not None and server.pid == pid:
            said = self._problem if self._making is not None else _tail(server.words)
            self._forget(server)
            self._failed(f"it ended with status {status}: {said}")

    def _lost(self, worker: Worker) -> None:
        self._last_status = worker.status or 0
        self._problem = f"it ended with status {worker.status}: {_tail(worker.stderr)}"
        log.warning("the worker that waited for a job: %s", self._problem)
        self._worker, self._is_waiting = None, False
        _close(worker)
        self._changed.set()

    def _is_alive(self) -> bool:
        """Whether the worker is, or is being made: one that has ended may not be reaped yet."""
        worker = self._worker
        return worker is not None and not select.select([worker.pidfd], [], [], 0)[0]

    def stop(self) -> None:
        """Ends all of it for good."""
        if self._restarting is not None:
            self._restarting.cancel()
        self._stop_server()
        worker, self._worker = self._worker, None
        if worker is not None and self._is_waiting:
            self._is_waiting = False
            _end(worker.pid, worker.pidfd)
            _close(worker)

    # -- the process -------------------------------------------------------------------------------

    def _spawn(self) -> Server:
        env = self._settings.rank_base_env() | {MARK: own_mark(), "PYTHONSAFEPATH": "1"}
        env["OPENBLAS_NUM_THREADS"] = "1"  # no threads before the fork; the job says how many after
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words, theirs_words = os.pipe2(os.O_CLOEXEC)
        try:
            process = spawn(
                [*ARGV, "--fd", str(theirs.fileno())],
                env,
                subprocess.DEVNULL,
                theirs_words,
                theirs_words,
                cwd=str(self._settings.state_dir),
                pass_fds=[theirs.fileno()],
            )
        except (OSError, subprocess.SubprocessError):
            ours.close()
            os.close(words)
            raise
        finally:
            theirs.close()
            os.close(theirs_words)
        process.returncode = 0  # its end is ours to see, by its pid: Popen shall not wait for it
        ours.setblocking(False)
        pidfd = os.pidfd_open(process.pid)
        return Server(process.pid, pidfd, ours, words, time.monotonic(), asyncio.Queue())

    async def _hear(self, server: Server) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # its end will be told
            while said := await loop.sock_recv(server.control, ANSWER.size):
                if said == READY:
                    server.is_ready, self._failures = True, 0
                    took_s = time.monotonic() - server.started_at
                    log.info("workers can be forked after %.2f s", took_s)
                    self._changed.set()
                elif said == SETTLED:
                    server.is_settled = True
                    self._fork_ahead(server)
                else:
                    server.answers.put_nowait(said)

    def _failed(self, problem: str) -> None:
        self._failures += 1
        self._problem = problem
        self._changed.set()
        pause_s = min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LAST_PAUSE_S)
        log.warning("the fork server failed, next one in %g s: %s", pause_s, problem)
        self._restarting = asyncio.get_running_loop().call_later(pause_s, self._restart)

    def _restart(self) -> None:
        self._restarting = None
        if self._server is None:
            self._start_server()

    def _stop_server(self) -> None:
        server = self._server
        if server is not None:
            _end(server.pid, server.pidfd)
            self._forget(server)

    def _forget(self, server: Server) -> None:
        self._server = None
        for task in (self._listening, self._making):
            if task is not None:
                task.cancel()
        self._listening = self._making = None
        asyncio.get_running_loop().remove_reader(server.pidfd)
        server.close()

    # -- a worker ----------------------------------------------------------------------------------

    def _fork_ahead(self, server: Server) -> None:
        """The fork shall be over when the job comes."""
        if server.is_settled and self._settings.warm and not self._is_taken:
            self._begin_to_make(server)

    def _begin_to_make(self, server: Server) -> None:
        if server.is_ready and self._making is None and self._worker is None:
            self._making = asyncio.ensure_future(self._make(server))

    async def _make(self, server: Server) -> None:
        """Fork a worker and wait until it is ready; if that fails, the process is started anew."""
        try:
            worker = self._worker = await self._fork(server)
            self._is_waiting = True
            if worker.is_over:  # it was reaped before its words were read
                self._failures += 1
                self._lost(worker)
        except (OneFlowError, OSError, asyncio.TimeoutError) as error:
            self._problem = str(error) or f"it forks no worker within {FORK_S:g} s"
            log.warning("no worker can be forked: %s", self._problem)
            os.kill(server.pid, signal.SIGKILL)  # its end is told
            return
        finally:
            if not self._is_waiting:
                self._worker = None
        self._making = None
        self._changed.set()

    async def _fork(self, server: Server) -> Worker:
        with ExitStack() as if_it_fails:
            with ExitStack() as once_forked:
                pipes = Pipes.open()
                once_forked.callback(pipes.close_theirs)
                if_it_fails.callback(pipes.close_ours)
                ours, theirs = socket.socketpair()
                once_forked.callback(theirs.close)
                if_it_fails.callback(ours.close)
                waits, known = os.pipe2(os.O_CLOEXEC)
                once_forked.callback(os.close, waits)
                once_forked.callback(os.close, known)
                ours.setblocking(False)
                ask(server.control, waits, (*pipes.theirs, theirs.fileno()))
                (pid,) = ANSWER.unpack(await asyncio.wait_for(server.answers.get(), FORK_S))
                if pid < 0:
                    raise ConfigError(f"no process can be forked here: {os.strerror(-pid)}")
                group = self._make_group()
                if group is not None:
                    if_it_fails.callback(group.remove)
                confine(pid, group)
                worker = pipes.worker(pid, ours, group, self._spared, self._settings.patience)
                if_it_fails.callback(_abandon, worker)
                self._worker = worker  # spared from now on: it becomes our child
            self._watch_exit(worker.pidfd)
            await asyncio.wait_for(_ready(worker), FORK_S)
            if_it_fails.pop_all()
            return worker


async def _ready(worker: Worker) -> None:
    """Return once it says that it is. Raises ConfigError or ProtocolError."""
    decoder, loop = FrameDecoder(pb.WorkerMessage), asyncio.get_running_loop()
    while isinstance(worker.sock, socket.socket):
        data = await loop.sock_recv(worker.sock, 4096)
        if not data:
            raise ConfigError(f"it ended before it was ready: {_tail(worker.stderr)}")
        if any(message.HasField("ready") for message in decoder.feed(data)):
            return


def _abandon(worker: Worker) -> None:
    """End one that nobody will have; the rest of it is reaped with the others."""
    asyncio.get_running_loop().remove_reader(worker.pidfd)
    send_signal([worker.pid], signal.SIGKILL)
    os.close(worker.pidfd)


def _end(pid: int, pidfd: int) -> None:
    send_signal([pid], signal.SIGKILL)
    select.select([pidfd], [], [], END_S)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _close(worker: Worker) -> None:
    asyncio.get_running_loop().remove_reader(worker.pidfd)
    os.close(worker.stdout)
    os.close(worker.stderr)
    worker.close()


def _tail(descriptor: int) -> str:
    """Return the last line of its output."""
    os.set_blocking(descriptor, False)
    text = b""
    with suppress(OSError):
        while data := os.read(descriptor, TAIL_NBYTES):
            text = (text + data)[-TAIL_NBYTES:]
    lines = text.decode(errors="backslashreplace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
