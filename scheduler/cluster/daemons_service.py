"""The service that daemons attach to: one stream each, and blobs to fetch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from oneflow.core.errors import OneFlowError, ProtocolError
from oneflow.core.log import get_logger
from oneflow.core.rpc import CallContext
from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import cluster_pb2_grpc
from oneflow.scheduler.cluster.auth import caller, check_file, check_node
from oneflow.scheduler.cluster.lines import Line, local_process
from oneflow.scheduler.cluster.refusals import UnavailableError
from oneflow.scheduler.jobs.events import DaemonGone
from oneflow.scheduler.jobs.messages import MAX_MESSAGE_NBYTES, event_of, joined

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.state import State

HELLO_S = 10.0
DEATH_LOOKS_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)  # a process closes its sockets before it is gone
LARGE = frozenset(("infer", "file", "log"))

log = get_logger(__name__)


class DaemonsService(cluster_pb2_grpc.DaemonsServicer):
    """Turns what daemons say into events; what they are told goes through their `Line`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._driver, self._lines, self._metrics = state.driver, state.lines, state.metrics
        self._tasks: set[asyncio.Task[None]] = set()

    # -- calls -------------------------------------------------------------------------------------

    async def Attach(
        self, request_iterator: AsyncIterator[pb.DaemonMessage], context: CallContext
    ) -> AsyncIterator[pb.SchedulerMessage]:
        line = await self._begin(request_iterator, context)
        line.token = caller().name
        reader = asyncio.ensure_future(self._read(line, request_iterator))
        try:
            while (message := await line.mail.get()) is not None:
                yield message
        finally:
            line.close("its stream ended")
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([reader], timeout=1.0)
            self._end(line)
        if reader.done() and not reader.cancelled() and (error := reader.exception()):
            raise error

    async def Fetch(
        self, request: pb.BlobInfo, context: CallContext
    ) -> AsyncIterator[pb.BlobChunk]:
        who = caller()
        own = {line.daemon for line in self._lines.all() if line.token == who.name}
        check_file(who.name, request.digest, self._state.files_of(own))
        async for chunk in self._state.blobs.read(request.digest):
            yield chunk

    # -- one stream --------------------------------------------------------------------------------

    async def _begin(self, messages: AsyncIterator[pb.DaemonMessage], context: CallContext) -> Line:
        try:
            first = await asyncio.wait_for(messages.__anext__(), HELLO_S)
        except (asyncio.TimeoutError, StopAsyncIteration):
            # Not the daemon's mistake: a slow or broken network. It tries again.
            raise UnavailableError(f"no hello came within {HELLO_S:g} s") from None
        if first.WhichOneof("kind") != "hello" or first.ByteSize() > MAX_MESSAGE_NBYTES:
            raise ProtocolError("a daemon must say hello first")
        event = joined(first.hello)
        check_node(caller().name, first.hello.daemon, first.hello.node)
        peer = str(context.peer())
        line = Line(first.hello, peer, local_process(peer, first.hello.pid))
        self._lines.add(line)
        self._driver.tell(event)
        return line

    async def _read(self, line: Line, messages: AsyncIterator[pb.DaemonMessage]) -> None:
        """Until the daemon ends the stream, or says what it may not."""
        try:
            async for message in messages:
                if not line.is_open:
                    return
                self._take(line, message)
                await self._driver.room()
            line.close("it ended the stream")
        except OneFlowError as error:
            log.warning("daemon %s at %s: %s", line.daemon, line.peer, error)
            line.close(str(error))
            raise
        except Exception as error:  # the stream broke: gRPC has many ways to say so
            line.close(f"its stream broke ({type(error).__name__})")

    def _take(self, line: Line, message: pb.DaemonMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind not in LARGE and message.ByteSize() > MAX_MESSAGE_NBYTES:
            raise ProtocolError(f"a message of {message.ByteSize()} bytes")
        match kind:
            case "hello":
                raise ProtocolError("a daemon says hello once a stream")
            case None:
                self._metrics.message_rejected("unknown")
                return
            case "log" | "infer" | "inspected":
                line.answer(getattr(message, kind))
                return
            case "file":
                line.answer_file(message.file)
                return
        event = event_of(message, line.daemon)
        if kind == "beat":
            if not line.epoch:
                return  # not welcomed yet: its epoch is an old one
            line.send(pb.SchedulerMessage(ack=message.beat.number))
        if event is not None:
            self._driver.tell(event)
        if kind == "leaving":
            line.process = None
            line.close("it left")

    def _end(self, line: Line) -> None:
        if self._lines.drop(line) and line.epoch:
            self._driver.tell(DaemonGone(line.daemon, line.epoch, "lost"))
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
