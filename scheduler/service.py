"""The gRPC face of the scheduler: turns calls into events and actions into answers.

It decides nothing itself. Everything here runs on the one control loop, so there are no locks. A
waiting call is a number with a future (`_calls`) or, for a compile, a queue of actions
(`_compiles`).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar

from oneflow.core.config import Config
from oneflow.core.control_channel import (
    MAX_GRAPH_NBYTES,
    MAX_PLACE_CHARS,
    MAX_PLAN_NBYTES,
    MAX_TEXT_CHARS,
    chunks,
    encode_error,
)
from oneflow.core.errors import OneFlowError, ProtocolError
from oneflow.core.exits import exited_ranks
from oneflow.core.log import facts, get_logger
from oneflow.core.metrics import METRICS
from oneflow.core.rpc import CallContext
from oneflow.protos import control_pb2 as pb
from oneflow.protos import control_pb2_grpc
from oneflow.scheduler import agreement, membership, rendezvous, store, waits
from oneflow.scheduler.agreement import Agreement
from oneflow.scheduler.membership import Membership
from oneflow.scheduler.rendezvous import Rendezvous, Tick
from oneflow.scheduler.store import Store
from oneflow.scheduler.waits import Waits

CompileJob = Callable[[bytes, bytes], bytes]
TICK_S = 0.1
MAX_DIGESTS_NBYTES = 64 << 20  # of eight million nodes

log = get_logger(__name__)


class WithError(Protocol):
    """A reply that may carry an error."""

    @property
    def error(self) -> pb.Error: ...


Request = TypeVar("Request")
Reply = TypeVar("Reply", bound=WithError)


Method: TypeAlias = Callable[["SchedulerService", Request, CallContext], Awaitable[Reply]]


def _measured(call: Method[Request, Reply]) -> Method[Request, Reply]:
    """Counts a call and its time; the code is OK or the type of the error in the reply."""
    name = call.__name__

    @functools.wraps(call)
    async def measured(service: SchedulerService, request: Request, context: CallContext) -> Reply:
        started = time.perf_counter()
        code = "CANCELLED"
        try:
            reply = await call(service, request, context)
            code = reply.error.type or "OK"
            return reply
        finally:
            METRICS.scheduler.rpc_done(name, code, time.perf_counter() - started)

    return measured


class SchedulerService(control_pb2_grpc.SchedulerServicer):
    """One job attempt's control plane.

    `compile_job` runs in a thread of its own, never on the loop.
    """

    def __init__(self, world_size: int, compile_job: CompileJob, config: Config) -> None:
        self._compile_job = compile_job
        self._rendezvous = Rendezvous(world_size, config.attempt)
        self._exited_dir = config.exited_dir
        self._membership = Membership(config.suspect_s, config.act_s)
        self._store = Store(world_size, self._describe_rank)
        self._agreement = Agreement(world_size, self._describe_rank)
        self._waits = Waits(world_size)
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._compiles: dict[int, asyncio.Queue[agreement.Action]] = {}
        self._sources: dict[int, tuple[bytes, bytes]] = {}  # graph and configuration by call
        self._listeners: dict[int, asyncio.Queue[pb.Notice]] = {}  # by rank
        self._closing = False

    # -- calls -------------------------------------------------------------------------------------

    @_measured
    async def Join(self, request: pb.JoinRequest, context: CallContext) -> pb.JoinReply:
        member = request.member
        member.place = member.place[:MAX_PLACE_CHARS]
        call, future = self._open_call()
        self._do_rendezvous(
            rendezvous.JoinAsked(
                call,
                member,
                request.world_size,
                request.epoch,
                request.protocol,
                request.timeout_s,
            )
        )
        try:
            members = await future
        except OneFlowError as error:
            return pb.JoinReply(error=_wire_error(error))
        finally:
            self._close_call(call)
            self._do_rendezvous(rendezvous.JoinDropped(call))
        return pb.JoinReply(members=members)

    @_measured
    async def Put(self, request: pb.PutRequest, context: CallContext) -> pb.PutReply:
        error, _ = await self._ask_store(
            lambda call: store.PutAsked(call, request.key, request.value)
        )
        return pb.PutReply(error=error)

    @_measured
    async def Get(self, request: pb.GetRequest, context: CallContext) -> pb.GetReply:
        error, value = await self._ask_store(
            lambda call: store.GetAsked(call, request.key, request.timeout_s)
        )
        return pb.GetReply(error=error, value=value)

    @_measured
    async def Barrier(self, request: pb.BarrierRequest, context: CallContext) -> pb.BarrierReply:
        error, _ = await self._ask_store(
            lambda call: store.BarrierReached(call, request.rank, request.name, request.timeout_s)
        )
        return pb.BarrierReply(error=error)

    @_measured
    async def Wait(self, request: pb.WaitRequest, context: CallContext) -> pb.WaitReply:
        call, future = self._open_call()
        self._do_waits(
            waits.WaitAsked(
                call,
                request.rank,
                request.place,
                request.number,
                request.text[:MAX_TEXT_CHARS],
                tuple(request.missing),
                dict(request.reached),
            )
        )
        try:
            await future
        except OneFlowError as error:
            return pb.WaitReply(error=_wire_error(error))
        finally:
            self._close_call(call)
            self._do_waits(store.CallDropped(call))
        return pb.WaitReply()

    @_measured
    async def ReportFailure(
        self, request: pb.FailureReport, context: CallContext
    ) -> pb.FailureReply:
        failure = request.failure
        failure.cause = failure.cause[:MAX_TEXT_CHARS]
        earlier = self._membership.failure
        self._do_membership(membership.FailureReported(failure))
        return pb.FailureReply(first=earlier)

    @_measured
    async def Leave(self, request: pb.LeaveRequest, context: CallContext) -> pb.LeaveReply:
        self._do_membership(membership.RankLeft(request.rank, request.incarnation))
        return pb.LeaveReply()

    async def Heartbeat(
        self, request_iterator: AsyncIterator[pb.Beat], context: CallContext
    ) -> AsyncIterator[pb.Notice]:
        notices: asyncio.Queue[pb.Notice] = asyncio.Queue()
        reader = asyncio.ensure_future(self._read_beats(request_iterator, notices))
        try:
            while not reader.done():
                notice = await self._next_notice(notices, reader)
                if notice is None:
                    return
                yield notice
                if notice.closing:
                    return
        finally:
            reader.cancel()

    async def Compile(
        self, request_iterator: AsyncIterator[pb.CompileUp], context: CallContext
    ) -> AsyncIterator[pb.CompileDown]:
        call = next(self._numbers)
        actions: asyncio.Queue[agreement.Action] = asyncio.Queue()
        self._compiles[call] = actions
        try:
            await self._receive_compile(call, request_iterator)
            while True:
                action = await actions.get()
                for message in _compile_messages(action):
                    yield message
                if isinstance(action, (agreement.SendPlan, agreement.FailCompile)):
                    return
                await self._receive_answer(call, request_iterator)
        except ProtocolError as error:
            yield pb.CompileDown(error=_wire_error(error))
        finally:
            self._compiles.pop(call, None)
            self._sources.pop(call, None)
            self._do_agreement(agreement.CompileDropped(call))

    # -- life --------------------------------------------------------------------------------------

    async def run_clock(self) -> None:
        """Lets deadlines pass; runs until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self._look_for_exited()
            self._do_rendezvous(Tick())
            self._do_membership(Tick())
            self._do_store(Tick())
            self._do_agreement(Tick())
            self._do_waits(Tick())
            age = self._membership.oldest_heartbeat_s(time.monotonic())
            METRICS.scheduler.heartbeat_age_max[()] = age

    @property
    def has_failed(self) -> bool:
        """Whether the job is over because a rank failed."""
        return self._membership.failure is not None

    @property
    def is_needed(self) -> bool:
        """Whether ranks are still there that may ask for something."""
        return self._membership.is_under_way

    def announce_closing(self) -> None:
        """Tells every rank that the scheduler leaves in order.

        only a call that still needs it is an error.
        """
        self._closing = True
        self._notify(pb.Notice(closing=True))

    # -- state machines ----------------------------------------------------------------------------

    def _do_rendezvous(self, event: rendezvous.Event) -> None:
        for action in self._rendezvous.step(event, time.monotonic()):
            match action:
                case rendezvous.Admit(call=call, members=members):
                    self._do_membership(membership.Admitted(members))
                    self._answer(call, members)
                case rendezvous.Refuse(call=call, error=error):
                    self._answer(call, error)
                case rendezvous.Late(text=text):
                    log.warning("rendezvous: %s", text)

    def _look_for_exited(self) -> None:
        """Ranks that joined say themselves that they leave, so only while some are missing."""
        if self._rendezvous.missing():
            exited = exited_ranks(self._exited_dir)
            self._do_rendezvous(rendezvous.RanksExited(exited))

    def _do_membership(self, event: membership.Event) -> None:
        for action in self._membership.step(event, time.monotonic()):
            match action:
                case membership.Abort(failure=failure):
                    METRICS.scheduler.lost[failure.reason] += 1
                    log.info(
                        "the job is over: %s",
                        failure.cause,
                        extra=facts(failed=failure.rank, reason=failure.reason),
                    )
                    self._notify(pb.Notice(abort=failure))
                case membership.NotifyLeft(rank=rank):
                    self._notify(pb.Notice(left=rank))
                    self._do_store(store.RankGone(rank))
                    self._do_agreement(store.RankGone(rank))
                    self._do_waits(store.RankGone(rank))
                case membership.Suspect(rank=rank, silent_s=silent_s):
                    log.warning("rank %d sent no heartbeat for %.1f s", rank, silent_s)
                case membership.Recovered(rank=rank, silent_s=silent_s):
                    log.warning("rank %d is back after %.1f s of silence", rank, silent_s)

    def _do_store(self, event: store.Event) -> None:
        for action in self._store.step(event, time.monotonic()):
            match action:
                case store.Reply(call=call, value=value):
                    self._answer(call, value)
                case store.Fail(call=call, error=error):
                    self._answer(call, error)

    def _do_waits(self, event: waits.Event) -> None:
        for action in self._waits.step(event, time.monotonic()):
            match action:
                case store.Reply(call=call):
                    self._answer(call, None)
                case store.Fail(call=call, error=error):
                    self._answer(call, error)

    def _do_agreement(self, event: agreement.Event) -> None:
        for action in self._agreement.step(event, time.monotonic()):
            if isinstance(action, agreement.StartCompile):
                self._start_compile(action)
            elif action.call in self._compiles:
                self._compiles[action.call].put_nowait(action)

    # -- helpers of calls --------------------------------------------------------------------------

    def _describe_rank(self, rank: int) -> str:
        return self._membership.describe(rank, time.monotonic())

    def _open_call(self) -> tuple[int, asyncio.Future[Any]]:
        call = next(self._numbers)
        self._calls[call] = asyncio.get_running_loop().create_future()
        return call, self._calls[call]

    def _close_call(self, call: int) -> None:
        self._calls.pop(call, None)

    def _answer(self, call: int, result: object) -> None:
        future = self._calls.get(call)
        if future is None or future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    async def _ask_store(
        self, event_of: Callable[[int], store.Event]
    ) -> tuple[pb.Error | None, bytes]:
        call, future = self._open_call()
        self._do_store(event_of(call))
        try:
            return None, await future
        except OneFlowError as error:
            return _wire_error(error), b""
        finally:
            self._close_call(call)
            self._do_store(store.CallDropped(call))

    def _notify(self, notice: pb.Notice) -> None:
        for queue in self._listeners.values():
            queue.put_nowait(notice)

    async def _next_notice(
        self, notices: asyncio.Queue[pb.Notice], reader: asyncio.Future[None]
    ) -> pb.Notice | None:
        """The next thing to tell the rank; None when its stream has ended."""
        waiting = asyncio.ensure_future(notices.get())
        try:
            await asyncio.wait({waiting, reader}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()

    async def _read_beats(
        self, beats: AsyncIterator[pb.Beat], notices: asyncio.Queue[pb.Notice]
    ) -> None:
        last: pb.Beat | None = None
        try:
            async for beat in beats:
                if last is None:
                    self._listeners[beat.rank] = notices
                    self._catch_up(notices)
                last = beat
                METRICS.scheduler.heartbeats[()] += 1
                self._do_membership(
                    membership.BeatHeard(beat.rank, beat.incarnation, beat.progress)
                )
                notices.put_nowait(pb.Notice(ack=beat.progress))
        finally:
            if last is not None and self._listeners.get(last.rank) is notices:
                del self._listeners[last.rank]
                self._do_membership(membership.StreamBroken(last.rank, last.incarnation))

    def _catch_up(self, notices: asyncio.Queue[pb.Notice]) -> None:
        """Send a rank the notices that it missed while its stream was down."""
        for rank in self._membership.left_ranks:
            notices.put_nowait(pb.Notice(left=rank))
        if self._membership.failure:
            notices.put_nowait(pb.Notice(abort=self._membership.failure))
        if self._closing:
            notices.put_nowait(pb.Notice(closing=True))

    # -- helpers of compile ------------------------------------------------------------------------

    async def _receive_compile(self, call: int, messages: AsyncIterator[pb.CompileUp]) -> None:
        header = (await _next(messages, "header")).header
        if header.graph_nbytes > MAX_GRAPH_NBYTES:
            raise ProtocolError(
                f"compile of {header.job_name!r}: a graph of {header.graph_nbytes} bytes exceeds "
                f"the limit of {MAX_GRAPH_NBYTES}"
            )
        if header.rank == 0:
            graph = bytearray()
            while len(graph) < header.graph_nbytes:
                graph += (await _next(messages, "graph_chunk")).graph_chunk
            self._sources[call] = bytes(graph), header.config
        self._do_agreement(
            agreement.CompileAsked(
                call,
                header.rank,
                header.sequence,
                header.job_name,
                header.digest,
                header.timeout_s,
            )
        )

    async def _receive_answer(self, call: int, messages: AsyncIterator[pb.CompileUp]) -> None:
        message = await _next(messages, "node_digests", "node_text")
        if message.WhichOneof("kind") == "node_text":
            text = message.node_text[:MAX_TEXT_CHARS]
            self._do_agreement(agreement.NodeTextGiven(call, text))
            return
        digests = bytearray()
        while message.node_digests:
            digests += message.node_digests
            if len(digests) > MAX_DIGESTS_NBYTES:
                raise ProtocolError(f"more than {MAX_DIGESTS_NBYTES} bytes of node digests")
            message = await _next(messages, "node_digests")
        self._do_agreement(agreement.NodeDigestsGiven(call, bytes(digests)))

    def _start_compile(self, action: agreement.StartCompile) -> None:
        graph, config = self._sources[action.call]
        loop = asyncio.get_running_loop()

        def work() -> None:
            event: agreement.Event
            try:
                event = agreement.Compiled(action.sequence, self._run_compile(graph, config))
            except Exception as error:  # whatever it is, every rank must hear of it
                event = agreement.CompileFailed(action.sequence, error)
            loop.call_soon_threadsafe(self._do_agreement, event)

        # A daemon thread: an executor would keep the process from ending while a long compile runs.
        threading.Thread(target=work, name="oneflow-compile", daemon=True).start()

    def _run_compile(self, graph: bytes, config: bytes) -> bytes:
        plan = self._compile_job(graph, config)
        if len(plan) > MAX_PLAN_NBYTES:
            raise ProtocolError(
                f"the plan has {len(plan)} bytes, more than the limit of {MAX_PLAN_NBYTES}"
            )
        return plan


async def _next(messages: AsyncIterator[pb.CompileUp], *kinds: str) -> pb.CompileUp:
    try:
        message = await messages.__anext__()
    except StopAsyncIteration:
        raise ProtocolError(
            f"compile: the stream ended where {' or '.join(kinds)} was due"
        ) from None
    if message.WhichOneof("kind") not in kinds:
        raise ProtocolError(
            f"compile: got {message.WhichOneof('kind')} where {' or '.join(kinds)} was due"
        )
    return message


def _compile_messages(action: agreement.Action) -> Iterable[pb.CompileDown]:
    match action:
        case agreement.AskNodeDigests():
            yield pb.CompileDown(want_node_digests=True)
        case agreement.AskNodeText(index=index):
            yield pb.CompileDown(want_node_text=index)
        case agreement.FailCompile(error=error):
            yield pb.CompileDown(error=_wire_error(error))
        case agreement.SendPlan(plan=plan):
            yield pb.CompileDown(plan=pb.PlanHeader(nbytes=len(plan)))
            for chunk in chunks(plan):
                yield pb.CompileDown(plan_chunk=chunk)


def _wire_error(error: BaseException) -> pb.Error:
    name, text = encode_error(error)
    return pb.Error(type=name, text=text)
