"""The proof that both ends of a connection know one token, which neither shows.

Both ends choose a nonce. All that follows is bound to the transcript: the key's name, both nonces,
and the connection as the client sees it. The server keeps only the digest of a token.
 1. client -> server: the key's name (a hash of the digest), a nonce, both ends of the connection
 2. server -> client: a nonce
 3. client -> server: the token under a mask that is keyed with its digest, as SCRAM (RFC 5802) has
    it: the holder of the digest reads it, and cannot make it from the digest alone
 4. server -> client: the number of a session, and an HMAC that is keyed with the digest
From then on the client's calls name the session and show a ticket, which is keyed with the token.

A process that took a server's port without knowing the digest can neither read step 3 nor make step
4, and the bytes that it heard are of no use with other nonces. One that hands each byte on to the
real server is found by the ends of the connections, which differ (the server compares them:
scheduler/authenticator.py).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oneflow.core.errors import AuthError, ConfigError

if TYPE_CHECKING:
    from oneflow.protos import proof_pb2 as pb

PROVE = "/oneflow.Door/Prove"
SESSION_KEY = "oneflow-session"  # metadata of every call over a connection that was proven
NO_TOKEN = "no token was given: set ONEFLOW_AUTH_TOKEN or ONEFLOW_AUTH_TOKEN_FILE"
NONCE_NBYTES = 32
SESSION_NBYTES = 16
MAX_TOKEN_NBYTES = 1024
_VERSION = b"oneflow proof 1"


class ImpostorError(ConfigError):
    """The listener does not know the token: it is not the scheduler that was meant."""


class NotProvenError(AuthError):
    """A call of a session that the server does not know: prove the connection anew."""


def digest_of(token: str) -> bytes:
    """32 bytes: all that a server keeps of a token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def name_of(digest: bytes) -> bytes:
    """The public name of a token's digest, from which nobody finds the digest."""
    return hmac.digest(digest, b"name", "sha256")[:16]


def transcript_of(key: bytes, nonces: tuple[bytes, bytes], near: str, far: str) -> bytes:
    """Return the transcript of a proof, which both ends compute.

    nonces: the client's and the server's. near, far: the ends as the client sees them.
    """
    parts = (_VERSION, key, *nonces, near.encode(), far.encode())
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def masked(token: bytes, digest: bytes, transcript: bytes) -> bytes:
    """The token under its mask; the same again takes the mask off."""
    keyed = hmac.digest(digest, b"mask" + transcript, "sha256")
    mask = hashlib.shake_256(keyed).digest(len(token))
    return bytes(a ^ b for a, b in zip(token, mask, strict=True))


def server_proof(digest: bytes, transcript: bytes, session: bytes) -> bytes:
    """Make step 4, for which one must know the token's digest."""
    return hmac.digest(digest, b"server" + session + transcript, "sha256")


def ticket_of(token: bytes, transcript: bytes, session: bytes) -> bytes:
    """Return the ticket that the calls of a session show."""
    return hmac.digest(token, b"ticket" + session + transcript, "sha256")


@dataclass(frozen=True)
class Session:
    """A connection that was proven from both ends. metadata: of each call over it."""

    metadata: tuple[tuple[str, str], ...] = field(repr=False)


class Claim:
    """The client's side of one proof. near, far: the ends of the connection, host:port; ""
    where TLS, or the folder of a Unix socket, proves the other end.

    Raises AuthError without a token.
    """

    def __init__(self, token: str | None, near: str = "", far: str = "") -> None:
        if not token:
            raise AuthError(NO_TOKEN)
        self._token = token.encode(errors="surrogatepass")
        self._digest = digest_of(token)
        self._ends = near, far
        self._nonce = secrets.token_bytes(NONCE_NBYTES)
        self._transcript = b""

    def knock(self) -> pb.ProofStep:
        """Step 1."""
        from oneflow.protos import proof_pb2 as pb

        near, far = self._ends
        return pb.ProofStep(key=name_of(self._digest), nonce=self._nonce, near=near, far=far)

    def answer(self, step: pb.DoorStep | None) -> pb.ProofStep:
        """Step 3 for the server's step 2. Raises ImpostorError."""
        from oneflow.protos import proof_pb2 as pb

        if step is None or len(step.nonce) != NONCE_NBYTES:
            raise self.impostor()
        nonces = self._nonce, bytes(step.nonce)
        self._transcript = transcript_of(name_of(self._digest), nonces, *self._ends)
        return pb.ProofStep(masked=masked(self._token, self._digest, self._transcript))

    def session(self, step: pb.DoorStep | None) -> Session:
        """Return the session that the server's step 4 opens. Raises ImpostorError."""
        if step is None or len(step.session) != SESSION_NBYTES:
            raise self.impostor()
        number = bytes(step.session)
        proof = server_proof(self._digest, self._transcript, number)
        if not hmac.compare_digest(proof, bytes(step.proof)):
            raise self.impostor()
        shown = number + ticket_of(self._token, self._transcript, number)
        return Session(((SESSION_KEY, shown.hex()),))

    def impostor(self) -> ImpostorError:
        """Make the error for a server that cannot make step 2 or 4."""
        where = f"at {self._ends[1]} " if self._ends[1] else ""
        return ImpostorError(
            f"who listens {where}does not know this token, so it is not the scheduler that was "
            "meant: another process has taken its address; nothing was sent there and nothing is "
            "believed"
        )
