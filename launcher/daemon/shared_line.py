"""The one line to the scheduler that all daemons of a node share.

Each daemon attaches to a Unix socket here, as it would to the scheduler itself, with the same
token. Its messages go on under its slot, a number that its stream alone has; messages for the
slot go back to it. Beats do not: the shared line has its own, which names all that were heard
lately, and its answer is handed to each of them. So an answer proves as much as one of the
scheduler's: that the daemon's messages before its beat have arrived.

* The line is lost for all at once: their streams end, and each comes again with a new Hello.
* A daemon that ends, or that the scheduler hears no longer, closes its slot and no other.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import grpc
from grpc import aio

from oneflow.core.control_channel import ERROR_KEY, channel_options
from oneflow.core.errors import ProtocolError, TransportError
from oneflow.core.log import get_logger
from oneflow.core.processes import start_time
from oneflow.core.rpc import CallContext
from oneflow.launcher.daemon.attach import Attachment
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import cluster_pb2_grpc
from oneflow.scheduler.authenticator import Authenticator, RefusedProofError, session_shown
from oneflow.services.proof import digest_of, name_of

HEARD_BEATS = 1.5  # so many beats ago a daemon was heard lately
DEATH_LOOKS_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
MAX_UNANSWERED = 64  # beats of the line
BULK = frozenset(("file", "log"))

log = get_logger(__name__)


class Guest:
    """One daemon that shares the line. epoch, number: of its last beat, 0 before that."""

    def __init__(self, slot: int, hello: pb.Hello) -> None:
        self.slot, self.hello = slot, hello
        self.mail: asyncio.Queue[pb.SchedulerMessage | None] = asyncio.Queue()
        self.epoch = self.number = 0
        self.beaten_at = 0.0
        self.is_introduced = self.has_left = False
        self.why_lost = ""

    def close(self, why_lost: str = "") -> None:
        self.why_lost = self.why_lost or why_lost
        self.mail.put_nowait(None)

    async def death_s(self) -> float | None:
        """Seconds until the daemon's process was gone, after it closed its end; None: it lives."""
        passed_s = 0.0
        for pause_s in DEATH_LOOKS_S:
            if self.has_left:
                return None
            if not start_time(self.hello.pid):
                return passed_s
            await asyncio.sleep(pause_s)
            passed_s += pause_s
        return None


class SharedLine(Attachment):
    """The line. It is opened when the first guest is there."""

    def __init__(self, settings: DaemonSettings) -> None:
        super().__init__(settings, pb.Hello, lambda message: None, self._line_lost)
        self._guests: dict[int, Guest] = {}
        self._slots = itertools.count(1)
        self._has_guests = asyncio.Event()
        self._unanswered: deque[tuple[int, list[tuple[Guest, int]]]] = deque()

    # -- guests ------------------------------------------------------------------------------------

    def add(self, hello: pb.Hello) -> Guest:
        guest = Guest(next(self._slots), hello)
        self._guests[guest.slot] = guest
        self._has_guests.set()
        if self._is_welcome:
            self.send(self._introduction(guest))
        return guest

    def remove(self, guest: Guest, death_s: float | None) -> None:
        if self._guests.pop(guest.slot, None) is not None:
            has_died = death_s is not None
            self.send(pb.DaemonMessage(slot=guest.slot, closed=has_died, seen_s=death_s or 0.0))
        if not self._guests:
            self._has_guests.clear()

    def take(self, guest: Guest, message: pb.DaemonMessage) -> None:
        """Pass on a message of a guest. Raises ProtocolError."""
        kind = message.WhichOneof("kind")
        if kind in ("hello", "closed", None):
            raise ProtocolError(f"{guest.hello.daemon} says {kind} where it may not")
        if kind == "beat":
            guest.epoch, guest.number = message.epoch, message.beat.number
            guest.beaten_at = time.monotonic()
            return
        guest.has_left |= kind == "leaving"
        message.slot = guest.slot
        self.send(message, is_bulk=kind in BULK or kind == "leaving")

    def _introduction(self, guest: Guest) -> pb.DaemonMessage:
        guest.is_introduced = True
        return pb.DaemonMessage(slot=guest.slot, hello=guest.hello)

    def _line_lost(self) -> None:
        """Close those who had the line; one that has come meanwhile waits for the next."""
        self._unanswered.clear()
        for guest in [guest for guest in self._guests.values() if guest.is_introduced]:
            self.remove(guest, None)
            guest.close(f"the node's line to the scheduler is lost: {self._broken_by}")

    # -- the stream --------------------------------------------------------------------------------

    async def _join(self) -> None:
        await self._has_guests.wait()
        await super()._join()

    def _first_words(self) -> Iterable[pb.DaemonMessage]:
        self._is_welcome = True  # the scheduler has let the node in; each guest has its own Welcome
        return [self._introduction(guest) for guest in self._guests.values()]

    def _beat(self, number: int) -> pb.DaemonMessage:
        since = time.monotonic() - HEARD_BEATS * self._heartbeat_s
        heard = [g for g in self._guests.values() if g.number and g.beaten_at >= since]
        self._unanswered.append((number, [(guest, guest.number) for guest in heard]))
        if len(self._unanswered) > MAX_UNANSWERED:
            self._unanswered.popleft()
        others = [pb.Present(slot=guest.slot, epoch=guest.epoch) for guest in heard]
        use = self._meter.look()
        return pb.DaemonMessage(beat=pb.DaemonBeat(number=number, others=others, use=use))

    def _sign(self, message: pb.DaemonMessage) -> None:
        """Its guest has."""

    def _is_last(self, message: pb.DaemonMessage) -> bool:
        return False

    def _heard(self, message: pb.SchedulerMessage) -> None:
        kind = message.WhichOneof("kind")
        if not message.slot:
            if kind == "ack":
                self._acked(message.ack)
            elif kind == "pace":
                self._keep_pace(message.pace)
                for each in self._guests.values():
                    each.mail.put_nowait(message)
            return
        guest = self._guests.get(message.slot)
        if guest is None:
            return
        if kind == "welcome":
            self._was_welcomed = True
            self._keep_pace(message.welcome)
        if kind == "closed":
            log.warning("%s is heard no longer: %s", guest.hello.daemon, message.closed)
            guest.close()
        else:
            guest.mail.put_nowait(message)

    def _acked(self, number: int) -> None:
        super()._acked(number)
        while self._unanswered and self._unanswered[0][0] <= number:
            for guest, beat in self._unanswered.popleft()[1]:
                guest.mail.put_nowait(pb.SchedulerMessage(ack=beat))


class GuestsService(cluster_pb2_grpc.DaemonsServicer):
    """The service that daemons of this node attach to."""

    def __init__(self, line: SharedLine, settings: DaemonSettings) -> None:
        self._line, self._settings = line, settings
        self.door = Authenticator(self._digest, lambda error, peer: None, lambda: "")

    def _digest(self, name: bytes) -> bytes:
        digest = digest_of(self._settings.current_token())
        if name_of(digest) != name:
            raise RefusedProofError("it is not the token of this node")
        return digest

    async def Attach(
        self, request_iterator: AsyncIterator[pb.DaemonMessage], context: CallContext
    ) -> AsyncIterator[pb.SchedulerMessage]:
        await self._check(context)
        first = await anext(request_iterator)
        guest = self._line.add(first.hello)
        reader = asyncio.ensure_future(self._read(guest, request_iterator))
        try:
            while (message := await guest.mail.get()) is not None:
                yield message
        finally:
            reader.cancel()
            self._line.remove(guest, await guest.death_s() if reader.done() else None)
        if guest.why_lost:
            await self._abort(context, "UNAVAILABLE", guest.why_lost)

    async def Fetch(
        self, request: pb.BlobInfo, context: CallContext
    ) -> AsyncIterator[pb.BlobChunk]:
        await self._check(context)
        try:
            metadata = self._line.metadata()
        except TransportError as error:
            await self._abort(context, "UNAVAILABLE", str(error))
        async for chunk in self._line.stub().Fetch(request, metadata=metadata):
            yield chunk

    async def _read(self, guest: Guest, messages: AsyncIterator[pb.DaemonMessage]) -> None:
        try:
            async for message in messages:
                self._line.take(guest, message)
                await self._line.wait_for_room()
        except ProtocolError as error:
            log.warning("%s", error)
        except Exception as error:  # the stream broke: gRPC has many ways to say so
            log.info("the stream of %s broke (%s)", guest.hello.daemon, type(error).__name__)
        guest.close()

    async def _check(self, context: CallContext) -> None:
        shown = session_shown(context.invocation_metadata() or ())
        if self.door.visitor(shown, str(context.peer())) is None:
            await self._abort(context, "UNAUTHENTICATED", "prove the node's token first")

    async def _abort(self, context: CallContext, code: str, why: str) -> NoReturn:
        await context.abort(grpc.StatusCode[code], why[:1000], ((ERROR_KEY, "TransportError"),))


async def serve_guests(settings: DaemonSettings, path: Path) -> None:
    """Serve the daemons of this node at a Unix socket, until cancelled.

    Raises AuthError or ConfigError if the scheduler will never have them.
    """
    line = SharedLine(settings)
    service = GuestsService(line, settings)
    server = aio.server(options=channel_options())
    added: Any = cluster_pb2_grpc
    added.add_DaemonsServicer_to_server(service, server)
    server.add_generic_rpc_handlers((service.door.handler(),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        await line.run()
    finally:
        with suppress(asyncio.CancelledError):
            await server.stop(0.0)
