"""A real scheduler, asked by those who may not: strangers, small tokens, other nodes and users."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import cluster_pb2_grpc
from oneflow.services.pinned_channel import prove
from oneflow.services.proof import Claim
from tests.support.cluster import SchedulerProcess
from tests.support.proving import Metadata, proven
from tests.support.simulated.daemon_peer import Client, FakeDaemon, run, upload
from tests.support.waiting import CALL_S

MAY = {  # written down here once more: what is not in this table fails
    "Jobs": {
        "view": "Get List Watch Metrics Logs Outputs Usage",
        "submit": "Submit Cancel Restart Remove Change Infer Upload FindBlob Debug Trace Exec",
    },
    "Cluster": {
        "view": "Status",
        "admin": "Drain Undrain Shutdown CreateToken RotateToken RevokeToken ListTokens",
    },
    "Daemons": {"daemon": "Attach Fetch"},
}
ENOUGH = {
    "view": {"view", "submit", "admin"},
    "submit": {"submit", "admin"},
    "admin": {"admin"},
    "daemon": {"daemon"},
}
ROLES = ("admin", "submit", "view", "daemon")
REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")
SECRET = "hunter2hunter2"


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    found = SchedulerProcess(
        tmp_path,
        allow_scripts=True,
        tick_s=0.1,
        compiler="toy",
        limits={"requests_per_s": 1000.0, "burst": 1000},
    ).start()
    yield found
    found.kill()


async def token(scheduler: SchedulerProcess, role: str, name: str = "") -> str:
    async with Client(scheduler) as admin:
        request = pb.TokenRequest(name=name or f"a-{role}", role=role)
        return str((await admin.call("Cluster.CreateToken", request)).secret)


async def code_of(call: Any) -> str:
    """The code with which a call ends, of any kind; OK if it is answered or goes on."""
    import grpc

    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                break
        else:
            await call
    except grpc.RpcError as error:
        code = str(error.code().name)
        return f"{code}: {error.details()}" if code == "INTERNAL" else code
    finally:
        call.cancel()
    return "OK"


async def ask(client: Client, service: str, method: Any, timeout_s: float, may: bool) -> str:
    """An empty message of the right kind. A caller without the right is refused before it says
    anything; and says nothing, for gRPC gives a stream that ended while it was written to a code of
    its own.
    """
    empty = getattr(pb, method.input_type.name)()

    async def messages() -> AsyncIterator[Any]:
        if not may:
            await asyncio.Event().wait()
        yield empty

    if not method.client_streaming:
        return await code_of(client.call(f"{service}.{method.name}", empty, timeout=timeout_s))
    stub = getattr(client.stubs[service], method.name)
    return await code_of(stub(messages(), metadata=client.metadata, timeout=timeout_s))


def needed_role(service: str, method: str) -> str:
    found = [role for role, names in MAY[service].items() if method in names.split()]
    assert found, f"which role may call {service}.{method}?"
    return found[0]


def test_every_method_is_open_to_the_roles_that_may_and_to_nobody_else(
    scheduler: SchedulerProcess,
) -> None:
    async def scene() -> None:
        secrets = {role: await token(scheduler, role) for role in ROLES}
        strangers = {"nobody": "", "guesser": "oft_" + "x" * 43}
        strangers["shower"] = scheduler.token()  # the right one, which nobody is to show
        for who, secret in (secrets | strangers).items():
            async with Client(scheduler, secret, shows=who in strangers) as client:
                for service in pb.DESCRIPTOR.services_by_name.values():
                    for method in service.methods:
                        may = who in ENOUGH[needed_role(service.name, method.name)]
                        if may and method.name == "Shutdown":
                            continue
                        goes_on = may and method.name != "Fetch"  # without an end of its own
                        timeout_s = 3 if goes_on else CALL_S
                        code = await ask(client, service.name, method, timeout_s, may)
                        where = f"{service.name}.{method.name} for {who}: {code}"
                        if who in strangers:
                            assert code == "UNAUTHENTICATED", where
                        elif may and method.name == "Fetch":
                            assert code == "PERMISSION_DENIED", where  # a file of no job of its
                        else:
                            assert (code == "PERMISSION_DENIED") is not may, where

    run(scene())


def test_a_stranger_is_refused_unheard_and_finds_nothing_else(scheduler: SchedulerProcess) -> None:
    """gRPC waits for the message of a call before it calls us: it may never come."""

    async def scene() -> None:
        async with Client(scheduler, "oft_" + "x" * 43, shows=True) as client:
            for method in ("Jobs/Get", "Jobs/Watch", "Cluster/Status", "Daemons/Fetch"):
                silent = client.channel.stream_stream(f"/oneflow.{method}")
                call = silent(metadata=client.metadata, timeout=CALL_S)
                assert await code_of(call) == "UNAUTHENTICATED"
        async with Client(scheduler) as client:
            for method in (
                "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                "grpc.channelz.v1.Channelz/GetServers",
                "grpc.admin.v1.Admin/Get",
                "oneflow.Jobs/NoSuchMethod",
            ):
                call = client.channel.unary_unary(f"/{method}")(b"", metadata=client.metadata)
                assert await code_of(call) == "UNIMPLEMENTED", method

    run(scene())


def test_others_see_a_jobs_command_without_its_secrets(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        wanted = (("submit", "ann"), ("submit", "bob"), ("view", "eve"))
        owner, other, viewer = [await token(scheduler, role, name) for role, name in wanted]
        argv = ["train", "--api-key", SECRET, f"--token={SECRET}", f"http://ann:{SECRET}@h/"]
        async with Client(scheduler, owner) as ann:
            mine = await ann.submit("secretive", argv=argv, env={"KEY": SECRET}, devices=99)
            assert list(mine.spec.argv) == argv
        for secret in (other, viewer):
            async with Client(scheduler, secret) as client:
                listed = await client.call("Jobs.List", pb.ListRequest(filters={"owner": "ann"}))
                seen = [await client.get("secretive"), *listed.jobs]
                assert len(seen) == 2
                assert SECRET not in str(seen)
                for method in ("Cancel", "Restart", "Remove"):
                    job = pb.JobRequest(job_id="secretive")
                    code, _ = await client.refusal(f"Jobs.{method}", job)
                    assert code == "PERMISSION_DENIED"
        async with Client(scheduler) as admin:
            assert list((await admin.get("secretive")).spec.argv) == argv

    run(scene())
    failed = [e for e in scheduler.audit if e["event"] == "auth_failure"]
    found = [e for e in failed if e["token"] == "bob" and e["method"] == "/oneflow.Jobs/Cancel"]
    assert found
    assert SECRET not in (scheduler.folder / "state" / "audit.log").read_text()


def test_a_daemons_token_speaks_for_its_own_node_and_reads_its_own_files(
    scheduler: SchedulerProcess,
) -> None:
    async def scene() -> None:
        bound, other = [await token(scheduler, "daemon", f"d@{n}") for n in ("n7", "n8")]
        with proven(scheduler.known["address"], bound) as (channel, metadata):
            code, said = await asyncio.to_thread(hello_of, channel, metadata, "n8")
            assert (code, "'d@n7'" in said) == ("PERMISSION_DENIED", True)
        daemon = await FakeDaemon(scheduler, "n9/cpu:0").attach()
        async with Client(scheduler) as admin:
            digest = await upload(admin, b"a graph")
            job = pb.JobSpec(kind=pb.JobSpec.GRAPH, graph=digest, devices=1)
            await admin.call("Jobs.Submit", pb.SubmitRequest(job_id="graph", spec=job))
            prepare = await daemon.told("prepare")
        wanted = [pb.BlobInfo(digest=d) for d in (digest, prepare.plan)]
        async with Client(scheduler, scheduler.token("daemon.token")) as own:
            for file in wanted:
                assert await code_of(own.call("Daemons.Fetch", file)) == "OK"
        async with Client(scheduler, other) as foreign:
            for file in wanted:
                code, said = await foreign.refusal("Daemons.Fetch", file)
                assert (code, "'d@n8'" in said) == ("PERMISSION_DENIED", True)
        await daemon.exit((await daemon.told("start")).id, 0, "NONE")
        await daemon.detach()

    run(scene())


def hello_of(channel: Any, metadata: Metadata, node: str) -> tuple[str, str]:
    """Code and details of a daemon's hello. channel: not of grpc.aio, which gives a stream that
    ended while it was written to a code of its own.
    """
    import grpc

    from oneflow.core.control_channel import PROTOCOL

    fields = {"daemon": f"{node}/cpu:0", "node": node, "device_type": "cpu", "incarnation": 1}
    hello = pb.Hello(protocol=PROTOCOL, address="127.0.0.1", **fields)
    is_answered = threading.Event()

    def messages() -> Iterator[Any]:
        yield pb.DaemonMessage(hello=hello)
        is_answered.wait()

    stub: Any = cluster_pb2_grpc.DaemonsStub(channel)
    stream = stub.Attach(messages(), metadata=metadata, timeout=CALL_S)
    try:
        next(stream)
    except grpc.RpcError as error:
        return str(error.code().name), str(error.details())
    finally:
        is_answered.set()
        stream.cancel()
    return "OK", ""


def test_each_change_is_in_the_audit_log_with_who_made_it(tmp_path: Path) -> None:
    scheduler = SchedulerProcess(tmp_path, allow_scripts=True, tick_s=0.1).start()

    async def scene() -> None:
        async with Client(scheduler) as admin:
            name = pb.TokenRequest(name="ann", role="submit")
            secret = (await admin.call("Cluster.CreateToken", name)).secret
            async with Client(scheduler, secret) as ann:
                await ann.submit("j", devices=99)
                job = pb.JobRequest(job_id="j")
                for verb in ("Cancel", "Restart", "Cancel", "Remove"):
                    await ann.call(f"Jobs.{verb}", job)
            await admin.call("Cluster.RotateToken", name)
            await admin.call("Cluster.RevokeToken", name)
            await admin.call("Cluster.Drain", pb.DrainRequest())
            await admin.call("Cluster.Shutdown", pb.DrainRequest())

    try:
        run(scene())
        code = scheduler.wait()
    finally:
        scheduler.kill()
    assert code == 0
    found = [(e["event"], e["token"]) for e in scheduler.audit]
    job_events = [(verb, "ann") for verb in ("submit", "cancel", "restart", "cancel", "remove")]
    assert found == [
        ("token_create", ""),
        ("token_create", ""),
        ("start", ""),
        ("token_create", "admin"),
        *job_events,
        ("token_rotate", "admin"),
        ("token_revoke", "admin"),
        ("drain", "admin"),
        ("shutdown", "admin"),
        ("stop", ""),
    ]
    assert scheduler.audit[-1]["why"] == "shutdown"
    assert all(e["peer"].startswith("ipv4:127.0.0.1:") for e in scheduler.audit if e["token"])
    whole = json.dumps(scheduler.audit)
    assert scheduler.token() not in whole
    assert "oft_" not in whole


def test_a_clients_certificate_attaches_no_daemon_and_a_daemons_serves_nobody(
    tmp_path: Path,
) -> None:
    import grpc
    from grpc import aio

    from oneflow.scheduler.cluster.certificates import init_tls
    from oneflow.scheduler.cluster.tls import SERVER_NAME, channel_credentials

    folder = tmp_path / "tls"
    init_tls(folder)
    scheduler = SchedulerProcess(tmp_path, tls=str(folder), listen="localhost:0").start()

    def attach(part: str) -> str:
        address, token = scheduler.known["address"], scheduler.token("daemon.token")
        with grpc.secure_channel(address, channel_credentials(folder, part)) as channel:
            session = prove(channel, Claim(token), CALL_S)
            return hello_of(channel, session.metadata, "n1")[0]

    async def visit_impostor() -> str:
        """A host of the cluster plays the scheduler with the certificate that it has."""
        pair = ((folder / "daemon.key").read_bytes(), (folder / "daemon.crt").read_bytes())
        ca = (folder / "ca.crt").read_bytes()
        server = aio.server()
        credentials = grpc.ssl_server_credentials([pair], ca, True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        name = [("grpc.ssl_target_name_override", SERVER_NAME)]
        mine = channel_credentials(folder, "client")
        channel = aio.secure_channel(f"127.0.0.1:{port}", mine, name)
        code = "OK"
        try:
            await Client(scheduler, "oft_" + "x" * 43, channel).open()
        except grpc.RpcError as error:
            code = str(error.code().name)
        await channel.close()
        await server.stop(0)
        return code

    async def scene() -> list[str]:
        attached = [asyncio.to_thread(attach, part) for part in ("client", "daemon")]
        return await asyncio.gather(*attached, visit_impostor())

    try:
        assert run(scene()) == ["PERMISSION_DENIED", "OK", "UNAVAILABLE"]
    finally:
        code = scheduler.stop()
    assert code == 0
