"""Occasions on which a daemon makes a new channel to its scheduler, or a new stream."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from oneflow.core.rpc import why_broken
from oneflow.launcher.daemon import attach
from oneflow.launcher.daemon.attach import Attachment
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import cluster_pb2_grpc
from oneflow.scheduler.authenticator import Authenticator
from oneflow.services.metrics_daemon import DAEMON
from oneflow.services.proof import digest_of
from tests.support.waiting import CALL_S, WAIT_S, until


def test_a_channel_with_tls_that_never_connected_is_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> list[bool]:
        more = {"node": "n1", "credentials": grpc.ssl_channel_credentials()}
        settings = DaemonSettings("cpu:0", "127.0.0.1:9", Path("/nowhere"), **more)
        attachment = Attachment(settings, pb.Hello, lambda message: None, lambda: None)
        seen: list[Any] = []
        for has_connected, age_s in ((False, 0.0), (False, 1.0), (True, 1.0), (False, 99.0)):
            attachment._has_connected = has_connected
            attachment._opened_at -= age_s
            await attachment._renew_channel()
            seen.append(attachment._channel)
        await attachment._channel.close()
        return [later is not earlier for earlier, later in itertools.pairwise(seen)]

    monkeypatch.setattr(attach, "CHANNEL_S", 20.0)
    assert asyncio.run(scene()) == [False, True, True]


def test_a_plain_channel_leads_to_nobody_who_listens_later() -> None:
    """An unconnected channel would connect by itself to the process that takes the port next."""

    async def scene() -> tuple[bool, int]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            settings = DaemonSettings(
                "cpu:0", f"127.0.0.1:{port}", Path("/nowhere"), token="t" * 32
            )
            attachment = Attachment(settings, pb.Hello, lambda message: None, lambda: None)
            await attachment._renew_channel()
            server.accept()[0].close()  # the scheduler dies
        with socket.create_server(("127.0.0.1", port)) as taken:
            stream = cluster_pb2_grpc.DaemonsStub(attachment._channel).Attach()
            with suppress(grpc.RpcError):
                await asyncio.wait_for(stream.write(pb.DaemonMessage()), CALL_S)
                await asyncio.wait_for(stream.read(), CALL_S)
            stream.cancel()
            taken.settimeout(0.5)
            with suppress(TimeoutError):
                return False, len(taken.accept()[0].recv(1000))
        await attachment._close()
        return True, 0

    assert asyncio.run(asyncio.wait_for(scene(), WAIT_S)) == (True, 0)


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        ("nobody", "nobody listens there"),
        ("plain", "one end speaks no TLS, or refuses the other's certificate"),
    ],
)
def test_it_is_said_in_our_words_why_there_is_no_line(
    scheduler: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> str:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        if scheduler == "nobody":
            await server.stop(0)
        tls = grpc.ssl_channel_credentials()
        where = f"127.0.0.1:{port}"
        settings = DaemonSettings("cpu:0", where, Path("/"), token="t" * 32, credentials=tls)
        attachment = Attachment(settings, pb.Hello, lambda message: None, lambda: None)
        assert await attachment._run_stream() is None
        await attachment._close()
        await server.stop(0)
        return f"no line to the scheduler at {where}: {said}"

    monkeypatch.setattr(attach, "LATE_S", 0.0)
    monkeypatch.setattr(attach, "log", logging.getLogger(__name__))
    wanted = asyncio.run(asyncio.wait_for(scene(), WAIT_S))
    assert [each.getMessage() for each in caplog.records] == [wanted]


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ("Socket closed", "it was closed"),
        ("errors resolving h:1: address lookup failed", "its name has no address here"),
        ("the scheduler stops", "the scheduler stops"),
        ("", "no reason was given (UNAVAILABLE)"),
    ],
)
def test_the_schedulers_own_words_stay_as_they_are(details: str, said: str) -> None:
    error: Any = SimpleNamespace(details=lambda: details, code=lambda: grpc.StatusCode.UNAVAILABLE)
    assert why_broken(error) == said


class Garbling:
    """A scheduler whose first stream brings bytes that are no message; later ones are in order."""

    def __init__(self) -> None:
        self.streams = 0

    async def attach(self, requests: Any, context: Any) -> Any:
        self.streams += 1
        is_first = self.streams == 1
        async for _ in requests:
            yield pb.SchedulerMessage(welcome=pb.Welcome(epoch=self.streams)).SerializeToString()
            if is_first:
                yield b"\xff\xff\xff"


def test_bytes_that_are_no_message_end_the_stream_and_not_the_daemon() -> None:
    async def scene() -> tuple[int, int]:
        garbling = Garbling()
        server = grpc.aio.server()
        name = pb.DESCRIPTOR.services_by_name["Daemons"].full_name
        calls = {"Attach": grpc.stream_stream_rpc_method_handler(garbling.attach)}
        daemons = grpc.method_handlers_generic_handler(name, calls)
        door = Authenticator(lambda name: digest_of("secret"), lambda *refused: None, lambda: "")
        server.add_generic_rpc_handlers((daemons, door.handler()))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        where = f"127.0.0.1:{port}"
        settings = DaemonSettings("cpu:0", where, Path("/nowhere"), node="n1", token="secret")
        attachment = Attachment(settings, pb.Hello, lambda message: None, lambda: None)
        running = asyncio.ensure_future(attachment.run())
        await until(lambda: attachment.epoch >= 2 or running.done())
        await attachment.leave()
        await asyncio.wait_for(running, CALL_S)
        await server.stop(0)
        return attachment.epoch, garbling.streams

    before = DAEMON.messages_rejected["malformed"]
    assert asyncio.run(asyncio.wait_for(scene(), WAIT_S)) == (2, 2)
    assert DAEMON.messages_rejected["malformed"] == before + 1
