"""The service for operators: the state of the cluster, draining, stopping, tokens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from oneflow import __version__
from oneflow.core.errors import AuthError, ConfigError
from oneflow.core.rpc import CallContext
from oneflow.protos import cluster_pb2 as pb
from oneflow.protos import cluster_pb2_grpc
from oneflow.scheduler.cluster.auth import caller
from oneflow.scheduler.cluster.refusals import (
    ExistsError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from oneflow.scheduler.jobs import tokens as token_rules
from oneflow.scheduler.jobs.events import DrainAsked, UndrainAsked
from oneflow.scheduler.jobs.records import DaemonRecord, TokenRecord
from oneflow.services.failpoints import failpoint

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.state import State

MAX_TOKENS = 1000
MAX_GRACE_S = 86_400.0


class ClusterService(cluster_pb2_grpc.ClusterServicer):
    """The gRPC service that tells about the cluster and shuts it down.

    shut_down: called with the grace.
    """

    def __init__(self, state: State, shut_down: Callable[[float], None]) -> None:
        self._state, self._shut_down = state, shut_down
        self._driver, self._tokens, self._audit = state.driver, state.tokens, state.audit
        joining_s = state.settings.table.act_s if state.was_here else 0.0
        self._all_here_at = time.monotonic() + joining_s  # those that were here before we started

    async def Status(self, request: pb.Empty, context: CallContext) -> pb.ClusterStatus:
        return self._status()

    def _status(self) -> pb.ClusterStatus:
        state, settings = self._state, self._state.settings
        status = pb.ClusterStatus(
            version=__version__,
            started_at=state.started_at,
            address=state.address,
            metrics_address=state.metrics_address,
            allows_scripts=settings.allow_scripts,
            pid=os.getpid(),
            has_page=bool(settings.ui and state.metrics_address),
            trouble=self._driver.trouble,
        )
        now = time.monotonic()
        daemons = sorted(self._driver.table.daemons.values(), key=_order)
        uses = state.lines.uses()
        status.daemons.extend(self._describe(d, now, uses.get(d.node)) for d in daemons)
        for job in self._driver.jobs.values():
            status.jobs[job.state.value] += 1
        return status

    def _describe(
        self, daemon: DaemonRecord, now: float, use: pb.NodeUse | None
    ) -> pb.DaemonStatus:
        return pb.DaemonStatus(
            id=daemon.id,
            node=daemon.node,
            device=daemon.device,
            state=str(daemon.state),
            epoch=daemon.epoch,
            version=daemon.version,
            pid=daemon.pid,
            job=daemon.job,
            heartbeat_age_s=max(now - daemon.heard_at, 0.0),
            address=daemon.address,
            labels=daemon.labels,
            use=use,
        )

    async def Drain(self, request: pb.DrainRequest, context: CallContext) -> pb.ClusterStatus:
        who = caller()
        grace_s = _grace(request)
        self._audit.note("drain", who.name, who.peer, node=request.node, grace_s=grace_s)
        failpoint("scheduler.drain")
        return await self._ask(DrainAsked(request.node, grace_s))

    async def Undrain(self, request: pb.DrainRequest, context: CallContext) -> pb.ClusterStatus:
        who = caller()
        self._audit.note("undrain", who.name, who.peer, node=request.node)
        return await self._ask(UndrainAsked(request.node))

    async def _ask(self, event: DrainAsked | UndrainAsked) -> pb.ClusterStatus:
        refusal = await self._driver.ask(event)
        if refusal is None:
            return self._status()
        if time.monotonic() < self._all_here_at:  # who asks us tries again
            raise UnavailableError(f"{refusal.message} yet: the scheduler has just been started")
        raise NotFoundError(refusal.message)

    async def Shutdown(self, request: pb.DrainRequest, context: CallContext) -> pb.Empty:
        who = caller()
        grace_s = _grace(request)
        self._audit.note("shutdown", who.name, who.peer, grace_s=grace_s)
        self._shut_down(grace_s)
        return pb.Empty()

    # -- tokens ------------------------------------------------------------------------------------

    async def CreateToken(self, request: pb.TokenRequest, context: CallContext) -> pb.TokenReply:
        now = time.time()
        records = self._tokens.records
        if any(t.name == request.name and token_rules.is_valid(t, now) for t in records):
            raise ExistsError(f"there is a token {request.name!r} already: rotate or revoke it")
        if len(records) >= MAX_TOKENS:
            raise RefusedError(f"there are {MAX_TOKENS} tokens: revoke some")
        record, secret = token_rules.create(request.name, request.role, now, request.lifetime_s)
        await self._keep([record])
        self._note("token_create", record)
        return _wire(record, secret)

    async def RotateToken(self, request: pb.TokenRequest, context: CallContext) -> pb.TokenReply:
        token_rules.check_name(request.name)
        found = [t for t in self._tokens.records if t.name == request.name]
        lifetime_s = request.lifetime_s if request.HasField("lifetime_s") else None
        try:
            kept, secret = token_rules.rotate(found, request.name, time.time(), lifetime_s)
        except AuthError as error:
            raise NotFoundError(str(error)) from None
        dropped = [t for t in found if t.digest not in {k.digest for k in kept}]
        await self._keep(kept, dropped)
        self._note("token_rotate", kept[0])
        return _wire(kept[0], secret)

    async def RevokeToken(self, request: pb.TokenRequest, context: CallContext) -> pb.Empty:
        token_rules.check_name(request.name)
        if self._is_last_admin(request.name):
            raise RefusedError(
                f"{request.name!r} is the last admin token: create another before you revoke it"
            )
        try:
            revoked = token_rules.revoke(self._tokens.records, request.name)
        except AuthError as error:
            raise NotFoundError(str(error)) from None
        await self._keep(revoked)
        self._note("token_revoke", revoked[0])
        return pb.Empty()

    async def ListTokens(self, request: pb.Empty, context: CallContext) -> pb.TokenList:
        now = time.time()
        valid = [t for t in self._tokens.records if token_rules.is_valid(t, now)]
        valid.sort(key=lambda t: (t.name, t.created_at))
        return pb.TokenList(tokens=[_wire(token) for token in valid])

    def _is_last_admin(self, name: str) -> bool:
        now = time.time()
        admins = [
            t for t in self._tokens.records if t.role == "admin" and token_rules.is_valid(t, now)
        ]
        return any(t.name == name for t in admins) and all(t.name == name for t in admins)

    async def _keep(
        self, changed: list[TokenRecord], dropped: list[TokenRecord] | None = None
    ) -> None:
        """Durable first, then valid."""
        gone = dropped or []

        def write() -> None:
            self._driver.store.put_tokens(changed)
            self._driver.store.drop_tokens(gone)

        await self._driver.in_store(write)
        replaced = {t.digest for t in (*changed, *gone)}
        others = [t for t in self._tokens.records if t.digest not in replaced]
        self._tokens.records = [*others, *changed]

    def _note(self, event: str, token: TokenRecord) -> None:
        who = caller()
        self._audit.note(event, who.name, who.peer, name=token.name, role=token.role)


def _grace(request: pb.DrainRequest) -> float:
    if not 0 <= request.grace_s <= MAX_GRACE_S:
        raise ConfigError(f"grace_s={request.grace_s:g}: must be 0 to {MAX_GRACE_S:g} seconds")
    return request.grace_s


def _order(daemon: DaemonRecord) -> tuple[str, str, int]:
    return daemon.node, daemon.device_type, daemon.device_index


def _wire(token: TokenRecord, secret: str = "") -> pb.TokenReply:
    return pb.TokenReply(
        name=token.name,
        role=token.role,
        secret=secret,
        expires_at=token.expires_at,
        created_at=token.created_at,
    )
