"""TLS between ranks: a peer that knows the token gets in, and a relay brings all bytes."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oneflow.core.config import Config
from oneflow.core.errors import ConfigError, TransportError
from oneflow.core.job_tls import JobTls, _made, job_tls
from oneflow.services.tls_relay import _relays, finish, relayed
from tests.support.waiting import CALL_S, WAIT_S, wait_until

TOKEN = "t" * 64


def tls_of(token: str) -> JobTls:
    """Makes it as another process would: nothing is shared but the token."""
    return _made.__wrapped__(token)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


def joined(client: JobTls | None, server: JobTls | None) -> tuple[Any, Any]:
    """Both plain ends, or the errors."""
    ends: list[Any] = [None, None]
    lines = tcp_pair()

    def run(index: int, tls: JobTls | None) -> None:
        try:
            ends[index] = relayed(tls, lines[index], is_server=bool(index))
        except TransportError as error:
            ends[index] = error

    threads = [threading.Thread(target=run, args=a) for a in enumerate((client, server))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return ends[0], ends[1]


def read_all(end: socket.socket) -> bytes:
    data = bytearray()
    end.settimeout(CALL_S)
    while piece := end.recv(1 << 20):
        data += piece
    return bytes(data)


def in_background(act: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_without_it_ranks_speak_in_the_clear() -> None:
    assert job_tls(Config()) is None
    line, other = tcp_pair()
    assert relayed(None, line, is_server=False) is line
    line.close()
    other.close()


@pytest.mark.parametrize("token", [None, "short"])
def test_a_token_that_can_be_guessed_is_refused(token: str | None) -> None:
    with pytest.raises(ConfigError, match="32 random"):
        job_tls(Config(job_tls=True, job_token=token))


@pytest.mark.parametrize("nbytes", [0, 1, 70_000, 5_000_000])
def test_both_directions_at_once_bring_what_was_sent(nbytes: int) -> None:
    client, server = joined(tls_of(TOKEN), tls_of(TOKEN))
    rng = np.random.default_rng(nbytes)
    there, back = rng.bytes(nbytes), rng.bytes(nbytes)
    found: dict[str, bytes] = {}

    def exchange(end: socket.socket, said: bytes, name: str) -> None:
        end.settimeout(CALL_S)
        sender = in_background(lambda: end.sendall(said))
        data = bytearray()
        while len(data) < nbytes:
            data += end.recv(1 << 20)
        found[name] = bytes(data)
        sender.join(WAIT_S)

    threads = [
        in_background(lambda: exchange(client, there, "client")),
        in_background(lambda: exchange(server, back, "server")),
    ]
    for thread in threads:
        thread.join(WAIT_S)
    assert found == {"client": back, "server": there}
    client.close()
    assert server.recv(1) == b""
    server.close()


def test_what_was_sent_before_closing_arrives() -> None:
    client, server = joined(tls_of(TOKEN), tls_of(TOKEN))
    said = np.random.default_rng(1).bytes(600_000)
    reader: list[bytes] = []
    thread = in_background(lambda: reader.append(read_all(server)))
    client.sendall(said)
    client.close()
    finish()
    thread.join(WAIT_S)
    assert reader == [said]
    server.close()


def events_of(end: socket.socket, wanted: int, until: int = 0) -> int:
    """Events that poll tells of it, at once or when one of `until` has come."""
    poll = select.poll()
    poll.register(end, wanted)

    def seen() -> int:
        return dict(poll.poll(0)).get(end.fileno(), 0)

    if until:
        wait_until(lambda: seen() & until)
    return seen()


def test_a_peer_that_has_done_its_part_is_not_lost() -> None:
    """Hangs up as on a TCP connection: no POLLHUP while its words wait to be read."""
    client, server = joined(tls_of(TOKEN), tls_of(TOKEN))
    said = np.random.default_rng(2).bytes(100_000)
    client.sendall(said)
    client.close()
    finish()
    peeked = events_of(server, select.POLLIN | select.POLLRDHUP, until=select.POLLRDHUP)
    assert peeked == select.POLLIN | select.POLLRDHUP
    assert events_of(server, 0) == 0
    assert read_all(server) == said
    server.close()


def test_who_sends_to_a_peer_that_is_gone_hears_of_it() -> None:
    client, server = joined(tls_of(TOKEN), tls_of(TOKEN))
    client.sendall(b"last words")
    client.close()
    events_of(server, select.POLLRDHUP, until=select.POLLRDHUP)
    server.sendall(b"are you there?")
    assert events_of(server, 0, until=select.POLLHUP) & select.POLLHUP
    assert read_all(server) == b"last words"
    server.close()


def test_nothing_of_it_can_be_read_on_the_way() -> None:
    said = b"a secret of the job " * 1000
    outer, near = tcp_pair()
    far, inner = tcp_pair()
    seen = bytearray()

    def pump(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(1 << 16):
            seen.extend(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    pumps = [in_background(lambda: pump(near, far)), in_background(lambda: pump(far, near))]
    ends: list[Any] = []
    thread = in_background(lambda: ends.append(relayed(tls_of(TOKEN), inner, is_server=True)))
    plain = relayed(tls_of(TOKEN), outer, is_server=False)
    thread.join(WAIT_S)
    plain.sendall(said)
    plain.close()
    assert read_all(ends[0]) == said
    ends[0].close()
    for one in pumps:
        one.join(WAIT_S)
    near.close()
    far.close()
    assert len(seen) > len(said) and b"secret" not in seen


def test_ranks_of_another_job_are_refused() -> None:
    client, server = joined(tls_of("a" * 64), tls_of(TOKEN))
    assert isinstance(client, TransportError) and isinstance(server, TransportError)
    assert "ONEFLOW_JOB_TOKEN" in str(client)


def test_who_shows_no_certificate_is_refused() -> None:
    import ssl

    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    lax.check_hostname, lax.verify_mode = False, ssl.CERT_NONE
    client, server = tcp_pair()
    refused: list[Any] = []

    def serve() -> None:
        with pytest.raises(TransportError) as error:
            relayed(tls_of(TOKEN), server, is_server=True)
        refused.append(error)

    thread = in_background(serve)
    client.settimeout(CALL_S)
    with pytest.raises(OSError), lax.wrap_socket(client) as line:
        line.sendall(b"hello")
        while line.recv(100):
            pass
        raise ConnectionResetError  # closed in order: refused all the same
    thread.join(WAIT_S)
    assert refused


def test_relays_end_with_their_connections() -> None:
    client, server = joined(tls_of(TOKEN), tls_of(TOKEN))
    mine = [relay for relay in _relays if not relay.is_closing]
    assert len(mine) >= 2
    client.close()
    assert server.recv(1) == b""
    server.close()
    for relay in mine:
        relay.join(WAIT_S)
        assert not relay.is_alive()
