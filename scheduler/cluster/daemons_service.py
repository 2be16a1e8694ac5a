"""The service that daemons attach to: one stream each, and blobs to fetch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from oneflow.core.errors import OneFlowError, ProtocolError
from oneflow.core.log import get_logger
from oneflow.core.rpc import CallContext
from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import cluster_pb2_grpc
from oneflow.scheduler.cluster.auth import caller, check_node
from oneflow.scheduler.cluster.lines import MAX_MAIL, Line, Mail, letters, local_process
from oneflow.scheduler.cluster.refusals import DeniedError, UnavailableError
from oneflow.scheduler.jobs.events import DaemonGone, LineBeat
from oneflow.scheduler.jobs.messages import (
    MAX_MESSAGE_NBYTES,
    event_of,
    joined,
    parts_of,
    use_in,
)

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.state import State

HELLO_S = 10.0
DEATH_LOOKS_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)  # a process closes its sockets before it is gone
MAX_SHARED = 1024  # daemons of one stream
LARGE = frozenset(("infer", "file", "log"))

log = get_logger(__name__)


class DaemonsService(cluster_pb2_grpc.DaemonsServicer):
    """Turns the messages of daemons into events; messages to them go through their `Line`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._driver, self._lines, self._metrics = state.driver, state.lines, state.metrics
        self._tasks: set[asyncio.Task[None]] = set()

    # -- calls -------------------------------------------------------------------------------------

    async def Attach(
        self, request_iterator: AsyncIterator[pb.DaemonMessage], context: CallContext
    ) -> AsyncIterator[pb.SchedulerMessage]:
        shared = _Stream(str(context.peer()))
        first, *others = parts_of(await self._first(request_iterator))
        self._add(shared, first)
        reader = asyncio.ensure_future(self._read(shared, others, request_iterator))
        try:
            async for message in letters(shared.mail):
                yield message
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([reader], timeout=1.0)
            for line in list(shared.lines.values()):
                self._end(shared, line, "its stream ended")
        if reader.done() and not reader.cancelled() and (error := reader.exception()):
            raise error

    async def Fetch(
        self, request: pb.BlobInfo, context: CallContext
    ) -> AsyncIterator[pb.BlobChunk]:
        token, digest = caller().name, request.digest
        if not self._state.is_needed(digest, token):
            raise DeniedError(
                f"file {digest[:80]} is of no job that runs on a daemon of the token {token!r}"
            )
        async for chunk in self._state.blobs.read(digest):
            yield chunk

    # -- one stream --------------------------------------------------------------------------------

    async def _first(self, messages: AsyncIterator[pb.DaemonMessage]) -> pb.DaemonMessage:
        try:
            return await asyncio.wait_for(messages.__anext__(), HELLO_S)
        except (asyncio.TimeoutError, StopAsyncIteration):
            # Not the daemon's mistake: a slow or broken network. It tries again.
            raise UnavailableError(f"no hello came within {HELLO_S:g} s") from None

    def _add(self, shared: _Stream, message: pb.DaemonMessage) -> None:
        """A daemon begins to speak over the stream."""
        if message.WhichOneof("kind") != "hello" or message.ByteSize() > MAX_MESSAGE_NBYTES:
            raise ProtocolError("a daemon must say hello first")
        if message.slot in shared.lines:
            raise ProtocolError("a daemon says hello once a stream")
        is_alone = not message.slot or 0 in shared.lines
        if len(shared.lines) >= (1 if is_alone else MAX_SHARED):
            raise ProtocolError("more daemons say hello than may share a stream")
        hello = message.hello
        try:
            event = replace(joined(hello), line=hello.node if message.slot else "")
        except ProtocolError as error:
            if not message.slot:
                raise
            log.warning("daemon %s: %s", shared, error)
            shared.answer(pb.SchedulerMessage(slot=message.slot, closed=str(error)))
            return  # the others of its line have done no wrong
        check_node(caller().name, hello.daemon, hello.node)
        process = local_process(shared.peer, hello.pid)
        line = Line(hello, shared.peer, process, message.slot, shared.mail)
        line.token = caller().name
        shared.lines[message.slot] = line
        self._lines.add(line)
        self._driver.tell(event)

    async def _read(
        self,
        shared: _Stream,
        first: Sequence[pb.DaemonMessage],
        messages: AsyncIterator[pb.DaemonMessage],
    ) -> None:
        """Read until the daemons end the stream, or one breaks the protocol. first: parts of the
        message with which it began.
        """
        try:
            for part in first:
                self._take(shared, part)
            async for message in messages:
                for part in parts_of(message):
                    if not shared.is_open:
                        return
                    self._take(shared, part)
                await self._driver.room()
            shared.close("it ended the stream")
        except OneFlowError as error:
            log.warning("daemon %s: %s", shared, error)
            shared.close(str(error))
            raise
        except Exception as error:  # the stream broke: gRPC has many ways to say so
            shared.close(f"its stream broke ({type(error).__name__})")

    def _take(self, shared: _Stream, message: pb.DaemonMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind not in LARGE and message.ByteSize() > MAX_MESSAGE_NBYTES:
            raise ProtocolError(f"a message of {message.ByteSize()} bytes")
        line = shared.lines.get(message.slot)
        if kind == "beat":
            self._take_beat(shared, message)
        elif kind == "hello":
            self._add(shared, message)
        elif kind is None:
            self._metrics.message_rejected("unknown")
        elif line is not None and line.is_open:
            self._take_from(shared, line, message, kind)
        elif line is not None and kind == "closed":
            self._end(shared, line, "it ended")

    def _take_beat(self, shared: _Stream, message: pb.DaemonMessage) -> None:
        """Take one beat of all that share the stream. One that is not welcomed yet has an old
        epoch.
        """
        beat, is_of_all = message.beat, message.slot not in shared.lines
        if len(beat.others) > MAX_SHARED:
            raise ProtocolError(f"a heartbeat of {len(beat.others)} daemons")
        use = use_in(beat)
        own = pb.Present(slot=message.slot, epoch=message.epoch)
        heard = []
        for present in (own, *beat.others):
            line = shared.lines.get(present.slot)
            if line is not None and line.is_open and line.epoch:
                line.use = use or line.use
                heard.append((line.daemon, present.epoch))
        if heard:
            self._driver.tell(LineBeat(tuple(heard)))
        if heard or is_of_all:
            shared.answer(pb.SchedulerMessage(slot=message.slot, ack=beat.number))

    def _take_from(self, shared: _Stream, line: Line, message: pb.DaemonMessage, kind: str) -> None:
        match kind:
            case "log" | "infer" | "inspected":
                line.answer(getattr(message, kind))
                return
            case "exec":
                line.answer_exec(message.exec)
                return
            case "file":
                line.answer_file(message.file)
                return
            case "closed":
                if message.closed:
                    seen_s = min(max(0.0, message.seen_s), sum(DEATH_LOOKS_S))  # whatever it says
                    self._metrics.failure_detected("process", seen_s)
                self._end(shared, line, "it ended", message.closed)
                return
        event = event_of(message, line.daemon)
        if event is not None:
            self._driver.tell(event)
        if kind == "leaving":
            line.process = None
            line.close("it left")

    def _end(self, shared: _Stream, line: Line, why: str, has_died: bool = False) -> None:
        """A daemon's part of the stream is over. has_died: says the process that shares it out."""
        line.close(why)
        del shared.lines[line.slot]
        if self._lines.drop(line) and line.epoch:
            self._driver.tell(DaemonGone(line.daemon, line.epoch, "died" if has_died else "lost"))
            if line.process is not None:
                task = asyncio.ensure_future(self._look_for_death(line))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _look_for_death(self, line: Line) -> None:
        """A process of this machine that is gone will not come back."""
        passed_s = 0.0
        for pause_s in DEATH_LOOKS_S:
            await asyncio.sleep(pause_s)
            passed_s += pause_s
            if line.process is not None and line.process.is_gone:
                self._metrics.failure_detected("process", passed_s)
                self._driver.tell(DaemonGone(line.daemon, line.epoch, "died"))
                return


class _Stream:
    """One stream and the daemons that share it."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.mail: Mail = asyncio.Queue()
        self.lines: dict[int, Line] = {}

    def __str__(self) -> str:
        return f"{', '.join(line.daemon for line in self.lines.values())[:200]} at {self.peer}"

    @property
    def is_open(self) -> bool:
        """Whether it may go on: a stream of one daemon ends with that one's part."""
        alone = self.lines.get(0)
        return alone is None or alone.is_open

    def answer(self, message: pb.SchedulerMessage) -> None:
        if self.mail.qsize() < MAX_MAIL:
            self.mail.put_nowait(message)
        else:
            self.close("it does not read what it is told")

    def close(self, why: str) -> None:
        for line in self.lines.values():
            line.close(why)
        self.mail.put_nowait(None)
