"""A server of a model repository: its cluster, its sockets, and its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import uvicorn

from oneflow.cluster.client import Cluster, connect
from oneflow.cluster.cluster_spec import local_wish
from oneflow.cluster.local import start, stop
from oneflow.core.config import split_address
from oneflow.core.errors import ClusterUnreachableError, ConfigError
from oneflow.protos.open_inference_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from oneflow.serving.kserve.grpc_service import Inference
from oneflow.serving.kserve.http_app import make_app
from oneflow.serving.kserve.repository import Repository, files_of
from oneflow.serving.kserve.service import Service
from oneflow.serving.limits import Limits
from oneflow.serving.listening import is_loopback, listen


@dataclass(frozen=True)
class RepositorySettings:
    """Settings of a server. http, grpc: HOST:PORT, port 0 for any; "": not by this protocol.

    cluster: the address of its scheduler; "": the one that is configured or runs here, else one
    that is started for the server. key: the one that clients have to show.
    """

    root: Path
    http: str = "127.0.0.1:8000"
    grpc: str = "127.0.0.1:8001"
    cluster: str = ""
    replicas: int = 1
    key: str = ""
    limits: Limits = field(default_factory=Limits)
    certificate: Path | None = None
    certificate_key: Path | None = None


def serve_repository(settings: RepositorySettings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then answer the requests that are under way. say: gets the
    line that says where.

    Raises ConfigError for a folder without models and for addresses that cannot be listened at or
    that others reach without a key, ClusterUnreachableError.
    """
    count = len(files_of(settings.root))
    if not count:
        raise ConfigError(
            f"{settings.root} holds no NAME/VERSION/*.job; write one with flow.save(graph, path)"
        )
    for address in filter(None, (settings.http, settings.grpc)):
        if not settings.key and not is_loopback(split_address(address)[0]):
            raise ConfigError(f"{address} can be reached from other machines: give an API key")
    with _cluster(settings.cluster, count * settings.replicas) as cluster:
        asyncio.run(_run(settings, cluster, say))


@contextmanager
def _cluster(address: str, count: int) -> Iterator[Cluster]:
    """The cluster that is meant, or one of `count` devices of this machine, which ends after."""
    try:
        cluster, is_own = connect(address or None), False
    except ClusterUnreachableError:
        if address:
            raise
        start(local_wish({"local.daemons": count}))
        cluster, is_own = connect(), True
    try:
        with cluster:
            yield cluster
    finally:
        if is_own:
            stop()


async def _run(settings: RepositorySettings, cluster: Cluster, say: Callable[[str], None]) -> None:
    repository = Repository(settings.root, cluster, settings.replicas, settings.limits)
    service = Service(repository, settings.key)
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    http = _Http(service, settings) if settings.http else None
    rpc, port = await _grpc_server(service, settings) if settings.grpc else (None, 0)
    scheme = "https" if settings.certificate else "http"
    places = [] if http is None else [f"{scheme}://{http.address}"]
    if rpc is not None:
        places.append(f"grpc://{split_address(settings.grpc)[0]}:{port}")
    loading = asyncio.create_task(repository.load_all())
    try:
        say(f"serving {settings.root} at {' and '.join(places)}")
        await ending.wait()
        repository.is_draining = True
        await repository.close()
    finally:
        loading.cancel()
        if rpc is not None:
            await rpc.stop(1.0)
        if http is not None:
            await http.stop()


class _Http:
    """A uvicorn server in this event loop, which leaves signals to others."""

    def __init__(self, service: Service, settings: RepositorySettings) -> None:
        host, port = split_address(settings.http)
        self._socket = listen(host, int(port))
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            make_app(service),
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            ssl_certfile=settings.certificate and str(settings.certificate),
            ssl_keyfile=settings.certificate_key and str(settings.certificate_key),
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server._serve([self._socket]))

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._serving


async def _grpc_server(
    service: Service, settings: RepositorySettings
) -> tuple[grpc.aio.Server, int]:
    address = settings.grpc
    size = service.repository.limits.body_nbytes
    options = [("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=options)
    register: Callable[..., None] = add_GRPCInferenceServiceServicer_to_server
    register(Inference(service), server)
    try:
        if settings.certificate and settings.certificate_key:
            pair = settings.certificate_key.read_bytes(), settings.certificate.read_bytes()
            port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen at {address}: {error}") from None
    await server.start()
    return server, port
