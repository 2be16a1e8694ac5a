"""Messages to systemd; one that does not read holds up nobody."""

from __future__ import annotations

import socket
from pathlib import Path

from oneflow.services.notify import notify
from tests.support.waiting import CALL_S


def test_states_arrive(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(CALL_S)
        notify(str(tmp_path / "notify"), "READY=1")
        assert systemd.recv(100) == b"READY=1"


def test_nobody_is_waited_for(tmp_path: Path) -> None:
    notify("", "READY=1")
    notify(str(tmp_path / "none"), "READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
            filler.setblocking(False)
            try:
                while True:
                    filler.sendto(b"x", str(tmp_path / "notify"))
            except BlockingIOError:
                pass  # its queue is full
        notify(str(tmp_path / "notify"), "WATCHDOG=1")  # returns
