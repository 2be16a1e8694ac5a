"""Checks of the process that listens on a port of this machine: a token is for our own scheduler,
not for another user who took its port while it was away.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path

from oneflow.core.errors import ConfigError

TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LISTENS, _CONNECTED = "0A", "01"
_UNSPECIFIED = (ipaddress.ip_address("0.0.0.0"), ipaddress.ip_address("::"))


def check_listener(host: str, port: int) -> None:
    """Check that no other user listens on a port.

    host: a loopback address. Raises ConfigError if a process of another user, who is not root,
    listens there; says nothing if nobody does, or the system does not tell.
    """
    strangers = listening_users(host, port) - {os.geteuid(), 0}
    if strangers:
        raise ConfigError(
            f"user {min(strangers)} listens at {host}:{port}, where this user's scheduler was: "
            "nothing is sent there; end that process, or start the cluster with another port"
        )


def listening_users(host: str, port: int) -> set[int]:
    """Ids of the users whose sockets would answer there."""
    wanted = ipaddress.ip_address(host)
    found = set()
    for fields in _rows(port):
        if fields[3] == _LISTENS and _address(fields[1]) in (wanted, *_UNSPECIFIED):
            found.add(int(fields[7]))
    return found


def connected_users(host: str, port: int) -> set[int]:
    """Ids of the users of connections whose own end, on this machine, is host:port."""
    wanted = ipaddress.ip_address(host)
    return {
        int(fields[7])
        for fields in _rows(port)
        if fields[3] == _CONNECTED and _address(fields[1]) == wanted
    }


def _rows(port: int) -> Iterator[list[str]]:
    """Yield, of the kernel's tables, the rows of sockets whose own end has this port."""
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1].endswith(f":{port:04X}"):
                yield fields


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address as the kernel writes it, with a port: words of four bytes in the machine's
    order.
    """
    words = bytes.fromhex(text.partition(":")[0])
    fixed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    found = ipaddress.ip_address(fixed)
    return getattr(found, "ipv4_mapped", None) or found
