"""Pages that are only read: slow, large, many or foreign requests get nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from oneflow.services import http_server
from oneflow.services.http_server import PageHandler, PageServer, is_foreign, is_host_allowed
from tests.support.waiting import CALL_S

HEAD = b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n"


class Handler(PageHandler):
    """Answers when it may."""

    begun = threading.Semaphore(0)
    may_answer = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/slow":
            self.begun.release()
            assert self.may_answer.wait(CALL_S)
        self.send_page(200, b"here\n", "text/plain")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setattr(http_server, "REQUEST_S", 60.0)
    monkeypatch.setattr(http_server, "MAX_THREADS", 2)
    found = PageServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join(CALL_S)


def connect(server: PageServer) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=CALL_S)


def ask(server: PageServer, request: bytes) -> bytes:
    with connect(server) as line:
        line.sendall(request)
        answer = b""
        with suppress(ConnectionResetError):  # hung up before all was read
            while piece := line.recv(1 << 16):
                answer += piece
        return answer


def test_a_whole_request_is_answered(server: PageServer) -> None:
    answer = ask(server, HEAD + b"\r\n")
    assert answer.endswith(b"\r\n\r\nhere\n")
    assert b"Cache-Control: no-store" in answer
    assert b"Python" not in answer


def test_two_hosts_are_refused(server: PageServer) -> None:
    """The second one was believed."""
    answer = ask(server, b"GET / HTTP/1.1\r\n" + b"Host: localhost\r\n" * 2 + b"\r\n")
    assert answer.split()[1] == b"400"


def test_who_is_silent_makes_room_for_who_asks(
    server: PageServer,
) -> None:
    """Connections that never ask hold up nobody, for any time they are given."""
    silent = [connect(server) for _ in range(6)]
    assert ask(server, HEAD + b"\r\n").endswith(b"here\n")
    for line in silent:
        line.close()


def test_nothing_is_changed_by_other_methods(server: PageServer) -> None:
    for method in (b"POST", b"PUT", b"DELETE", b"OPTIONS", b"HEAD", b"CONNECT"):
        answer = ask(server, HEAD.replace(b"GET", method) + b"\r\n")
        assert b" 501 " in answer.split(b"\r\n")[0]


def test_who_is_slow_is_hung_up_on_however_often_something_comes(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.3)
    with connect(server) as line:
        line.sendall(HEAD)
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.05):
                try:
                    line.sendall(b"X")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        with suppress(ConnectionResetError):
            assert line.recv(100) == b""
        stop.set()
        thread.join(CALL_S)


def test_a_long_request_is_not_kept(server: PageServer) -> None:
    line = b"X-%05d: " + b"y" * 2000 + b"\r\n"
    assert ask(server, HEAD + b"".join(line % n for n in range(60)) + b"\r\n") == b""


def test_so_many_are_answered_at_once_and_no_more(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "ROOM_S", 0.05)
    with connect(server) as first, connect(server) as second:
        for line in (first, second):
            line.sendall(HEAD.replace(b"/ ", b"/slow ") + b"\r\n")
            assert Handler.begun.acquire(timeout=CALL_S)
        assert ask(server, HEAD + b"\r\n") == b""
        Handler.may_answer.set()
        assert first.recv(100)
    while not ask(server, HEAD + b"\r\n"):  # its thread ends a moment after its answer
        continue


def test_pages_of_other_origins_are_foreign() -> None:
    assert is_foreign({"origin": "null"})
    assert is_foreign({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"})
    assert is_foreign({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"})
    assert not is_foreign({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"})
    assert not is_foreign({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})  # a link
    assert not is_foreign({})  # no browser
    own = {"host": "head:9401", "origin": "http://head:9401"}  # of a module or a POST
    assert not is_foreign(own)
    for other in ("http://head:9402", "http://evil.example", "file://head:9401", "null"):
        assert is_foreign(own | {"origin": other}), other
    assert is_foreign(own | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"})


def test_only_addresses_and_known_names_are_hosts() -> None:
    names = frozenset(("localhost", "head"))
    for host in ("127.0.0.1", "127.0.0.1:80", "[::1]:80", "[::1]", "localhost:1", "HEAD"):
        assert is_host_allowed(host, names), host
    for other in (None, "", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80"):
        assert not is_host_allowed(other, names), other
