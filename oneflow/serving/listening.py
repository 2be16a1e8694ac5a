"""Addresses that servers of models listen at."""

from __future__ import annotations

import ipaddress
import socket

from oneflow.core.errors import ConfigError


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a listener at a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; port 0: any free one. Raises ConfigError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(found[0], found[1])
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(found[4])
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {error.strerror}") from None
    return listener
