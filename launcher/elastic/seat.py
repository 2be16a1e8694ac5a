"""A node's side of an elastic job: its connection to the endpoint, which it serves itself if it is
node 0.
"""

from __future__ import annotations

import errno
import secrets
import select
import socket
import time
from dataclasses import dataclass
from typing import Any

from oneflow.core.config import join_address
from oneflow.core.control_channel import resolve
from oneflow.core.errors import ConfigError, PeerLostError, RendezvousError
from oneflow.launcher.elastic.host import Host, JobFace
from oneflow.launcher.elastic.lines import Lines
from oneflow.launcher.elastic.membership import Limits

LOOK_S = 0.1
RETRY_S = 0.2
BACKLOG = 128


@dataclass(frozen=True)
class Round:
    """One start of the ranks: this node's number, and where rank 0 listens."""

    number: int
    index: int
    size: int
    restarts: int
    port: int
    why: str


@dataclass(frozen=True)
class Over:
    """The end of the job."""

    code: int
    cause: str


class Seat:
    """A node's place in an elastic job."""

    def __init__(self, lines: Lines, host: Host | None) -> None:
        self._lines, self._host = lines, host
        self._next: Round | None = None
        self._over: Over | None = None
        self._is_told_to_end = False

    def poll(self) -> None:
        if self._host is not None:
            self._host.poll()
        for message in self._lines.receive():
            self._heard(message)
        if not self._lines.is_open and self._over is None:
            cause = "node 0, at whose endpoint the nodes meet, is gone"
            self._over = Over(PeerLostError.exit_code, cause)

    def _heard(self, message: dict[str, Any]) -> None:
        match message:
            case {
                "round": int(number),
                "index": int(index),
                "size": int(size),
                "restarts": int(restarts),
                "port": int(port),
                "why": str(why),
            }:
                self._next = Round(number, index, size, restarts, port, why)
                self._is_told_to_end = False
            case {"end": True}:
                self._is_told_to_end = True
            case {"over": int(code), "cause": str(cause)}:
                self._over = self._over or Over(code, cause)

    def wait(self) -> Round | Over:
        """Return the next thing to do, once it is known."""
        while True:
            self.poll()
            if self._over is not None:
                return self._over
            if self._next is not None:
                found, self._next = self._next, None
                return found
            select.select([self._lines], [], [], LOOK_S)

    def is_to_end(self) -> bool:
        """Whether the ranks that run now are to be ended."""
        self.poll()
        return self._is_told_to_end or self._over is not None

    def say_ended(self, round_: int, code: int | None, cause: str) -> None:
        self._lines.send({"ended": round_, "code": code, "cause": cause})

    def leave(self, code: int, cause: str) -> None:
        """This launcher was told to end: the others go on, but not without node 0."""
        if self._host is not None:
            self._host.cancel(code, cause)
        else:
            self._lines.send({"leave": True})

    def close(self) -> None:
        self._lines.close()
        if self._host is not None:
            self._host.close()


def take_seat(
    endpoint: tuple[str, int], face: JobFace, limits: Limits, is_host: bool | None
) -> Seat:
    """Meet the other nodes. is_host: whether this is node 0; None: if it is the first that listens
    at the endpoint.

    Raises ConfigError if it is refused, RendezvousError if nobody listens.
    """
    address, name = resolve(endpoint[0], "--rdzv-endpoint"), socket.gethostname()
    if is_host is not False:
        listener = _listen(address, endpoint[1], must=is_host is True)
        if listener is not None:
            host = Host(listener, face, limits)
            return Seat(host.add_own(name), host)
    return Seat(_join((address, endpoint[1]), face, name, limits.join_s), None)


def _listen(address: str, port: int, must: bool) -> socket.socket | None:
    """Return the socket of the endpoint; None if it is another node's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if must or error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            shown = join_address(address, port)
            raise ConfigError(f"cannot listen on {shown}, the endpoint: {error}") from None
        return None
    return listener


def _join(endpoint: tuple[str, int], face: JobFace, name: str, limit_s: float) -> Lines:
    until = time.monotonic() + limit_s
    while True:
        left_s = until - time.monotonic()
        try:
            if left_s <= 0:
                raise TimeoutError("timed out")
            with socket.create_connection(endpoint, timeout=left_s) as connected:
                lines = Lines(connected.dup())
            if _is_welcome(lines, face, name, until):
                return lines
            problem = "the connection ended"
        except OSError as error:
            problem = str(error)
        if time.monotonic() + RETRY_S >= until:
            raise RendezvousError(
                f"nobody let this node in at --rdzv-endpoint {join_address(*endpoint)} within "
                f"{limit_s:g} s ({problem}); is the launcher of node 0 running there?"
            )
        time.sleep(RETRY_S)


def _is_welcome(lines: Lines, face: JobFace, name: str, until: float) -> bool:
    """Join over a new connection, which stays open only if this node is let in.

    Raises ConfigError if the host refuses, or is another.
    """
    try:
        is_let_in = _introduce(lines, face, name, until)
    except ConfigError:
        lines.close()
        raise
    if not is_let_in:
        lines.close()
    return is_let_in


def _introduce(lines: Lines, face: JobFace, name: str, until: float) -> bool:
    own, nonces = secrets.token_hex(16), ""
    while lines.is_open and (left_s := until - time.monotonic()) > 0:
        select.select([lines], [], [], left_s)
        messages = lines.receive()
        while messages:
            match messages.pop(0):
                case {"nonce": str(theirs)} if not nonces:
                    nonces = f"{theirs} {own}"
                    join = {"join": name, "job": face.job, "ranks": face.ranks_per_node}
                    lines.send(join | {"nonce": own, "proof": face.sign("node", nonces)})
                case {"welcome": str(proof)} if proof == face.sign("host", nonces):
                    lines.put_back(messages)
                    return True
                case {"refused": str(problem)}:
                    raise ConfigError(f"node 0 does not let this node in: {problem}")
                case _:
                    raise ConfigError("the listener at --rdzv-endpoint is no node 0 of this job")
    return False
