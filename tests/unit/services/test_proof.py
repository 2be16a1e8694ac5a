"""Both ends prove a token, and neither shows it."""

from __future__ import annotations

import secrets

import pytest

from oneflow.core.errors import AuthError
from oneflow.protos import proof_pb2 as pb
from oneflow.services.proof import (
    SESSION_KEY,
    Claim,
    ImpostorError,
    digest_of,
    masked,
    name_of,
    server_proof,
    ticket_of,
    transcript_of,
)

TOKEN = "oft_" + "x" * 43


def server(digest: bytes, knock: pb.ProofStep, nonce: bytes, answer: pb.ProofStep) -> tuple:
    """A server that knows the digest: its readings, and answers."""
    transcript = transcript_of(bytes(knock.key), (bytes(knock.nonce), nonce), knock.near, knock.far)
    token = masked(bytes(answer.masked), digest, transcript)
    session = b"s" * 16
    proof = server_proof(digest, transcript, session)
    return token, pb.DoorStep(session=session, proof=proof), ticket_of(token, transcript, session)


def test_both_ends_know_the_token_afterwards_and_none_has_shown_it() -> None:
    claim, digest = Claim(TOKEN, "127.0.0.1:1", "127.0.0.1:2"), digest_of(TOKEN)
    knock, nonce = claim.knock(), secrets.token_bytes(32)
    assert knock.key == name_of(digest) and knock.key not in (digest, digest[:16])
    answer = claim.answer(pb.DoorStep(nonce=nonce))
    token, step, ticket = server(digest, knock, nonce, answer)
    assert token == TOKEN.encode()
    assert claim.session(step).metadata == ((SESSION_KEY, (b"s" * 16 + ticket).hex()),)
    said = knock.SerializeToString() + answer.SerializeToString()
    assert TOKEN.encode() not in said and digest not in said


@pytest.mark.parametrize("changed", ["near", "far", "nonce", "key"])
def test_a_proof_is_bound_to_all_that_was_said(changed: str) -> None:
    claim, digest = Claim(TOKEN, "127.0.0.1:1", "127.0.0.1:2"), digest_of(TOKEN)
    knock, nonce = claim.knock(), secrets.token_bytes(32)
    answer = claim.answer(pb.DoorStep(nonce=nonce))
    other = pb.ProofStep()
    other.CopyFrom(knock)
    setattr(other, changed, "127.0.0.1:3" if changed in ("near", "far") else b"n" * 32)
    token, step, _ = server(digest, other, nonce, answer)
    assert token != TOKEN.encode()
    with pytest.raises(ImpostorError):
        claim.session(step)


def test_who_does_not_know_the_digest_is_not_believed() -> None:
    claim = Claim(TOKEN, "127.0.0.1:1", "127.0.0.1:2")
    for step in (None, pb.DoorStep(), pb.DoorStep(nonce=b"n" * 31)):
        with pytest.raises(ImpostorError, match=r"who listens at 127\.0\.0\.1:2 does not know"):
            claim.answer(step)
    knock, nonce = claim.knock(), secrets.token_bytes(32)
    _, step, _ = server(digest_of("guess"), knock, nonce, claim.answer(pb.DoorStep(nonce=nonce)))
    for found in (None, step, pb.DoorStep(session=b"s" * 16)):
        with pytest.raises(ImpostorError):
            claim.session(found)


def test_without_a_token_nothing_is_said() -> None:
    for token in (None, ""):
        with pytest.raises(AuthError, match="no token was given"):
            Claim(token)


def test_no_two_proofs_are_alike() -> None:
    said = {Claim(TOKEN).knock().nonce for _ in range(10)}
    assert len(said) == 10
