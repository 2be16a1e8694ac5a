"""Tokens and their roles, and where a client finds its own.

A token is 256 random bits, shown once, when it is made; a digest of it is kept. As the bits
are random, a plain digest is enough: nobody can guess them, so there is nothing to slow down.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from oneflow.core.errors import AuthError, ConfigError
from oneflow.core.folders import check_unwritten, write_private
from oneflow.scheduler.jobs.records import ROLES, TokenRecord
from oneflow.services.proof import digest_of

PREFIX = "oft_"  # lets scanners of repositories and logs recognise one
ROTATION_S = 3600.0  # so long the old secret of a rotated token stays valid
MAX_SECRET_CHARS = 256
UNKNOWN = "the token is not one of this cluster's"
_MAX_FILE_NBYTES = 4096
_RANK = {"view": 1, "submit": 2, "admin": 3}  # daemon stands apart: it may only attach
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SECRET = re.compile(r"[!-~]{16,256}")


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def create(name: str, role: str, now: float, lifetime_s: float = 0.0) -> tuple[TokenRecord, str]:
    """A token and its secret, which is not kept. now: wall clock. lifetime_s: 0 is for good.

    Raises ConfigError for a name or role that cannot be.
    """
    check_name(name)
    if role not in ROLES:
        raise ConfigError(f"role {role!r}: must be one of {', '.join(ROLES)}")
    if not 0 <= lifetime_s < 1e10:
        raise ConfigError(f"lifetime_s={lifetime_s:g}: must be 0 (for good) or more, and finite")
    secret = new_secret()
    expires_at = now + lifetime_s if lifetime_s else 0.0
    return TokenRecord(name, role, digest_of(secret), now, expires_at), secret


def check_name(name: str) -> None:
    """Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"token name {name[:80]!r}: must be 1 to 64 letters, digits or . _ @ -, and begin with "
            "a letter or a digit"
        )


def rotate(
    tokens: Iterable[TokenRecord], name: str, now: float, lifetime_s: float | None = None
) -> tuple[list[TokenRecord], str]:
    """A second secret for `name`; the old one stays valid for ROTATION_S: nobody is cut off.

    lifetime_s: of the new one, from now on; None: as long as the last one had. Returns the records
    now to be kept under that name, newest first, and the new secret. Raises AuthError if there is
    no valid token of that name.
    """
    named = [token for token in tokens if token.name == name]
    valid = [token for token in named if is_valid(token, now)]
    if not valid:
        raise AuthError(f"there is no valid token {name!r}; create one")
    newest = max(valid, key=lambda token: token.created_at)
    if lifetime_s is None:  # an older one's end is not its own any more
        last = max(named, key=lambda token: token.created_at)
        lifetime_s = last.expires_at - last.created_at if last.expires_at else 0.0
    record, secret = create(name, newest.role, now, lifetime_s)
    until = now + ROTATION_S
    ends = min(newest.expires_at, until) if newest.expires_at else until
    return [record, replace(newest, expires_at=ends)], secret


def revoke(tokens: Iterable[TokenRecord], name: str) -> list[TokenRecord]:
    """All secrets of that name, not valid any more. Raises AuthError if there are none."""
    found = [replace(token, revoked=True) for token in tokens if token.name == name]
    if not found:
        raise AuthError(f"there is no token {name!r}")
    return found


def is_valid(token: TokenRecord, now: float) -> bool:
    return not token.revoked and (not token.expires_at or now < token.expires_at)


def check_valid(token: TokenRecord, now: float) -> None:
    """Raises AuthError for one that was revoked, or has expired."""
    if not is_valid(token, now):
        state = "revoked" if token.revoked else "expired"
        raise AuthError(f"the token {token.name!r} is {state}; ask for a new one")


def may(role: str, needed: str) -> bool:
    """Whether a role is enough: admin > submit > view; daemon is enough for daemon only."""
    if "daemon" in (role, needed):
        return role == needed
    return _RANK.get(role, 0) >= _RANK[needed]


def check_role(token: TokenRecord, needed: str) -> None:
    """Raises AuthError."""
    if not may(token.role, needed):
        raise AuthError(f"the token {token.name!r} has role {token.role}; this needs {needed}")


# ---- a client's own token ------------------------------------------------------------------------


def token_from(env: Mapping[str, str], config_dir: Path) -> str | None:
    """The token to show: ONEFLOW_AUTH_TOKEN, else the file of ONEFLOW_AUTH_TOKEN_FILE, else
    <config_dir>/token; None if there is none of them.

    Raises ConfigError for a file that is named but cannot be read, that others may read, or that
    has no token in it.
    """
    if secret := env.get("ONEFLOW_AUTH_TOKEN"):
        return _checked(secret.strip(), "ONEFLOW_AUTH_TOKEN")
    if named := env.get("ONEFLOW_AUTH_TOKEN_FILE"):
        return read_token_file(Path(named))
    path = config_dir / "token"
    if not path.exists():
        return None
    check_unwritten(config_dir)
    return read_token_file(path)


def token_origin(env: Mapping[str, str], config_dir: Path) -> str:
    """Name the place from which `token_from` takes the token; "" if there is none."""
    if env.get("ONEFLOW_AUTH_TOKEN"):
        return "ONEFLOW_AUTH_TOKEN"
    if named := env.get("ONEFLOW_AUTH_TOKEN_FILE"):
        return f"the file {named} of ONEFLOW_AUTH_TOKEN_FILE"
    path = config_dir / "token"
    return f"the file {path}" if path.exists() else ""


def read_token_file(path: Path) -> str:
    """Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode  # of what is read, not of what was there before
            text = file.read(_MAX_FILE_NBYTES + 1) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise ConfigError(f"cannot read the token file {str(path)!r}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(
            f"the token file {str(path)!r} can be read by others (mode {stat.S_IMODE(mode):04o}); "
            f"run: chmod 600 {path}"
        )
    return _checked(text.decode("ascii", errors="replace").strip(), f"the file {str(path)!r}")


def write_token_file(path: Path, secret: str) -> None:
    """Write a token for this user only; it replaces an older file at once. Raises ConfigError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write the token file {str(path)!r}: {error.strerror}") from None
    write_private(path, secret + "\n")


def _checked(secret: str, where: str) -> str:
    if not _SECRET.fullmatch(secret):
        raise ConfigError(f"{where} holds no token: one word of 16 to 256 printable characters")
    return secret
