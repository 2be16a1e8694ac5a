"""The endpoint of an elastic job, in the launcher of node 0: nodes join here and are told when to
start and to end their ranks.

A node is let in when it names the same job, the same number of ranks, and proves that it knows the
secret ONEFLOW_JOB_TOKEN: both ends sign both nonces, so that neither can be played back.
"""

from __future__ import annotations

import hmac
import itertools
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from oneflow.launcher.elastic.lines import Lines
from oneflow.launcher.elastic.membership import (
    Action,
    BeginRound,
    DropNode,
    EndJob,
    EndRound,
    Limits,
    Membership,
    NodeCame,
    NodeLeft,
    RanksEnded,
    Tick,
)
from oneflow.scheduler.ports import free_port

JOIN_S = 10.0  # a connection that has not joined by then is closed
MAX_NAME_CHARS = 80
MAX_STRANGERS = 64


@dataclass(frozen=True)
class JobFace:
    """The values on which all nodes of a job must agree, and its secret."""

    job: str
    ranks_per_node: int
    token: str

    def sign(self, side: str, nonces: str) -> str:
        """Return the proof of a side that it knows the token."""
        return hmac.new(self.token.encode(), f"{side} {nonces}".encode(), "sha256").hexdigest()

    def problem(self, said: dict[str, Any], nonce: str) -> str:
        """Say why a node cannot join; "" if it can."""
        proof = self.sign("node", f"{nonce} {said.get('nonce')}")
        if not hmac.compare_digest(proof, str(said.get("proof"))):
            return "it has another ONEFLOW_JOB_TOKEN"
        if said.get("job") != self.job:
            theirs = str(said.get("job"))[:MAX_NAME_CHARS]
            return f"its --rdzv-id is {theirs!r}, and that of node 0 is {self.job!r}"
        if said.get("ranks") != self.ranks_per_node:
            return f"its --nproc_per_node is not {self.ranks_per_node}, as on node 0"
        return ""


@dataclass
class _Guest:
    lines: Lines
    nonce: str
    since: float
    has_joined: bool = False


class Host:
    """Serves the membership on a socket; `poll` is to be called often."""

    def __init__(
        self,
        listener: socket.socket,
        face: JobFace,
        limits: Limits,
        pick_port: Callable[[], int] = free_port,
    ) -> None:
        listener.setblocking(False)
        self._listener, self._face, self._pick_port = listener, face, pick_port
        self._membership = Membership(limits)
        self._guests: dict[int, _Guest] = {}
        self._numbers = itertools.count()
        self._port = 0

    def add_own(self, name: str) -> Lines:
        """Return the connection of the node whose launcher this is: node 0 of every round."""
        ours, theirs = socket.socketpair()
        number = next(self._numbers)
        self._guests[number] = _Guest(Lines(ours), "", 0.0, has_joined=True)
        self._membership.step(NodeCame(number, name), time.monotonic())
        return Lines(theirs)

    def poll(self) -> None:
        now = time.monotonic()
        self._accept(now)
        for number, guest in list(self._guests.items()):
            for message in guest.lines.receive():
                self._heard(number, guest, message, now)
            if not guest.lines.is_open or (not guest.has_joined and now > guest.since + JOIN_S):
                self._forget(number, now)
        self._do(self._membership.step(Tick(), now))

    def cancel(self, code: int, cause: str) -> None:
        """End the job on all nodes."""
        self._do([EndJob(number, code, cause) for number in self._guests])

    def close(self) -> None:
        self._listener.close()
        for guest in self._guests.values():
            guest.lines.close()

    def _accept(self, now: float) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:  # nobody is there, or no longer
                return
            strangers = sum(not guest.has_joined for guest in self._guests.values())
            if strangers >= MAX_STRANGERS:
                connected.close()
                return
            guest = _Guest(Lines(connected), secrets.token_hex(16), now)
            self._guests[next(self._numbers)] = guest
            guest.lines.send({"nonce": guest.nonce})

    def _heard(self, number: int, guest: _Guest, message: dict[str, Any], now: float) -> None:
        match message:
            case {"join": str(name), "nonce": str(nonce)} if not guest.has_joined:
                if problem := self._face.problem(message, guest.nonce):
                    guest.lines.send({"refused": problem})
                    return
                guest.has_joined = True
                proof = self._face.sign("host", f"{guest.nonce} {nonce}")
                guest.lines.send({"welcome": proof})
                self._do(self._membership.step(NodeCame(number, name[:MAX_NAME_CHARS]), now))
            case {"ended": int(round_), "code": int() | None as code, "cause": str(cause)} if (
                guest.has_joined
            ):
                self._do(self._membership.step(RanksEnded(number, round_, code, cause), now))
            case {"leave": True}:
                self._forget(number, now)
            case _:
                guest.lines.close()

    def _forget(self, number: int, now: float) -> None:
        guest = self._guests.pop(number, None)
        if guest is not None:
            guest.lines.close()
            if guest.has_joined:
                self._do(self._membership.step(NodeLeft(number), now))

    def _do(self, actions: list[Action]) -> None:
        if any(isinstance(action, BeginRound) for action in actions):
            self._port = self._pick_port()
        for action in actions:
            guest = self._guests.get(action.node)
            if guest is None:
                continue
            match action:
                case BeginRound():
                    guest.lines.send(asdict(action) | {"port": self._port})
                case EndRound():
                    guest.lines.send({"end": True})
                case EndJob(code=code, cause=cause):
                    guest.lines.send({"over": code, "cause": cause})
                case DropNode():
                    guest.lines.close()
