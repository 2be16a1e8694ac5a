"""A port in use is refused with the number and the holder."""

from __future__ import annotations

import os
import socket
from collections import deque

import pytest

from oneflow.core.errors import ConfigError
from oneflow.scheduler import ports
from oneflow.scheduler.ports import check_port_is_free, free_port, port_holder


def test_a_listening_port_is_named_with_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port_holder(port) == os.getpid()
        with pytest.raises(ConfigError, match=f"port {port} .* in use by pid {os.getpid()}"):
            check_port_is_free("127.0.0.1", port)
    check_port_is_free("127.0.0.1", port)
    assert port_holder(port) is None


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="not an address of this machine"):
        check_port_is_free("192.0.2.1", 29500)


def test_free_port_is_free() -> None:
    check_port_is_free("127.0.0.1", free_port())


def test_a_free_port_is_given_to_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its holder has not come to use it."""
    given = free_port()
    assert not ports.claim(given)
    monkeypatch.setattr(ports, "QUIET_PORTS", [given])
    with pytest.raises(ConfigError, match="no free port"):
        free_port()


def test_claims_of_a_process_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    claims: deque[int] = deque()
    monkeypatch.setattr(ports, "_claims", claims)
    monkeypatch.setattr(ports, "MAX_CLAIMS", 3)
    assert len({free_port() for _ in range(10)}) == 10
    assert len(claims) == 3
    for fd in claims:
        os.close(fd)


def test_a_port_that_was_released_for_a_rank_is_given_to_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rank comes to use it a moment later."""
    reserved = ports.ReservedPort("127.0.0.1")
    reserved.release()
    monkeypatch.setattr(ports, "QUIET_PORTS", [reserved.port])
    for ask in (free_port, lambda: ports.ReservedPort("127.0.0.1")):
        with pytest.raises(ConfigError, match="no free port"):
            ask()
