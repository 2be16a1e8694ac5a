"""Rank 0's scheduler as an object: start it, give its address to the others, stop it."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
from grpc import aio

from oneflow.core.config import Config, ConfigWarning, join_address, split_address
from oneflow.core.control_channel import ERROR_KEY, channel_options, is_loopback, resolve
from oneflow.core.errors import AuthError, ConfigError
from oneflow.core.job_tls import JobTls, job_tls
from oneflow.core.log import get_logger
from oneflow.core.loop import wait_for
from oneflow.core.metrics import METRICS
from oneflow.core.rpc import CallContext, CallDetails, Find, Handler, Message, Server
from oneflow.protos import control_pb2_grpc
from oneflow.scheduler.authenticator import (
    Authenticator,
    RefusedProofError,
    address_of,
    session_shown,
)
from oneflow.scheduler.interceptor import Interceptor, behaviour_of, called_at_once
from oneflow.scheduler.ports import check_port_is_free
from oneflow.scheduler.service import CompileJob, SchedulerService
from oneflow.services.listeners import connected_users
from oneflow.services.proof import PROVE, digest_of, name_of

START_S = 30.0
DRAIN_S = 2.0  # answers on their way get so long to be sent
FAILED_DRAIN_S = 0.5  # the same after a failure, when a rank that hangs may never take its answer


LEFT_POLL_S = 0.02
MAX_PEERS = 4096  # whose users are remembered

Messages: TypeAlias = "AsyncIterator[Message | None]"
Answer: TypeAlias = "Callable[[Messages, CallContext], Awaitable[Message | None]]"

log = get_logger(__name__)


class SchedulerServer:
    """The scheduler of one job of `world_size` ranks on `address` (host:port; port 0: any).

    `compile_job(graph_bytes, config_bytes) -> plan_bytes` is called once per graph the ranks agree
    on, in a thread of its own. With `config.job_token` every call must carry that token.
    """

    def __init__(
        self, address: str, world_size: int, compile_job: CompileJob, config: Config
    ) -> None:
        self._host, self._port = split_address(address)
        self._world_size = world_size
        self._compile_job = compile_job
        self._config = config
        self._server: Server | None = None
        self._service: Any = None
        self._clock: asyncio.Future[None] | None = None

    def start(self) -> str:
        """Binds and serves; returns the bound host:port.

        Raises ConfigError if the port is in use (naming its holder where it can be read) or the
        address is not of this machine. Warns when other machines can reach the port and no token
        protects it.
        """
        host = resolve(self._host)
        if not is_loopback(host) and not self._config.job_token:
            warnings.warn(
                f"the scheduler listens on {host} without a job token: whoever reaches the port "
                "can join or end the job; set ONEFLOW_JOB_TOKEN to the same secret on every node",
                ConfigWarning,
                stacklevel=2,
            )
        if self._port:
            check_port_is_free(
                host, self._port
            )  # here, because gRPC's own failure prints and says less
        self._port = wait_for(self._start(host), START_S)
        return join_address(self._host, self._port)

    def serve_until_left(self) -> None:
        """Returns when every rank has left, or one has failed: the last to go may still need a
        barrier or a compile.
        """
        while self._server is not None and self._service.is_needed:
            time.sleep(LEFT_POLL_S)

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Tells the ranks, lets answers under way go out, closes the port. Safe to call twice."""
        if self._server is not None:
            wait_for(self._stop(drain_s), drain_s + START_S)

    async def _start(self, host: str) -> int:
        token, door = self._config.job_token, None
        if token is not None:
            door = _door(token, lambda: join_address(host, self._port))
        server = aio.server(
            options=channel_options(), interceptors=[_Guard(door, is_loopback(host))]
        )
        service = SchedulerService(self._world_size, self._compile_job, self._config)
        register: Any = control_pb2_grpc.add_SchedulerServicer_to_server
        register(service, server)
        if door is not None:
            server.add_generic_rpc_handlers((door.handler(),))
        port = self._port = _bind(server, host, self._port, job_tls(self._config))
        await server.start()
        self._server, self._service = server, service
        self._clock = asyncio.ensure_future(service.run_clock())
        return port

    async def _stop(self, drain_s: float) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        self._service.announce_closing()
        await asyncio.sleep(0)  # let the heartbeat streams pick the notice up
        await server.stop(min(drain_s, FAILED_DRAIN_S) if self._service.has_failed else drain_s)
        if self._clock is not None:
            self._clock.cancel()


def _bind(server: Server, host: str, port: int, tls: JobTls | None) -> int:
    address = join_address(host, port)
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, tls.server_credentials())
    except RuntimeError:
        bound = 0
    if not bound:
        raise ConfigError(f"cannot listen on {address}: somebody took the port a moment ago")
    return int(bound)


def _door(token: str, address: Callable[[], str]) -> Authenticator:
    """The door for callers who know the job's token."""
    digest = digest_of(token)

    def find(name: bytes) -> bytes:
        if name != name_of(digest):
            raise RefusedProofError("wrong or missing job token")
        return digest

    def note(error: RefusedProofError, peer: str) -> None:
        METRICS.scheduler.rejected["auth"] += 1
        log.warning("%s was refused: %s", peer, error)

    return Authenticator(find, note, address)


class _Guard(Interceptor):
    """Refuses calls of peers that have not proven the job's token, and of those that send bytes
    that are no message; both are counted. door: None for a job without a token, of which the kernel
    says whose the calls are if they come from this machine.
    """

    def __init__(self, door: Authenticator | None, is_local: bool) -> None:
        self._door = door
        self._users = _Users() if door is None and is_local else None

    async def intercept_service(self, continuation: Find, details: CallDetails) -> Handler | None:
        handler = await continuation(details)
        if handler is None or details.method == PROVE:
            return handler
        shown = session_shown(details.invocation_metadata or ())
        if self._door is not None and self._door.visitor(shown) is None:
            return called_at_once(handler, _turn_away)
        answer = _answering(handler)
        return called_at_once(handler, answer if self._users is None else self._users.guard(answer))


class _Users:
    """The users of the connections from this machine, as the kernel knows them."""

    def __init__(self) -> None:
        self._strangers: OrderedDict[str, int | None] = OrderedDict()  # by peer

    def guard(self, answer: Answer) -> Answer:
        """Return an answer that turns other users away."""

        async def guarded(messages: Messages, context: CallContext) -> Message | None:
            user = self._stranger(str(context.peer()))
            if user is None:
                return await answer(messages, context)
            METRICS.scheduler.rejected["auth"] += 1
            why = f"this job is not of user {user}; set ONEFLOW_JOB_TOKEN to the same on every node"
            kind = ((ERROR_KEY, AuthError.__name__),)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, why, kind)

        return guarded

    def _stranger(self, peer: str) -> int | None:
        """Return the user of a connection if it is neither ours nor root, else None."""
        address = address_of(peer)
        if address is None:
            return None
        if peer not in self._strangers:
            host, port = split_address(address)
            users = connected_users(host, port) - {os.geteuid(), 0}
            self._strangers[peer] = min(users, default=None)
            while len(self._strangers) > MAX_PEERS:
                self._strangers.popitem(last=False)
        return self._strangers[peer]


async def _turn_away(messages: Messages, context: CallContext) -> None:
    METRICS.scheduler.rejected["auth"] += 1
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong or missing job token")


def _answering(handler: Handler) -> Answer:
    behaviour = behaviour_of(handler)

    async def answer(messages: Messages, context: CallContext) -> Message | None:
        was_malformed = False

        async def good() -> AsyncIterator[Message]:
            nonlocal was_malformed
            async for message in messages:
                if message is None:
                    was_malformed = True
                    return
                yield message

        if handler.request_streaming:
            async with aclosing(behaviour(good(), context)) as answers:
                async for message in answers:
                    await context.write(message)
        elif (request := await anext(good(), None)) is not None:
            reply: Message = await behaviour(request, context)
            return reply
        if was_malformed:
            METRICS.scheduler.rejected["malformed"] += 1
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "that is no message of ours")
        return None

    return answer
