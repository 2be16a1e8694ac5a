"""Connecting far ranks: strangers are sent away, and a broken connection waits for better news."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from oneflow.actors.link import open_link
from oneflow.actors.tcp import connect_all
from oneflow.core.errors import PeerLostError, TransportError


class Store:
    """Keys of a job in one process. lost: raised as soon as somebody asks whether all is well."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.lost: Exception | None = None

    def put(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout_s):
                raise TransportError(f"nobody put {key}")
            return self.values[key]

    def check(self, ranks: Iterable[int]) -> None:
        if self.lost is not None:
            raise self.lost


def connect(store: Store, found: dict[int, Any], rank: int) -> None:
    try:
        found[rank] = connect_all(rank, [1 - rank], [0, 1], "job", "127.0.0.1", store)
    except Exception as error:
        found[rank] = error


def start(store: Store, found: dict[int, Any], rank: int) -> threading.Thread:
    thread = threading.Thread(target=connect, args=(store, found, rank))
    thread.start()
    return thread


def dial(store: Store) -> socket.socket:
    host, _, port = store.get("tcp/job/0", 10.0).decode().partition(" ")
    return socket.create_connection((host, int(port)), timeout=10.0)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x01\x00\x00\x00" + b"x" * 64])
def test_strangers_do_not_keep_the_ranks_from_connecting(said: bytes) -> None:
    store, found = Store(), {}
    first = start(store, found, 0)
    stranger = dial(store)
    stranger.sendall(said)
    stranger.close()
    second = start(store, found, 1)
    first.join(20)
    second.join(20)
    found[0][1].sendall(b"hello")
    assert found[1][0].recv(5) == b"hello"
    for rank in (0, 1):
        found[rank][1 - rank].close()


def test_who_waits_for_a_lost_rank_hears_of_it() -> None:
    store, found = Store(), {}
    waiting = start(store, found, 0)
    dial(store).close()
    store.lost = PeerLostError("rank 1 failed first")
    waiting.join(20)
    assert isinstance(found[0], PeerLostError)


class Unreachable(Store):
    """A store whose page address leads nowhere."""

    def get(self, key: str, timeout_s: float) -> bytes:
        if key.startswith("pages/"):
            return b"\0nobody-listens-here"
        return self.values.get(key, b"here")


def plan() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(registers=[], actors=[])


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_scheduler_gets_time_to_name_the_cause(is_lost: bool) -> None:
    store = Unreachable()
    if is_lost:
        store.lost = PeerLostError("rank 1 failed first")
    started = time.monotonic()
    with pytest.raises(PeerLostError if is_lost else TransportError):
        open_link(plan(), 0, [0, 1], "job", store, identity="here", patience_s=0.2)
    assert time.monotonic() - started < 10
