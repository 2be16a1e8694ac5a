"""A rank's heartbeat: says that this rank lives, and notices when the scheduler does not.

Beats are sent by the control loop, so they stop when the process is frozen or its interpreter is
stuck, which a connection alone would not show. The scheduler answers each of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from oneflow.actors.rank_line import Metadata
from oneflow.core.config import Config
from oneflow.core.errors import ConfigError
from oneflow.core.log import get_logger
from oneflow.core.metrics import METRICS
from oneflow.core.rpc import Stream

if TYPE_CHECKING:
    from oneflow.protos import control_pb2 as pb

RECONNECT_PAUSE_S = 0.2
REFUSALS_BEFORE_LOST = 3  # nobody listens there any more
MIN_S = 0.1  # for a connection, however long the scheduler has been silent
OWN_STALL_S = 1.0  # we were frozen ourselves if a pause took so much longer than asked for

log = get_logger(__name__)


class Listener(Protocol):
    """The owner of the heartbeat."""

    @property
    def is_over(self) -> bool: ...
    def make_beat(self) -> pb.Beat: ...
    def take(self, notice: pb.Notice) -> None: ...
    def lose_scheduler(self, how: str) -> None: ...


class Heartbeat:
    """Keeps a heartbeat stream open until its owner's job is over.

    ready: of the line to the scheduler (rank_line.py).
    """

    def __init__(
        self,
        owner: Listener,
        ready: Callable[[float], Awaitable[tuple[Any, Metadata]]],
        config: Config,
    ) -> None:
        self._owner = owner
        self._ready = ready
        self._config = config
        self._heard_at = time.monotonic()
        self._refusals = 0

    async def run(self) -> None:
        """Until the job is over; decides when rank 0 is lost."""
        while not self._owner.is_over:
            await self._run_stream()
            if self._owner.is_over:
                return
            if self._refusals >= REFUSALS_BEFORE_LOST:
                self._owner.lose_scheduler("nobody listens there any more")
                return
            if self._silent_s() >= self._config.act_s:
                self._owner.lose_scheduler(f"it has been silent for {self._silent_s():.1f} s")
                return
            await asyncio.sleep(RECONNECT_PAUSE_S)

    def _silent_s(self) -> float:
        return time.monotonic() - self._heard_at

    async def _run_stream(self) -> None:
        """One stream, from opening to break or to too long a silence."""
        import grpc

        try:
            stub, metadata = await self._ready(max(self._config.act_s - self._silent_s(), MIN_S))
        except (grpc.RpcError, OSError, ConfigError) as error:
            METRICS.heartbeats["failed"] += 1
            self._refusals += isinstance(error, ConnectionRefusedError)
            return
        stream = stub.Heartbeat(self._beats(), metadata=metadata)
        reader = asyncio.ensure_future(self._read(stream))
        try:
            while not reader.done() and self._silent_s() < self._config.act_s:
                await self._pause(reader)
            if reader.done():
                reader.result()
        except grpc.RpcError as error:
            METRICS.heartbeats["failed"] += 1
            # Only "refused" proves that the process is gone; an unreachable host may come back.
            is_down = error.code() == grpc.StatusCode.UNAVAILABLE
            self._refusals += is_down and "refused" in str(error.details()).lower()
        finally:
            reader.cancel()
            stream.cancel()

    async def _pause(self, reader: asyncio.Future[None]) -> None:
        """One beat's time; if it took much longer we were frozen, and that is not rank 0's
        silence.
        """
        started = time.monotonic()
        await asyncio.wait({reader}, timeout=self._config.heartbeat_s)
        overslept_s = time.monotonic() - started - self._config.heartbeat_s
        if overslept_s > OWN_STALL_S:
            METRICS.heartbeats["late"] += 1
            log.warning("this process was frozen, or had no CPU, for %.1f s", overslept_s)
            self._heard_at += overslept_s

    async def _beats(self) -> AsyncIterator[pb.Beat]:
        while True:
            yield self._owner.make_beat()
            await asyncio.sleep(self._config.heartbeat_s)

    async def _read(self, stream: Stream[pb.Beat, pb.Notice]) -> None:
        async for notice in stream:
            self._heard_at, self._refusals = time.monotonic(), 0
            if notice is None:  # gRPC's word for bytes that are no message
                METRICS.heartbeats["failed"] += 1
                return  # a new stream tells again what it was
            METRICS.heartbeats["ok"] += 1
            self._owner.take(notice)
            if self._owner.is_over:
                return
