"""A rank's line to the scheduler: join, shared keys, barriers, compiles, heartbeats, failures.

Methods block the calling thread (the rank's main thread); the work runs on the process's control
loop. Every wait is bounded, ends with Ctrl-C, and ends with PeerLostError as soon as the
scheduler says that the job is over.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import grpc

from oneflow.actors.compile_call import CompileCall
from oneflow.actors.heartbeat import Heartbeat
from oneflow.actors.rank_line import Metadata, RankLine
from oneflow.boxing.transport.pages import SharedPage, fetch_page, host_identity, page_server
from oneflow.core.config import Config
from oneflow.core.control_channel import (
    LATE_S,
    MAX_TEXT_CHARS,
    PROTOCOL,
    decode_error,
)
from oneflow.core.errors import (
    ConfigError,
    DesyncError,
    InternalError,
    OneFlowError,
    PeerLostError,
    RendezvousError,
    TransportError,
)
from oneflow.core.exits import exited_early, exited_ranks
from oneflow.core.job_tls import job_tls
from oneflow.core.log import get_logger
from oneflow.core.loop import submit, wait_for
from oneflow.core.rpc import Message, RpcFailure
from oneflow.protos import control_pb2 as pb

T = TypeVar("T")
log = get_logger(__name__)

MARGIN_S = 5.0  # the scheduler keeps the time; we wait this much longer for its answer
OWN_ANSWER_S = 0.1  # an error meant for us too says more than "another rank failed"
LEAVE_S = 2.0
REPORT_S = 2.0
LAST_NEWS_S, LAST_NEWS_LOOK_S = 0.5, 0.01
RECONNECT_PAUSE_S = 0.2
WAIT_ANSWER_S = 15.0


@dataclass(frozen=True)
class AbortInfo:
    """The cause for which the job is over: the rank that failed first. `exit_code` and `reason` are
    that rank's.
    """

    rank: int
    host: str
    cause: str
    exit_code: int
    reason: str


@dataclass(frozen=True)
class RankInfo:
    """The place where a rank runs. place: equal on ranks that can share memory; pages:
    address of their server, for those.
    """

    rank: int
    host: str
    pid: int
    place: str
    pages: bytes = b""


class ControlClient:
    """One rank's connection to the scheduler at `address`.

    progress: called by each heartbeat; a counter that grows while the rank's actors move.
    on_abort: called once, on the control thread, when the job is over because another rank failed.
    """

    def __init__(
        self,
        address: str,
        rank: int,
        world_size: int,
        config: Config | None = None,
        *,
        progress: Callable[[], int] = lambda: 0,
        on_abort: Callable[[AbortInfo], None] | None = None,
    ) -> None:
        self.address = address
        self.rank = rank
        self.world_size = world_size
        self.on_abort = on_abort
        self._config = config or Config()
        self.tls = job_tls(self._config)
        self._progress = progress
        self._incarnation = secrets.randbits(64)
        self._host = socket.gethostname()
        self._aborted: AbortInfo | None = None
        self._heard_failure: AbortInfo | None = None  # the same, also after our own failure
        self._left_ranks: set[int] = set()
        self._members: tuple[RankInfo, ...] = ()
        self._num_compiles = 0
        self._line: RankLine | None = None
        self._beating: asyncio.Task[None] | None = None
        self._abort_seen: asyncio.Event | None = None
        self._scheduler_closed = False
        self._failed = False  # we ourselves; what the others are told is no news to us
        self._closed = False

    # -- state -------------------------------------------------------------------------------------

    @property
    def aborted(self) -> AbortInfo | None:
        """Return the failure that came first, or None while the job goes on."""
        return self._aborted

    @property
    def left_ranks(self) -> frozenset[int]:
        """Ranks that left in order; nothing will come from them any more."""
        return frozenset(self._left_ranks)

    @property
    def members(self) -> tuple[RankInfo, ...]:
        """All ranks of the job, by rank; empty before `join`."""
        return self._members

    def check(self, ranks: Iterable[int] = ()) -> None:
        """Raises PeerLostError if the job is over or one of `ranks` has left.

        Cheap: waiting loops call it.
        """
        if self._aborted:
            raise _news(self._aborted, self.rank)
        if self._left_ranks:
            gone = sorted(self._left_ranks.intersection(ranks))
            if gone:
                raise PeerLostError(
                    f"rank {gone[0]} exited 0 while peers run: rank {self.rank} needs it"
                )

    # -- calls -------------------------------------------------------------------------------------

    def join(self, timeout_s: float | None = None) -> tuple[RankInfo, ...]:
        """Waits until every rank has joined; returns where each of them runs.

        Raises RendezvousError that names the missing ranks, or says that rank 0 cannot be reached,
        after `timeout_s` (default: the configured one); ConfigError if this rank does not fit;
        PeerLostError if the launcher says that a missing rank has exited 0.
        """
        wait_s = self._config.rendezvous_timeout_s if timeout_s is None else timeout_s
        return wait_for(self._join(wait_s), wait_s + 2 * MARGIN_S)

    def put(self, key: str, value: bytes) -> None:
        """Stores up to 1 MiB under `key` for all ranks; a second put replaces the first."""
        self._call("Put", pb.PutRequest(key=key, value=value), MARGIN_S)

    def get(self, key: str, timeout_s: float | None = None) -> bytes:
        """The value of `key`; waits for it. Raises TransportError after `timeout_s`."""
        wait_s = self._wait_s(timeout_s)
        reply = self._call("Get", pb.GetRequest(key=key, timeout_s=wait_s), wait_s)
        return bytes(reply.value)

    def page(self, rank: int, name: str, timeout_s: float) -> SharedPage:
        """Map the page that `rank`, on this host, publishes as `name`; wait for it. Raises
        TransportError after `timeout_s`.
        """
        return fetch_page(self.members[rank].pages, name, timeout_s, lambda: self.check([rank]))

    def ask_get(self, key: str, timeout_s: float) -> concurrent.futures.Future[bytes]:
        """`get` for a caller that has more to look at while it waits."""

        async def value() -> bytes:
            request = pb.GetRequest(key=key, timeout_s=timeout_s)
            return bytes((await self._ask("Get", request, timeout_s + MARGIN_S)).value)

        return submit(self._guarded(value(), timeout_s + 2 * MARGIN_S))

    def ask_wait(
        self, place: str, number: int, text: str, missing: Iterable[int], reached: Mapping[str, int]
    ) -> concurrent.futures.Future[None]:
        """Says that this rank has waited for long: in its call `number` at `place`, for `missing`.

        reached: place -> number of the last call begun there. The answer comes after seconds, or
        at once as a DesyncError if the wait can never end; as long as it lasts, ask again.
        """
        request = pb.WaitRequest(
            rank=self.rank,
            place=place,
            number=number,
            text=text[:MAX_TEXT_CHARS],
            missing=missing,
            reached=reached,
        )

        async def answer() -> None:
            await self._ask("Wait", request, WAIT_ANSWER_S)

        return submit(answer())

    def barrier(self, name: str, timeout_s: float | None = None) -> None:
        """Wait until all ranks have come.

        Raises DesyncError that names the missing ranks, after `timeout_s`.
        """
        wait_s = self._wait_s(timeout_s)
        request = pb.BarrierRequest(name=name, rank=self.rank, timeout_s=wait_s)
        self._call("Barrier", request, wait_s)

    def compile(
        self,
        job_name: str,
        digest: bytes,
        node_digests: Sequence[int],
        graph: bytes,
        config: bytes = b"",
        describe: Callable[[int], str] = str,
        timeout_s: float | None = None,
    ) -> bytes:
        """The plan that rank 0 compiled from a graph on which all ranks agree.

        digest: of graph and configuration.  node_digests: one unsigned 64-bit number per node,
        sent only if the digests differ.  graph, config: used on rank 0 only.
        describe(i): text of node i, for the error.
        timeout_s: for the other ranks to ask, and again for the compile.
        Raises DesyncError that shows each rank's text of the first node that differs, or the error
        of the compile.
        """
        args = job_name, digest, node_digests, graph, config, describe, timeout_s
        limit_s = 2 * self._wait_s(timeout_s) + 2 * MARGIN_S
        return wait_for(self._plan(*args), limit_s)

    def ask_compile(
        self,
        job_name: str,
        digest: bytes,
        node_digests: Sequence[int],
        graph: bytes,
        config: bytes = b"",
        describe: Callable[[int], str] = str,
        timeout_s: float | None = None,
    ) -> concurrent.futures.Future[bytes]:
        """`compile` for a caller that has more to look at while it waits."""
        return submit(
            self._plan(job_name, digest, node_digests, graph, config, describe, timeout_s)
        )

    def _plan(
        self,
        job_name: str,
        digest: bytes,
        node_digests: Sequence[int],
        graph: bytes,
        config: bytes,
        describe: Callable[[int], str],
        timeout_s: float | None,
    ) -> Coroutine[Any, Any, bytes]:
        wait_s = self._wait_s(timeout_s)
        header = pb.CompileHeader(
            rank=self.rank,
            sequence=self._num_compiles,
            job_name=job_name,
            digest=digest,
            config=config if self.rank == 0 else b"",
            timeout_s=wait_s,
        )
        self._num_compiles += 1
        asked = CompileCall(header, graph if self.rank == 0 else b"", node_digests, describe)
        return self._guarded(self._compile(asked), 2 * wait_s + MARGIN_S)

    def _wait_s(self, timeout_s: float | None) -> float:
        return self._config.timeout_s if timeout_s is None else timeout_s

    def report_failure(
        self, cause: str, exit_code: int = 1, reason: str = "USER_ERROR"
    ) -> AbortInfo | None:
        """Tell the scheduler that this rank fails, so that the others stop now.

        The first report counts. Returns the earlier failure, as far as it can be known. Never
        raises for a dead line.
        """
        if self._line is None or self._failed or self._aborted or self._closed:
            return self._aborted
        self._failed = True
        failure = pb.Failure(
            rank=self.rank,
            host=self._host,
            cause=cause[:MAX_TEXT_CHARS],
            exit_code=exit_code,
            reason=reason,
        )
        report = pb.FailureReport(failure=failure)
        reply = wait_for(self._say("ReportFailure", report, REPORT_S), 2 * REPORT_S)
        if reply is None:
            wait_for(self._last_news(), LAST_NEWS_S + MARGIN_S)
            return self._heard_failure
        return _abort_info(reply.first) if reply.HasField("first") else None

    def leave(self) -> None:
        """Leaves in order and closes the connection. Safe to call twice, and after an abort."""
        if self._closed:
            return
        self._closed = True
        if self._line is not None:
            wait_for(self._leave(), LEAVE_S + MARGIN_S)

    # -- on the control loop -----------------------------------------------------------------------

    async def _join(self, timeout_s: float) -> tuple[RankInfo, ...]:
        if self._line is None:
            self._line = RankLine(self.address, self._config, self.tls)
            self._abort_seen = asyncio.Event()
        request = pb.JoinRequest(
            member=pb.Member(
                rank=self.rank,
                host=self._host,
                pid=os.getpid(),
                incarnation=self._incarnation,
                place=self._config.host_identity or host_identity(),
                pages=page_server().address,
            ),
            world_size=self.world_size,
            epoch=self._config.attempt,
            protocol=PROTOCOL,
        )
        late = asyncio.ensure_future(self._say_late())
        try:
            reply = await self._keep_joining(self._line, request, timeout_s)
        finally:
            late.cancel()
        _raise_error(reply)
        self._members = tuple(_rank_info(m) for m in reply.members)
        heartbeat = Heartbeat(self, self._line.ready, self._config)
        self._beating = asyncio.ensure_future(heartbeat.run())
        return self._members

    async def _keep_joining(
        self, line: RankLine, request: pb.JoinRequest, timeout_s: float
    ) -> pb.JoinReply:
        started = time.monotonic()
        while True:
            left_s = timeout_s - (time.monotonic() - started)
            if left_s <= 0:
                raise RendezvousError(self._unreachable(timeout_s))
            request.timeout_s = left_s
            reply = await self._try_join(line, request, left_s)
            if reply is not None:
                return reply
            exited = exited_ranks(self._config.exited_dir)
            if exited:  # rank 0 itself is one of them, or has given up for their sake
                raise PeerLostError(exited_early(min(exited), needed_by=self.rank))
            await asyncio.sleep(RECONNECT_PAUSE_S)

    async def _say_late(self) -> None:
        """Once, if rank 0 cannot be reached; as long as it can, it names the missing ranks."""
        await asyncio.sleep(LATE_S)
        if self._line is not None and not self._line.is_connected:
            log.warning("rendezvous: %s", self._unreachable(LATE_S))

    async def _try_join(
        self, line: RankLine, request: pb.JoinRequest, left_s: float
    ) -> pb.JoinReply | None:
        """One attempt; None if rank 0 does not answer (yet)."""
        try:
            stub, metadata = await line.ready(left_s)
            reply: pb.JoinReply = await stub.Join(
                request, timeout=left_s + MARGIN_S, metadata=metadata
            )
            return reply
        except OSError:
            return None
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                return None
            raise self._translate(error) from None

    async def _ready(self, timeout_s: float) -> tuple[Any, Metadata]:
        if self._line is None:
            raise InternalError("control: a call before join")
        return await self._line.ready(timeout_s)

    def _call(self, method: str, request: Message, timeout_s: float) -> Any:
        if self._line is None:
            raise InternalError(f"control: {method} before join")
        return wait_for(
            self._guarded(self._ask(method, request, timeout_s + MARGIN_S), timeout_s + MARGIN_S),
            timeout_s + 2 * MARGIN_S,
        )

    async def _ask(self, method: str, request: Message, timeout_s: float) -> Any:
        try:
            stub, metadata = await self._ready(timeout_s)
            reply = await getattr(stub, method)(request, timeout=timeout_s, metadata=metadata)
        except (grpc.RpcError, OSError) as error:
            raise await self._explain(error) from None
        _raise_error(reply)
        return reply

    async def _compile(self, asked: CompileCall) -> bytes:
        stream: Any = None
        try:
            stub, metadata = await self._ready(MARGIN_S)
            stream = stub.Compile(metadata=metadata)
            return await asked.run(stream)
        except (grpc.RpcError, OSError) as error:
            raise await self._explain(error) from None
        finally:
            if stream is not None:
                stream.cancel()

    async def _guarded(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """`work`, or PeerLostError if the job ends first, or TransportError after `timeout_s`."""
        if self._abort_seen is None:
            raise InternalError("control: a call before join")
        task = asyncio.ensure_future(work)
        abort = asyncio.ensure_future(self._abort_seen.wait())
        try:
            await asyncio.wait(
                {task, abort}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not task.done() and self._aborted:
                await asyncio.wait({task}, timeout=OWN_ANSWER_S)
            if task.done():
                return task.result()
            if self._aborted:
                raise _news(self._aborted, self.rank)
            raise TransportError(
                f"the scheduler at {self.address} did not answer in {timeout_s:g} s"
            )
        finally:
            task.cancel()
            abort.cancel()

    async def _explain(self, error: RpcFailure | OSError) -> Exception:
        """A broken call is most often the echo of a dead rank 0.

        So the heartbeat gets time to say so: more than it takes where nothing else runs, for
        it looks later if this process had no CPU meanwhile.
        """
        echoes = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        if isinstance(error, grpc.RpcError) and error.code() not in echoes:
            return self._translate(error)
        if self._beating is not None:
            await asyncio.wait({self._beating}, timeout=2 * self._config.act_s)
        if self._scheduler_closed:
            return PeerLostError("rank 0 exited 0 while peers run: it hosts the scheduler")
        return _news(self._aborted, self.rank) if self._aborted else self._translate(error)

    def _translate(self, error: RpcFailure | OSError) -> Exception:
        if isinstance(error, OSError):
            return TransportError(f"scheduler at {self.address}: {error.strerror or error}")
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            return ConfigError(
                f"the scheduler at {self.address} refuses this rank's job token: another job "
                "listens there; choose another --master_port, or set the same ONEFLOW_JOB_TOKEN "
                "on every node"
            )
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return RendezvousError(
                f"the scheduler at {self.address} accepted the call but did not answer it"
            )
        return TransportError(
            f"scheduler at {self.address}: {error.code().name}: {error.details()}"
        )

    def _unreachable(self, timeout_s: float) -> str:
        return (
            f"rank {self.rank} could not reach rank 0's scheduler at {self.address} within "
            f"{timeout_s:g} s; was rank 0 started, and can this machine reach it?"
        )

    async def _say(self, method: str, request: Message, timeout_s: float) -> Any:
        """A message whose loss changes nothing for us: the scheduler may be gone already (None)."""
        try:
            stub, metadata = await self._ready(timeout_s)
            return await getattr(stub, method)(request, timeout=timeout_s, metadata=metadata)
        except (grpc.RpcError, OSError, ConfigError):  # gone, or another one has its port by now
            return None

    async def _last_news(self) -> None:
        """Wait briefly for the last message of a scheduler that is gone: it may say why."""
        end = time.monotonic() + LAST_NEWS_S
        while not (self._heard_failure or self._scheduler_closed) and time.monotonic() < end:
            await asyncio.sleep(LAST_NEWS_LOOK_S)

    async def _leave(self) -> None:
        is_orderly = not (self._failed or self._aborted or self._scheduler_closed)
        if self._members and is_orderly:
            request = pb.LeaveRequest(rank=self.rank, incarnation=self._incarnation)
            await self._say("Leave", request, LEAVE_S)
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating}, timeout=LEAVE_S)
        if self._line is not None:
            await self._line.close()

    # -- what the heartbeat tells ------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come from the scheduler."""
        return self._aborted is not None or self._scheduler_closed

    def make_beat(self) -> pb.Beat:
        """The next heartbeat message."""
        return pb.Beat(rank=self.rank, incarnation=self._incarnation, progress=self._progress())

    def lose_scheduler(self, how: str) -> None:
        """The heartbeat has given rank 0 up: the job is over."""
        where = self._members[0]
        who = f"rank 0 (host {where.host}, pid {where.pid}), which hosts the scheduler,"
        cause = f"{who} is gone: {how}"
        self._abort(AbortInfo(0, where.host, cause, PeerLostError.exit_code, "NODE_LOST"))

    def take(self, notice: pb.Notice) -> None:
        """Take a notice that the scheduler sends to all ranks."""
        match notice.WhichOneof("kind"):
            case "abort":
                self._heard_failure = _abort_info(notice.abort)
                self._abort(self._heard_failure)
            case "left":
                self._left_ranks.add(notice.left)
            case "closing":
                self._left_ranks.add(0)
                self._scheduler_closed = True

    def _abort(self, info: AbortInfo) -> None:
        if self._aborted or self._failed:
            return
        self._aborted = info
        if self._abort_seen is not None:
            self._abort_seen.set()
        if self.on_abort is not None:
            self.on_abort(info)


class Reply(Protocol):
    """An answer of the scheduler."""

    @property
    def error(self) -> pb.Error: ...
    def HasField(self, field_name: Literal["error"], /) -> bool: ...


def _raise_error(reply: Reply | None) -> None:
    if reply is None:  # gRPC's word for bytes that are no message
        raise TransportError("the scheduler's answer is no message: the line to it changes bits")
    if reply.HasField("error"):
        raise decode_error(reply.error.type, reply.error.text)


def _rank_info(wire: pb.Member) -> RankInfo:
    return RankInfo(wire.rank, wire.host, wire.pid, wire.place, wire.pages)


def _abort_info(wire: pb.Failure) -> AbortInfo:
    return AbortInfo(wire.rank, wire.host, wire.cause, wire.exit_code, wire.reason)


def _news(info: AbortInfo, rank: int) -> OneFlowError:
    """That another rank failed. If it failed because this one did not agree with it, this one has
    failed in the same way, even if the other was told first.
    """
    if info.reason == DesyncError.reason and f"rank {rank}: " in info.cause:
        return DesyncError(info.cause.partition("DesyncError: ")[2] or info.cause)
    return PeerLostError(f"rank {info.rank} on host {info.host} failed first: {info.cause}")
