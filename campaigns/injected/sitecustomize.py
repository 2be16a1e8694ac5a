"""Put on PYTHONPATH of a process that faults are done to: its data plane goes through a proxy, its
wall clock is as wrong as a file says.

RIG_DATA_PROXY: host:port of a proxy without a target.  RIG_CLOCK: a file with seconds to add.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

MESH = "oneflow.boxing.transport.mesh"

_connect, _time = socket.create_connection, time.time


def create_connection(address: tuple[str, int], *arguments: Any, **named: Any) -> socket.socket:
    caller = sys._getframe(1)
    if caller.f_globals.get("__name__", "") != MESH:
        return _connect(address, *arguments, **named)
    host, _, port = os.environ["RIG_DATA_PROXY"].rpartition(":")
    found = _connect((host, int(port)), *arguments, **named)
    found.sendall(f"{address[0]} {address[1]}\n".encode())
    return found


def wrong_time() -> float:
    try:
        with open(os.environ["RIG_CLOCK"]) as file:
            return _time() + float(file.read() or 0.0)
    except (OSError, ValueError):
        return _time()


if "RIG_DATA_PROXY" in os.environ:
    socket.create_connection = create_connection
if "RIG_CLOCK" in os.environ:
    time.time = wrong_time
