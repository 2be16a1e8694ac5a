"""One rank on this machine: what it needs is gathered, it is launched, watched and ended.

What happens is told as events (events.py); what to do is told by the host, which does what the
daemon's mind decided.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneflow.core.errors import ConfigError, OneFlowError, ProtocolError
from oneflow.core.exits import note_exited
from oneflow.core.frames import FrameDecoder, encode_frame
from oneflow.core.log import get_logger
from oneflow.core.metrics_told import Told
from oneflow.launcher.daemon.archive import unpack
from oneflow.launcher.daemon.blobs import BlobCache, Fetch
from oneflow.launcher.daemon.cgroups import Group
from oneflow.launcher.daemon.commands import command, device_env, program_env
from oneflow.launcher.daemon.events import (
    Event,
    Gathered,
    Launched,
    NotGathered,
    ProcessExited,
    Progressed,
    StoodStill,
    TreeEnded,
)
from oneflow.launcher.daemon.leftovers import MARK, make_temp_dir, own_mark
from oneflow.launcher.daemon.logs import STREAMS, LogWriter, Pump, read_piece
from oneflow.launcher.daemon.ports import ReservedPort
from oneflow.launcher.daemon.pulse import Still, has_main_stack, stuck_frame
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.daemon.shm import SharedMemory
from oneflow.launcher.daemon.workers import Worker, start_script
from oneflow.launcher.processes import send_signal
from oneflow.launcher.rank_env import THREAD_VARIABLES, RankPlace, rank_env
from oneflow.launcher.report import ErrorRecord, cause_of, read_error, reason_of
from oneflow.launcher.supervision import DUMP_SIGNAL, KILL_WAIT_S, Exited
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey, cut_progress, told_by
from oneflow.services.failpoints import failpoint
from oneflow.services.metrics_daemon import DAEMON
from oneflow.services.metrics_file import VARIABLE as COUNTS_VARIABLE
from oneflow.services.metrics_file import CountsReader

FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.1
MEMORY_LOOK_S = COUNTS_LOOK_S = 1.0
LAST_WORDS_S = 0.3  # of a worker that has ended, on its socket
PUMP_S = 2.0
ENDED_BY_TERM = 143
MAX_STACKS_NBYTES = 256 << 10
DUMP_LOOK_S, MAX_DUMP_S = 0.05, 1.0  # for the stacks of a stuck rank to come into its log
FROZEN, STUCK = (137, "NODE_LOST"), (80, "HANG")
"""Exit code and reason of a rank whose process is stopped (as a peer that sees no heartbeat says of
it), or does not come out of a call."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Place:
    """The services of the host that a rank needs. take_worker: a worker that is ready, or raises.

    post: an event to the daemon's mind; say_infer: an answer to the scheduler; count: numbers of
    the rank to the page of metrics.
    """

    settings: DaemonSettings
    address: str
    cache: BlobCache
    fetch: Fetch
    make_group: Callable[[], Group | None]
    spared: Callable[[], set[int]]
    wait_worker: Callable[[], Awaitable[None]]
    take_worker: Callable[[], Worker]
    post: Callable[[Event], None]
    say_infer: Callable[[pb.InferData], None]
    count: Callable[[AttemptKey, list[Told]], None]


class Rank:
    """One rank of a job, from Prepare to the end of its last process."""

    def __init__(self, key: AttemptKey, prepare: pb.Prepare, place: Place) -> None:
        self.key = key
        self.prepare = prepare
        self.worker: Worker | None = None
        self.writers: dict[str, LogWriter] = {}
        self._place = place
        self._settings = place.settings
        self.is_script = prepare.spec.kind == prepare.spec.SCRIPT
        self._job_dir = place.settings.jobs_dir / key.folder
        self._attempt_dir = self._job_dir / str(key.attempt)
        self._folder = self._attempt_dir / f"rank{key.rank}"
        self._work_dir = self._job_dir / "work"
        self._files: dict[str, Path] = {}
        self._port: ReservedPort | None = None
        self._pump: Pump | None = None
        self._temp_dir: Path | None = None
        self._failed: Any = None  # the worker's own last words
        self._commands: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks: list[asyncio.Task[Any]] = []
        self._reading: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._deadline = 0.0
        self._infers: set[int] = set()
        self._inspects: dict[int, asyncio.Future[pb.Inspected]] = {}
        self._memory = SharedMemory()
        self._counts: CountsReader | None = None  # of a script
        self._still: Still | None = None  # when it was told to end
        self._frame = ""  # where it was stuck

    @property
    def trains(self) -> bool:
        """Whether its steps are those of a training."""
        return bool(self.prepare.spec.kind != self.prepare.spec.INFERENCE)

    # -- gathering ---------------------------------------------------------------------------------

    async def gather(self) -> None:
        """Answers with Gathered or NotGathered."""
        try:
            await self._gather()
        except OneFlowError as error:
            code = error.exit_code if error.reason == "USER_ERROR" else 0  # else as it means
            self._place.post(NotGathered(self.key, str(error), error.reason, code))
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "DISK_FULL" if is_full else "INTERNAL"
            self._place.post(NotGathered(self.key, str(error), reason))
        else:
            port = self._port.port if self._port else 0
            self._place.post(Gathered(self.key, port))

    async def _gather(self) -> None:
        spec = self.prepare.spec
        if self.is_script and not self._settings.allow_scripts:
            raise ConfigError(
                f"the daemon {self._settings.id} runs no scripts: its operator allows them with "
                "`oneflow daemon run --allow-scripts`"
            )
        for folder in (self._folder, self._exited_dir(), self._error_file().parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._error_file().unlink(missing_ok=True)
        for name, digest in (("archive", spec.archive), ("job", spec.graph)):
            if digest:
                self._files[name] = await self._get(digest)
        if self.prepare.plan:
            self._files["plan"] = await self._get(self.prepare.plan)
        await asyncio.to_thread(self._make_work_dir)
        if self.key.rank == 0:
            self._port = ReservedPort(self._place.address)
        if self.is_script:
            command(spec.argv, self._script_env("127.0.0.1", 1), self._work_dir)
        else:
            await self._place.wait_worker()

    async def _get(self, digest: str) -> Path:
        """A file of the job, kept as long as the job whatever becomes of the cache."""
        kept = self._job_dir / "files" / digest
        if not kept.exists():
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = await self._place.cache.get(digest, self._place.fetch)
            with suppress(FileExistsError):  # another rank of this node was quicker
                os.link(found, kept)
        return kept

    def _make_work_dir(self) -> None:
        """Once a job and node: what a rank leaves there, its next attempt finds."""
        with open(self._job_dir / ".work.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._work_dir.exists():
                return
            if "archive" in self._files:
                unpack(self._files["archive"], self._work_dir)
            else:
                self._work_dir.mkdir(mode=0o700)

    def discard(self) -> None:
        """Gives back what was gathered, if it was not launched."""
        if self._port is not None:
            self._port.release()
            self._port = None

    # -- launching ---------------------------------------------------------------------------------

    def launch(self, master_addr: str, master_port: int) -> None:
        """Answers with Launched, or with ProcessExited if it cannot be run."""
        self.discard()
        try:
            failpoint("daemon.start")
            self._temp_dir = make_temp_dir()
            worker = self._start(master_addr, master_port)
        except (OneFlowError, OSError) as error:
            code = getattr(error, "exit_code", 70)
            reason = getattr(error, "reason", "INTERNAL")
            self._place.post(ProcessExited(self.key, code, reason, str(error), 0))
            return
        self.worker = worker
        limits = self._settings.logs
        self.writers = {s: LogWriter(self._folder, s, self._job_dir, limits) for s in STREAMS}
        pipes = (worker.stdout, worker.stderr)
        self._pump = Pump(dict(zip(pipes, self.writers.values(), strict=True)))
        self._pump.start()
        self._keep(self._look_at_memory(worker))
        if self.is_script:
            self._counts = CountsReader(self._counts_file(), worker.pid)
            self._keep(self._read_counts())
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
        self._failed = self._failed or pb.Exited(exit_code=70, reason="INTERNAL", cause=cause)
        if self.worker is not None:
            self.worker.kill()

    def _start(self, master_addr: str, master_port: int) -> Worker:
        if self.is_script:
            env = self._script_env(master_addr, master_port)
            argv = command(self.prepare.spec.argv, env, self._work_dir)
            settings, place = self._settings, self._place
            group = place.make_group()
            limits, patience = settings.limits, settings.patience
            return start_script(argv, env, self._work_dir, limits, group, place.spared, patience)
        worker = self._place.take_worker()
        self._listen(worker)
        self._command(self._begin(master_addr, master_port))
        return worker

    def _script_env(self, master_addr: str, master_port: int) -> dict[str, str]:
        env = self._rank_env(master_addr, master_port, self._settings.rank_base_env())
        return program_env(env | {COUNTS_VARIABLE: str(self._counts_file())})

    def _rank_env(self, addr: str, port: int, base: dict[str, str]) -> dict[str, str]:
        """The user's variables, then those of the device and the rank, which win."""
        prepare, settings = self.prepare, self._settings
        device = device_env(
            settings.device_type, settings.device_index, prepare.local_rank, settings.env
        )
        env = base | dict(prepare.spec.env) | device
        if self._temp_dir is not None:
            env["TMPDIR"] = str(self._temp_dir)
        env[MARK] = own_mark()
        place = RankPlace(
            master_addr=addr,
            master_port=port,
            world_size=prepare.world_size,
            rank=self.key.rank,
            local_rank=prepare.local_rank,
            attempt=self.key.attempt,
            log_dir=self._folder,
            error_file=self._error_file(),
            exited_dir=self._exited_dir(),
            token=prepare.job_key or None,
            is_crowded=prepare.world_size > 1,
            job_id=self.key.job_id,
        )
        return rank_env(env, place)

    def _begin(self, master_addr: str, master_port: int) -> pb.WorkerCommand:
        env = self._settings.env
        own_threads = {name: env[name] for name in THREAD_VARIABLES if name in env}
        return pb.WorkerCommand(
            begin=pb.Begin(
                prepare=self.prepare,
                master_addr=master_addr,
                master_port=master_port,
                job_file=str(self._files.get("job", "")),
                plan_file=str(self._files.get("plan", "")),
                job_dir=str(self._job_dir),
                env=self._rank_env(master_addr, master_port, own_threads),
            )
        )

    # -- talking with a forked worker --------------------------------------------------------------

    def infer(self, request: pb.Infer) -> bool:
        """Hands it on; False if this rank answers no requests."""
        if self.worker is None or self.worker.sock is None or self.worker.is_over:
            return False
        self._infers.add(request.request)
        self._command(pb.WorkerCommand(infer=request))
        return True

    async def inspect(self, request: pb.Inspect) -> pb.Inspected:
        """Ask the worker; without an answer from it this never returns. Raises ProtocolError if
        this rank takes no such requests, or has ended meanwhile.
        """
        if self.worker is None or self.worker.sock is None:
            raise ProtocolError("a script is not asked such things")
        future: asyncio.Future[pb.Inspected] = asyncio.get_running_loop().create_future()
        self._inspects[request.request] = future
        try:
            self._command(pb.WorkerCommand(inspect=request))
            return await future
        finally:
            self._inspects.pop(request.request, None)

    def _command(self, command: pb.WorkerCommand) -> None:
        self._commands.put_nowait(encode_frame(command))

    def _listen(self, worker: Worker) -> None:
        self._reading = self._keep(self._read_messages(worker))
        self._keep(self._write_commands(worker))

    async def _write_commands(self, worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        while worker.sock is not None:
            data = await self._commands.get()
            try:
                await loop.sock_sendall(worker.sock, data)
            except OSError:  # it has ended, and its end will be told
                return

    async def _read_messages(self, worker: Worker) -> None:
        decoder, loop = FrameDecoder(pb.WorkerMessage), asyncio.get_running_loop()
        while worker.sock is not None:
            try:
                data = await loop.sock_recv(worker.sock, 1 << 20)
                if not data:
                    return
                for message in decoder.feed(data):
                    self._hear(message)
            except OSError:
                return
            except ProtocolError as error:
                self._failed = pb.Exited(exit_code=70, reason="INTERNAL", cause=str(error))
                worker.kill()
                return

    def _hear(self, message: pb.WorkerMessage) -> None:
        match message.WhichOneof("kind"):
            case "progress":
                cut_progress(message.progress)
                message.progress.id.CopyFrom(self.key.wire)
                self._place.post(Progressed(self.key, message.progress))
            case "infer":
                self._infers.discard(message.infer.request)
                self._place.say_infer(message.infer)
            case "inspected":
                future = self._inspects.get(message.inspected.request)
                if future is not None and not future.done():
                    future.set_result(message.inspected)
            case "failed":
                self._failed = message.failed
            case "counts":
                self._place.count(self.key, told_by(message.counts))

    # -- standing still ----------------------------------------------------------------------------

    def look(self) -> None:
        """Several times a second: a process that stands still for too long has failed."""
        worker = self.worker
        if worker is None or worker.is_over:
            return
        was_suspect = worker.pulse.is_suspect
        still = worker.pulse.look(time.monotonic())
        if still is None:
            if was_suspect and not worker.pulse.is_suspect:
                log.warning("%s (process %d) goes on", self.key, worker.pid)
            return
        log.warning("%s (process %d): %s", self.key, worker.pid, still)
        if still.is_final:
            self._keep(self._give_up(worker, still))

    async def _give_up(self, worker: Worker, still: Still) -> None:
        if not still.is_stopped and not self._frame:
            self._frame = await self._dumped_frame(worker)
        self._say_still(worker, still)

    def _say_still(self, worker: Worker, still: Still) -> None:
        kind, cause = FROZEN if still.is_stopped else STUCK, f"{still}"
        if not still.is_stopped and self._frame:
            cause += f", at {self._frame}"
        word = "frozen" if still.is_stopped else "stuck"
        told = StoodStill(self.key, *kind, f"{word}: {cause}", worker.pid, still.seconds)
        self._place.post(told)

    async def _dumped_frame(self, worker: Worker) -> str:
        """It writes the stacks of its threads into its log; where its main thread is."""
        log_size = self.writers["stderr"].size
        send_signal([worker.pid], DUMP_SIGNAL)
        deadline = time.monotonic() + MAX_DUMP_S
        while True:
            await asyncio.sleep(DUMP_LOOK_S)
            piece = read_piece(self._folder, "stderr", log_size, MAX_STACKS_NBYTES)
            text = piece.data.decode(errors="replace")
            if has_main_stack(text) or time.monotonic() >= deadline:
                return stuck_frame(text)

    # -- ending ------------------------------------------------------------------------------------

    async def exited(self, status: int) -> None:
        """Its own process was reaped. status: as of Popen. Answers with ProcessExited."""
        worker = self.worker
        if worker is None:
            return
        worker.status = status
        if self._still is not None:  # we have ended it, but it was why we had to
            self._say_still(worker, self._still)
        if self._reading is not None:  # what it said last may still be on its way
            await asyncio.wait({self._reading}, timeout=LAST_WORDS_S)
        if status == 0:
            self._tell_the_others()
        found = Exited(self.key.rank, worker.pid, self._status(status))
        record, is_oom = self._record(status), worker.ran_out_of_memory()
        reason, cause = reason_of(found, record, is_oom), cause_of(found, record, is_oom)
        said = worker.group.memory_words() if worker.group is not None else ""
        if reason == "OOM_HOST" and said:
            cause = f"{cause} ({said})"
        self._place.post(ProcessExited(self.key, found.exit_code, reason, cause, worker.pid))
        self._fail_requests(cause or "it has ended")

    def _status(self, status: int) -> int:
        """A worker that fails says with which code; Python itself ends with 1 for any error."""
        told = self._failed.exit_code if self._failed is not None else 0
        return told if told and status > 0 else status

    def _record(self, status: int) -> ErrorRecord | None:
        if self._failed is not None:
            return ErrorRecord(self._failed.cause, self._failed.reason, "")
        if not self.is_script and status == ENDED_BY_TERM:  # in a job it would have said so
            return ErrorRecord("ended by SIGTERM before its job began", "SIGNAL", "")
        return read_error(self._error_file())

    def _tell_the_others(self) -> None:
        """That this rank exited 0: one that waits for it to join would not hear of it."""
        try:
            note_exited(self._exited_dir(), self.key.rank)
        except OSError as error:
            log.warning("cannot tell that %s exited 0: %s", self.key, error)

    def _fail_requests(self, why: str) -> None:
        for request in sorted(self._infers):
            error = f"rank {self.key.rank} of job {self.key.job_id}: {why}"
            self._place.say_infer(pb.InferData(request=request, error=error))
        self._infers.clear()
        for future in self._inspects.values():
            if not future.done():
                future.set_exception(ProtocolError(f"rank {self.key.rank} has ended: {why}"))

    def end(self, grace_s: float) -> None:
        """Asks all of it to end, kills what is left after `grace_s`; answers with TreeEnded."""
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
            await self._note_still(worker)
            self._ask(worker)
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

    async def _note_still(self, worker: Worker) -> None:
        """Its peers may have failed because it stands still: what ends it, or wakes it up, ends all
        that shows where.
        """
        self._still = worker.pulse.still()
        if self._still is not None and not self._still.is_stopped and not worker.is_over:
            self._frame = await self._dumped_frame(worker)

    def _ask(self, worker: Worker) -> None:
        """A graph job ends at a step that all its ranks agree on; anything else gets TERM."""
        failpoint("daemon.stop")
        if worker.sock is not None and not worker.is_over:
            self._command(pb.WorkerCommand(stop=True))
        else:
            worker.signal(signal.SIGTERM)

    async def _read_counts(self) -> None:
        while True:
            await asyncio.sleep(COUNTS_LOOK_S)
            self._take_counts()

    def _take_counts(self) -> None:
        """Take the counts that a script reported; a message that makes no sense is
        refused alone.
        """
        try:
            told = self._counts.news() if self._counts is not None else []
        except ProtocolError as error:
            DAEMON.message_rejected("malformed")
            log.warning("%s: %s", self.key, error)
            return
        if told:
            self._place.count(self.key, told)

    async def _look_at_memory(self, worker: Worker) -> None:
        while True:
            self._memory.look(worker.alive)
            await asyncio.sleep(MEMORY_LOOK_S)

    async def _clean_up(self, num_left: int) -> None:
        failpoint("daemon.shutdown")
        for task in self._tasks:
            task.cancel()
        self._take_counts()
        if removed := self._memory.remove():
            log.warning("%s left shared memory behind: %s", self.key, ", ".join(removed[:10]))
        if self._pump is not None:
            await asyncio.to_thread(self._pump.finish, PUMP_S if not num_left else 0.1)
        if self._temp_dir is not None:
            await asyncio.to_thread(shutil.rmtree, self._temp_dir, True)
        if self.worker is not None:
            asyncio.get_running_loop().remove_reader(self.worker.pidfd)
            self.worker.close()

    def _error_file(self) -> Path:
        return self._attempt_dir / "errors" / f"rank{self.key.rank}.json"

    def _counts_file(self) -> Path:
        return self._folder / "counts.json"

    def _exited_dir(self) -> Path:
        return self._attempt_dir / "exited"
