"""The mesh of ranks: both ends prove their identity; strangers, replays and impostors stay out."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from oneflow.boxing.transport.handshake import (
    NONCE_NBYTES,
    PROOF_NBYTES,
    prove_as_acceptor,
    prove_as_dialler,
)
from oneflow.boxing.transport.mesh import KEY_NBYTES, Mesh
from oneflow.core.errors import PeerLostError, TransportError
from oneflow.core.job_tls import _made
from tests.support.waiting import CALL_S, be_late

from .boxing_ranks import LocalStore, in_threads

HELLO_NBYTES = 4 + NONCE_NBYTES
KEY = bytes(range(KEY_NBYTES))


class Store(LocalStore):
    """lost: raised as soon as somebody asks whether all is well."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: Exception | None = None

    def check(self, ranks: Sequence[int]) -> None:
        if self.lost is not None:
            raise self.lost


def mesh(store: Store, rank: int, size: int = 2, **options: Any) -> Mesh:
    peers = [r for r in range(size) if r != rank]
    return Mesh("m", rank, range(size), peers, store, store.check, 20.0, **options)


def start(store: Store, found: dict[int, Any], rank: int, size: int = 2) -> threading.Thread:
    def connect() -> None:
        try:
            found[rank] = mesh(store, rank, size).open()
        except Exception as error:
            found[rank] = error

    thread = threading.Thread(target=connect)
    thread.start()
    return thread


def dial(store: Store, rank: int = 0) -> socket.socket:
    host, _, port = store.get(f"mesh/m/{rank}", 10.0).decode().partition(" ")
    return socket.create_connection((host, int(port)), timeout=CALL_S)


def read(sock: socket.socket, nbytes: int) -> bytes:
    return sock.recv(nbytes, socket.MSG_WAITALL)


@pytest.mark.parametrize("tls", [None, _made("t" * 64)], ids=["plain", "tls"])
@pytest.mark.parametrize("size", [2, 4])
def test_every_two_ranks_have_a_connection_of_their_own(size: int, tls: Any) -> None:
    store = Store()
    found = in_threads(size, lambda rank: mesh(store, rank, size, tls=tls).open())
    for rank, sockets in enumerate(found):
        assert sorted(sockets) == [r for r in range(size) if r != rank]
        for peer, sock in sockets.items():
            assert not sock.getblocking()
            sock.sendall(bytes([rank, peer]))
    for rank, sockets in enumerate(found):
        for peer, sock in sockets.items():
            sock.setblocking(True)
            assert read(sock, 2) == bytes([peer, rank])
            sock.close()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x01\x00\x00\x00" + b"x" * 64])
def test_strangers_do_not_keep_the_ranks_from_connecting(said: bytes) -> None:
    store, found = Store(), dict[int, Any]()
    first = start(store, found, 0)
    stranger = dial(store)
    stranger.sendall(said)
    stranger.close()
    second = start(store, found, 1)
    first.join(CALL_S)
    second.join(CALL_S)
    found[0][1].sendall(b"hello")
    found[1][0].setblocking(True)
    assert read(found[1][0], 5) == b"hello"
    for rank in (0, 1):
        found[rank][1 - rank].close()


def test_strangers_that_say_nothing_hold_nobody_up() -> None:
    store, found = Store(), dict[int, Any]()
    first = start(store, found, 0)
    strangers = [dial(store) for _ in range(20)]
    second = start(store, found, 1)
    second.join(CALL_S)  # one after another they would take 20 times STRANGER_S
    first.join(CALL_S)
    assert sorted(found) == [0, 1] and all(isinstance(f, dict) for f in found.values())
    for sock in (*strangers, found[0][1], found[1][0]):
        sock.close()


# ---- replays -------------------------------------------------------------------------------------


def recorded() -> tuple[bytes, bytes]:
    """Words of the dialler and the acceptor of a handshake that went well."""
    (near, near_tap), (far_tap, far) = socket.socketpair(), socket.socketpair()
    up, down = bytearray(), bytearray()
    with near, near_tap, far_tap, far:
        ranks = (
            lambda: prove_as_dialler(near, KEY, 1, 0, CALL_S),
            lambda: prove_as_acceptor(far, KEY, 0, lambda rank: rank == 1, CALL_S),
        )
        threads = [threading.Thread(target=rank) for rank in ranks]
        for thread in threads:
            thread.start()
        for source, target, heard, nbytes in (
            (near_tap, far_tap, up, HELLO_NBYTES),
            (far_tap, near_tap, down, NONCE_NBYTES + PROOF_NBYTES),
            (near_tap, far_tap, up, PROOF_NBYTES),
        ):
            data = read(source, nbytes)
            heard += data
            target.sendall(data)
        for thread in threads:
            thread.join(CALL_S)
    return bytes(up), bytes(down)


def test_a_dialler_that_replays_a_recorded_handshake_is_refused() -> None:
    said, _ = recorded()
    near, far = socket.socketpair()
    with near, far, pytest.raises(TransportError, match="does not know the job's key"):
        near.sendall(said)
        prove_as_acceptor(far, KEY, 0, lambda rank: rank == 1, CALL_S)


def test_an_acceptor_that_replays_a_recorded_handshake_is_refused() -> None:
    _, said = recorded()
    near, far = socket.socketpair()
    with near, far, pytest.raises(TransportError, match="does not know the job's key"):
        far.sendall(said)
        prove_as_dialler(near, KEY, 1, 0, CALL_S)


def test_a_handshake_caught_on_its_way_lets_only_the_rank_itself_in() -> None:
    """A listener in the middle withholds rank 1's proof and shows it on a connection of its own."""
    store, found = Store(), dict[int, Any]()
    first = start(store, found, 0)
    true_address = store.get("mesh/m/0", CALL_S)
    with socket.create_server(("127.0.0.1", 0)) as middle:
        store.put("mesh/m/0", f"127.0.0.1 {middle.getsockname()[1]}".encode())
        second = start(store, found, 1)
        caught, _ = middle.accept()
        store.put("mesh/m/0", true_address)
        with caught, dial(store) as passed:
            hello = read(caught, HELLO_NBYTES)
            passed.sendall(hello)
            caught.sendall(read(passed, NONCE_NBYTES + PROOF_NBYTES))
            proof = read(caught, PROOF_NBYTES)
        with dial(store) as replayed:
            replayed.sendall(hello + proof)
            assert len(read(replayed, NONCE_NBYTES + PROOF_NBYTES + 1)) <= 64, "let in"
        second.join(CALL_S)
        found.pop(1)[0].close()  # its connection led to the middle, and is closed there
    third = start(store, found, 1)
    first.join(CALL_S)
    third.join(CALL_S)
    found[0][1].sendall(b"it")
    found[1][0].setblocking(True)
    assert read(found[1][0], 2) == b"it"
    for rank in (0, 1):
        found[rank][1 - rank].close()


# ---- impostors -----------------------------------------------------------------------------------

ANSWERS: dict[str, Callable[[bytes], bytes]] = {
    "random": lambda hello: secrets.token_bytes(NONCE_NBYTES + PROOF_NBYTES),
    "echo": lambda hello: hello[4:] + hello[4:],
    "silence": lambda hello: b"",
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_acceptor_that_cannot_prove_itself_learns_no_proof(kind: str) -> None:
    store, found = Store(), dict[int, Any]()
    store.put("mesh-key/m", KEY)
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        store.put("mesh/m/0", f"127.0.0.1 {impostor.getsockname()[1]}".encode())
        dialler = start(store, found, 1)
        line, _ = impostor.accept()
        with line:
            line.sendall(ANSWERS[kind](read(line, HELLO_NBYTES)))
            line.shutdown(socket.SHUT_WR)
            assert line.recv(1) == b"", "the dialler must say no more than hello"
    dialler.join(CALL_S)
    assert isinstance(found[1], TransportError)
    assert "rank 1 cannot reach rank 0 at 127.0.0.1:" in str(found[1])
    if kind != "silence":
        assert "who answers as rank 0 does not know the job's key" in str(found[1])


def test_an_acceptor_s_own_proof_given_back_is_none() -> None:
    near, far = socket.socketpair()
    errors: list[Exception] = []

    def accept() -> None:
        try:
            prove_as_acceptor(far, KEY, 0, lambda rank: True, CALL_S)
        except TransportError as error:
            errors.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    with near, far:
        near.sendall((0).to_bytes(4, "little") + bytes(NONCE_NBYTES))
        near.sendall(read(near, NONCE_NBYTES + PROOF_NBYTES)[NONCE_NBYTES:])
        thread.join(CALL_S)
    assert len(errors) == 1 and "does not know the job's key" in str(errors[0])


def test_bytes_that_trickle_gain_a_stranger_no_time() -> None:
    near, far = socket.socketpair()

    def trickle() -> None:
        for _ in range(HELLO_NBYTES - 1):
            try:
                near.sendall(b"x")
            except OSError:
                return
            be_late(0.07)

    thread = threading.Thread(target=trickle)
    thread.start()
    with near:
        with far, pytest.raises(TransportError, match=r"did not say in 0\.2 s who it is"):
            prove_as_acceptor(far, KEY, 0, lambda rank: True, 0.2)
        thread.join(CALL_S)


# ---- peers that are lost -------------------------------------------------------------------------


def test_who_waits_to_be_connected_to_hears_of_a_lost_rank() -> None:
    store, found = Store(), dict[int, Any]()
    waiting = start(store, found, 0)
    dial(store).close()
    store.lost = PeerLostError("rank 1 failed first")
    waiting.join(CALL_S)
    assert isinstance(found[0], PeerLostError)


def test_who_waits_for_an_answer_hears_of_a_lost_rank() -> None:
    store, found = Store(), dict[int, Any]()
    store.put("mesh-key/m", KEY)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        store.put("mesh/m/0", f"127.0.0.1 {frozen.getsockname()[1]}".encode())
        waiting = start(store, found, 1)
        line, _ = frozen.accept()
        store.lost = PeerLostError("rank 0 failed first")
        waiting.join(CALL_S)
        line.close()
    assert isinstance(found[1], PeerLostError)
