"""The worker that waits for the next graph job: it has imported all it needs already."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from oneflow.core.errors import ConfigError, ProtocolError
from oneflow.core.frames import FrameDecoder
from oneflow.core.log import get_logger
from oneflow.launcher.daemon.cgroups import Group
from oneflow.launcher.daemon.leftovers import MARK, own_mark
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.daemon.workers import Worker, start_warm
from oneflow.protos import cluster_pb2 as pb

READY_S = 120.0
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
TAIL_NBYTES = 16 << 10

log = get_logger(__name__)


class WarmWorker:
    """A worker that has imported everything and waits for a job; at most one. If it ends without a
    job, another is started, more slowly each time.
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
        self._worker: Worker | None = None
        self._reading: asyncio.Task[None] | None = None
        self._restarting: asyncio.TimerHandle | None = None
        self._is_ready = False
        self._changed = asyncio.Event()
        self._failures = 0
        self._problem = ""
        self._started_at = 0.0

    @property
    def pid(self) -> int:
        """0 if there is none."""
        return self._worker.pid if self._worker else 0

    def counts(self) -> tuple[int, int]:
        """(warming, warm)."""
        is_there = self._worker is not None
        return int(is_there and not self._is_ready), int(is_there and self._is_ready)

    def start(self) -> None:
        """Starts one unless there is one."""
        if self._worker is not None:
            return
        if self._restarting is not None:
            self._restarting.cancel()
            self._restarting = None
        settings = self._settings
        env = settings.rank_base_env() | {MARK: own_mark()}
        self._started_at = time.monotonic()
        try:
            group = self._make_group()
            folder, limits = settings.state_dir, settings.limits
            self._worker = start_warm(env, folder, limits, group, self._spared, settings.patience)
        except ConfigError as error:
            self._failed(str(error))
            return
        self._is_ready = False
        self._watch_exit(self._worker.pidfd)
        self._reading = asyncio.ensure_future(self._read_ready(self._worker))

    async def wait_ready(self) -> None:
        """Returns when there is one that is ready. Raises ConfigError if none gets so far."""
        deadline = time.monotonic() + READY_S
        self.start()
        before = self._failures
        while not self._is_ready:
            if self._failures > before + 1:
                raise ConfigError(f"no worker starts on this host: {self._problem}")
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ConfigError(f"no worker was ready within {READY_S:g} s: {self._problem}")
            self._changed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)

    def take(self) -> Worker:
        """It is a rank's from now on. Raises ConfigError if it has ended meanwhile."""
        worker = self._worker
        if worker is None or not self._is_ready:
            raise ConfigError(f"the worker ended before its job began: {self._problem}")
        self._worker, self._is_ready = None, False
        if self._reading is not None:
            self._reading.cancel()
        return worker

    def look(self) -> None:
        """One that stands still for too long is of no use: it ends, and the next one is started."""
        worker = self._worker
        still = worker.pulse.look(time.monotonic()) if worker is not None else None
        if worker is None or still is None:
            return
        log.warning("the warm worker (process %d): %s", worker.pid, still)
        if still.is_final:
            worker.kill()

    def ended(self, pid: int, status: int) -> None:
        """A child was reaped."""
        worker = self._worker
        if worker is None or worker.pid != pid:
            return
        worker.process.returncode = status
        self._worker, self._is_ready = None, False
        said = _tail(worker.stderr)
        self._close(worker)
        self._failed(f"it ended with status {status}: {said}")

    def stop(self) -> None:
        """Ends it for good."""
        if self._restarting is not None:
            self._restarting.cancel()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.process.kill()
            worker.process.wait(5)
            self._close(worker)

    def _close(self, worker: Worker) -> None:
        if self._reading is not None:
            self._reading.cancel()
        os.close(worker.stdout)
        os.close(worker.stderr)
        worker.close()

    def _failed(self, problem: str) -> None:
        self._failures += 1
        self._problem = problem
        self._changed.set()
        pause_s = min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LAST_PAUSE_S)
        log.warning("the warm worker failed, next one in %g s: %s", pause_s, problem)
        self._restarting = asyncio.get_running_loop().call_later(pause_s, self._restart)

    def _restart(self) -> None:
        self._restarting = None
        self.start()

    async def _read_ready(self, worker: Worker) -> None:
        decoder, loop = FrameDecoder(pb.WorkerMessage), asyncio.get_running_loop()
        sock = worker.sock
        while isinstance(sock, socket.socket):
            try:
                data = await loop.sock_recv(sock, 4096)
                found = decoder.feed(data)
            except (OSError, ProtocolError) as error:
                self._problem = str(error)
                worker.kill()
                return
            if not data:
                return
            if any(message.HasField("ready") for message in found):
                self._is_ready, self._failures = True, 0
                log.info("a worker is warm after %.2f s", time.monotonic() - self._started_at)
                self._changed.set()
                return


def _tail(descriptor: int) -> str:
    """The last line of what it wrote."""
    os.set_blocking(descriptor, False)
    text = b""
    with suppress(OSError):
        while data := os.read(descriptor, TAIL_NBYTES):
            text = (text + data)[-TAIL_NBYTES:]
    lines = text.decode(errors="backslashreplace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
