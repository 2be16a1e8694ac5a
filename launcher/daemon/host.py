"""The daemon's body: does the actions of its mind (daemon.py), and tells it the events.

All runs on one event loop in the main thread: worker processes must be started from there, for they
die with the thread that started them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from oneflow import __version__
from oneflow.core.control_channel import PROTOCOL
from oneflow.core.errors import InternalError, ProtocolError
from oneflow.core.log import get_logger
from oneflow.core.metrics import METRICS
from oneflow.core.metrics_samples import Aggregator, Sample
from oneflow.launcher.daemon.attach import Attachment
from oneflow.launcher.daemon.blobs import BlobCache, fetch_with
from oneflow.launcher.daemon.cgroups import Group, find_hierarchies, make_group
from oneflow.launcher.daemon.daemon import TOLD, Daemon, Phase
from oneflow.launcher.daemon.environments import Environments
from oneflow.launcher.daemon.events import (
    Action,
    Disconnected,
    Drop,
    EndTree,
    Event,
    Gather,
    Launch,
    Leave,
    LeftoversGone,
    NotGathered,
    ProcessExited,
    Progressed,
    Rejoin,
    ShutdownAsked,
    Ticked,
    TreeEnded,
)
from oneflow.launcher.daemon.executing import Executor
from oneflow.launcher.daemon.fork_server import ForkServer
from oneflow.launcher.daemon.inspecting import Inspector
from oneflow.launcher.daemon.marks import read_mark
from oneflow.launcher.daemon.programs import Place
from oneflow.launcher.daemon.rank import Rank
from oneflow.launcher.daemon.requests import Requests
from oneflow.launcher.daemon.retired import RetiredJobs
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.daemon.watchdog import Watchdog
from oneflow.launcher.processes import reap
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.limits import parse_folder_name, up_to
from oneflow.scheduler.jobs.messages import AttemptKey
from oneflow.services.metrics_daemon import DAEMON

MAX_KEPT = 8000  # ids in a Hello, which must stay a small message
MAX_ROOTS, MAX_ROOT_CHARS = 128, 1024

log = get_logger(__name__)
T = TypeVar("T")


class Host:
    """One daemon process. `run` returns its exit code."""

    def __init__(self, settings: DaemonSettings, address: str) -> None:
        self.settings = settings
        self._roots = settings.roots()  # once: a file system that hangs shall not hold up the loop
        self.mind = Daemon(settings.times)
        self.attachment = Attachment(
            settings, self._hello, self._hear, lambda: self.post(Disconnected())
        )
        self._address = address
        self._incarnation = secrets.randbits(64)
        self._rank: Rank | None = None
        self._ranks: dict[
            AttemptKey, Rank
        ] = {}  # gathered or running: one, but while it is dropped
        self._gathering: dict[AttemptKey, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._counts: dict[AttemptKey, Aggregator] = {}
        self._unkillable: list[int] = []
        self._num_groups = 0
        self._hierarchies = find_hierarchies()
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._watchdog = Watchdog(settings.stuck_s)
        self._cache = BlobCache(settings.state_dir / "cache", settings.cache_nbytes)
        self.forks = ForkServer(settings, self._make_group, self._spared, self._watch_exit)
        self._requests = Requests(
            settings, self._running_writers, self._running_rank, self.attachment
        )
        self._retired = RetiredJobs(settings.jobs_dir, settings.removed_dir)
        self._environments = Environments(
            settings.state_dir / "environments", settings.rank_base_env()
        )
        self._inspector = Inspector(settings, self._running_rank, self.attachment)
        self._executor = Executor(settings, self._running_rank, self.attachment, self._watch_exit)
        self.on_ready: Callable[[], object] = lambda: None  # it may be given work

    # -- life --------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Until it is told to leave."""
        self._watchdog.start()
        if self.settings.warm:
            self.forks.start()
        line = self._spawn(self.attachment.run())
        beats = self._spawn(self._watchdog.beat(self._tick))
        try:
            first: list[asyncio.Future[Any]] = [line, beats, self._exit]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._exit.done():
                last: list[asyncio.Task[Any]] = [self._spawn(self.attachment.leave()), line]
                await asyncio.wait(last, timeout=5)
                return self._exit.result()
            for task in (line, beats):
                if task.done():
                    task.result()
            return 0
        finally:
            await self._clean_up()

    def shut_down(self) -> None:
        """Shut down as SIGTERM asks: in order the first time, at once the second."""
        self.post(ShutdownAsked())

    async def _clean_up(self) -> None:
        """Only after an error of our own a rank still runs here."""
        for rank in [rank for rank in self._ranks.values() if rank.worker is not None]:
            await rank.kill()
        self.forks.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- events and actions ------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        """Queue an event; it is handled after the one that is being handled now."""
        asyncio.get_running_loop().call_soon(self._step, event)

    def _step(self, event: Event) -> None:
        match event:
            case Progressed():
                self._count_progress(event)
                if event.report.checkpoint:
                    METRICS.checkpointed(event.key.job_id, event.report.checkpoint_step)
            case ProcessExited():
                self._warm_up()  # while what is left of the rank is cleared away
            case TreeEnded():
                METRICS.job_ended(event.key.job_id)
                if (listener := self._counts.pop(event.key, None)) is not None:
                    listener.ended()
                self._rank_ended(event)
        for action in self.mind.step(event, time.monotonic()):
            self._perform(action)
        if isinstance(event, TreeEnded) and (ended := self.mind.over.get(event.key)):
            DAEMON.worker_exited(ended.end.reason)
            log.info("%s ended: %s %s", event.key, ended.end.reason, ended.end.cause)
        self._count_workers()

    def _count_progress(self, event: Progressed) -> None:
        rank = self._ranks.get(event.key)
        if rank is not None and not rank.trains:
            return  # a server that nobody asks anything stands still, and is well
        loss = event.report.metrics.get("loss") if self.settings.shows_loss else None
        METRICS.progressed(event.key.job_id, event.report.step, event.key.rank, loss)

    def _count(self, key: AttemptKey, told: list[Sample]) -> None:
        """Take the counts of a rank."""
        listener = self._counts.get(key)
        if listener is None:
            listener = self._counts[key] = Aggregator(METRICS, key.job_id)
        for _ in range(listener.take(told)):
            DAEMON.message_rejected("malformed")
        rank = self._ranks.get(key)
        if rank is not None and rank.is_script:  # which tells of its progress in no other way
            for number in told:
                if number.name == "steps" and number.value > 0:
                    step = pb.Progress(id=key.wire, step=int(number.value))
                    self.post(Progressed(key, step))

    def _perform(self, action: Action) -> None:
        match action:
            case pb.DaemonMessage():
                self.attachment.send(action, is_kept=action.HasField("progress"))
            case Gather():
                self._gather(action)
            case Drop():
                self._drop(action.key)
            case Launch():
                self._rank = self._ranks[action.key]
                self._rank.launch(action.master_addr, action.master_port)
                if self._rank.worker is not None:
                    self._watch_exit(self._rank.worker.pidfd)
            case EndTree():
                self._ranks[action.key].end(action.grace_s)
            case Rejoin():
                if action.is_new:
                    self._incarnation = secrets.randbits(64)
                self.attachment.rejoin(action.pause_s, says_farewell=action.is_new)
            case Leave():
                if not self._exit.done():
                    self._exit.set_result(action.exit_code)

    def _gather(self, action: Gather) -> None:
        place = Place(
            self.settings,
            self._address,
            self._cache,
            fetch_with(self.attachment.stub, self.attachment.metadata),
            self._environments,
            self._make_group,
            self._spared,
            self.forks.wait_ready,
            self.forks.take,
            self.post,
            self._requests.say_infer,
            self._count,
        )
        rank = Rank(action.key, action.work, place)
        self._ranks[action.key] = rank
        task = self._gathering[action.key] = self._spawn(rank.gather())
        task.add_done_callback(partial(self._look_how_gathered, action.key))

    def _look_how_gathered(self, key: AttemptKey, task: asyncio.Task[None]) -> None:
        """End the attempt if gathering died of any error: nobody else would answer for it."""
        if self._exit.done() or self._gathering.get(key) is not task:
            return  # it was told to end
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s cannot be made ready", key, exc_info=error)
            why = f"the daemon failed as it made the job ready: {type(error).__name__}: {error}"
            self.post(NotGathered(key, why, InternalError.reason))

    def _drop(self, key: AttemptKey) -> None:
        task = self._gathering.pop(key, None)
        if task is not None:
            task.cancel()
        rank = self._ranks.pop(key, None)
        if rank is not None:
            rank.discard()

    def _rank_ended(self, event: TreeEnded) -> None:
        rank = self._ranks.pop(event.key, None)
        self._gathering.pop(event.key, None)
        self._rank = None
        if rank is not None and rank.worker is not None and event.num_left:
            self._unkillable = rank.worker.alive()
            log.error("%s: processes %s cannot be killed", event.key, self._unkillable)
        self._warm_up()

    def _warm_up(self) -> None:
        if self.settings.warm and not self.mind.is_leaving:
            self.forks.start()

    # -- the scheduler -----------------------------------------------------------------------------

    def _hello(self) -> pb.Hello:
        settings = self.settings
        return pb.Hello(
            daemon=settings.id,
            node=settings.node_name,
            device_type=settings.device_type,
            device_index=settings.device_index,
            address=self._address,
            incarnation=self._incarnation,
            running=self.mind.running(),
            version=__version__,
            protocol=PROTOCOL,
            pid=os.getpid(),
            epoch=self.mind.epoch,
            draining=self.mind.is_unable,
            folder=str(settings.jobs_dir),
            kept=kept_jobs(settings.jobs_dir),
            data_roots=self._data_roots(),
            mark=read_mark(settings.state_dir),
            labels=settings.labels,
        )

    def _data_roots(self) -> pb.DataRoots | None:
        """None: more than a Hello takes."""
        roots = self._roots
        is_much = len(roots) > MAX_ROOTS or any(len(root) > MAX_ROOT_CHARS for root in roots)
        return None if is_much else pb.DataRoots(folders=roots)

    def _hear(self, message: pb.SchedulerMessage) -> None:
        try:
            self._obey(message)
        except ProtocolError as error:
            DAEMON.message_rejected("malformed")
            log.warning("%s", error)

    def _obey(self, message: pb.SchedulerMessage) -> None:
        kind = message.WhichOneof("kind")
        match kind:
            case "read_log":
                self._spawn(self._requests.read_log(message.read_log))
            case "read_file":
                self._spawn(self._requests.read_file(message.read_file))
            case "infer":
                self._requests.infer(message.infer)
            case "inspect":
                self._spawn(self._inspector.inspect(message.inspect))
            case "exec":
                self._execute(message.exec)
            case "forget":
                self._spawn(asyncio.to_thread(self._forget, _folder(message.forget), False))
            case "retire":
                self._spawn(asyncio.to_thread(self._forget, _folder(message.retire), True))
            case "welcome":
                log.info("attached to %s as %s", self.settings.scheduler, self.settings.id)
                if not self.mind.is_leaving:
                    self.on_ready()
                self._step(message)
            case "fenced":
                log.warning("fenced: %s", message.fenced)
                self._step(message)
            case _ if kind in TOLD:
                self._step(message)
            case _:
                DAEMON.message_rejected("unknown")

    def _execute(self, request: pb.Exec) -> None:
        if request.is_cancelled:
            self._executor.cancel(request.request)
        else:
            self._spawn(self._executor.execute(request))

    def _forget(self, folder: str, is_retired: bool) -> None:
        in_use = {key.folder for key in list(self._ranks)}
        for name in up_to(folder, job_folders(self.settings.jobs_dir)):
            if name in in_use:
                continue
            if is_retired:
                self._retired.retire(name)
            else:
                shutil.rmtree(self.settings.jobs_dir / name, ignore_errors=True)

    def _running_rank(self, key: AttemptKey) -> Rank | None:
        return self._ranks.get(key)

    def _running_writers(self, key: AttemptKey) -> dict[str, Any]:
        rank = self._ranks.get(key)
        return dict(rank.writers) if rank is not None else {}

    # -- processes ---------------------------------------------------------------------------------

    def _make_group(self) -> Group | None:
        if not self.settings.use_groups:
            return None
        self._num_groups += 1
        limits = self.settings.limits
        group = make_group(self._hierarchies, self._num_groups, limits.pids, limits.memory_nbytes)
        if limits.memory_nbytes and (group is None or not group.bounds_memory):
            log.warning("ranks' memory is not bounded: no control group can do that here")
        return group

    def _spared(self) -> set[int]:
        """Children of ours that are no rank's business."""
        ours = (*self.forks.pids, *self._environments.pids, *self._unkillable)
        return {self._watchdog.pid, *ours}

    def _watch_exit(self, pidfd: int) -> None:
        """Reaps as soon as that process has ended."""
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(pidfd)
            self._reap()

        loop.add_reader(pidfd, ended)

    def _reap(self) -> None:
        for pid, status in reap():
            rank = self._rank
            if rank is not None and rank.worker is not None and rank.worker.pid == pid:
                self._spawn(rank.exited(status))
            elif not (self._executor.ended(pid, status) or self._watchdog.ended(pid, status)):
                self.forks.ended(pid, status)

    def _tick(self) -> None:
        self._reap()
        self.forks.look()
        if self._rank is not None:
            self._rank.look()
        self._step(Ticked())
        if self._retired.is_due():
            self._spawn(asyncio.to_thread(self._retired.sweep))
        if self._unkillable:
            self._unkillable = [pid for pid in self._unkillable if os.path.exists(f"/proc/{pid}")]
            if not self._unkillable:
                self._step(LeftoversGone())

    def _count_workers(self) -> None:
        phase, states = self.mind.phase, DAEMON.workers
        states["warming"], states["warm"] = self.forks.counts()
        states["running"] = int(phase is Phase.RUNNING)
        states["stopping"] = int(phase is Phase.STOPPING)
        states["unkillable"] = len(self._unkillable)


def _folder(name: str) -> str:
    """Return the name of a job's folder, which becomes part of a path. Raises ProtocolError."""
    if parse_folder_name(name) is None:
        raise ProtocolError(f"no job has a folder {name[:80]!r}")
    return name


def kept_jobs(folder: Path) -> list[str]:
    """Names of the jobs' folders that there are; the oldest if they are too many to tell."""
    return job_folders(folder)[:MAX_KEPT]


def job_folders(folder: Path) -> list[str]:
    """Names of the jobs' folders that there are, the oldest first."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.stat().st_mtime, entry.name) for entry in entries if entry.is_dir()]
    except OSError:  # none yet, or one that is just being removed: the next Hello will tell
        return []
    return [name for _, name in sorted(found)]
