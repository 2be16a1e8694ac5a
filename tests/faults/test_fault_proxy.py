"""The proxy that is a bad network: all bytes come out, but for the faults asked for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from campaigns.proxy import UP, Faults, Proxy
from tests.support.waiting import CALL_S, wait_until


class Sink:
    """A server that keeps all that one connection brings."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.data = b""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._listener, self._listener.accept()[0] as link:
            try:
                while data := link.recv(1 << 16):
                    self.data += data
            except ConnectionResetError:
                return

    def all(self) -> bytes:
        self._thread.join(CALL_S)
        assert not self._thread.is_alive()
        return self.data


@pytest.fixture
def sink() -> Iterator[Sink]:
    yield Sink()


def through(sink: Sink, faults: Faults, sent: list[bytes], seed: int = 0) -> bytes:
    """Each piece is a read of its own: the next one goes when the proxy has seen it."""
    with Proxy(sink.address, seed) as proxy, proxy.doing(faults), connected(proxy) as link:
        send(link, proxy, sent)
        link.shutdown(socket.SHUT_WR)
        return sink.all()


def connected(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)))


def send(link: socket.socket, proxy: Proxy, pieces: list[bytes]) -> None:
    for number, piece in enumerate(pieces, 1):
        link.sendall(piece)
        wait_until(lambda number=number: proxy.counts["read"] >= number, "it was read")


PIECES = [bytes([number]) * 100 for number in range(20)]


@pytest.mark.parametrize("faults", [Faults(), Faults(loss=0.2, jitter_s=0.001, limit=2)])
def test_all_comes_in_order_however_late(sink: Sink, faults: Faults) -> None:
    assert through(sink, faults, PIECES) == b"".join(PIECES)


def test_one_bit_is_wrong_and_the_same_one_for_the_same_seed() -> None:
    faults, sent = Faults(corrupt=1.0, first=1, limit=1), b"".join(PIECES)
    found, again, other = (through(Sink(), faults, PIECES, seed) for seed in (3, 3, 4))
    assert (int.from_bytes(found, "big") ^ int.from_bytes(sent, "big")).bit_count() == 1
    assert found[:100] == sent[:100] and found == again != other


def test_a_cut_connection_is_reset(sink: Sink) -> None:
    with Proxy(sink.address) as proxy, proxy.doing(Faults(cut=1.0, first=2)):
        with connected(proxy) as link:
            send(link, proxy, PIECES[:2])
            wait_until(lambda: is_reset(link), "who sends has heard of it")
        assert b"".join(PIECES[:2]).startswith(sink.all()) and proxy.counts["cut"] == 1


def is_reset(link: socket.socket) -> bool:
    """Whether one more piece cannot be sent: the first ones after a reset may be taken yet."""
    try:
        link.sendall(PIECES[2])
    except OSError:
        return True
    return False


def test_nothing_passes_while_it_is_silent(sink: Sink) -> None:
    with Proxy(sink.address) as proxy, connected(proxy) as link:
        with proxy.silent(UP):
            link.sendall(PIECES[0])
            link.settimeout(0.2)
            with pytest.raises(TimeoutError):
                link.recv(1)
            assert not sink.data
        link.shutdown(socket.SHUT_WR)
        assert sink.all() == PIECES[0]
