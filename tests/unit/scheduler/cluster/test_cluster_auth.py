"""Tokens, roles and limits: callers that are let in, how often, and how it is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from oneflow.core.errors import AuthError, JobSpecError, StoreError
from oneflow.core.loop import wait_for
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster import auth
from oneflow.scheduler.cluster.audit import Audit
from oneflow.scheduler.cluster.auth import ROLES, Guard, Tokens, Use
from oneflow.scheduler.cluster.metrics import ClusterMetrics
from oneflow.scheduler.cluster.refusals import (
    DeniedError,
    ExhaustedError,
    NotFoundError,
    UnavailableError,
    status_of,
)
from oneflow.scheduler.cluster.settings import Limits
from oneflow.scheduler.jobs import tokens as token_rules
from tests.support.waiting import CALL_S, WAIT_S, until

PEER = "ipv4:127.0.0.1:4711"


class Context:
    """A call as far as the guard looks at gRPC's."""

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def peer(self) -> str:
        return PEER


@pytest.fixture
def scene(tmp_path: Path) -> Any:
    wall = SimpleNamespace(now=1000.0)
    made = {
        role: token_rules.create(role, role, 1000.0, lifetime_s=100.0)
        for role in ("admin", "submit", "view", "daemon")
    }
    tokens = Tokens([record for record, _ in made.values()], lambda: wall.now)
    metrics = ClusterMetrics(tmp_path / "db")
    limits = Limits(requests_per_s=10.0, burst=3, streams=2, daemon_factor=10)
    guard = Guard(tokens, limits, Audit(tmp_path / "audit.log"), metrics, lambda: wall.now)

    def admit(role: str, method: str, is_stream: bool = False) -> Any:
        return guard.admit_secret(f"/oneflow.{method}", made[role][1], PEER, is_stream)

    secrets = {role: secret for role, (_, secret) in made.items()}
    return SimpleNamespace(
        wall=wall, guard=guard, metrics=metrics, admit=admit, secrets=secrets, tokens=tokens
    )


def test_every_method_has_a_role() -> None:
    services = pb.DESCRIPTOR.services_by_name
    methods = {
        f"/oneflow.{name}/{method.name}"
        for name, service in services.items()
        for method in service.methods
    }
    assert set(ROLES) == methods


def test_roles_let_in_who_may(scene: Any) -> None:
    for role, method in (
        ("admin", "Cluster/Drain"),
        ("submit", "Jobs/Submit"),
        ("submit", "Jobs/Get"),
        ("view", "Jobs/Logs"),
        ("daemon", "Daemons/Attach"),
    ):
        _, who, _ = scene.admit(role, method)
        assert (who.name, who.role) == (role, role)
    for role, method in (
        ("submit", "Cluster/Drain"),
        ("view", "Jobs/Cancel"),
        ("daemon", "Jobs/Get"),
        ("admin", "Daemons/Attach"),
        ("submit", "Jobs/NewMethod"),
    ):
        with pytest.raises(DeniedError, match=f"role {role}"):
            scene.admit(role, method)
    assert scene.metrics.auth_failures["role"] == 5


def test_a_call_that_has_waited_is_asked_again(scene: Any) -> None:
    _, who, _ = scene.admit("submit", "Jobs/Submit")
    scene.guard.check_still("/oneflow.Jobs/Submit", who)
    assert "digest" not in repr(who)
    scene.wall.now = 2000.0
    with pytest.raises(AuthError, match="'submit' is not valid any more"):
        scene.guard.check_still("/oneflow.Jobs/Submit", who)
    assert scene.metrics.auth_failures["expired"] == 1


def test_failures_are_told_apart(scene: Any) -> None:
    for secret, reason in (("", "missing"), ("oft_wrong", "bad")):
        with pytest.raises(AuthError) as refused:
            scene.guard.admit_secret("/oneflow.Jobs/Get", secret, PEER)
        assert secret == "" or secret not in str(refused.value)
        assert scene.metrics.auth_failures[reason] == 1
    scene.wall.now = 2000.0
    with pytest.raises(AuthError, match="expired"):
        scene.admit("view", "Jobs/Get")
    assert scene.metrics.auth_failures["expired"] == 1


@pytest.mark.parametrize("key", ["authorization", "oneflow-token"])
def test_a_token_that_is_shown_opens_no_call(scene: Any, key: str) -> None:
    prefix = "Bearer " if key == "authorization" else ""
    context = Context((key, prefix + scene.secrets["admin"]))
    with pytest.raises(AuthError, match="proves its token"):
        scene.guard.admit("/oneflow.Jobs/Get", context, False)
    assert scene.metrics.auth_failures["missing"] == 1


def test_the_bucket_refills(scene: Any) -> None:
    for _ in range(3):
        scene.admit("view", "Jobs/Get")
    with pytest.raises(ExhaustedError, match="try again in 100 ms"):
        scene.admit("view", "Jobs/Get")
    scene.admit("submit", "Jobs/Get")  # each token has its own
    scene.wall.now += 0.1
    scene.admit("view", "Jobs/Get")
    for _ in range(30):
        scene.admit("daemon", "Daemons/Fetch")


def test_streams_are_counted_while_they_are_open() -> None:
    use = Use(10.0, 10, 2, 0.0)
    use.open_stream()
    use.open_stream()
    with pytest.raises(ExhaustedError, match="2 streams"):
        use.open_stream()
    use.streams -= 1
    use.open_stream()


def test_a_stream_that_nobody_reads_is_ended_with_its_reason(
    scene: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler waits inside of gRPC, for room in the line, when it is interrupted."""
    method, given = "/oneflow.Jobs/Watch", []

    def admitted(_method: str, _context: Any, is_stream: bool) -> Any:
        return scene.guard.admit_secret(method, scene.secrets["view"], PEER, is_stream)

    async def flood(_request: Any, _context: Any) -> AsyncIterator[bytes]:
        while True:
            given.append(1)
            yield bytes(1 << 20)

    class Only(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, handler_call_details: Any) -> Any:
            handler = grpc.unary_stream_rpc_method_handler(flood, pb.JobRequest.FromString, bytes)
            return auth._guarded(scene.guard, handler, method)

    async def ended() -> tuple[Any, str]:
        address = f"unix:{tmp_path}/s"
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Only(),))
        server.add_insecure_port(address)
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            watch = channel.unary_stream(method, pb.JobRequest.SerializeToString, bytes)
            call = watch(pb.JobRequest(), timeout=CALL_S)
            await until(lambda: len(given) > 1)
            scene.guard.end_streams(UnavailableError("the scheduler stops"))
            with pytest.raises(grpc.RpcError):
                while await call.read():
                    pass
            found = await call.code(), await call.details()
        await server.stop(0)
        return found

    monkeypatch.setattr(scene.guard, "admit", admitted)
    assert wait_for(ended(), WAIT_S) == (grpc.StatusCode.UNAVAILABLE, "the scheduler stops")


def test_a_token_that_is_revoked_is_not_valid_any_more(scene: Any) -> None:
    token, _, _ = scene.admit("view", "Jobs/Watch", True)
    assert token.digest in scene.tokens.valid_digests()
    revoked = token_rules.revoke(scene.tokens.records, "view")
    scene.tokens.records = [t for t in scene.tokens.records if t.name != "view"] + revoked
    assert token.digest not in scene.tokens.valid_digests()


def test_errors_have_their_codes() -> None:
    for error, status in (
        (DeniedError("x"), "PERMISSION_DENIED"),
        (AuthError("x"), "UNAUTHENTICATED"),
        (JobSpecError("x"), "INVALID_ARGUMENT"),
        (StoreError("x"), "UNAVAILABLE"),
        (NotFoundError("x"), "NOT_FOUND"),
    ):
        assert status_of(error) == status
