"""A rank's connection to the scheduler of its job, over which both have proven the job's token.

When it ends it is made anew, and proven anew, with the next call: gRPC alone would connect by
itself to any process that listens there by then.
"""

from __future__ import annotations

import asyncio
from typing import Any

from oneflow.core.config import Config, join_address, split_address
from oneflow.core.control_channel import channel_options, is_loopback, resolve
from oneflow.core.job_tls import JobTls
from oneflow.protos import control_pb2_grpc
from oneflow.services.listeners import check_listener
from oneflow.services.pinned_channel import PinnedChannel, dial, line_options, prove_async
from oneflow.services.proof import Claim

CLOSE_S = 1.0
Metadata = tuple[tuple[str, str], ...]


class RankLine:
    """A line for calls on one loop. tls: None for one in the clear."""

    def __init__(self, address: str, config: Config, tls: JobTls | None) -> None:
        self._address, self._token, self._tls = address, config.job_token, tls
        self._channel: Any = None
        self._stub: Any = None
        self._line: PinnedChannel | None = None
        self._metadata: Metadata | None = None
        self._lock = asyncio.Lock()

    @property
    def is_connected(self) -> bool:
        """Whether the scheduler has proven itself over a connection that holds."""
        return self._metadata is not None and (self._line is None or self._line.is_open)

    async def ready(self, timeout_s: float) -> tuple[Any, Metadata]:
        """The stub for calls and the metadata that they need.

        Raises OSError if nobody listens, ConfigError if the other end is not the job's scheduler,
        and grpc.RpcError for an error that the scheduler answers.
        """
        async with self._lock:
            if self._line is not None and not self._line.is_open:
                await self.close()
            if self._metadata is None:
                try:
                    await self._open(timeout_s)
                finally:
                    if self._metadata is None and self._line is not None:
                        await self.close()
            return self._stub, self._metadata or ()

    async def close(self) -> None:
        """Once more is no harm."""
        channel, self._channel = self._channel, None
        line, self._line = self._line, None
        self._metadata = None
        if line is not None:
            line.close()
        if channel is not None:  # at once it would cancel calls, which fail by themselves
            await channel.close(CLOSE_S)

    async def _open(self, timeout_s: float) -> None:
        if self._channel is None:
            self._channel = await self._connected(timeout_s)
        if self._token:
            ends = (self._line.near, self._line.far) if self._line is not None else ("", "")
            session = await prove_async(self._channel, Claim(self._token, *ends), timeout_s)
            self._metadata = session.metadata
        else:
            self._metadata = ()
        make_stub: Any = control_pb2_grpc.SchedulerStub
        self._stub = make_stub(self._channel)

    async def _connected(self, timeout_s: float) -> Any:
        from grpc import aio

        host, port = split_address(self._address)
        resolved = resolve(host, "MASTER_ADDR")
        if self._tls is not None:
            options = [*channel_options(), *self._tls.channel_options()]
            credentials = self._tls.channel_credentials()
            return aio.secure_channel(join_address(resolved, port), credentials, options)
        if is_loopback(resolved):
            check_listener(resolved, port)  # says at once whose process has the port
        self._line = await asyncio.to_thread(dial, resolved, port, timeout_s)
        return aio.insecure_channel(self._line.target, options=line_options())
