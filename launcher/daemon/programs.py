"""The two kinds of program that a rank runs: a script, and a forked worker that is spoken with."""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from oneflow.core.errors import ConfigError, ProtocolError
from oneflow.core.frames import FrameDecoder, encode_frame
from oneflow.core.log import get_logger
from oneflow.core.metrics_samples import Sample
from oneflow.launcher.daemon.blobs import BlobCache, Fetch
from oneflow.launcher.daemon.cgroups import Group
from oneflow.launcher.daemon.environments import Environment, Environments
from oneflow.launcher.daemon.events import Event, Progressed
from oneflow.launcher.daemon.rank_resources import RankResources
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.daemon.workers import Worker, start_script
from oneflow.launcher.rank_env import THREAD_VARIABLES, bootstrap_path
from oneflow.launcher.report import ErrorRecord
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey, cut_progress, told_by
from oneflow.services.curve import Report
from oneflow.services.metrics_daemon import DAEMON
from oneflow.services.metrics_file import VARIABLE as COUNTS_VARIABLE
from oneflow.services.metrics_file import CountsReader

COUNTS_LOOK_S = 1.0
LAST_WORDS_S = 0.3  # of a worker that has ended, on its socket
ENDED_BY_TERM = 143
OUTPUTS_VARIABLE = "ONEFLOW_OUTPUTS"
OF_THE_RANK = (COUNTS_VARIABLE, "ONEFLOW_ERROR_FILE", "ONEFLOW_EXITED_DIR")
_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")
_PLAIN_OPTIONS = frozenset(("-u", "-O", "-OO", "-B", "-E", "-s", "-v", "-q"))

Keep = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

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
    environments: Environments
    make_group: Callable[[], Group | None]
    spared: Callable[[], set[int]]
    wait_worker: Callable[[], Awaitable[None]]
    take_worker: Callable[[], Worker]
    post: Callable[[Event], None]
    say_infer: Callable[[pb.InferData], None]
    count: Callable[[AttemptKey, list[Sample]], None]


class Program(ABC):
    """A program that a rank runs.

    failed: its own last words, with the code and reason of its end; None: it said none.
    """

    def __init__(
        self, key: AttemptKey, prepare: pb.Prepare, own: RankResources, place: Place
    ) -> None:
        self._key, self._prepare, self._own, self._place = key, prepare, own, place
        self.failed: pb.Exited | None = None

    @abstractmethod
    async def gather(self) -> None:
        """Returns when it can be started. Raises OneFlowError if it never can."""

    @abstractmethod
    def start(self, master_addr: str, master_port: int, keep: Keep) -> Worker:
        """Start it, and the daemon's tasks beside it, which are kept. Raises OneFlowError."""

    def stop(self, worker: Worker) -> None:
        """Asks it to end."""
        worker.signal(signal.SIGTERM)

    async def last_words(self) -> None:
        """Hear the messages still on their way, after its process has ended."""
        return

    def close(self) -> None:
        """Nothing of it runs any more."""
        return

    def record(self, status: int) -> ErrorRecord | None:
        """The record that it left of its end, for a program that said no last words."""
        return self._own.error()

    def infer(self, request: pb.Infer) -> bool:
        """Hands it on; False if this rank answers no requests."""
        return False

    def beside(self) -> tuple[dict[str, str], Path]:
        """Environment and folder of a command that runs beside it. Raises ProtocolError if there
        are to be none.
        """
        raise ProtocolError("commands run beside scripts only")

    async def inspect(self, request: pb.Inspect) -> pb.Inspected:
        """Ask it; without an answer this never returns. Raises ProtocolError if this rank takes no
        such requests, or has ended meanwhile.
        """
        raise ProtocolError("a script is not asked such things")

    def refuse_requests(self, why: str) -> None:
        """It has ended: those that wait for an answer get this one."""
        return


class Script(Program):
    """A program of a user's, which tells of itself by files."""

    _counts: CountsReader | None = None
    _environment: Environment | None = None
    _given: Mapping[str, str] = MappingProxyType({})

    def env(self, master_addr: str, master_port: int) -> dict[str, str]:
        env = self._own.env(master_addr, master_port, self._place.settings.rank_base_env())
        own = {
            COUNTS_VARIABLE: str(self._own.counts_file),
            OUTPUTS_VARIABLE: str(self._own.outputs_dir),
        }
        environment = self._environment
        return program_env(env | own, [environment.programs] if environment else [])

    async def gather(self) -> None:
        if listed := self._own.file("requirements"):
            self._environment = await self._place.environments.get(Path(listed))
        command(self._prepare.spec.argv, self.env("127.0.0.1", 1), self._own.work_dir)

    def beside(self) -> tuple[dict[str, str], Path]:
        """Return those of the rank itself, without the files by which it tells of itself."""
        env = {name: value for name, value in self._given.items() if name not in OF_THE_RANK}
        return env, self._own.work_dir

    def start(self, master_addr: str, master_port: int, keep: Keep) -> Worker:
        env, folder = self.env(master_addr, master_port), self._own.work_dir
        self._given = env
        argv = command(self._prepare.spec.argv, env, folder)
        place, settings = self._place, self._place.settings
        group = place.make_group()
        if missing := _bounded(group, self._prepare.spec):
            keep(self._warn(f"its ranks may use more {missing} than asked for"))
        limits, patience = settings.limits, settings.patience
        worker = start_script(argv, env, folder, limits, group, place.spared, patience)
        self._counts = CountsReader(self._own.counts_file, worker.pid)
        keep(self._read_counts())
        return worker

    async def _warn(self, why: str) -> None:
        """Warn in a report of its own, after the launch."""
        node = self._place.settings.node_name
        said = f"{why}: the daemon on {node} may write no control group that bounds it"
        log.warning("%s: %s", self._key, said)
        self._place.post(Progressed(self._key, pb.Progress(id=self._key.wire, warning=said)))

    def close(self) -> None:
        self._take_counts()
        if self._environment is not None:
            self._environment.close()

    async def _read_counts(self) -> None:
        while True:
            await asyncio.sleep(COUNTS_LOOK_S)
            self._take_counts()

    def _take_counts(self) -> None:
        """Take the counts that it reported; a message that makes no sense is refused alone."""
        if self._counts is None:
            return
        try:
            told, reports = self._counts.news()
            progress = _progress(reports)
        except ProtocolError as error:
            DAEMON.message_rejected("malformed")
            log.warning("%s: %s", self._key, error)
            return
        if told:
            self._place.count(self._key, told)
        if progress is not None and self._key.rank == 0:
            progress.id.CopyFrom(self._key.wire)
            self._place.post(Progressed(self._key, progress))


class GraphWorker(Program):
    """A forked worker, spoken with over its socket."""

    def __init__(
        self, key: AttemptKey, prepare: pb.Prepare, own: RankResources, place: Place
    ) -> None:
        super().__init__(key, prepare, own, place)
        self._worker: Worker | None = None
        self._commands: asyncio.Queue[bytes] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self._infers: set[int] = set()
        self._inspects: dict[int, asyncio.Future[pb.Inspected]] = {}

    async def gather(self) -> None:
        await self._place.wait_worker()

    def start(self, master_addr: str, master_port: int, keep: Keep) -> Worker:
        worker = self._worker = self._place.take_worker()
        self._reading = keep(self._read_messages(worker))
        keep(self._write_commands(worker))
        given = self._place.settings.env
        threads = {name: given[name] for name in THREAD_VARIABLES if name in given}
        begin = pb.Begin(
            prepare=self._prepare,
            master_addr=master_addr,
            master_port=master_port,
            job_file=self._own.file("job"),
            plan_file=self._own.file("plan"),
            job_dir=str(self._own.job_dir),
            env=self._own.env(master_addr, master_port, threads),
        )
        self._command(pb.WorkerCommand(begin=begin))
        return worker

    def stop(self, worker: Worker) -> None:
        """It ends at a step that all its ranks agree on."""
        if not worker.is_over:
            self._command(pb.WorkerCommand(stop=True))
        else:
            super().stop(worker)

    async def last_words(self) -> None:
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=LAST_WORDS_S)

    def record(self, status: int) -> ErrorRecord | None:
        if status == ENDED_BY_TERM:  # in a job it would have said so
            return ErrorRecord("ended by SIGTERM before its job began", "SIGNAL", "")
        return super().record(status)

    def infer(self, request: pb.Infer) -> bool:
        if self._worker is None or self._worker.is_over:
            return False
        self._infers.add(request.request)
        self._command(pb.WorkerCommand(infer=request))
        return True

    async def inspect(self, request: pb.Inspect) -> pb.Inspected:
        if self._worker is None:
            raise ProtocolError(f"rank {self._key.rank} has not begun")
        future: asyncio.Future[pb.Inspected] = asyncio.get_running_loop().create_future()
        self._inspects[request.request] = future
        try:
            self._command(pb.WorkerCommand(inspect=request))
            return await future
        finally:
            self._inspects.pop(request.request, None)

    def refuse_requests(self, why: str) -> None:
        for request in sorted(self._infers):
            error = f"rank {self._key.rank} of job {self._key.job_id}: {why}"
            self._place.say_infer(pb.InferData(request=request, error=error))
        self._infers.clear()
        for future in self._inspects.values():
            if not future.done():
                future.set_exception(ProtocolError(f"rank {self._key.rank} has ended: {why}"))

    def _command(self, command: pb.WorkerCommand) -> None:
        self._commands.put_nowait(encode_frame(command))

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
                self.failed = pb.Exited(exit_code=70, reason="INTERNAL", cause=str(error))
                worker.kill()
                return

    def _hear(self, message: pb.WorkerMessage) -> None:
        match message.WhichOneof("kind"):
            case "progress":
                cut_progress(message.progress)
                message.progress.id.CopyFrom(self._key.wire)
                self._place.post(Progressed(self._key, message.progress))
            case "infer":
                self._infers.discard(message.infer.request)
                self._place.say_infer(message.infer)
            case "inspected":
                future = self._inspects.get(message.inspected.request)
                if future is not None and not future.done():
                    future.set_result(message.inspected)
            case "failed":
                self.failed = message.failed
            case "counts":
                self._place.count(self._key, told_by(message.counts))


def _bounded(group: Group | None, spec: pb.JobSpec) -> str:
    """Bound a rank's group as its job asks. Returns the limits that it cannot set, in words."""
    if group is not None:
        return " and ".join(group.bound(spec.cpus, spec.memory_nbytes))
    wanted = (("processors", spec.cpus), ("memory", spec.memory_nbytes))
    return " and ".join(name for name, value in wanted if value)


def _progress(reports: Sequence[Report]) -> pb.Progress | None:
    """Return a script's reports as those of a graph job. Raises ProtocolError."""
    if not reports:
        return None
    now = time.time()
    points = [
        pb.ProgressPoint(
            step=_step(report.step),
            metrics={k: math.nan if v is None else v for k, v in report.metrics.items()},
            age_s=max(now - report.at, 0.0),
            left_out=_step(report.left_out),
        )
        for report in reports
    ]
    last = points[-1]
    progress = pb.Progress(step=last.step, metrics=last.metrics, points=points)
    cut_progress(progress)
    return progress


def _step(number: int) -> int:
    if not 0 <= number < 1 << 63:
        raise ProtocolError(f"{number} is no number of steps")
    return number


def command(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> list[str]:
    """argv as it is, but that a Python script is run through the launcher's bootstrap, which
    records its end.

    Raises ConfigError if there is no such program.
    """
    if not argv:
        raise ConfigError("the job has no command to run")
    program = _find(argv[0], env, cwd)
    if not _PYTHON.fullmatch(os.path.basename(argv[0])):
        return [program, *argv[1:]]
    at = 1
    while at < len(argv) and argv[at] in _PLAIN_OPTIONS:
        at += 1
    is_script = at < len(argv) and (not argv[at].startswith("-") or argv[at] == "-m")
    if not is_script or at + (argv[at] == "-m") >= len(argv):
        return [program, *argv[1:]]
    return [program, *argv[1:at], str(bootstrap_path()), *argv[at:]]


def program_env(env: Mapping[str, str], first: Sequence[str] = ()) -> dict[str, str]:
    """Make the environment in which `python` is the one of these folders, or else the one that runs
    the daemon, and its output is seen at once.
    """
    found = dict(env)
    folders = [*first, os.path.dirname(sys.executable), env.get("PATH") or os.defpath]
    found["PATH"] = os.pathsep.join(folders)
    found.setdefault("PYTHONUNBUFFERED", "1")
    return found


def _find(program: str, env: Mapping[str, str], cwd: Path) -> str:
    if "/" in program:
        found = cwd / program
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return str(found)
        if os.path.exists(found):
            is_folder = os.path.isdir(found)
            what = "a folder" if is_folder else "not executable: chmod +x, or name what runs it"
            raise ConfigError(f"cannot run {program!r}: it is {what}")
    elif path := shutil.which(program, path=env.get("PATH")):
        return path
    raise ConfigError(f"cannot run {program!r}: there is no such program on this host")
