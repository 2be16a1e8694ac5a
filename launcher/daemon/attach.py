"""The daemon's line to the scheduler: one stream, kept open for as long as the daemon lives.

Beats go out from the event loop, so that they stop when the daemon is frozen or stuck. The
scheduler answers each; an answer also proves that messages sent before it have arrived, so those
that may not be lost (progress) are kept until then and told again over the next stream.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from oneflow.core.config import join_address, split_address
from oneflow.core.control_channel import (
    AGAIN_KEY,
    check_plain,
    resolve,
    socket_path,
)
from oneflow.core.errors import AuthError, ConfigError, OneFlowError, ProtocolError, TransportError
from oneflow.core.log import get_logger
from oneflow.core.metrics import METRICS
from oneflow.core.rpc import RpcFailure, Stream, why_broken
from oneflow.launcher.daemon.node_use import NodeMeter
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import cluster_pb2_grpc
from oneflow.scheduler.cluster.tls import SERVER_NAME
from oneflow.scheduler.jobs.messages import describe, packed, parts_of
from oneflow.services.listeners import check_listener
from oneflow.services.metrics_daemon import DAEMON
from oneflow.services.pinned_channel import (
    PinnedChannel,
    dial,
    dial_socket,
    line_options,
    patient_options,
    prove_async,
)
from oneflow.services.proof import Claim, Session

FIRST_PAUSE_S = 0.2
LAST_PAUSE_S = 5.0
LEAVE_S = 2.0
CLOSE_S = 1.0
MAX_KEPT = 10_000  # messages that wait to be answered for; the oldest go first
MAX_KEPT_NBYTES = 16 << 20  # of them
MAX_BULK = 4  # chunks of files that wait to be sent
OWN_STALL_S = 1.0
CHANNEL_S = 20.0
CONNECT_S = 10.0  # for a handshake of TLS; cut off sooner, a busy scheduler never finishes one
LATE_S = 3.0
MAX_AGAIN_S = 120.0  # that a scheduler may put us off
AGAIN_JITTER = 0.1  # of that pause
OLD_SCHEDULER_CODES = ("UNIMPLEMENTED", "FAILED_PRECONDITION", "INVALID_ARGUMENT")

log = get_logger(__name__)

AttachStream: TypeAlias = "Stream[pb.DaemonMessage, pb.SchedulerMessage]"


@dataclass
class Backoff:
    """Pauses that grow from 0.2 to 5 s, each at random, so that not all daemons come at once."""

    rng: random.Random = field(default_factory=random.Random)
    _limit_s: float = FIRST_PAUSE_S

    def next_s(self, act_s: float) -> float:
        """act_s: a scheduler that was started anew waits so long for us, and no longer."""
        last_s = max(min(LAST_PAUSE_S, act_s / 3), FIRST_PAUSE_S)
        pause_s = self.rng.uniform(FIRST_PAUSE_S, min(self._limit_s, last_s))
        self._limit_s = min(2 * self._limit_s, LAST_PAUSE_S)
        return pause_s

    def reset(self) -> None:
        self._limit_s = FIRST_PAUSE_S


class Attachment:
    """Keeps the stream. make_hello: called for each; take: each message of the scheduler, from
    Welcome or Fenced on; on_lost: the stream broke.
    """

    def __init__(
        self,
        settings: DaemonSettings,
        make_hello: Callable[[], pb.Hello],
        take: Callable[[pb.SchedulerMessage], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._make_hello = make_hello
        self._take = take
        self._on_lost = on_lost
        self._channel: Any = None
        self._line: PinnedChannel | None = None
        self._session: Session | None = None
        self._has_connected, self._opened_at = False, 0.0
        self._urgent: deque[pb.DaemonMessage] = deque()
        self._bulk: deque[pb.DaemonMessage] = deque()
        self._kept: deque[tuple[int, pb.DaemonMessage]] = deque()
        self._kept_nbytes = 0
        self._has_mail = asyncio.Event()
        self._beats = 0
        self._heard_at = 0.0
        self._was_welcomed = False
        self._is_welcome = False
        self._is_closed = False
        self._rejoin_after_s: float | None = None
        self._is_put_off = False  # the scheduler said when to come again
        self._broken_by = ""
        self._made_at, self._has_told_absence = time.monotonic(), False
        self._backoff = Backoff()
        self._cut = asyncio.Event()  # ends the stream that is open
        self.epoch = 0
        self._heartbeat_s, self._act_s = settings.heartbeat_s, settings.act_s
        self._meter = NodeMeter(settings.state_dir)

    @property
    def is_welcome(self) -> bool:
        """Whether the scheduler hears us now."""
        return self._is_welcome

    def stub(self) -> Any:
        """Return the stub for calls besides the stream; a new one with each stream."""
        make_stub: Any = cluster_pb2_grpc.DaemonsStub
        self.metadata()
        return make_stub(self._channel)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of calls over the connection that is proven. Raises TransportError if
        there is none.
        """
        if self._session is None or self._channel is None:
            raise TransportError(f"no line to the scheduler at {self._settings.scheduler}")
        return self._session.metadata

    # -- sending -----------------------------------------------------------------------------------

    def send(self, message: pb.DaemonMessage, is_kept: bool = False, is_bulk: bool = False) -> None:
        """Sends it if the scheduler hears us; else it is gone, unless is_kept.

        is_bulk: may wait for messages that are not.
        """
        if is_kept:
            self._kept.append((self._beats + 1, message))
            self._kept_nbytes += _size(message)
            while len(self._kept) > MAX_KEPT or self._kept_nbytes > MAX_KEPT_NBYTES:
                self._drop_oldest()
        if self._is_welcome:
            (self._bulk if is_bulk else self._urgent).append(message)
            self._has_mail.set()

    def _drop_oldest(self) -> None:
        """Drop the oldest of the messages that are kept. The curve says how many of its points are
        missing.
        """
        gone = self._take_kept().progress
        after = next((m.progress for _, m in self._kept if m.progress.points), None)
        if gone.points and after is not None and after.id == gone.id:
            after.points[0].left_out += sum(1 + point.left_out for point in gone.points)

    def _take_kept(self) -> pb.DaemonMessage:
        _, message = self._kept.popleft()
        self._kept_nbytes -= _size(message)
        return message

    def _forget_kept(self) -> None:
        self._kept.clear()
        self._kept_nbytes = 0

    async def wait_for_room(self) -> None:
        """Until little bulk is waiting to be sent."""
        while self._is_welcome and len(self._bulk) >= MAX_BULK:
            await asyncio.sleep(0.01)

    def rejoin(self, pause_s: float, says_farewell: bool = False) -> None:
        """Ends the stream and attaches anew after a pause."""
        self._rejoin_after_s, self._broken_by = pause_s, "this daemon joins anew"
        self._forget_kept()
        if says_farewell and self._is_welcome:
            self._send_farewell()  # after which the writer ends the stream
        else:
            self._cut.set()

    async def leave(self) -> None:
        """Says farewell, if somebody hears it, and closes for good."""
        self._is_closed = True
        if self._is_welcome:
            self._send_farewell()
            deadline = time.monotonic() + LEAVE_S
            while self._is_welcome and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
        self._cut.set()

    def _send_farewell(self) -> None:
        self.send(pb.DaemonMessage(leaving=pb.Empty()), is_bulk=True)

    # -- the stream --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `leave`. Raises AuthError or ConfigError if the scheduler will never have us."""
        while not self._is_closed:
            error = await self._run_stream()
            if self._is_welcome and not self._is_closed:
                where, why = self._settings.scheduler, self._broken_by
                log.warning("the line to the scheduler at %s broke: %s", where, why)
            self._is_welcome = False
            self._urgent.clear()
            self._bulk.clear()
            self._on_lost()
            if error is not None and not self._was_welcomed:
                raise error
            if not self._is_closed:
                await self._pause()
        await self._close()

    async def _pause(self) -> None:
        pause_s, self._rejoin_after_s = self._rejoin_after_s, None
        if pause_s is None:
            pause_s = self._backoff.next_s(self._act_s)
        self._cut.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._cut.wait(), pause_s)

    async def _run_stream(self) -> OneFlowError | None:
        """One stream, from opening to its end; why no other will do better, or None."""
        import grpc

        self._cut.clear()
        self._broken_by = "the scheduler ended it"
        try:
            if not await self._goes_on(self._join()):
                return None
            stream = self.stub().Attach(metadata=self.metadata())
        except grpc.RpcError as error:
            METRICS.heartbeats["failed"] += 1
            return self._judge(error)
        except ConfigError as error:
            log.warning("%s", error)
            return None
        except AuthError as error:
            log.error("%s", error)
            return error
        except OSError as error:
            self._tell_absence(str(error))
            return None
        self._heard_at = time.monotonic()
        tasks = [
            asyncio.ensure_future(work)
            for work in (self._write(stream), self._read(stream), self._watch(), self._cut.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks[:3]:
                if task.done():
                    task.result()
        except grpc.RpcError as error:
            METRICS.heartbeats["failed"] += 1
            return self._judge(error)
        except ProtocolError as error:
            METRICS.heartbeats["failed"] += 1
            self._broken_by = str(error)
        except asyncio.InvalidStateError:  # written to a stream that has ended
            METRICS.heartbeats["failed"] += 1
            self._broken_by = "it had ended before a message was written"
        finally:
            for task in tasks:
                task.cancel()
            stream.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return None

    async def _goes_on(self, work: Coroutine[Any, Any, None]) -> bool:
        """Does the work; whether it came to its end before the stream was to end."""
        task, cut = asyncio.ensure_future(work), asyncio.ensure_future(self._cut.wait())
        try:
            await asyncio.wait({task, cut}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            task.cancel()
            cut.cancel()
            await asyncio.gather(task, cut, return_exceptions=True)

    async def _join(self) -> None:
        """Join over a connection of which both ends have proven the token."""
        self._session = None
        await self._renew_channel()
        ends = (self._line.near, self._line.far) if self._line is not None else ("", "")
        claim = Claim(self._settings.current_token(), *ends)
        self._session = await prove_async(self._channel, claim, self._act_s)

    async def _renew_channel(self) -> None:
        """Make a new channel with certificates as they are now. A channel with TLS that is still
        trying to connect is kept for a while: of each that is closed meanwhile, gRPC leaves a
        connection open for good. One over which the scheduler has put us off is used again.
        """
        age_s = time.monotonic() - self._opened_at
        was_put_off, self._is_put_off = self._is_put_off, False
        if was_put_off and (self._line is None or self._line.is_open):
            return
        if self._line is not None or self._has_connected or age_s >= CHANNEL_S:
            await self._close()
        if self._channel is None:
            await self._open()

    async def _close(self) -> None:
        channel, self._channel = self._channel, None
        if self._line is not None:
            self._line.close()
            self._line = None
        if channel is not None:  # at once it would cancel calls, which fail by themselves
            await channel.close(CLOSE_S)

    async def _open(self) -> None:
        from grpc import aio

        credentials = self._settings.current_credentials()
        if credentials is None:
            self._line = await asyncio.to_thread(self._dialled)
            self._channel = aio.insecure_channel(self._line.target, options=line_options())
        else:
            name = ("grpc.ssl_target_name_override", SERVER_NAME)
            options = [*patient_options(CONNECT_S), name]
            host, port = split_address(self._settings.scheduler)
            self._channel = aio.secure_channel(join_address(host, port), credentials, options)
        self._has_connected, self._opened_at = False, time.monotonic()

    def _dialled(self) -> PinnedChannel:
        if (path := socket_path(self._settings.scheduler)) is not None:
            return dial_socket(path, self._act_s)
        host, port = split_address(self._settings.scheduler)
        resolved = resolve(host)
        check_plain(self._settings.scheduler, resolved, "--tls-dir")
        check_listener(resolved, port)
        return dial(resolved, port, self._act_s)

    def _judge(self, error: RpcFailure) -> OneFlowError | None:
        where, code = self._settings.scheduler, error.code().name
        text = f"the scheduler at {where} refuses this daemon: {error.details()}"
        if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            log.error("%s", text)
            return AuthError(text)
        if code in OLD_SCHEDULER_CODES:
            log.error("%s", text)
            if self._is_welcome and self._kept:  # or we would be refused for it again, for ever
                log.error("%d messages that wait to be answered for are dropped", len(self._kept))
                self._forget_kept()
            return ConfigError(text)
        self._broken_by = why_broken(error)
        self._heed_pause(error)
        if not self._is_welcome:  # else whoever keeps the line says so
            self._tell_absence(self._broken_by)
        return None

    def _heed_pause(self, error: RpcFailure) -> None:
        """Come again when the scheduler says, a little later by chance, over the same channel."""
        said = dict(error.trailing_metadata() or ()).get(AGAIN_KEY)
        with suppress(TypeError, ValueError):
            pause_s = min(max(float(said), 0.0), MAX_AGAIN_S)  # type: ignore[arg-type]
            self._rejoin_after_s = pause_s * (1 + self._backoff.rng.uniform(0, AGAIN_JITTER))
            self._is_put_off = True

    def _tell_absence(self, why: str) -> None:
        """Say once that no scheduler was found, but not while both are just starting."""
        is_late = time.monotonic() - self._made_at >= LATE_S
        is_told = is_late and not self._was_welcomed and not self._has_told_absence
        self._has_told_absence |= is_told
        tell = log.warning if is_told else log.info
        tell("no line to the scheduler at %s: %s", self._settings.scheduler, why)

    async def _write(self, stream: AttachStream) -> None:
        hellos = deque(self._first_words())
        while hellos:
            await stream.write(packed(hellos))
        beaten_at = time.monotonic()
        while True:
            now, beat_at = time.monotonic(), beaten_at + self._heartbeat_s
            if now >= beat_at:
                self._beats += 1
                await stream.write(self._beat(self._beats))
                beaten_at = now
            elif self._urgent or self._bulk:
                message = packed(self._urgent) if self._urgent else self._bulk.popleft()
                for part in parts_of(message):
                    self._sign(part)
                await stream.write(message)
                if self._is_last(message):
                    await stream.done_writing()
                    return await asyncio.sleep(LEAVE_S)
            else:
                self._has_mail.clear()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._has_mail.wait(), beat_at - now)

    def _first_words(self) -> Iterable[pb.DaemonMessage]:
        return [pb.DaemonMessage(hello=self._make_hello())]

    def _beat(self, number: int) -> pb.DaemonMessage:
        beat = pb.DaemonBeat(number=number, use=self._meter.look())
        return pb.DaemonMessage(epoch=self.epoch, beat=beat)

    def _sign(self, message: pb.DaemonMessage) -> None:
        message.epoch = self.epoch

    def _is_last(self, message: pb.DaemonMessage) -> bool:
        return bool(message.WhichOneof("kind") == "leaving")

    async def _read(self, stream: AttachStream) -> None:
        async for message in stream:
            self._heard_at, self._has_connected = time.monotonic(), True
            if message is None:  # gRPC's word for bytes that are no message
                DAEMON.message_rejected("malformed")
                raise ProtocolError("what came was no message")
            for part in parts_of(message):
                self._heard(part)

    def _heard(self, message: pb.SchedulerMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind == "welcome":
            self._welcomed(message.welcome)
        if kind == "ack":
            self._acked(message.ack)
        elif kind == "pace":
            self._keep_pace(message.pace)
        elif self._is_welcome or kind == "fenced":
            self._take(message)
        else:
            DAEMON.message_rejected("unknown")
            log.warning("%s came before a welcome: ignored", describe(message))

    def _welcomed(self, welcome: pb.Welcome) -> None:
        self._was_welcomed = self._is_welcome = True
        self.epoch = welcome.epoch
        self._keep_pace(welcome)
        again = [message for _, message in self._kept]
        self._kept = deque((self._beats + 1, message) for message in again)
        self._urgent.extend(again)
        self._has_mail.set()

    def _keep_pace(self, told: pb.Welcome | pb.Pace) -> None:
        """Beat as often as the scheduler says, and give it up as late: it has many to answer."""
        self._heartbeat_s = told.heartbeat_s or self._settings.heartbeat_s
        self._act_s = told.act_s or self._settings.act_s
        self._has_mail.set()  # the next beat is due at another time

    def _acked(self, number: int) -> None:
        METRICS.heartbeats["ok"] += 1
        self._backoff.reset()  # not by a welcome alone: what we say next may end the stream again
        while self._kept and self._kept[0][0] <= number:
            self._take_kept()

    async def _watch(self) -> None:
        """Ends when the scheduler has been silent for too long; not counting our own sleep."""
        while time.monotonic() - self._heard_at < self._act_s:
            started = time.monotonic()
            await asyncio.sleep(self._heartbeat_s / 2)
            overslept_s = time.monotonic() - started - self._heartbeat_s / 2
            if overslept_s > OWN_STALL_S:
                METRICS.heartbeats["late"] += 1
                log.warning("this daemon was frozen, or had no CPU, for %.1f s", overslept_s)
                self._heard_at += overslept_s
        self._broken_by = f"the scheduler has been silent for {self._act_s:g} s"
        if not self._is_welcome:  # else whoever keeps the line says so
            log.warning("%s", self._broken_by)


def _size(message: pb.DaemonMessage) -> int:
    """About its bytes; the same whenever it is asked, so without numbers that are filled in."""
    points = message.progress.points
    return 1000 + sum(40 + 20 * len(p.metrics) + sum(map(len, p.metrics)) for p in points)
