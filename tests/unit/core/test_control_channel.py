"""Errors cross the wire as themselves, and nothing else does."""

from __future__ import annotations

import pytest

from oneflow.core.control_channel import (
    MAX_TEXT_CHARS,
    chunks,
    decode_error,
    encode_error,
    is_loopback,
    resolve,
)
from oneflow.core.errors import ConfigError, GraphError, InternalError, SbpError


@pytest.mark.parametrize(
    "error",
    [
        GraphError("node 3: no route"),
        SbpError("S(2) needs 3 dims"),
        InternalError("broken"),
        ValueError("bad"),
        KeyError("name"),
        MemoryError("too much"),
    ],
)
def test_an_error_comes_out_as_the_same_type_with_the_same_text(error: Exception) -> None:
    found = decode_error(*encode_error(error))
    assert type(found) is type(error) and str(found) == str(error)


@pytest.mark.parametrize("name", ["SystemExit", "eval", "OneFlowErrorX", "UnicodeDecodeError", ""])
def test_a_type_we_do_not_know_becomes_an_internal_error(name: str) -> None:
    found = decode_error(name, "text")
    assert isinstance(found, InternalError) and "text" in str(found)


def test_text_is_bounded() -> None:
    assert len(encode_error(ValueError("x" * 10**6))[1]) == MAX_TEXT_CHARS


def test_chunks_are_the_whole() -> None:
    data = bytes(range(256)) * 10
    assert b"".join(chunks(data, 100)) == data
    assert max(map(len, chunks(data, 100))) == 100
    assert list(chunks(b"")) == []


def test_addresses() -> None:
    assert resolve("localhost") == "127.0.0.1"
    assert is_loopback("127.0.0.1") and not is_loopback("10.0.0.1")
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid"):
        resolve("no-such-host.invalid")
