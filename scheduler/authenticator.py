"""The server's side of the proof (oneflow/services/proof.py): strangers come in, sessions come out.

A proof counts for the connection that it was made over. Over TLS, and over a Unix socket in a
folder of its owner, nobody else can be in between. Over plain loopback another user can: a process
that took the port of a scheduler that was away could hand each step on to the real one. So the
client's steps name both ends of its connection, and a client from elsewhere must be a process of
this user or of root (a tunnel, a proxy), which the kernel's table of sockets tells.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import grpc

from oneflow.core.config import join_address, split_address
from oneflow.core.control_channel import AGAIN_KEY, ERROR_KEY, is_loopback, resolve
from oneflow.core.errors import AuthError, ConfigError
from oneflow.core.rpc import CallContext
from oneflow.protos import proof_pb2 as pb
from oneflow.scheduler.admission import Admission, ComeAgainError
from oneflow.scheduler.interceptor import lenient
from oneflow.services.listeners import connected_users
from oneflow.services.proof import (
    MAX_TOKEN_NBYTES,
    NONCE_NBYTES,
    PROVE,
    SESSION_KEY,
    SESSION_NBYTES,
    masked,
    server_proof,
    ticket_of,
    transcript_of,
)

MAX_PROVING = 1024
MAX_SESSIONS = 16_384
MAX_END_CHARS = 256
STEP_S = 15.0  # a client on a busy machine needs a while


class RefusedProofError(AuthError):
    """A visitor is not let in. reason: a label for the metric."""

    def __init__(self, text: str, reason: str = "bad") -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class Visitor:
    """One that was let in. digest: of its token.  peer: the connection that alone may use the
    session; "": any, for TLS or a folder vouches for it.
    """

    digest: bytes = field(repr=False)
    shown: bytes = field(repr=False)
    peer: str


class Authenticator:
    """Proves and remembers the peers that may come in.

    find: the digest of the token of that name (proof.name_of); raises RefusedProofError.
    note: told of each refusal: why, and from where.  address: at which this server listens,
    for others; asked at each proof.  admission: that bounds the proofs of the token of that name at
    once; None: they are not bounded.
    """

    def __init__(
        self,
        find: Callable[[bytes], bytes],
        note: Callable[[RefusedProofError, str], None],
        address: Callable[[], str],
        admission: Callable[[bytes], Admission | None] = lambda name: None,
    ) -> None:
        self._find, self._note, self._address = find, note, address
        self._admission = admission
        self._visitors: OrderedDict[bytes, Visitor] = OrderedDict()
        self._proving = 0

    # -- sessions ----------------------------------------------------------------------------------

    def visitor(self, shown: str, peer: str | None = None) -> Visitor | None:
        """Return the visitor whose call shows this; None: nobody who was let in. peer: None: not
        known yet.
        """
        try:
            data = bytes.fromhex(shown)
        except ValueError:
            return None
        found = self._visitors.get(data[:SESSION_NBYTES])
        if found is None or not hmac.compare_digest(found.shown, data):
            return None
        self._visitors.move_to_end(data[:SESSION_NBYTES])
        return found if peer is None or found.peer in ("", peer) else None

    def _let_in(self, token: bytes, digest: bytes, transcript: bytes, peer: str) -> bytes:
        number = secrets.token_bytes(SESSION_NBYTES)
        shown = number + ticket_of(token, transcript, number)
        self._visitors[number] = Visitor(digest, shown, peer)
        while len(self._visitors) > MAX_SESSIONS:  # who is forgotten proves itself anew
            self._visitors.popitem(last=False)
        return number

    # -- proving -----------------------------------------------------------------------------------

    def handler(self) -> Any:
        """The generic handler of the service."""
        _, service, method = PROVE.split("/")
        prove = grpc.stream_stream_rpc_method_handler(
            self._prove,
            request_deserializer=lenient(pb.ProofStep.FromString),
            response_serializer=pb.DoorStep.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(service, {method: prove})

    async def _prove(
        self, steps: AsyncIterator[pb.ProofStep | None], context: CallContext
    ) -> AsyncIterator[pb.DoorStep]:
        if self._proving >= MAX_PROVING:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "too many prove themselves at once")
        self._proving += 1
        try:
            async for step in self._answers(steps, context):
                yield step
        except asyncio.TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "a step of the proof came too late")
        except ComeAgainError as error:
            again = ((AGAIN_KEY, f"{error.pause_s:.3f}"),)
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error), again)
        except RefusedProofError as error:
            self._note(error, str(context.peer()))
            kind = ((ERROR_KEY, AuthError.__name__),)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error), kind)
        finally:
            self._proving -= 1

    async def _answers(
        self, steps: AsyncIterator[pb.ProofStep | None], context: CallContext
    ) -> AsyncIterator[pb.DoorStep]:
        knock = await _next(steps)
        if len(knock.nonce) != NONCE_NBYTES or len(knock.near + knock.far) > MAX_END_CHARS:
            raise RefusedProofError("that is no proof of a token")
        admission = self._admission(bytes(knock.key))
        with admission.join() if admission is not None else nullcontext():
            async for step in self._after_knock(knock, steps, context):
                yield step

    async def _after_knock(
        self,
        knock: pb.ProofStep,
        steps: AsyncIterator[pb.ProofStep | None],
        context: CallContext,
    ) -> AsyncIterator[pb.DoorStep]:
        peer = str(context.peer())
        bound_to = self._bound_to(knock, peer, context)
        digest = self._find(bytes(knock.key))
        nonce = secrets.token_bytes(NONCE_NBYTES)
        yield pb.DoorStep(nonce=nonce)
        given = bytes((await _next(steps)).masked)
        nonces = bytes(knock.nonce), nonce
        transcript = transcript_of(bytes(knock.key), nonces, knock.near, knock.far)
        token = masked(given[:MAX_TOKEN_NBYTES], digest, transcript)
        if not hmac.compare_digest(hashlib.sha256(token).digest(), digest):
            raise RefusedProofError("the token was not proven")
        number = self._let_in(token, digest, transcript, bound_to)
        yield pb.DoorStep(session=number, proof=server_proof(digest, transcript, number))

    def _bound_to(self, knock: pb.ProofStep, peer: str, context: CallContext) -> str:
        """The connection that the session is for, as gRPC names it; "": any.

        Raises RefusedProofError for a connection that another user stands in the middle of.
        """
        kinds = context.auth_context().get("transport_security_type", ())
        came_from = address_of(peer)
        if b"ssl" in kinds or came_from is None:
            return ""
        host, port = split_address(came_from)
        is_direct = knock.near == came_from and _is_same(knock.far, self._address())
        if is_loopback(host) and not is_direct:
            users = connected_users(host, port)
            if not users or users - {os.geteuid(), 0}:
                who = f"user {min(users)}" if users else "nobody we know"
                raise RefusedProofError(
                    f"{who} stands between this scheduler and one who connected to {knock.far!r}"
                )
        return peer


def address_of(peer: str) -> str | None:
    """`ipv4:127.0.0.1:4711` and `ipv6:%5B::1%5D:4711` as host:port; None for other transports."""
    kind, _, address = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    return join_address(*split_address(address))


def session_shown(metadata: Iterable[tuple[str, Any]]) -> str:
    """Return the session that a call shows; "" if it shows none."""
    return next((str(value) for key, value in metadata if key == SESSION_KEY), "")


def _is_same(far: str, own: str) -> bool:
    """Whether both are one address of this machine."""
    try:
        (host, port), (own_host, own_port) = split_address(far), split_address(own)
        return port == own_port and resolve(host) == resolve(own_host)
    except ConfigError:
        return False


async def _next(steps: AsyncIterator[pb.ProofStep | None]) -> pb.ProofStep:
    try:
        found = await asyncio.wait_for(steps.__anext__(), STEP_S)
    except StopAsyncIteration:
        found = None
    if found is None:
        raise RefusedProofError("a step of the proof did not come")
    return found
