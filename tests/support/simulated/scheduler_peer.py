"""A scheduler that does as a test says, for real daemons: real gRPC, no decisions of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oneflow.core.control_channel import CHUNK_NBYTES, channel_options
from oneflow.core.loop import wait_for
from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import cluster_pb2_grpc
from oneflow.scheduler.door import Door, RefusedProofError, session_shown
from oneflow.scheduler.ports import free_port
from oneflow.services.proof import digest_of, name_of
from tests.support.cluster import Running
from tests.support.waiting import CALL_S, WAIT_S, wait_until


class FakeScheduler:
    """Welcomes daemons, keeps all they say with the time, says what the test wants.

    token: which daemons must prove.  on_hello: what to answer instead of a welcome.
    """

    def __init__(self, token: str, port: int = 0) -> None:
        self.token, self.port = token, port or free_port()  # its own while it is stopped, too
        self.refused: list[str] = []
        self.door = Door(
            self._digest, lambda error, peer: self.refused.append(str(error)), self._address
        )
        self.blobs: dict[str, bytes] = {}
        self.heard: list[tuple[float, pb.DaemonMessage]] = []
        self.on_hello: Callable[[pb.Hello], pb.SchedulerMessage | None] = lambda hello: None
        self.epoch = 0
        self.acks = True
        self.credentials: Any = None  # of gRPC, for TLS
        self.fetches = 0
        self._news = threading.Condition()
        self._outboxes: dict[str, asyncio.Queue[pb.SchedulerMessage]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Any = None
        self._replies: dict[int, pb.DaemonMessage] = {}

    # -- for tests ---------------------------------------------------------------------------------

    def start(self) -> None:
        wait_for(self._start(), CALL_S)

    def stop(self) -> None:
        if self._server is not None:
            wait_for(self._stop(), CALL_S)

    def say(self, message: pb.SchedulerMessage, daemon: str = "n1/cpu:0") -> None:
        loop, outbox = self._loop, wait_until(lambda: self._outboxes.get(daemon), daemon)
        assert loop is not None
        loop.call_soon_threadsafe(outbox.put_nowait, message)

    def wait(
        self,
        kind: str,
        fits: Callable[[Any], bool] = lambda found: True,
        timeout_s: float = WAIT_S,
        after: int = 0,
    ) -> Any:
        """The first message of that kind (from the `after`th message on) that fits."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                for _, message in self.heard[after:]:
                    if message.WhichOneof("kind") == kind and fits(getattr(message, kind)):
                        return getattr(message, kind)
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    kinds = [m.WhichOneof("kind") for _, m in self.heard]
                    raise AssertionError(f"no {kind} within {timeout_s} s; heard {kinds[-20:]}")
                self._news.wait(left_s)

    def when(self, kind: str) -> float:
        """Time at which the last message of that kind came."""
        return max(at for at, message in self.heard if message.WhichOneof("kind") == kind)

    def prepare(
        self, id: pb.AttemptId, spec: pb.JobSpec, daemon: str = "n1/cpu:0", **more: Any
    ) -> pb.Prepared:
        more = {"world_size": 1, "job_key": "k" * 64} | more
        self.say(pb.SchedulerMessage(prepare=pb.Prepare(id=id, spec=spec, **more)), daemon)
        found: pb.Prepared = self.wait("prepared", lambda p: p.id == id)
        return found

    def begin(self, id: pb.AttemptId, spec: pb.JobSpec, **more: Any) -> None:
        """Prepare and Start; returns when the rank runs."""
        found = self.prepare(id, spec, **more)
        assert not found.error, found.error
        self.start_rank(id, found.master_port)
        self.wait("progress", lambda p: p.id == id)

    def start_rank(self, id: pb.AttemptId, port: int, daemon: str = "n1/cpu:0") -> None:
        start = pb.Start(id=id, master_addr="127.0.0.1", master_port=port)
        self.say(pb.SchedulerMessage(start=start), daemon)

    def exited(self, id: pb.AttemptId, timeout_s: float = WAIT_S) -> pb.Exited:
        found: pb.Exited = self.wait("exited", lambda e: e.id == id, timeout_s)
        return found

    def read_log(
        self,
        id: pb.AttemptId,
        stream: str,
        offset: int = 0,
        wait_s: float = 0.0,
        number: int = 1,
    ) -> pb.LogData:
        request = pb.ReadLog(
            request=number, id=id, stream=stream, offset=offset, limit=1 << 20, wait_s=wait_s
        )
        after = len(self.heard)
        self.say(pb.SchedulerMessage(read_log=request))
        found: pb.LogData = self.wait("log", lambda d: d.request == number, after=after)
        return found

    def whole_log(self, id: pb.AttemptId, stream: str) -> bytes:
        """Follows the stream to its end."""
        data, number = b"", 100
        while True:
            number += 1
            found = self.read_log(id, stream, len(data), wait_s=2.0, number=number)
            assert found.piece.offset == len(data)
            data += found.piece.data
            if found.is_closed:
                return data

    # -- on the loop -------------------------------------------------------------------------------

    async def _start(self) -> None:
        from grpc import aio

        self._loop = asyncio.get_running_loop()
        self._server = aio.server(options=channel_options())
        register: Any = cluster_pb2_grpc.add_DaemonsServicer_to_server
        register(_Service(self), self._server)
        self._server.add_generic_rpc_handlers((self.door.handler(),))
        address = self._address()
        if self.credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, self.credentials)
        await self._server.start()

    async def _stop(self) -> None:
        server, self._server = self._server, None
        await server.stop(0)

    def _address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _digest(self, name: bytes) -> bytes:
        digest = digest_of(self.token)
        if name != name_of(digest):
            raise RefusedProofError("wrong token")
        return digest

    def note(self, message: pb.DaemonMessage) -> None:
        with self._news:
            self.heard.append((time.monotonic(), message))
            self._news.notify_all()

    async def attach(self, requests: AsyncIterator[pb.DaemonMessage], context: Any) -> Any:
        import grpc

        shown = session_shown(context.invocation_metadata())
        if self.door.visitor(shown, context.peer()) is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no session of this scheduler")
        outbox: asyncio.Queue[pb.SchedulerMessage] = asyncio.Queue()
        reading = asyncio.ensure_future(self._read(requests, outbox))
        getting: asyncio.Future[pb.SchedulerMessage] = reading.get_loop().create_future()
        try:
            while not reading.done():
                getting = asyncio.ensure_future(outbox.get())
                await asyncio.wait({getting, reading}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    return
                yield getting.result()
        finally:
            reading.cancel()
            getting.cancel()

    async def _read(
        self, requests: AsyncIterator[pb.DaemonMessage], outbox: asyncio.Queue[Any]
    ) -> None:
        async for message in requests:
            kind = message.WhichOneof("kind")
            if kind == "hello":
                self._outboxes[message.hello.daemon] = outbox
                answer = self.on_hello(message.hello)
                if answer is None:
                    self.epoch += 1
                    answer = pb.SchedulerMessage(welcome=pb.Welcome(epoch=self.epoch))
                outbox.put_nowait(answer)
            if kind == "beat" and self.acks:
                outbox.put_nowait(pb.SchedulerMessage(ack=message.beat.number))
            self.note(message)


class _Service(cluster_pb2_grpc.DaemonsServicer):
    def __init__(self, owner: FakeScheduler) -> None:
        self._owner = owner

    async def Attach(self, request_iterator: Any, context: Any) -> Any:
        async for message in self._owner.attach(request_iterator, context):
            yield message

    async def Fetch(self, request: pb.BlobInfo, context: Any) -> Any:
        self._owner.fetches += 1
        data = self._owner.blobs[request.digest]
        for start in range(0, len(data), CHUNK_NBYTES):
            piece = data[start : start + CHUNK_NBYTES]
            yield pb.BlobChunk(digest=request.digest, nbytes=len(data), data=piece)


# ---- with daemons --------------------------------------------------------------------------------


@contextmanager
def fake_scheduler() -> Iterator[FakeScheduler]:
    found = FakeScheduler(token="secret")
    found.start()
    try:
        yield found
    finally:
        found.stop()


@contextmanager
def daemons(scheduler: FakeScheduler, folder: Path) -> Iterator[Callable[..., Running]]:
    """Gives what starts one, and returns when the scheduler has heard of it."""
    started: list[Running] = []

    def start_one(**settings: Any) -> Running:
        after = len(scheduler.heard)
        found = Running(scheduler, folder, **({"token": "secret"} | settings))
        started.append(found)
        scheduler.wait("hello", after=after)
        scheduler.wait("beat", after=after)
        return found

    try:
        yield start_one
    finally:
        for found in started:
            found.end()
            print(found.said())


def script(text: str, **more: Any) -> pb.JobSpec:
    """A job that runs Python text."""
    return pb.JobSpec(argv=["python", "-c", text], devices=1, device_type="cpu", **more)


def attempt(name: str = "j1", number: int = 1, rank: int = 0) -> pb.AttemptId:
    return pb.AttemptId(job_id=name, attempt=number, rank=rank)


def stop(id: pb.AttemptId, grace_s: float, why: str = "cancelled by ada") -> pb.SchedulerMessage:
    return pb.SchedulerMessage(stop=pb.Stop(id=id, grace_s=grace_s, why=why))
