"""The open streams of daemons: which one speaks for which daemon, and the questions over them."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from oneflow.core.config import split_address
from oneflow.core.control_channel import is_loopback
from oneflow.core.errors import OneFlowError
from oneflow.core.processes import start_time
from oneflow.core.rpc import Message
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.authenticator import address_of
from oneflow.scheduler.cluster.blobs import MIN_FREE_NBYTES
from oneflow.scheduler.cluster.refusals import (
    DeadlineError,
    ExhaustedError,
    NotFoundError,
    UnavailableError,
)
from oneflow.scheduler.jobs.messages import packed
from oneflow.services.listeners import has_socket, sockets_at

Mail: TypeAlias = "asyncio.Queue[pb.SchedulerMessage | None]"
A = TypeVar("A", pb.LogData, pb.InferData, pb.Inspected)
MAX_MAIL = 20_000  # messages that wait for a daemon that does not read
MAX_FILE_NBYTES = 64 << 30
LOOK_NBYTES = 16 << 20
MAX_EXEC_NBYTES = 16 << 20  # pieces of one command: its daemon ends it sooner
PIECE_OVERHEAD_NBYTES = 64
MAX_REQUESTS = 10_000  # that wait for one daemon
_QUESTIONS: Mapping[type[Message], Callable[[Any], pb.SchedulerMessage]] = {
    pb.ReadLog: lambda asked: pb.SchedulerMessage(read_log=asked),
    pb.Infer: lambda asked: pb.SchedulerMessage(infer=asked),
    pb.Inspect: lambda asked: pb.SchedulerMessage(inspect=asked),
}


class Line:
    """One daemon's part of a stream, which is all of it where the daemon has one of its own. slot:
    its number among the daemons that share the stream. epoch: 0 until it is welcomed. mail: of the
    stream; None ends that.
    roots: folders in which graph jobs may write, its own for jobs among them; None: not told.
    use: of its node, as it was told last.
    """

    def __init__(
        self,
        hello: pb.Hello,
        peer: str,
        process: LocalProcess | None,
        slot: int = 0,
        mail: Mail | None = None,
    ) -> None:
        self.daemon = hello.daemon
        self.node = hello.node
        self.device_type = hello.device_type
        self.folder = hello.folder
        tells = hello.HasField("data_roots")
        self.roots = (hello.folder, *hello.data_roots.folders) if tells else None
        self.incarnation = hello.incarnation
        self.peer = peer
        self.token = ""  # name of the one it came with
        self.use: pb.NodeUse | None = None
        self.process = process
        self.epoch = 0
        self.is_open = True
        self.slot = slot
        self.mail: Mail = asyncio.Queue() if mail is None else mail
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[type[Message], asyncio.Future[Any]]] = {}
        self._files: dict[int, Spool] = {}
        self._execs: dict[int, Heard] = {}

    def send(self, message: pb.SchedulerMessage, is_for_all: bool = False) -> None:
        """Drops it if the stream is over, which is how messages get lost. is_for_all: for all
        daemons of the stream.
        """
        if not self.is_open:
            return
        if self.mail.qsize() >= MAX_MAIL:
            self.close("it does not read what it is told")
            return
        self.mail.put_nowait(message if is_for_all else self._addressed(message))

    def _addressed(self, message: pb.SchedulerMessage) -> pb.SchedulerMessage:
        if not self.slot:
            return message
        addressed = pb.SchedulerMessage()
        addressed.CopyFrom(message)  # the same may be for others, too
        addressed.slot = self.slot
        return addressed

    def close(self, why: str) -> None:
        """End its part of the stream after all messages sent; callers that wait for an answer are
        told why.
        """
        if not self.is_open:
            return
        self.is_open = False
        closed = pb.SchedulerMessage(slot=self.slot, closed=why)
        self.mail.put_nowait(closed if self.slot else None)
        error = UnavailableError(f"daemon {self.daemon} is not connected: {why}")
        for _, future in self._asked.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen, even if nobody waits any more
        for spool in self._files.values():
            spool.fail(error)
        for heard in self._execs.values():
            heard.fail(error)

    # -- asking ------------------------------------------------------------------------------------

    async def ask(
        self, request: pb.ReadLog | pb.Infer | pb.Inspect, kind: type[A], timeout_s: float
    ) -> A:
        """The daemon's answer, of type `kind`. Raises UnavailableError or DeadlineError."""
        self._check_open()
        request.request = number = next(self._numbers)
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._asked[number] = kind, future
        try:
            self.send(_QUESTIONS[type(request)](request))
            return await asyncio.wait_for(future, timeout_s)
        except asyncio.TimeoutError:
            raise DeadlineError(
                f"no answer within {timeout_s:g} s from daemon {self.daemon}"
            ) from None
        finally:
            del self._asked[number]

    async def read_file(
        self, request: pb.ReadFile, folder: Path, idle_s: float
    ) -> AsyncIterator[bytes]:
        """The bytes of an output, piece by piece. Raises UnavailableError, DeadlineError or
        NotFoundError with the daemon's words.
        """
        self._check_open()
        request.request = number = next(self._numbers)
        spool = self._files[number] = Spool(folder)
        try:
            self.send(pb.SchedulerMessage(read_file=request))
            while (data := await spool.read(idle_s)) is not None:
                yield data
        finally:
            del self._files[number]
            spool.close()

    async def execute(self, request: pb.Exec, idle_s: float) -> AsyncGenerator[pb.ExecData, None]:
        """Yield the output of a command, and how it ended; it ends when nobody reads on. Raises
        UnavailableError or DeadlineError.
        """
        self._check_open()
        request.request = number = next(self._numbers)
        heard = self._execs[number] = Heard()
        is_over = False
        try:
            self.send(pb.SchedulerMessage(exec=request))
            while not is_over:
                piece = await heard.next(idle_s)
                is_over = piece.is_last
                yield piece
        finally:
            del self._execs[number]
            if not is_over:
                gone = pb.Exec(request=number, id=request.id, is_cancelled=True)
                self.send(pb.SchedulerMessage(exec=gone))

    def _check_open(self) -> None:
        if not self.is_open:
            raise UnavailableError(f"daemon {self.daemon} is not connected")
        if len(self._asked) + len(self._files) + len(self._execs) >= MAX_REQUESTS:
            raise UnavailableError(f"daemon {self.daemon} has {MAX_REQUESTS} requests to answer")

    # -- answers -----------------------------------------------------------------------------------

    def answer(self, data: pb.LogData | pb.InferData | pb.Inspected) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        kind, future = self._asked.get(data.request, (None, None))
        if future is not None and isinstance(data, kind or ()) and not future.done():
            future.set_result(data)

    def answer_exec(self, data: pb.ExecData) -> None:
        heard = self._execs.get(data.request)
        if heard is not None:
            heard.add(data)

    def answer_file(self, data: pb.FileData) -> None:
        spool = self._files.get(data.request)
        if spool is not None:
            spool.add(data)


class Heard:
    """The pieces of a command's output that its client has not read yet: few enough to be kept."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[pb.ExecData | OneFlowError] = asyncio.Queue()
        self._nbytes = 0

    def add(self, data: pb.ExecData) -> None:
        self._nbytes += data.ByteSize() + PIECE_OVERHEAD_NBYTES
        if self._nbytes > MAX_EXEC_NBYTES:
            return self.fail(ExhaustedError("the daemon tells more than a command may write"))
        self._pieces.put_nowait(data)

    def fail(self, error: OneFlowError) -> None:
        self._pieces.put_nowait(error)

    async def next(self, idle_s: float) -> pb.ExecData:
        try:
            found = await asyncio.wait_for(self._pieces.get(), idle_s)
        except asyncio.TimeoutError:
            raise DeadlineError(f"the command has not ended within {idle_s:g} s") from None
        if isinstance(found, OneFlowError):
            raise found
        return found


class Spool:
    """A file without a name between a daemon that sends and a client that may read slowly: the
    daemon's stream, which carries its heartbeats too, must never wait for a client.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._written = self._read = self._looks_at = 0
        self._is_whole = False
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def add(self, data: pb.FileData) -> None:
        if self._error or self._is_whole:
            return
        try:
            if self._written + len(data.data) > MAX_FILE_NBYTES:
                raise ExhaustedError(f"the output is larger than {MAX_FILE_NBYTES >> 30} GiB")
            self._check_room()
            os.pwrite(self._file.fileno(), data.data, self._written)
            self._written += len(data.data)
            self._is_whole = data.is_last
            if data.error:
                raise NotFoundError(data.error)
        except OSError as error:
            self._error = UnavailableError(f"no room for the output here: {error.strerror}")
        except OneFlowError as error:
            self._error = error
        self._news.set()

    def _check_room(self) -> None:
        """Check that a client's fetch does not take the store's last room. Looks once for many
        pieces.
        """
        if self._written < self._looks_at:
            return
        self._looks_at = self._written + LOOK_NBYTES
        free = os.fstatvfs(self._file.fileno())
        if free.f_bavail * free.f_frsize < MIN_FREE_NBYTES + LOOK_NBYTES:
            raise UnavailableError("no room for the output here: the scheduler's disk is full")

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._news.set()

    async def read(self, idle_s: float) -> bytes | None:
        """Read at most 1 MiB; None at the end."""
        while self._read >= self._written:
            if self._error is not None:
                raise self._error
            if self._is_whole:
                return None
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), idle_s)
            except asyncio.TimeoutError:
                raise DeadlineError(f"nothing more came within {idle_s:g} s") from None
        data = os.pread(self._file.fileno(), min(1 << 20, self._written - self._read), self._read)
        self._read += len(data)
        return data

    def close(self) -> None:
        self._file.close()


class Lines:
    """All streams. One is current once it was welcomed; a newcomer waits for that."""

    def __init__(self) -> None:
        self._current: dict[str, Line] = {}
        self._newcomers: dict[tuple[str, int], Line] = {}

    def add(self, line: Line) -> None:
        """A daemon has said hello. An earlier stream of the same process that still waits ends."""
        key = (line.daemon, line.incarnation)
        before = self._newcomers.get(key)
        if before is not None and before is not line:
            before.close("it opened another stream")
        self._newcomers[key] = line

    def welcome(self, daemon: str, incarnation: int, epoch: int) -> Line | None:
        """Makes the newcomer the daemon's voice; None if it has gone already."""
        line = self._newcomers.pop((daemon, incarnation), None)
        if line is None or not line.is_open:
            return None
        before = self._current.get(daemon)
        if before is not None and before is not line:
            before.close("it opened another stream")
        line.epoch = epoch
        self._current[daemon] = line
        return line

    def of_incarnation(self, daemon: str, incarnation: int) -> list[Line]:
        """The streams of one process, welcomed or not."""
        newcomer = self._newcomers.get((daemon, incarnation))
        current = self._current.get(daemon)
        found = [newcomer, current if current and current.incarnation == incarnation else None]
        return [line for line in found if line is not None]

    def current(self, daemon: str) -> Line | None:
        line = self._current.get(daemon)
        return line if line is not None and line.is_open else None

    def on_node(self, node: str, daemon: str = "") -> Line | None:
        """The daemon's stream, else any of its node: they share their files."""
        found = self.current(daemon)
        if found is not None and found.node == node:
            return found
        return next((line for line in self.all() if line.node == node), None)

    def all(self) -> Iterable[Line]:
        return [line for line in self._current.values() if line.is_open]

    def uses(self) -> dict[str, pb.NodeUse]:
        """Return all that is known of the nodes, by their names."""
        return {line.node: line.use for line in self.all() if line.use is not None}

    def drop(self, line: Line) -> bool:
        """The stream is over. Returns whether it was the daemon's voice."""
        if self._newcomers.get((line.daemon, line.incarnation)) is line:
            del self._newcomers[line.daemon, line.incarnation]
        if self._current.get(line.daemon) is line:
            del self._current[line.daemon]
            return True
        return False


async def letters(mail: Mail) -> AsyncIterator[pb.SchedulerMessage]:
    """Yield all of it until it ends. Messages that wait together become one: to write to a stream
    costs ten times as much as to add to a message.
    """
    waiting: deque[pb.SchedulerMessage] = deque()
    is_open = True
    while is_open:
        message = await mail.get()
        while message is not None and not mail.empty():
            waiting.append(message)
            message = mail.get_nowait()
        if is_open := message is not None:
            waiting.append(message)
        while waiting:
            yield packed(waiting)


# ---- processes of this machine -------------------------------------------------------------------


@dataclass(frozen=True)
class LocalProcess:
    """A daemon's process, if it is of this machine, so that its death is noticed at once and not
    when its heartbeats have been missing for long. It says which one it is, and the kernel's table
    of sockets confirms it.

    started: in clock ticks since boot, which tells it from a later process of the same pid.
    """

    pid: int
    started: int

    @property
    def is_gone(self) -> bool:
        return start_time(self.pid) != self.started


def local_process(peer: str, pid: int) -> LocalProcess | None:
    """The process at `peer` (as gRPC names it), if it is of this machine and is `pid`.

    A peer on a Unix socket is a process of this user's, which is believed.
    """
    started = start_time(pid) if pid > 0 else 0
    if not started:
        return None
    if (address := address_of(peer)) is not None:
        host, port = split_address(address)
        if not (is_loopback(host) and has_socket(pid, sockets_at(port))):
            return None
    elif not peer.startswith("unix:"):
        return None
    return LocalProcess(pid, started)
