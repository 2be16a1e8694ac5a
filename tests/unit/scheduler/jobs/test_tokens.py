"""Tokens: secrets, roles, rotation, and the file a client reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oneflow.core.errors import AuthError, ConfigError
from oneflow.scheduler.cluster.auth import Tokens
from oneflow.scheduler.jobs.records import TokenRecord
from oneflow.scheduler.jobs.tokens import (
    ROTATION_S,
    check_role,
    create,
    is_valid,
    may,
    new_secret,
    read_token_file,
    revoke,
    rotate,
    token_from,
    token_origin,
    write_token_file,
)

NOW = 1_790_000_000.0


def find(tokens: list[TokenRecord], secret: str, now: float) -> TokenRecord:
    return Tokens(tokens, lambda: now).of_secret(secret)


def test_the_place_of_a_token_is_named(tmp_path: Path) -> None:
    env = {"ONEFLOW_AUTH_TOKEN": "x", "ONEFLOW_AUTH_TOKEN_FILE": "/t"}
    assert token_origin(env, tmp_path) == "ONEFLOW_AUTH_TOKEN"
    del env["ONEFLOW_AUTH_TOKEN"]
    assert "/t of ONEFLOW_AUTH_TOKEN_FILE" in token_origin(env, tmp_path)
    assert token_origin({}, tmp_path) == ""
    (tmp_path / "token").touch()
    assert str(tmp_path / "token") in token_origin({}, tmp_path)


def test_secrets_are_long_different_and_not_kept() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100 and min(len(secret) for secret in made) >= 4 + 43
    token, secret = create("ann", "submit", NOW)
    assert secret not in repr(token) and secret.encode() not in token.digest


def test_secret_finds_its_token() -> None:
    made = [create(name, "view", NOW) for name in ("a", "b", "c")]
    tokens = [token for token, _ in made]
    assert [find(tokens, secret, NOW).name for _, secret in made] == ["a", "b", "c"]


@pytest.mark.parametrize("secret", ["", "wrong", "x" * 10**6, "\udcff"])
def test_wrong_secret_is_refused_and_not_repeated(secret: str) -> None:
    token, _ = create("a", "admin", NOW)
    with pytest.raises(AuthError) as caught:
        find([token], secret, NOW)
    assert caught.value.exit_code == 77
    assert not secret or secret not in str(caught.value)


def test_expired_and_revoked_tokens_are_refused() -> None:
    token, secret = create("a", "admin", NOW, lifetime_s=60.0)
    assert find([token], secret, NOW + 59) == token
    with pytest.raises(AuthError, match="'a' is expired"):
        find([token], secret, NOW + 60)
    with pytest.raises(AuthError, match="'a' is revoked"):
        find(revoke([token], "a"), secret, NOW)
    with pytest.raises(AuthError, match="no token 'b'"):
        revoke([token], "b")


def test_rotation_keeps_two_secrets_valid_for_a_while() -> None:
    token, old = create("a", "submit", NOW)
    tokens, new = rotate([token], "a", NOW + 10)
    assert find(tokens, old, NOW + 11).role == find(tokens, new, NOW + 11).role == "submit"
    later = NOW + 10 + ROTATION_S
    assert find(tokens, new, later).name == "a"
    with pytest.raises(AuthError, match="expired"):
        find(tokens, old, later)
    with pytest.raises(AuthError, match="no valid token"):
        rotate(revoke(tokens, "a"), "a", NOW + 20)


def test_a_rotated_token_lives_as_long_as_the_old_one_did_unless_told_otherwise() -> None:
    tokens, _ = create("a", "view", NOW, lifetime_s=7200.0)
    first, _ = rotate([tokens], "a", NOW + 100)
    assert (first[0].role, first[0].expires_at) == ("view", NOW + 100 + 7200)
    second, _ = rotate(first, "a", NOW + 200)
    assert second[0].expires_at == NOW + 200 + 7200
    assert rotate(second, "a", NOW + 300, 60.0)[0][0].expires_at == NOW + 360
    assert rotate(second, "a", NOW + 300, 0.0)[0][0].expires_at == 0
    for_good, _ = create("b", "view", NOW)
    assert rotate([for_good], "b", NOW + 5)[0][0].expires_at == 0
    short, _ = rotate([for_good], "b", NOW, 60.0)  # the last one is over, the one before is not
    assert rotate(short, "b", NOW + 100)[0][0].expires_at == NOW + 160


def test_rotation_does_not_prolong_what_ends_sooner() -> None:
    token, _ = create("a", "submit", NOW, lifetime_s=60.0)
    tokens, _ = rotate([token], "a", NOW)
    assert not is_valid(tokens[1], NOW + 61)


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("admin", {"admin", "submit", "view"}),
        ("submit", {"submit", "view"}),
        ("view", {"view"}),
        ("daemon", {"daemon"}),
        ("unheard of", set()),
    ],
)
def test_roles(role: str, allowed: set[str]) -> None:
    assert {
        needed for needed in ("admin", "submit", "view", "daemon") if may(role, needed)
    } == allowed


def test_role_that_is_too_low_is_named() -> None:
    token, _ = create("ann", "view", NOW)
    with pytest.raises(AuthError, match="'ann' has role view; this needs admin"):
        check_role(token, "admin")


@pytest.mark.parametrize("name", ["", "a b", "-x", "a" * 65, "a\n"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="token name"):
        create(name, "view", NOW)
    with pytest.raises(ConfigError, match="role 'god'"):
        create("a", "god", NOW)


# ---- files ---------------------------------------------------------------------------------------


def test_token_file_is_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "token"
    secret = new_secret()
    write_token_file(path, secret)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token_file(path) == secret
    write_token_file(path, "other-secret-of-16")
    assert read_token_file(path) == "other-secret-of-16"
    assert os.listdir(path.parent) == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    write_token_file(path, new_secret())
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token_file(path)


@pytest.mark.parametrize(
    "content", [b"", b"short", b"two words are not one", b"\xff" * 40, b"x" * 5000]
)
def test_file_without_a_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="holds no token"):
        read_token_file(path)


def test_environment_goes_before_files(tmp_path: Path) -> None:
    secrets = [f"secret-number-{i}-xx" for i in range(3)]
    write_token_file(tmp_path / "token", secrets[0])
    write_token_file(tmp_path / "named", secrets[1])
    named = {"ONEFLOW_AUTH_TOKEN_FILE": str(tmp_path / "named")}
    assert token_from({}, tmp_path) == secrets[0]
    assert token_from(named, tmp_path) == secrets[1]
    assert token_from({**named, "ONEFLOW_AUTH_TOKEN": secrets[2]}, tmp_path) == secrets[2]
    assert token_from({}, tmp_path / "nowhere") is None
    with pytest.raises(ConfigError, match="cannot read the token file"):
        token_from({"ONEFLOW_AUTH_TOKEN_FILE": str(tmp_path / "absent")}, tmp_path)
