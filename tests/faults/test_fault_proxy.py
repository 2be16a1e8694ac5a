"""The proxy that is a bad network: what goes in comes out, but for what is asked for."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.support.waiting import CALL_S

from .fault_proxy import PREFACE, UP, Faults, Proxy, framer


class Sink:
    """A server that keeps all that one connection brings."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.data = b""
        self.was_reset = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._listener, self._listener.accept()[0] as link:
            try:
                while data := link.recv(1 << 16):
                    self.data += data
            except ConnectionResetError:
                self.was_reset = True

    def all(self) -> bytes:
        self._thread.join(CALL_S)
        assert not self._thread.is_alive()
        return self.data


@pytest.fixture
def sink() -> Iterator[Sink]:
    yield Sink()


def frames(count: int) -> list[bytes]:
    return [struct.pack("<QQ", 2 * n << 9, 8) + n.to_bytes(8, "little") for n in range(count)]


def through(sink: Sink, faults: Faults, sent: list[bytes], seed: int = 0) -> bytes:
    """Frames of ranks, after what opens their connection, in one write each."""
    with Proxy(sink.address, "actors", seed) as proxy, proxy.doing(faults):
        host, _, port = proxy.address.rpartition(":")
        with socket.create_connection((host, int(port))) as link:
            link.sendall(b"o" * 68)
            for frame in sent:
                link.sendall(frame)
            link.shutdown(socket.SHUT_WR)
            return sink.all()


def test_frames_are_found_however_they_are_cut() -> None:
    data = b"o" * 68 + b"".join(frames(20))
    for step in (1, 7, 68, 69, 1000):
        found = framer("actors", UP)
        cut = [f for a in range(0, len(data), step) for f in found.feed(data[a : a + step])]
        assert b"".join(f.data for f in cut) == data and not found.rest()
        assert [f.data for f in cut if f.kind != "open"] == frames(20)


def test_frames_of_http2_have_kinds() -> None:
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    data = b"\x00\x00\x02\x00\x01\x00\x00\x00\x01hi"
    found = list(framer("http2", UP).feed(PREFACE + settings + data))
    assert [f.kind for f in found] == ["open", "settings", "data"]


def test_a_calm_proxy_changes_nothing(sink: Sink) -> None:
    assert through(sink, Faults(), frames(50)) == b"o" * 68 + b"".join(frames(50))


@pytest.mark.parametrize(
    ("faults", "wanted"),
    [
        (Faults(duplicate=1.0, limit=1), [0, 0, 1, 2, 3]),
        (Faults(drop=1.0, limit=2), [2, 3]),
        (Faults(reorder=1.0, limit=1), [1, 0, 2, 3]),
        (Faults(loss=0.5, jitter_s=0.001), [0, 1, 2, 3]),
    ],
)
def test_frames_come_twice_never_or_in_another_order(
    sink: Sink, faults: Faults, wanted: list[int]
) -> None:
    sent = frames(4)
    assert through(sink, faults, sent)[68:] == b"".join(sent[n] for n in wanted)


def test_one_bit_is_wrong(sink: Sink) -> None:
    sent = frames(4)
    found = through(sink, Faults(corrupt=1.0, first=1, limit=1), sent)[68:]
    odd = int.from_bytes(found, "big") ^ int.from_bytes(b"".join(sent), "big")
    assert odd.bit_count() == 1


def test_the_same_seed_does_the_same() -> None:
    faults, sent = Faults(duplicate=0.3, drop=0.3, corrupt=0.3), frames(40)
    first, again, other = (through(Sink(), faults, sent, seed) for seed in (3, 3, 4))
    assert first == again != other


def test_a_cut_connection_is_reset(sink: Sink) -> None:
    with pytest.raises(OSError):
        through(sink, Faults(cut=1.0), frames(2000) * 20)
    assert len(sink.all()) < 68 + 24 * 40_000


def test_nothing_passes_while_it_is_silent(sink: Sink) -> None:
    with Proxy(sink.address, "actors") as proxy:
        host, _, port = proxy.address.rpartition(":")
        with socket.create_connection((host, int(port))) as link:
            with proxy.silent(UP):
                link.sendall(b"o" * 68 + frames(1)[0])
                link.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    link.recv(1)
                assert not sink.data
            link.shutdown(socket.SHUT_WR)
            assert sink.all() == b"o" * 68 + frames(1)[0]
