"""Tells systemd (Type=notify) how we are: READY, STOPPING, WATCHDOG."""

from __future__ import annotations

import socket

from oneflow.core.log import get_logger

WAIT_S = 0.2

log = get_logger(__name__)


def notify(address: str, state: str) -> None:
    """Tell systemd the state of this process.

    address: of NOTIFY_SOCKET; "": nobody wants to know. Never raises.
    """
    if not address:
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.settimeout(WAIT_S)  # who does not read must not hold up a loop that others watch
            line.sendto(state.encode(), target)
    except OSError as error:
        log.warning("cannot tell systemd %r: %s", state, error.strerror or error)
