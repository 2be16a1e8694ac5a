"""Daemons that obey a test, over real gRPC, and the stubs of a client."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from oneflow.core.control_channel import PROTOCOL, channel_options
from oneflow.core.loop import wait_for
from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import cluster_pb2_grpc
from oneflow.scheduler.jobs.messages import parts_of
from oneflow.services.pinned_channel import prove_async
from oneflow.services.proof import Claim
from tests.support.cluster import SchedulerProcess
from tests.support.proving import Metadata, ProvenChannel, open_proven
from tests.support.waiting import WAIT_S

_incarnations = itertools.count(1000)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a scene on the one loop that may speak gRPC."""
    return wait_for(work, 2 * WAIT_S)


class Client:
    """Stubs over a channel on which the token was proven; over one that only shows the token to a
    scheduler that must not take it, with shows=True. Open and close it.
    """

    def __init__(
        self,
        scheduler: SchedulerProcess,
        token: str | None = None,
        channel: Any = None,
        shows: bool = False,
    ) -> None:
        """channel: one with TLS, on which the token is proven."""
        self._address = scheduler.known["address"]
        self._token = scheduler.token() if token is None else token
        self._shows = shows
        self._proven: ProvenChannel | None = None
        self.channel = channel
        self.metadata: Metadata = ()
        self.stubs: dict[str, Any] = {}

    async def open(self) -> Client:
        """Raises grpc.RpcError if the token is refused."""
        from grpc import aio

        if self._shows:
            self.channel = aio.insecure_channel(self._address, options=channel_options())
            self.metadata = (("authorization", f"Bearer {self._token}"),)
        elif self.channel is not None:
            session = await prove_async(self.channel, Claim(self._token), WAIT_S)
            self.metadata = session.metadata
        else:
            self._proven = await open_proven(self._address, self._token)
            self.channel, self.metadata = self._proven.channel, self._proven.metadata
        for name in ("Jobs", "Cluster", "Daemons"):
            self.stubs[name] = getattr(cluster_pb2_grpc, f"{name}Stub")(self.channel)
        return self

    async def close(self) -> None:
        if self._proven is not None:
            await self._proven.close()
        elif self.channel is not None:
            await self.channel.close(0.1)

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def call(self, method: str, request: Any = None, **options: Any) -> Any:
        """`call("Jobs.Get", request)`: awaitable, or a stream to iterate."""
        service, _, name = method.partition(".")
        request = pb.Empty() if request is None else request
        options.setdefault("timeout", WAIT_S)
        return getattr(self.stubs[service], name)(request, metadata=self.metadata, **options)

    async def submit(self, job_id: str = "", **spec: Any) -> pb.JobRecord:
        fields: dict[str, Any] = {"argv": ["true"], "devices": 1, **spec}
        if fields.get("kind"):
            del fields["argv"]
        request = pb.SubmitRequest(job_id=job_id, spec=pb.JobSpec(**fields))
        return await self.call("Jobs.Submit", request)

    async def get(self, job_id: str) -> pb.JobRecord:
        return await self.call("Jobs.Get", pb.JobRequest(job_id=job_id))

    async def until(self, job_id: str, *states: str) -> pb.JobRecord:
        """The record once it is in one of these states."""
        watch = self.call("Jobs.Watch", pb.JobRequest(job_id=job_id))
        async for record in watch:
            if record.state in states:
                watch.cancel()
                return record
        raise AssertionError(f"{job_id} never was {states}")

    async def refusal(self, method: str, request: Any = None, **options: Any) -> tuple[str, str]:
        """Code and details of a call that is refused."""
        import grpc

        try:
            call = self.call(method, request, **options)
            if hasattr(call, "__aiter__"):
                async for _ in call:
                    pass
            else:
                await call
        except grpc.RpcError as error:
            return error.code().name, error.details()
        raise AssertionError(f"{method} was not refused")


class FakeDaemon:
    """Attaches, beats, prepares as it is told; a test says how ranks go on."""

    def __init__(self, scheduler: SchedulerProcess, name: str = "n1/cpu:0") -> None:
        self.scheduler, self.name = scheduler, name
        self.incarnation = next(_incarnations)
        self.epoch = 0
        self.heard: list[pb.SchedulerMessage] = []
        self.logs: dict[tuple[str, int, int, str], bytes] = {}
        self.files: dict[str, bytes] = {}
        self.closed_logs: set[str] = set()
        self.piece_nbytes = 7  # of a log: few at a time
        self.is_prepared = True  # answers Prepare at once
        self.use: pb.NodeUse | None = None
        self._client: Client | None = None
        self._stream: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()

    async def attach(self, running: tuple[pb.RunningAttempt, ...] = (), **hello: Any) -> FakeDaemon:
        """Returns when it is welcomed, or fenced."""
        self._client = await Client(self.scheduler, self.scheduler.token("daemon.token")).open()
        self._stream = self._client.stubs["Daemons"].Attach(metadata=self._client.metadata)
        node, _, device = self.name.partition("/")
        kind, _, index = device.partition(":")
        fields: dict[str, Any] = {
            "daemon": self.name,
            "node": node,
            "device_type": kind,
            "device_index": int(index),
            "address": "127.0.0.1",
            "incarnation": self.incarnation,
            "protocol": PROTOCOL,
            "version": "test",
            "epoch": self.epoch,
            "running": running,
        }
        message = pb.DaemonMessage(hello=pb.Hello(**{**fields, **hello}))
        await self._stream.write(message)
        seen = len(self.heard)
        self._tasks = [asyncio.ensure_future(self._read())]
        await self.wait(lambda m: m.WhichOneof("kind") in ("welcome", "fenced"), seen)
        self._tasks.append(asyncio.ensure_future(self._beat()))
        return self

    async def detach(self) -> None:
        """The stream breaks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._stream is not None:
            self._stream.cancel()
        if self._client is not None:
            await self._client.close()

    async def wait(
        self, fits: Callable[[pb.SchedulerMessage], Any], seen: int = 0
    ) -> pb.SchedulerMessage:
        """The first message that fits, of those after `seen`."""

        async def look() -> pb.SchedulerMessage:
            while True:
                for message in self.heard[seen:]:
                    if fits(message):
                        return message
                self._news.clear()
                await self._news.wait()

        return await asyncio.wait_for(look(), WAIT_S)

    async def told(self, kind: str, seen: int = 0) -> Any:
        return getattr(await self.wait(lambda m: m.WhichOneof("kind") == kind, seen), kind)

    async def say(self, **message: Any) -> None:
        fields = {"epoch": self.epoch, **message}
        async with self._writing:  # one at a time: gRPC wants it so
            await self._stream.write(pb.DaemonMessage(**fields))

    async def progress(self, id_: pb.AttemptId, step: int, **more: Any) -> None:
        await self.say(progress=pb.Progress(id=id_, step=step, **more))

    async def exit(self, id_: pb.AttemptId, code: int, reason: str, cause: str = "") -> None:
        exited = pb.Exited(id=id_, exit_code=code, reason=reason, cause=cause, pid=4711)
        await self.say(exited=exited)

    # -- by itself ---------------------------------------------------------------------------------

    async def _beat(self) -> None:
        import grpc

        with suppress(grpc.RpcError, asyncio.InvalidStateError):  # the stream has ended
            for number in itertools.count(1):
                await asyncio.sleep(0.5)
                await self.say(beat=pb.DaemonBeat(number=number, use=self.use))

    async def _read(self) -> None:
        import grpc

        with suppress(grpc.RpcError):
            async for message in self._stream:
                for part in parts_of(message):
                    await self._take(part)
                    self.heard.append(part)
                self._news.set()

    async def _take(self, message: pb.SchedulerMessage) -> None:
        match message.WhichOneof("kind"):
            case "welcome":
                self.epoch = message.welcome.epoch
            case "prepare" if self.is_prepared:
                await self.say(prepared=pb.Prepared(id=message.prepare.id, master_port=4000))
            case "read_log":
                work = self._answer_log(message.read_log)
                self._tasks.append(asyncio.ensure_future(work))
            case "read_file":
                await self._answer_file(message.read_file)
            case "inspect":
                state = pb.TraceState(state="asked", trace=message.inspect.trace.trace)
                found = pb.Inspected(request=message.inspect.request, trace=state)
                await self.say(inspected=found)
            case "infer":
                outputs = [pb.Tensor(name="y", data=t.data[::-1]) for t in message.infer.inputs]
                data = pb.InferData(request=message.infer.request, outputs=outputs)
                await self.say(infer=data)

    async def _answer_log(self, ask: pb.ReadLog) -> None:
        id_ = ask.id
        data = self.logs.get((id_.job_id, id_.attempt, id_.rank, ask.stream), b"")
        part = data[ask.offset : ask.offset + self.piece_nbytes]
        is_closed = f"{id_.job_id}.{id_.attempt}" in self.closed_logs
        if not part and not is_closed:
            await asyncio.sleep(min(ask.wait_s, 0.05))
        offset = min(ask.offset, len(data))
        piece = pb.LogPiece(
            attempt=id_.attempt, rank=id_.rank, stream=ask.stream, offset=offset, data=part
        )
        is_closed = is_closed and ask.offset + len(part) >= len(data)
        found = pb.LogData(request=ask.request, piece=piece, size=len(data), is_closed=is_closed)
        await self.say(log=found)

    async def _answer_file(self, ask: pb.ReadFile) -> None:
        data, error = self.files.get(ask.name), ""
        if data is None:
            error = f"there is no output {ask.name}"
        for start in range(0, len(data or b""), 1000):
            part = (data or b"")[start : start + 1000]
            await self.say(file=pb.FileData(request=ask.request, data=part))
        await self.say(file=pb.FileData(request=ask.request, is_last=True, error=error))


# ---- asking --------------------------------------------------------------------------------------


def request(job_id: str) -> pb.JobRequest:
    return pb.JobRequest(job_id=job_id)


async def chunks(data: bytes, digest: str = "", size: int = 1 << 20) -> Any:
    digest = digest or hashlib.blake2b(data, digest_size=32).hexdigest()
    for start in range(0, max(len(data), 1), size):
        head = {"digest": digest, "nbytes": len(data)} if not start else {}
        yield pb.BlobChunk(data=data[start : start + size], **head)


async def upload(client: Client, data: bytes) -> str:
    info = await client.call("Jobs.Upload", chunks(data))
    return str(info.digest)


async def gather(call: Any) -> bytes:
    return b"".join([piece.data async for piece in call])
