"""The standard health service of gRPC, for probes: it serves while it may take work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from oneflow.core.config import join_address, split_address
from oneflow.core.control_channel import channel_options, is_loopback, resolve
from oneflow.core.errors import ConfigError

SERVICES = ("", "oneflow.Daemon")
MAX_STREAMS = 64  # calls at once over one connection
LOOK_S = 0.1


class Health:
    """Serves grpc.health.v1 on `address`: unix:<path>, or host:port of a loopback address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._server: Any = None
        self._service: Any = None

    async def start(self) -> None:
        """Raises ConfigError if it cannot be served there."""
        from grpc import aio
        from grpc_health.v1 import health, health_pb2_grpc

        from oneflow.scheduler.cluster.health import HealthOnly

        options = [*channel_options(), ("grpc.max_concurrent_streams", MAX_STREAMS)]
        self._server = aio.server(options=options, interceptors=[HealthOnly()])
        self._service = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._service, self._server)
        self._bind()
        await self._server.start()
        await self._say(False)

    async def _say(self, is_serving: bool) -> None:
        from grpc_health.v1 import health_pb2

        status = health_pb2.HealthCheckResponse
        for name in SERVICES:
            await self._service.set(name, status.SERVING if is_serving else status.NOT_SERVING)

    async def follow(self, is_ready: Callable[[], bool]) -> None:
        """Tell the truth, until cancelled."""
        said = False
        while True:
            now = is_ready()
            if now != said:
                await self._say(now)
                said = now
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.2)

    def _bind(self) -> None:
        address = self._address
        if not address.startswith("unix:"):
            host, port = split_address(address)
            host = resolve(host)
            if not is_loopback(host):
                raise ConfigError(
                    f"--health-addr {address!r}: probes come from this host; use 127.0.0.1:PORT "
                    "or unix:PATH"
                )
            address = join_address(host, port)
        port = 0
        with suppress(RuntimeError):
            port = self._server.add_insecure_port(address)
        if not port:
            raise ConfigError(f"--health-addr {self._address!r}: cannot listen there")
