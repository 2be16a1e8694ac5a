"""Commands that run beside a rank, for the owner of its job: `job exec`.

Rules that the code cannot show:
* A command lives at most as long as the rank that it is beside: it is in that rank's control group,
  or, where there is none, a process of the daemon's that is ended with those of the rank.
* It is bounded in time and in its output, and its session is killed when either is over, or
  when nobody hears it any more. Processes that it leaves at its own end stay until the rank ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oneflow.core.errors import ConfigError, OneFlowError
from oneflow.core.log import get_logger
from oneflow.launcher.daemon.attach import Attachment
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.daemon.workers import Beside, start_beside
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey, key_of

if TYPE_CHECKING:
    from oneflow.launcher.daemon.rank import Rank

MAX_AT_ONCE = 8
MAX_LIMIT_S = 3600.0
MAX_NBYTES = 4 << 20  # of what it writes
PIECE_NBYTES = 64 << 10
LEFT_S = 0.5  # in which what it has started may still write, once it has ended itself
ENDED_LATE = 124

log = get_logger(__name__)


class Executor:
    """Runs commands beside ranks. rank: of an attempt that goes on here; None for any other. watch:
    reaps as soon as the process of this descriptor has ended.
    """

    def __init__(
        self,
        settings: DaemonSettings,
        rank: Callable[[AttemptKey], Rank | None],
        attachment: Attachment,
        watch: Callable[[int], None],
    ) -> None:
        self._settings, self._rank, self._attachment = settings, rank, attachment
        self._watch = watch
        self._running: dict[int, _Run] = {}  # by process

    def ended(self, pid: int, status: int) -> bool:
        """A child was reaped. Returns whether it was one of ours."""
        run = self._running.pop(pid, None)
        if run is not None and not run.status.done():
            run.status.set_result(status)
        return run is not None

    async def execute(self, request: pb.Exec) -> None:
        """Answers with pieces until the last, which says how it ended."""
        try:
            run = self._start(request)
        except (OneFlowError, OSError) as error:
            self._say(pb.ExecData(request=request.request, is_last=True, error=str(error)))
            return
        limit_s = min(max(request.limit_s, 0.1), MAX_LIMIT_S)
        reading = [asyncio.ensure_future(self._read(run, s)) for s in ("stdout", "stderr")]
        last = pb.ExecData(request=request.request, is_last=True)
        try:
            first: list[asyncio.Future[Any]] = [run.status, run.stopped]
            await asyncio.wait(first, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if run.status.done():
                await asyncio.wait(reading, timeout=LEFT_S)
                status = run.status.result()
                last.exit_code = status if status >= 0 else 128 - status
            else:
                last.exit_code = ENDED_LATE
                last.note = run.why or f"it was ended after {limit_s:g} s"
            if run.is_full:
                last.note = f"it was ended: it wrote more than {MAX_NBYTES >> 20} MiB"
                last.exit_code = last.exit_code or ENDED_LATE
        finally:
            if not run.status.done():
                run.kill()
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            asyncio.get_running_loop().remove_reader(run.process.pidfd)
            run.process.close()
        self._say(last)

    def cancel(self, number: int) -> None:
        """Nobody waits for the answers to this request any more."""
        for run in self._running.values():
            if run.request == number:
                run.stop("nobody heard it any more")

    def _start(self, request: pb.Exec) -> _Run:
        key = key_of(request.id)
        rank = self._rank(key)
        worker = rank.worker if rank is not None else None
        if not self._settings.allow_scripts:
            raise ConfigError(f"the daemon {self._settings.id} runs no scripts, so no commands")
        if rank is None or worker is None or worker.is_over or rank.is_ending:
            raise ConfigError(f"{key} does not run here now")
        if len(self._running) >= MAX_AT_ONCE:
            raise ConfigError(f"{MAX_AT_ONCE} commands run here already")
        env, folder = rank.program.beside()
        started = start_beside(worker, request.argv, env, folder, self._settings.limits)
        run = self._running[started.pid] = _Run(request.request, started)
        self._watch(started.pidfd)
        log.info("%s: runs a command beside it, process %d", key, started.pid)
        return run

    async def _read(self, run: _Run, stream: str) -> None:
        pipe = getattr(run.process, stream)
        while True:
            data = await _read_some(pipe)
            if not data or run.is_full:
                return
            run.nbytes += len(data)
            if run.is_full:
                run.stop("it wrote too much")
                return
            await self._attachment.wait_for_room()
            self._say(pb.ExecData(request=run.request, stream=stream, data=data))

    def _say(self, data: pb.ExecData) -> None:
        self._attachment.send(pb.DaemonMessage(exec=data), is_bulk=True)


class _Run:
    """One command. stopped: why it must end."""

    def __init__(self, request: int, process: Beside) -> None:
        loop = asyncio.get_running_loop()
        self.request, self.process, self.nbytes = request, process, 0
        self.status: asyncio.Future[int] = loop.create_future()
        self.stopped: asyncio.Future[str] = loop.create_future()

    @property
    def is_full(self) -> bool:
        return self.nbytes > MAX_NBYTES

    @property
    def why(self) -> str:
        return f"it was ended: {self.stopped.result()}" if self.stopped.done() else ""

    def stop(self, why: str) -> None:
        if not self.stopped.done():
            self.stopped.set_result(why)

    def kill(self) -> None:
        """End its session. Only before it was reaped: then its number may be another's."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


async def _read_some(pipe: int) -> bytes:
    """Some bytes of a pipe that does not block; b"": it is at its end."""
    loop = asyncio.get_running_loop()
    while True:
        with suppress(BlockingIOError):
            return os.read(pipe, PIECE_NBYTES)
        ready = asyncio.Event()
        loop.add_reader(pipe, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(pipe)
