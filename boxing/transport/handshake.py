"""Proof that both ends of a new connection are the ranks of a mesh that they say they are.

    dialler  -> acceptor    its rank, a nonce
    acceptor -> dialler     a nonce, its proof
    dialler  -> acceptor    its proof

A proof is an HMAC of the role, both ranks and both nonces under the key of the mesh, which only the
job's ranks can read. Nonces are new for each connection, so a recorded handshake proves nothing a
second time; the role and the ranks are in the proof, so neither end can be given its own proof
back, and a proof for one rank is none for another. The acceptor proves itself first: a process that
took over a rank's address learns no proof of the dialler.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable

from oneflow.boxing.transport.rendezvous import SLICE_S
from oneflow.core.errors import TransportError

NONCE_NBYTES = 32
PROOF_NBYTES = hashlib.sha256().digest_size
_HELLO = struct.Struct(f"<I{NONCE_NBYTES}s")
_RANKS = struct.Struct("<II")
_DIALLER, _ACCEPTOR = b"oneflow mesh dialler", b"oneflow mesh acceptor"


def prove_as_dialler(
    sock: socket.socket,
    key: bytes,
    rank: int,
    peer: int,
    timeout_s: float,
    waiting: Callable[[], None] = lambda: None,
) -> None:
    """The dialler's side; `waiting` is called every 50 ms while the peer is silent, and may raise.

    Raises TransportError if the other end cannot prove that it is rank `peer`.
    """
    nonce = secrets.token_bytes(NONCE_NBYTES)
    sock.sendall(_HELLO.pack(rank, nonce))
    answer = _read(sock, NONCE_NBYTES + PROOF_NBYTES, timeout_s, waiting)
    nonces = nonce + answer[:NONCE_NBYTES]
    if not hmac.compare_digest(answer[NONCE_NBYTES:], _proof(key, _ACCEPTOR, rank, peer, nonces)):
        raise TransportError(f"rank {rank}: who answers as rank {peer} does not know the job's key")
    sock.sendall(_proof(key, _DIALLER, rank, peer, nonces))


def prove_as_acceptor(
    sock: socket.socket,
    key: bytes,
    rank: int,
    is_expected: Callable[[int], bool],
    timeout_s: float,
) -> int:
    """The acceptor's side. Returns the rank of the dialler.

    is_expected: whether this rank still waits for a given one.
    Raises TransportError for a stranger.
    """
    peer, theirs = _HELLO.unpack(_read(sock, _HELLO.size, timeout_s))
    if not is_expected(peer):
        raise TransportError(f"rank {rank}: nobody expects rank {peer} here")
    nonce = secrets.token_bytes(NONCE_NBYTES)
    nonces = theirs + nonce
    sock.sendall(nonce + _proof(key, _ACCEPTOR, peer, rank, nonces))
    proof = _read(sock, PROOF_NBYTES, timeout_s)
    if not hmac.compare_digest(proof, _proof(key, _DIALLER, peer, rank, nonces)):
        raise TransportError(
            f"rank {rank}: who connected as rank {peer} does not know the job's key"
        )
    return int(peer)


def _proof(key: bytes, role: bytes, dialler: int, acceptor: int, nonces: bytes) -> bytes:
    return hmac.digest(key, role + _RANKS.pack(dialler, acceptor) + nonces, hashlib.sha256)


def _read(
    sock: socket.socket,
    nbytes: int,
    timeout_s: float,
    waiting: Callable[[], None] = lambda: None,
) -> bytes:
    """Exactly `nbytes`, all of them within `timeout_s`: a trickle of bytes gains no time."""
    deadline = time.monotonic() + timeout_s
    sock.settimeout(SLICE_S)
    data = b""
    while len(data) < nbytes:
        try:
            part = sock.recv(nbytes - len(data))
        except TimeoutError:
            waiting()
            part = None
        if part == b"":
            raise TransportError("the other end closed the connection while it was set up")
        data += part or b""
        if len(data) < nbytes and time.monotonic() > deadline:
            raise TransportError(f"the other end did not say in {timeout_s:g} s who it is")
    sock.settimeout(timeout_s)
    return data
