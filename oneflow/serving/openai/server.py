"""A server of one language model: its workers, its socket, and its end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import uvicorn

from oneflow.core.errors import ConfigError
from oneflow.core.log import get_logger
from oneflow.serving.language.chat import ChatTemplate
from oneflow.serving.language.config import load_config
from oneflow.serving.language.replicas import Replicas
from oneflow.serving.language.tokenizer import Tokenizer
from oneflow.serving.limits import Limits
from oneflow.serving.listening import is_loopback, listen
from oneflow.serving.openai.app import Service

log = get_logger(__name__)

_LOOK_S = 0.05


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server. arguments: of the workers' program. ranks: of each replica."""

    folder: Path
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    key: str = ""
    replicas: int = 1
    ranks: int = 1
    arguments: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    certificate: Path | None = None
    certificate_key: Path | None = None


def serve(settings: ServerSettings, say: Callable[[str], None]) -> None:
    """Serve until a signal ends it. say: gets the line that says where.

    SIGTERM and SIGINT let answers end that are under way; a second one does not wait. Raises
    ConfigError for an address that cannot be listened at, ModelError for a model that cannot be
    served.
    """
    if not is_loopback(settings.host) and not settings.key:
        raise ConfigError(
            f"{settings.host} can be reached from other machines: give an API key "
            "(--api-key-file), or listen at 127.0.0.1"
        )
    load_config(settings.folder)  # before anything is started
    service = _service(settings)
    with listen(settings.host, settings.port) as listener:
        asyncio.run(_run(settings, service, listener, say))


def _service(settings: ServerSettings) -> Service:
    return Service(
        settings.name,
        Replicas(settings.folder, settings.replicas, settings.ranks, settings.arguments),
        Tokenizer(settings.folder),
        ChatTemplate(settings.folder),
        settings.limits,
        settings.key,
    )


async def _run(
    settings: ServerSettings,
    service: Service,
    listener: socket.socket,
    say: Callable[[str], None],
) -> None:
    server = _Server(settings, service)
    serving = asyncio.create_task(server.serve([listener]))
    starting = asyncio.create_task(service.replicas.start())
    try:
        await asyncio.wait([serving, starting], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            service.opened = starting.result()
            scheme = "https" if settings.certificate else "http"
            host, port = listener.getsockname()[:2]
            say(f"serving {service.name} at {scheme}://{host}:{port}/v1")
        await serving
    finally:
        starting.cancel()
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        await service.replicas.close()


class _Server(uvicorn.Server):
    """A uvicorn server that still answers health checks while it drains."""

    def __init__(self, settings: ServerSettings, service: Service) -> None:
        files = (settings.certificate, settings.certificate_key)
        certificate, key = (str(path) if path else None for path in files)
        config = uvicorn.Config(
            service.app(),
            lifespan="off",
            log_level="warning",
            access_log=False,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            timeout_graceful_shutdown=5,
            server_header=False,
        )
        super().__init__(config)
        self._service = service
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.is_draining:
            self.should_exit = self.force_exit = True
            return
        log.info("%s: the server ends when its answers have", signal.Signals(sig).name)
        self._service.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        if self._service.is_draining and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return bool(await super().on_tick(counter))

    async def _drain(self) -> None:
        until = asyncio.get_running_loop().time() + self._service.limits.drain_s
        while self._service.sequences and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(_LOOK_S)
        self.should_exit = True
