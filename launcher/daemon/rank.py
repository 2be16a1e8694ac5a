"""One rank on this machine: its files are gathered, it is launched, watched and ended.

It tells events (events.py); the host tells it the actions, on which
the daemon's mind decided. Its resources stand in rank_resources.py, its programs in programs.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from oneflow.core.errors import ConfigError, OneFlowError, is_disk_full
from oneflow.core.log import get_logger
from oneflow.launcher.daemon.events import (
    Gathered,
    Launched,
    NotGathered,
    ProcessExited,
    TreeEnded,
)
from oneflow.launcher.daemon.logs import STREAMS, LogWriter, Pump
from oneflow.launcher.daemon.orphans import SharedMemory
from oneflow.launcher.daemon.programs import GraphWorker, Place, Program, Script
from oneflow.launcher.daemon.pulse import Standing
from oneflow.launcher.daemon.rank_resources import RankResources
from oneflow.launcher.daemon.workers import Worker
from oneflow.launcher.report import ErrorRecord, cause_of, reason_of
from oneflow.launcher.supervision import KILL_WAIT_S, Exited
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey
from oneflow.services.failpoints import failpoint

FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.1
MEMORY_LOOK_S = 1.0
PUMP_S = 2.0

log = get_logger(__name__)


class Rank:
    """One rank of a job, from Prepare to the end of its last process."""

    def __init__(self, key: AttemptKey, prepare: pb.Prepare, place: Place) -> None:
        self.key = key
        self.prepare = prepare
        self.worker: Worker | None = None
        self.writers: dict[str, LogWriter] = {}
        self.is_script = prepare.spec.kind == prepare.spec.SCRIPT
        self._place = place
        self._own = RankResources(key, prepare, place.settings)
        self.program: Program = (Script if self.is_script else GraphWorker)(
            key, prepare, self._own, place
        )
        self._standing = Standing(
            key, self._own.folder, lambda: self.writers["stderr"].size, place.post
        )
        self._pump: Pump | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._ending: asyncio.Task[None] | None = None
        self._deadline = 0.0
        self._memory = SharedMemory()

    @property
    def trains(self) -> bool:
        """Whether its steps are those of a training."""
        return bool(self.prepare.spec.kind != self.prepare.spec.INFERENCE)

    @property
    def is_ending(self) -> bool:
        """Whether its processes are being ended: none may be added."""
        return self._ending is not None

    # -- beginning ---------------------------------------------------------------------------------

    async def gather(self) -> None:
        """Answers with Gathered or NotGathered."""
        try:
            await self._gather()
        except OneFlowError as error:
            code = error.exit_code if error.reason == "USER_ERROR" else 0  # else as it means
            self._place.post(NotGathered(self.key, str(error), error.reason, code))
        except OSError as error:
            reason = "DISK_FULL" if is_disk_full(error) else "INTERNAL"
            self._place.post(NotGathered(self.key, str(error), reason))
        else:
            self._place.post(Gathered(self.key, self._own.port))

    async def _gather(self) -> None:
        place = self._place
        if self.is_script and not place.settings.allow_scripts:
            raise ConfigError(
                f"the daemon {place.settings.id} runs no scripts: its operator allows them with "
                "`oneflow daemon run --allow-scripts`"
            )
        await self._own.gather(place.cache, place.fetch, place.address)
        await self.program.gather()

    def discard(self) -> None:
        """Give back the gathered files and environment, if it was not launched."""
        self._own.release_port()
        self.program.close()

    def launch(self, master_addr: str, master_port: int) -> None:
        """Answers with Launched, or with ProcessExited if it cannot be run."""
        self._own.release_port()
        try:
            failpoint("daemon.start")
            self._own.make_temp_dir()
            worker = self.program.start(master_addr, master_port, self._keep)
        except (OneFlowError, OSError) as error:
            code = getattr(error, "exit_code", 70)
            reason = getattr(error, "reason", "INTERNAL")
            self._place.post(ProcessExited(self.key, code, reason, str(error), 0))
            return
        self.worker = worker
        folder, limits = self._own.folder, self._place.settings.logs
        self.writers = {s: LogWriter(folder, s, self._own.job_dir, limits) for s in STREAMS}
        pipes = (worker.stdout, worker.stderr)
        self._pump = Pump(dict(zip(pipes, self.writers.values(), strict=True)))
        self._pump.start()
        self._keep(self._look_at_memory(worker))
        self._place.post(Launched(self.key, worker.pid))

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Does it beside the rank, which ends if this fails: nothing else would say so."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._look_how_ended)
        self._tasks.append(task)
        return task

    def _look_how_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        log.error("%s: what the daemon does for it has failed", self.key, exc_info=error)
        cause = f"the daemon failed: {type(error).__name__}: {error}"
        self.program.failed = self.program.failed or pb.Exited(
            exit_code=70, reason="INTERNAL", cause=cause
        )
        if self.worker is not None:
            self.worker.kill()

    # -- running -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Several times a second: a process that stands still for too long has failed."""
        worker = self.worker
        if worker is None or worker.is_over:
            return
        still = self._standing.look(worker)
        if still is not None:
            self._keep(self._standing.give_up(worker, still))

    async def _look_at_memory(self, worker: Worker) -> None:
        while True:
            self._memory.look(worker.alive)
            await asyncio.sleep(MEMORY_LOOK_S)

    # -- ending ------------------------------------------------------------------------------------

    async def exited(self, status: int) -> None:
        """Its own process was reaped. status: as of Popen. Answers with ProcessExited."""
        worker = self.worker
        if worker is None:
            return
        worker.status = status
        self._standing.say_noted(worker)
        await self.program.last_words()
        if status == 0 and (lost := self._own.lost()):
            status = 1
            self.program.failed = pb.Exited(exit_code=1, reason="USER_ERROR", cause=lost)
        if status == 0:
            self._own.tell_that_it_exited()
        found = Exited(self.key.rank, worker.pid, self._status(status))
        record, is_oom = self._record(status), worker.ran_out_of_memory()
        reason, cause = reason_of(found, record, is_oom), cause_of(found, record, is_oom)
        said = worker.group.memory_words() if worker.group is not None else ""
        if reason == "OOM_HOST" and said:
            cause = f"{cause} ({said})"
        self._place.post(ProcessExited(self.key, found.exit_code, reason, cause, worker.pid))
        self.program.refuse_requests(cause or "it has ended")

    def _status(self, status: int) -> int:
        """A worker that fails says with which code; Python itself ends with 1 for any error."""
        told = self.program.failed.exit_code if self.program.failed is not None else 0
        return told if told and status > 0 else status

    def _record(self, status: int) -> ErrorRecord | None:
        failed = self.program.failed
        if failed is not None:
            return ErrorRecord(failed.cause, failed.reason, "")
        return self.program.record(status)

    def end(self, grace_s: float) -> None:
        """Ask all of it to end, kill the rest after `grace_s`; answers with TreeEnded."""
        deadline = time.monotonic() + grace_s
        if self._ending is None:
            self._deadline = deadline
            self._ending = asyncio.ensure_future(self._end())
        self._deadline = min(self._deadline, deadline)

    async def kill(self) -> None:
        """Ends all of it at once; returns when that is done, or cannot be."""
        self.end(0.0)
        if self._ending is not None:
            await asyncio.wait({self._ending}, timeout=2 * KILL_WAIT_S)

    async def _end(self) -> None:
        left = await self._end_processes() if self.worker is not None else 0
        try:
            await self._clean_up(left)
        except Exception:  # whatever stays behind, the rank has ended, and others wait to hear so
            log.exception("%s: what it left cannot be cleaned up", self.key)
        self._place.post(TreeEnded(self.key, left))

    async def _end_processes(self) -> int:
        """End the processes; return the number of those that cannot be killed."""
        worker = self.worker
        if worker is None:
            return 0
        self._memory.look(worker.alive)
        if self._deadline > time.monotonic() and (worker.alive() or not worker.is_over):
            await self._standing.note_at_end(worker)
            failpoint("daemon.stop")
            self.program.stop(worker)
        pause_s = FIRST_LOOK_S
        while worker.alive() or not worker.is_over:
            now = time.monotonic()
            if now >= self._deadline:
                self._memory.look(worker.alive)
                worker.kill()
            if now >= self._deadline + KILL_WAIT_S:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(1.2 * pause_s, LAST_LOOK_S)  # a look may cost a walk through /proc
        return len(worker.alive())

    async def _clean_up(self, num_left: int) -> None:
        failpoint("daemon.shutdown")
        for task in self._tasks:
            task.cancel()
        self.program.close()
        if removed := self._memory.remove():
            log.warning("%s left shared memory behind: %s", self.key, ", ".join(removed[:10]))
        if self._pump is not None:
            await asyncio.to_thread(self._pump.finish, PUMP_S if not num_left else 0.1)
        await self._own.remove_temp_dir()
        if self.worker is not None:
            asyncio.get_running_loop().remove_reader(self.worker.pidfd)
            self.worker.close()
