"""The words between a daemon and its fork server (oneflow/jobs/fork_server.py), which travel over a
socket of sequenced packets.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import astuple, dataclass

READY, ASK = b"r", b"f"
ANSWER = struct.Struct("<i")  # the worker's pid, or the negative errno of a fork that failed


@dataclass(frozen=True)
class Ends:
    """A worker's descriptors. known: ends when the daemon knows the worker, or is gone."""

    stdout: int
    stderr: int
    pulse: int
    sock: int
    known: int

    def send(self, control: socket.socket) -> None:
        """Asks for a worker with these ends."""
        socket.send_fds(control, [ASK], astuple(self))

    @classmethod
    def receive(cls, control: socket.socket) -> Ends | None:
        """Wait for the next that are sent; None at the end."""
        try:
            data, fds, _, _ = socket.recv_fds(control, len(ASK), 8, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        return cls(*fds) if data else None

    def close(self) -> None:
        for descriptor in astuple(self):
            os.close(descriptor)
