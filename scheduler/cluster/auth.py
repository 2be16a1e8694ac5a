"""The guard that every call passes: it counts the call, limits it and names its caller.

Clients and daemons prove their token (scheduler/authenticator.py), and their calls name the session
that this has opened. A token that is shown in a call opens nothing. Health checks (health.py) need
no session. The rights of a daemon's token stand here, too.
"""

from __future__ import annotations

import asyncio
import contextvars
import hmac
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc
from grpc import aio

from oneflow.core.control_channel import ERROR_KEY, OPEN_KEY
from oneflow.core.errors import AuthError, OneFlowError, ProtocolError
from oneflow.core.log import get_logger
from oneflow.core.rpc import CallContext, CallDetails, Find, Handler, Message
from oneflow.scheduler.admission import Admission
from oneflow.scheduler.authenticator import Authenticator, RefusedProofError, session_shown
from oneflow.scheduler.cluster.audit import Audit
from oneflow.scheduler.cluster.health import PREFIX as STRANGERS_PREFIX
from oneflow.scheduler.cluster.health import Strangers
from oneflow.scheduler.cluster.metrics import ClusterMetrics
from oneflow.scheduler.cluster.refusals import (
    DeniedError,
    ExhaustedError,
    status_of,
)
from oneflow.scheduler.cluster.settings import Limits
from oneflow.scheduler.cluster.tls import PARTS
from oneflow.scheduler.interceptor import Interceptor, behaviour_of, called_at_once
from oneflow.scheduler.jobs import tokens as token_rules
from oneflow.scheduler.jobs.messages import MAX_MESSAGE_NBYTES
from oneflow.scheduler.jobs.records import TokenRecord
from oneflow.services.proof import NO_TOKEN, PROVE, NotProvenError, digest_of, name_of

UNPROVEN = "this call is of no session: a client proves its token first, and never shows it"
ROLES: Mapping[str, str] = {
    "/oneflow.Jobs/Submit": "submit",
    "/oneflow.Jobs/Get": "view",
    "/oneflow.Jobs/List": "view",
    "/oneflow.Jobs/Cancel": "submit",
    "/oneflow.Jobs/Restart": "submit",
    "/oneflow.Jobs/Remove": "submit",
    "/oneflow.Jobs/Change": "submit",
    "/oneflow.Jobs/Watch": "view",
    "/oneflow.Jobs/Metrics": "view",
    "/oneflow.Jobs/Logs": "view",
    "/oneflow.Jobs/Infer": "submit",
    "/oneflow.Jobs/Upload": "submit",
    "/oneflow.Jobs/FindBlob": "submit",
    "/oneflow.Jobs/Outputs": "view",
    "/oneflow.Jobs/Debug": "submit",
    "/oneflow.Jobs/Trace": "submit",
    "/oneflow.Jobs/Exec": "submit",
    "/oneflow.Jobs/Usage": "view",
    "/oneflow.Cluster/Status": "view",
    "/oneflow.Cluster/Drain": "admin",
    "/oneflow.Cluster/Undrain": "admin",
    "/oneflow.Cluster/Shutdown": "admin",
    "/oneflow.Cluster/CreateToken": "admin",
    "/oneflow.Cluster/RotateToken": "admin",
    "/oneflow.Cluster/RevokeToken": "admin",
    "/oneflow.Cluster/ListTokens": "admin",
    "/oneflow.Daemons/Attach": "daemon",
    "/oneflow.Daemons/Fetch": "daemon",
}
"""The least role for each method; one that is not here may not be called."""

UNBOUNDED = frozenset(("/oneflow.Jobs/Infer",))  # as large as gRPC lets through
UNPACED = frozenset(("/oneflow.Jobs/Infer",))  # limited by how many wait, not by how often
PARTS_BY_NAME = {f"oneflow-{part}".encode(): part for part in PARTS}  # as certificates have them
DAEMON_NAME = b"oneflow-daemon"
MAX_LIMITED = 10_000  # tokens whose use is remembered

Messages: TypeAlias = "AsyncIterator[Message | None]"

log = get_logger(__name__)


@dataclass(frozen=True)
class Caller:
    """The caller of one call. peer: as gRPC names it. digest: of the token."""

    name: str
    role: str
    peer: str
    digest: bytes = field(default=b"", repr=False)

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"


_caller: contextvars.ContextVar[Caller] = contextvars.ContextVar("caller")


def caller() -> Caller:
    """Return the caller of the call that is being answered."""
    return _caller.get()


def act_as(who: Caller) -> None:
    """Make this the caller of the rest of the task, which must answer nobody else."""
    _caller.set(who)


class Tokens:
    """The tokens of the cluster, as they are in the store."""

    def __init__(
        self, records: Iterable[TokenRecord], wall: Callable[[], float] = time.time
    ) -> None:
        self.records = list(records)
        self._wall = wall

    def of_secret(self, secret: str) -> TokenRecord:
        """Raises RefusedProofError, whose message never contains the secret."""
        if not secret:
            raise RefusedProofError(NO_TOKEN, "missing")
        return self.of_digest(digest_of(secret[: token_rules.MAX_SECRET_CHARS]))

    def named(self, name: bytes) -> TokenRecord:
        """Return the token whose digest has this name (services/proof.py).

        Raises RefusedProofError.
        """
        return self._valid([t for t in self.records if name_of(t.digest) == name])

    def of_digest(self, digest: bytes) -> TokenRecord:
        """Raises RefusedProofError."""
        return self._valid([t for t in self.records if hmac.compare_digest(t.digest, digest)])

    def _valid(self, found: Sequence[TokenRecord]) -> TokenRecord:
        token = found[0] if found else None
        if token is None:
            raise RefusedProofError(token_rules.UNKNOWN)
        try:
            token_rules.check_valid(token, self._wall())
        except AuthError as error:
            raise RefusedProofError(str(error), "expired") from None
        return token

    def valid_digests(self) -> set[bytes]:
        """Return the digests of the tokens that may be used now."""
        now = self._wall()
        return {t.digest for t in self.records if token_rules.is_valid(t, now)}


class Use:
    """The load of one token: a bucket of requests that refills, and the number of open streams."""

    def __init__(self, rate: float, burst: float, streams: int, now: float) -> None:
        self._rate, self._burst, self._max_streams = rate, burst, streams
        self._left, self._at = burst, now
        self.streams = 0

    def ask(self, now: float) -> None:
        """Raises ExhaustedError."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            wait_s = (1 - self._left) / self._rate
            raise ExhaustedError(
                f"more than {self._rate:g} requests a second with one token; "
                f"try again in {math.ceil(wait_s * 1000)} ms"
            )
        self._left -= 1

    def open_stream(self) -> None:
        if self.streams >= self._max_streams:
            raise ExhaustedError(
                f"{self.streams} streams are open with this token, as many as are allowed"
            )
        self.streams += 1


class Guard(Interceptor):
    """Stands before every method."""

    def __init__(
        self,
        tokens: Tokens,
        limits: Limits,
        audit: Audit,
        metrics: ClusterMetrics,
        now: Callable[[], float] = time.monotonic,
        address: Callable[[], str] = lambda: "",
    ) -> None:
        """address: at which the server listens, once it does."""
        self._tokens, self._limits = tokens, limits
        self._audit, self._metrics, self._now = audit, metrics, now
        self._uses: dict[str, Use] = {}
        self._streams: set[_Call] = set()
        self._strangers = Strangers()
        self.joins = Admission()
        self.door = Authenticator(
            lambda name: tokens.named(name).digest, self._not_let_in, address, self._admission
        )

    def _admission(self, name: bytes) -> Admission | None:
        """Daemons prove their token to join. People never wait behind them."""
        return self.joins if self._tokens.named(name).role == "daemon" else None

    async def intercept_service(self, continuation: Find, details: CallDetails) -> Handler | None:
        handler = await continuation(details)
        method = str(details.method)
        if handler is None:
            return None
        if method.startswith(STRANGERS_PREFIX):
            return self._strangers.guarded(handler)
        return handler if method == PROVE else _guarded(self, handler, method)

    # -- streams -----------------------------------------------------------------------------------

    def opened(self, call: _Call) -> None:
        self._streams.add(call)

    def closed(self, call: _Call) -> None:
        self._streams.discard(call)

    def end_streams(self, error: OneFlowError) -> None:
        """Ends all of them; their callers are told `error`."""
        for call in list(self._streams):
            call.interrupt(error)

    def end_invalid(self) -> None:
        """Ends those whose token was revoked, or has expired."""
        valid = self._tokens.valid_digests()
        for call in list(self._streams):
            if call.token is not None and call.token.digest not in valid:
                call.interrupt(AuthError(f"the token {call.token.name!r} is not valid any more"))

    # -- one call ----------------------------------------------------------------------------------

    def admit(
        self, method: str, context: CallContext, is_stream: bool
    ) -> tuple[TokenRecord, Caller, Use]:
        """Raises AuthError, DeniedError or ExhaustedError. Opens a stream that must be closed."""
        shown, peer = session_shown(context.invocation_metadata() or ()), str(context.peer())
        visitor = self.door.visitor(shown, peer)
        if shown and visitor is None:
            self._failed("expired", method, peer)
            raise NotProvenError("this scheduler knows no such session: prove the token anew")
        with self._refusing(method, peer):
            if visitor is None:
                raise RefusedProofError(UNPROVEN, "missing")
            token = self._tokens.of_digest(visitor.digest)
        return self._admit_token(method, token, peer, is_stream)

    def admit_secret(
        self, method: str, secret: str, peer: str, is_stream: bool = False
    ) -> tuple[TokenRecord, Caller, Use]:
        """Admit a request of the web page, which shows its token over HTTP."""
        with self._refusing(method, peer):
            token = self._tokens.of_secret(secret)
        return self._admit_token(method, token, peer, is_stream)

    @contextmanager
    def _refusing(self, method: str, peer: str) -> Iterator[None]:
        """Count and note a refusal."""
        try:
            yield
        except RefusedProofError as error:
            self._failed(error.reason, method, peer)
            raise AuthError(str(error)) from None

    def _admit_token(
        self, method: str, token: TokenRecord, peer: str, is_stream: bool
    ) -> tuple[TokenRecord, Caller, Use]:
        needed = ROLES.get(method, "admin")
        try:
            token_rules.check_role(token, needed)
        except AuthError as error:
            self._failed("role", method, peer, token.name)
            raise DeniedError(str(error)) from None
        use = self._use(token)
        if method not in UNPACED:
            use.ask(self._now())
        if is_stream:
            use.open_stream()
        return token, Caller(token.name, token.role, peer, token.digest), use

    def check_still(self, method: str, who: Caller) -> None:
        """Check again a caller that has waited since it was let in: raises AuthError if its token
        was revoked, or has expired.
        """
        if who.digest not in self._tokens.valid_digests():
            self._failed("expired", method, who.peer, who.name)
            raise AuthError(f"the token {who.name!r} is not valid any more")

    def check_certificate(self, method: str, token: TokenRecord, context: CallContext) -> None:
        """A certificate that `init_tls` made says for which part; only a daemon's may attach.

        Raises DeniedError. One of another authority's making, which says nothing, has the rights
        of its token.
        """
        names = context.auth_context().get("x509_subject_alternative_name", ())
        parts = PARTS_BY_NAME.keys() & {bytes(name) for name in names}
        if ROLES.get(method) != "daemon" or not parts or DAEMON_NAME in parts:
            return
        shown = ", ".join(sorted(PARTS_BY_NAME[name] for name in parts))
        self.denied(method, token, str(context.peer()))
        raise DeniedError(f"the certificate is for {shown}; this needs the one of a daemon")

    def denied(self, method: str, token: TokenRecord, peer: str) -> None:
        """Note that a known caller asked for something that it may not have."""
        self._failed("role", method, peer, token.name)

    def check_size(self, method: str, request: Message) -> None:
        if method not in UNBOUNDED and request.ByteSize() > MAX_MESSAGE_NBYTES:
            self._metrics.message_rejected("oversize")
            nbytes = request.ByteSize()
            raise ExhaustedError(f"a message of {nbytes} bytes; at most {MAX_MESSAGE_NBYTES}")

    def malformed(self) -> None:
        self._metrics.message_rejected("malformed")

    def answered(self, method: str, code: str, seconds: float | None) -> None:
        self._metrics.rpc_done(method.rpartition("/")[2], code, seconds)

    def _failed(self, reason: str, method: str, peer: str, token: str = "", why: str = "") -> None:
        self._metrics.auth_failed(reason)
        self._audit.auth_failure(reason, method, peer, token, why)

    def _not_let_in(self, error: RefusedProofError, peer: str) -> None:
        self._failed(error.reason, PROVE, peer, why=str(error))

    def _use(self, token: TokenRecord) -> Use:
        found = self._uses.get(token.name)
        if found is None:
            if len(self._uses) >= MAX_LIMITED:
                self._uses = {name: use for name, use in self._uses.items() if use.streams}
            limits, factor = self._limits, 1
            if token.role == "daemon":
                factor = limits.daemon_factor
            found = self._uses[token.name] = Use(
                limits.requests_per_s * factor,
                limits.burst * factor,
                limits.streams * factor,
                self._now(),
            )
        return found


def check_node(token: str, daemon: str, node: str) -> None:
    """A token named NAME@NODE is for daemons of that node only. Raises DeniedError for others.

    With a token each, no node can take the name of another one that is away. (Of one that is here
    nobody can: see the table of jobs.)
    """
    _, at, bound_to = token.partition("@")
    if at and bound_to != node:
        raise DeniedError(
            f"the token {token!r} is for daemons of node {bound_to!r}, and this is {daemon}"
        )


# ---- handlers ------------------------------------------------------------------------------------


def _guarded(guard: Guard, handler: Handler, method: str) -> Handler:
    """Wrap a handler so that the guard sees each call first."""
    behaviour = behaviour_of(handler)
    is_stream = handler.request_streaming or handler.response_streaming

    async def answer(messages: Messages, context: CallContext) -> Message | None:
        call = _Call(guard, method, context, is_stream)
        try:
            call.begin()
            given = _checked(messages)
            request = given if handler.request_streaming else await call.only(given)
            if not handler.response_streaming:
                reply: Message = await behaviour(request, context)
                return reply
            # Or who waits for what has yet to happen could not tell us from one who is away.
            await context.send_initial_metadata(((OPEN_KEY, "1"),))
            async with aclosing(behaviour(request, context)) as answers:
                async for message in answers:
                    await context.write(message)
            return None
        except BaseException as error:
            await call.fail(error)
            raise
        finally:
            call.end()

    return called_at_once(handler, answer)


async def _checked(messages: Messages) -> AsyncIterator[Message]:
    async for message in messages:
        if message is None:
            raise ProtocolError("the message cannot be read: is the client of another version?")
        yield message


class _Call:
    """One call, from its admission to the count of its status code."""

    def __init__(self, guard: Guard, method: str, context: CallContext, is_stream: bool) -> None:
        self._guard, self._method, self._context = guard, method, context
        self._is_stream = is_stream
        self._use: Use | None = None
        self._task = asyncio.current_task()
        self._interruption: OneFlowError | None = None
        self.token: TokenRecord | None = None
        self._started = time.perf_counter()
        self._code = "OK"
        self._is_let_in = False

    def begin(self) -> None:
        self.token, who, self._use = self._guard.admit(self._method, self._context, self._is_stream)
        if self._is_stream:
            self._guard.opened(self)
        self._guard.check_certificate(self._method, self.token, self._context)
        self._is_let_in = True
        act_as(who)

    async def only(self, messages: AsyncIterator[Message]) -> Message:
        """The message of a call that has one. Its time counts from now on."""
        message = await anext(messages, None)
        if message is None:
            raise ProtocolError("the message of this call did not come")
        self._guard.check_size(self._method, message)
        self._started = time.perf_counter()
        return message

    def interrupt(self, error: OneFlowError) -> None:
        """Ends the call with this error."""
        if self._interruption is None and self._task is not None:
            self._interruption = error
            self._task.cancel()

    async def fail(self, error: BaseException) -> None:
        """Tell the caller of an error of ours; hide the words of others."""
        if isinstance(error, asyncio.CancelledError) and self._interruption is not None:
            error = self._interruption
        if isinstance(error, OneFlowError):
            self._code = status_of(error)
            if isinstance(error, ProtocolError):
                self._guard.malformed()
            if isinstance(error, DeniedError) and self._is_let_in and self.token is not None:
                self._guard.denied(self._method, self.token, str(self._context.peer()))
            await self._abort(str(error), type(error).__name__)
        elif isinstance(error, Exception) and not isinstance(error, aio.AbortError):
            self._code = "INTERNAL"
            log.error("%s failed", self._method, exc_info=error)
            await self._abort("the scheduler failed; see its log", "InternalError")
        else:
            self._code = "CANCELLED"

    async def _abort(self, text: str, kind: str) -> None:
        status = grpc.StatusCode[self._code]
        await self._context.abort(status, text[:4000], ((ERROR_KEY, kind),))

    def end(self) -> None:
        self._guard.closed(self)
        if self._use is not None and self._is_stream:
            self._use.streams -= 1
        seconds = None if self._is_stream else time.perf_counter() - self._started
        self._guard.answered(self._method, self._code, seconds)
