"""The line from a client to the scheduler: calls and streams that outlive its restart.

A scheduler that does not answer is asked again with growing pauses: for `connect_s` at first, for
`patience_s` once it has answered. Errors it tells are raised as our own types.

An answer that is lost on its way leaves open whether the call was done. Most calls can be repeated
as they are. After that of a removal the thing may be gone already, as was wanted. Calls that would
do a thing a second time are not repeated, but for a try that cannot have arrived.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.core.config import join_address, split_address
from oneflow.core.control_channel import (
    ERROR_KEY,
    OPEN_KEY,
    channel_options,
    check_plain,
    decode_error,
    resolve,
    socket_path,
)
from oneflow.core.errors import (
    AuthError,
    ClusterRequestError,
    ClusterUnreachableError,
    ConfigError,
    InternalError,
    JobSpecError,
    OneFlowError,
    ProtocolError,
    StoreError,
)
from oneflow.protos import cluster_pb2 as pb
from oneflow.services.listeners import check_listener
from oneflow.services.pinned_channel import PinnedChannel, dial, dial_socket, line_options, prove
from oneflow.services.proof import Claim, NotProvenError, Session

if TYPE_CHECKING:
    from oneflow.core.rpc import Message, RpcFailure

FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 2.0
CALL_S = 30.0  # for one answer; the scheduler may be waiting for its disk
MAX_CALL_S = 1e9  # gRPC takes longer ones for some that have passed already
AGAIN = "try again in"  # of a limit that will be over soon
ONCE = frozenset({"CreateToken", "RotateToken", "Restart"})
UNDOES = frozenset({"Remove", "RevokeToken"})
TLS_NAMES = "client.tls_dir or ONEFLOW_CLIENT_TLS_DIR"
UNSENT = "failed to connect"  # so gRPC says that a call never left
BROKEN = ("Stream removed", "RST_STREAM", "Unwrap failed", "Socket closed", "GOAWAY")
"""So it says, with the codes of inner errors, that the connection broke or brought rubbish."""
INNER = ("INTERNAL", "UNKNOWN", "DATA_LOSS")
_OTHERS = (InternalError, ProtocolError)  # to a client, a mistake in what it asked


class NotNowError(ClusterUnreachableError):
    """The scheduler answers, but cannot do it now (asked too often, a daemon is away): it is asked
    again.
    """


class StoreTroubleError(NotNowError):
    """The scheduler answers, but its store cannot be written (its disk is full, say), which only
    an operator can mend: a call says so at once.
    """


class UnsentError(ClusterUnreachableError):
    """No process could prove to be the scheduler: the call was not sent."""


class GoneError(ClusterRequestError):
    """The thing that the call is about is not there."""


@dataclass(frozen=True)
class Patience:
    """Seconds without any answer until a scheduler counts as unreachable."""

    connect_s: float = 5.0
    patience_s: float = 60.0


class Retries:
    """Pauses between tries, until nobody has answered for too long.

    limit_s: so long.  later_s: so long once somebody has; None: the same.
    """

    def __init__(self, limit_s: float, later_s: float | None = None) -> None:
        self._limit_s = limit_s
        self._later_s = limit_s if later_s is None else later_s
        self._since: float | None = time.monotonic()
        self._is_trouble = False
        self._pause_s = FIRST_PAUSE_S

    def opened(self) -> None:
        """A stream was taken. However long it is silent: it counts from when it is lost."""
        self._limit_s = self._later_s
        if not self._is_trouble:
            self._since = None

    def answered(self) -> None:
        """All was well until now."""
        self._limit_s, self._pause_s = self._later_s, FIRST_PAUSE_S
        self._since, self._is_trouble = None, False

    def lost(self, error: OneFlowError, lasted_s: float) -> None:
        """A stream was taken and has broken: it was well until now. But one that is told again
        and again that it cannot be done now has got no answer.
        """
        if not isinstance(error, NotNowError) or lasted_s > self._later_s:
            self.answered()

    def pause(self, error: ClusterUnreachableError, deadline: float | None = None) -> None:
        """Sleeps, or raises `error` if the time is over. deadline: on the monotonic clock."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        self._is_trouble = True
        pause_s = random.uniform(self._pause_s / 2, self._pause_s)
        self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        if now + pause_s > self._since + self._limit_s:
            raise error
        if deadline is not None:
            pause_s = max(min(pause_s, deadline - now), 0.0)
        time.sleep(pause_s)


class Connection:
    """Calls of the services Jobs and Cluster at one address. Nothing is sent over a connection
    before both ends have proven to know the token, however often it has to be made anew.

    token: read for each call, so that it can be replaced.  tls: folder of ca.crt and, for a
    scheduler that wants to know its clients, client.crt and client.key.  is_own: it is this user's
    own on this machine, so that another user who listens there is named at once.
    """

    def __init__(
        self,
        address: str,
        token: Callable[[], str | None],
        tls: Path | None = None,
        patience: Patience = Patience(),
        is_own: bool = False,
    ) -> None:
        self.address = address
        self._token = token
        self._tls = tls
        self._patience = patience
        self._lock = threading.RLock()
        self._channel: Any = None
        self._stubs: dict[str, Any] = {}
        self._line: PinnedChannel | None = None
        self._session: Session | None = None
        self._proven_token: str | None = None
        self._has_answered = False
        self._refusal: str | None = None
        self._is_own = is_own

    def retries(self) -> Retries:
        """Return the patience of one call or stream."""
        limits = self._patience
        first_s = limits.patience_s if self._has_answered else limits.connect_s
        return Retries(first_s, limits.patience_s)

    def call(
        self,
        service: str,
        method: str,
        make_request: Message | Callable[[], Iterator[Message]],
        timeout_s: float = CALL_S,
        deadline: float | None = None,
    ) -> Any:
        """The answer. Asked again while the scheduler is away: only for calls that can be
        repeated, and not while its store is in trouble.

        make_request: the message, or a function that makes it (of a stream) for each try.
        Raises ClusterUnreachableError, AuthError, JobSpecError, ClusterRequestError, ...
        """
        retries = self.retries()
        may_be_done = False
        while True:
            try:
                return self._call(service, method, make_request, timeout_s)
            except StoreTroubleError:
                raise
            except ClusterUnreachableError as error:
                is_sent = not isinstance(error, (NotNowError, UnsentError))
                is_sent = is_sent and UNSENT not in str(error)
                if is_sent and method in ONCE:
                    raise _may_be_done(method, error) from None
                may_be_done = may_be_done or is_sent
                if deadline is not None and time.monotonic() >= deadline:
                    raise
                retries.pause(error, deadline)
            except GoneError:
                if not (may_be_done and method in UNDOES):
                    raise
                return pb.Empty()

    def _call(
        self,
        service: str,
        method: str,
        make_request: Message | Callable[[], Iterator[Message]],
        timeout_s: float,
    ) -> Any:
        import grpc

        timeout_s = min(timeout_s, MAX_CALL_S)
        ask, metadata = self._method(service, method, timeout_s)
        request = make_request() if callable(make_request) else make_request
        try:
            answer = ask(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise self._translated(error) from None
        self._has_answered = True
        return answer

    def stream(
        self,
        service: str,
        method: str,
        request: Message,
        timeout_s: float | None = None,
        retries: Retries | None = None,
    ) -> Iterator[Any]:
        """Yield the messages of one stream; it is not opened again. Closing the iterator cancels
        it.

        retries: told how it goes.
        """
        import grpc

        told = retries or self.retries()
        limit_s = None if timeout_s is None else min(timeout_s, MAX_CALL_S)
        ask, metadata = self._method(service, method, limit_s or CALL_S)
        messages = ask(request, timeout=limit_s, metadata=metadata)
        opened_at: float | None = None
        try:
            if any(key == OPEN_KEY for key, _ in messages.initial_metadata() or ()):
                opened_at, self._has_answered = time.monotonic(), True
                told.opened()
            for message in messages:
                self._has_answered = True
                told.answered()
                yield message
            told.answered()
        except grpc.RpcError as error:
            found = self._translated(error)
            if opened_at is not None:
                told.lost(found, time.monotonic() - opened_at)
            raise found from None
        finally:
            messages.cancel()

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        """Give up channel, line and session; called under the lock."""
        if self._channel is not None:
            self._channel.close()
        if self._line is not None:
            self._line.close()
        self._channel, self._line, self._session, self._stubs = None, None, None, {}

    def _method(self, service: str, method: str, timeout_s: float) -> tuple[Any, Any]:
        """Return the stub to call, and the metadata, over a connection that is proven."""
        with self._lock:
            session = self._proven(min(timeout_s, CALL_S))
            if service not in self._stubs:
                from oneflow.protos import cluster_pb2_grpc

                self._stubs[service] = getattr(cluster_pb2_grpc, f"{service}Stub")(self._channel)
            return getattr(self._stubs[service], method), session.metadata

    def _proven(self, timeout_s: float) -> Session:
        """Return the session of a connection that is proven, opening one; called under the lock."""
        import grpc

        if self._line is not None and not self._line.is_open:
            self._close()
        token = self._token()
        if self._session is not None and token == self._proven_token:
            return self._session
        try:
            self._open(timeout_s)
            ends = (self._line.near, self._line.far) if self._line is not None else ("", "")
            self._session = prove(self._channel, Claim(token, *ends), timeout_s)
        except grpc.RpcError as error:
            found = self._translated(error)
            is_away = isinstance(found, ClusterUnreachableError)
            raise (UnsentError(str(found)) if is_away else found) from None
        finally:
            if self._session is None and self._line is not None:
                self._close()
        self._proven_token = token
        return self._session

    def _open(self, timeout_s: float) -> None:
        """A channel, unless there is one. A plain one leads to one connection and to no other."""
        import grpc

        if self._channel is not None:
            return
        if self._tls is not None:
            self._channel = _open_channel(self.address, self._tls)
            return
        try:
            self._line = self._dialled(timeout_s)
        except OSError as error:
            text = f"{UNSENT}: {error.strerror or error}"
            raise UnsentError(str(error_of("UNAVAILABLE", "", text, self.address))) from None
        self._channel = grpc.insecure_channel(self._line.target, options=line_options())

    def _dialled(self, timeout_s: float) -> PinnedChannel:
        if (path := socket_path(self.address)) is not None:
            return dial_socket(path, timeout_s)
        host, port = split_address(self.address)
        resolved = resolve(host)
        check_plain(self.address, resolved, TLS_NAMES)
        if self._is_own:
            check_listener(resolved, port)
        return dial(resolved, port, timeout_s)

    def _translated(self, error: RpcFailure) -> OneFlowError:
        code = error.code().name
        name = next((str(v) for k, v in error.trailing_metadata() or () if k == ERROR_KEY), "")
        text = error.details() or ""
        if self._tls is not None and "handshake failed" in text and self._why_refused():
            return ClusterUnreachableError(
                f"the scheduler at {self.address} is not believed: {self._why_refused()}; "
                f"{self._tls / 'ca.crt'} is to be the authority of its cluster"
            )
        if name == NotProvenError.__name__:  # a scheduler that was started anew
            with self._lock:
                self._session = None
            return UnsentError(text)
        found = error_of(code, name, text, self.address)
        if type(found) is ClusterUnreachableError and self._lacks_tls():
            found = ConfigError(
                f"the scheduler at {self.address} wants TLS: name the folder of certificates with "
                + TLS_NAMES
            )
        if not isinstance(found, ClusterUnreachableError):
            self._has_answered = True
        return found

    def _lacks_tls(self) -> bool:
        """Tell whether the other end speaks TLS, of which gRPC says only that nobody answers."""
        if self._tls is not None or socket_path(self.address) is not None:
            return False
        from oneflow.scheduler.cluster.tls import wants_tls

        return wants_tls(*split_address(self.address))

    def _why_refused(self) -> str:
        """Say why the scheduler's certificate is refused; looked up once."""
        if self._refusal is None:
            from oneflow.scheduler.cluster.tls import why_refused

            host, port = split_address(self.address)
            self._refusal = why_refused(host, port, self._tls) if self._tls is not None else ""
        return self._refusal


def error_of(code: str, name: str, text: str, address: str) -> OneFlowError:
    """The error of ours for a status. name: of the type that the scheduler gave; "": none."""
    if code == "UNAVAILABLE" and name == StoreError.__name__:
        said = f"{text}; the scheduler's operator must mend that, a full disk by making room"
        return StoreTroubleError(said)
    if (code == "UNAVAILABLE" and name) or (code == "RESOURCE_EXHAUSTED" and AGAIN in text):
        return NotNowError(text)
    is_broken = code in INNER and not name and any(words in text for words in BROKEN)
    if code == "UNAVAILABLE" or is_broken or (code == "CANCELLED" and not name):
        return ClusterUnreachableError(
            f"no scheduler answers at {address} ({_short(text)}); is it running? "
            "`oneflow cluster up` starts one here, ONEFLOW_SCHEDULER_ADDRESS names another"
        )
    if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return AuthError(text)
    if name:
        found = decode_error(name, text)
        if isinstance(found, OneFlowError) and not isinstance(found, _OTHERS):
            return found
    if code == "NOT_FOUND":
        return GoneError(text)
    if code == "UNIMPLEMENTED":
        return ClusterRequestError(f"the scheduler at {address} is older than this client: {text}")
    if code == "INVALID_ARGUMENT" and not name:
        return JobSpecError(text)
    if code == "DEADLINE_EXCEEDED" and not name:
        return ClusterUnreachableError(f"the scheduler at {address} did not answer in time")
    if code in INNER:
        return InternalError(f"the scheduler at {address}: {text}")
    return ClusterRequestError(text)


def is_serving(address: str, service: str, timeout_s: float, tls: Path | None = None) -> bool:
    """Ask the gRPC health service at `address` (host:port or unix:<path>) about `service`."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with _open_channel(address, tls) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _open_channel(address: str, tls: Path | None) -> Any:
    import grpc

    if socket_path(address) is not None:
        return grpc.insecure_channel(address, options=channel_options())
    host, port = split_address(address)
    if tls is None:
        resolved = resolve(host)
        check_plain(address, resolved, TLS_NAMES)
        return grpc.insecure_channel(join_address(resolved, port), options=channel_options())
    from oneflow.scheduler.cluster.tls import SERVER_NAME, channel_credentials

    options = [*channel_options(), ("grpc.ssl_target_name_override", SERVER_NAME)]
    credentials = channel_credentials(tls, "client")
    return grpc.secure_channel(join_address(host, port), credentials, options=options)


def _may_be_done(method: str, error: ClusterUnreachableError) -> ClusterUnreachableError:
    """Return the error of a call that must not be done twice: the answer to it was lost."""
    look = "`oneflow job get`" if method == "Restart" else "`oneflow cluster token list`"
    return ClusterUnreachableError(
        f"{error}; it is not known whether {method} was done before the answer was lost: see {look}"
    )


def _short(text: str) -> str:
    return " ".join(text.split())[:400] or "no reason given"
