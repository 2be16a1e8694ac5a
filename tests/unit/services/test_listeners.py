"""A token is for our own scheduler, not for another user who has its port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from oneflow.core.config import Config
from oneflow.core.errors import ConfigError
from oneflow.services import listeners
from oneflow.services.listeners import check_listener, connected_users, listening_users
from tests.support.waiting import CALL_S

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0100007F:{port:04X} 00000000:0000 {state} 0:0 00:0 0 {uid} 0 7 1
"""
TCP6 = """  sl  local_address  remote_address  st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: {address}:1F90 00000000000000000000000000000000:0000 0A 0:0 00:0 0 {uid} 0 8 1
"""
MAPPED = "0000000000000000FFFF00000100007F"
ANY = "0" * 32
ONE = "00000000000000000000000001000000"


def test_our_own_sockets_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening_users("127.0.0.1", port) == {os.geteuid()}
        check_listener("127.0.0.1", port)
    assert listening_users("127.0.0.1", port) == set()
    check_listener("127.0.0.1", port)  # nobody is there: whoever calls will be told so


def test_the_user_of_a_connection_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            near = client.getsockname()[1]
            assert connected_users("127.0.0.1", near) == {os.geteuid()}
            assert connected_users("127.0.0.2", near) == set()
        assert connected_users("127.0.0.1", server.getsockname()[1]) == set()  # it only listens


def refuse(port: int) -> list[object]:
    raise OSError(f"nothing is told of port {port}")


def test_sockets_of_both_versions_are_found_in_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        hosts = ["127.0.0.1", "::1", "127.0.0.9"]
        asked = [listening_users(host, port) for host in hosts]
        assert list(listeners._asked(port)) == [(listeners._plain(bytes(16)), os.geteuid())]
        monkeypatch.setattr(listeners, "_asked", refuse)
        assert [listening_users(host, port) for host in hosts] == asked == [{os.geteuid()}] * 3


def test_another_users_socket_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(listeners, "_asked", refuse)
    monkeypatch.setattr(listeners, "TABLES", (tmp_path / "tcp", tmp_path / "none"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for uid, state, is_refused in (
        (1001, "0A", True),
        (1000, "0A", False),
        (0, "0A", False),
        (1001, "01", False),  # a connection, not a listener
    ):
        (tmp_path / "tcp").write_text(TCP.format(port=8080, state=state, uid=uid))
        if is_refused:
            with pytest.raises(ConfigError, match=r"user 1001 listens at 127\.0\.0\.1:8080"):
                check_listener("127.0.0.1", 8080)
        else:
            check_listener("127.0.0.1", 8080)
        check_listener("127.0.0.1", 8081)
        check_listener("127.0.0.2", 8080)


@pytest.mark.parametrize(
    ("address", "hosts"),
    [(MAPPED, ["127.0.0.1"]), (ANY, ["127.0.0.1", "::1"]), (ONE, ["::1"])],
)
def test_sockets_of_version_6_count_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str, hosts: list[str]
) -> None:
    monkeypatch.setattr(listeners, "_asked", refuse)
    monkeypatch.setattr(listeners, "TABLES", (tmp_path / "tcp6",))
    (tmp_path / "tcp6").write_text(TCP6.format(address=address, uid=1234))
    found = [host for host in ("127.0.0.1", "::1") if listening_users(host, 8080) == {1234}]
    assert found == hosts


LISTEN = """
import os, socket
os.setuid(12345)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
server.settimeout(60)
print(server.accept()[0].recv(100))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_nothing_is_said_to_another_user() -> None:
    from oneflow.actors.control import ControlClient
    from oneflow.cluster.connection import Connection, Patience

    argv = [sys.executable, "-I", "-c", LISTEN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            token = "oft_" + "x" * 43
            connection = Connection(
                f"localhost:{port}", lambda: token, None, Patience(0, 0), is_own=True
            )
            with pytest.raises(ConfigError, match="user 12345 listens"):
                connection.call("Cluster", "Status", None)
            config = Config(rank=1, world_size=2, job_token="t" * 64)
            rank = ControlClient(f"127.0.0.1:{port}", 1, 2, config)
            with pytest.raises(ConfigError, match="user 12345 listens"):
                rank.join(CALL_S)
            assert process.poll() is None  # nothing came
        finally:
            process.kill()
