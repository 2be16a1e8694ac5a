"""Checks of the process that listens on a port of this machine: a token is for our own scheduler,
not for another user who took its port while it was away.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path

from oneflow.core.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
LISTENS, _CONNECTED = "0A", "01"  # states in these tables
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_SOCK_DIAG, _BY_FAMILY, _DUMP, _LISTEN_STATE = 4, 20, 0x301, 10  # linux/sock_diag.h, netlink.h
_ERROR, _DONE = 2, 3
_HEADER, _ASK = struct.Struct("=IHHII"), struct.Struct("=BBxxI2s38x8s")
_ADDRESS_AT, _UID_AT = 8, 64  # in inet_diag_msg
_UNSPECIFIED = (ipaddress.ip_address("0.0.0.0"), ipaddress.ip_address("::"))


def check_listener(host: str, port: int) -> None:
    """Check that no other user listens on a port.

    host: a loopback address. Raises ConfigError if a process of another user but
    root listens there; passes if nobody does, or the system does not tell.
    """
    strangers = listening_users(host, port) - {os.geteuid(), 0}
    if strangers:
        raise ConfigError(
            f"user {min(strangers)} listens at {host}:{port}, where this user's scheduler was: "
            "nothing is sent there; end that process, or start the cluster with another port"
        )


def listening_users(host: str, port: int) -> set[int]:
    """Ids of the users whose sockets would answer there."""
    wanted = (ipaddress.ip_address(host), *_UNSPECIFIED)
    try:
        found = list(_asked(port))
    except OSError:  # a kernel, or a sandbox, that has only the tables
        found = [(_address(f[1]), int(f[7])) for f in _rows(port) if f[3] == LISTENS]
    return {user for address, user in found if address in wanted}


def connected_users(host: str, port: int) -> set[int]:
    """Ids of the users of connections whose own end, on this machine, is host:port."""
    wanted = ipaddress.ip_address(host)
    return {
        int(fields[7])
        for fields in _rows(port)
        if fields[3] == _CONNECTED and _address(fields[1]) == wanted
    }


def _asked(port: int) -> Iterator[tuple[Address, int]]:
    """Yield address and user of each socket that listens at the port, as the kernel answers.

    It looks through the sockets that listen; its tables show all of them, connections too, which
    takes 20 ms on a machine with much memory. Raises OSError where it does not answer.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _SOCK_DIAG) as s:
        for family in _FAMILIES:
            ask = _ASK.pack(
                family, socket.IPPROTO_TCP, 1 << _LISTEN_STATE, port.to_bytes(2, "big"), b"\xff" * 8
            )
            s.send(_HEADER.pack(_HEADER.size + len(ask), _BY_FAMILY, _DUMP, 0, 0) + ask)
            for message in _answers(s):
                end = _ADDRESS_AT + (4 if family == socket.AF_INET else 16)
                yield _plain(message[_ADDRESS_AT:end]), *struct.unpack_from("=I", message, _UID_AT)


def _answers(line: socket.socket) -> Iterator[bytes]:
    """Yield the messages of a dump, without their headers."""
    while True:
        data = line.recv(1 << 16)
        while data:
            nbytes, kind, _, _, _ = _HEADER.unpack_from(data)
            message, data = data[_HEADER.size : nbytes], data[(nbytes + 3) & ~3 :]
            if kind == _DONE:
                return
            if kind == _ERROR:
                raise OSError(-struct.unpack_from("=i", message)[0], "no sockets are told")
            yield message


def sockets_at(port: int, state: str = "") -> set[str]:
    """Inodes of the TCP sockets of this machine whose own end has this port. state: only those."""
    return {fields[9] for fields in _rows(port) if state in ("", fields[3])}


def has_socket(pid: int, inodes: Set[str]) -> bool:
    """Whether a process has one of these sockets open; False where it cannot be told."""
    links = {f"socket:[{inode}]" for inode in inodes}
    try:
        names = os.listdir(f"/proc/{pid}/fd") if links else []
    except OSError:  # gone, or not ours
        return False
    for name in names:
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{name}") in links:
                return True
    return False


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


def _address(text: str) -> Address:
    """Parse an address as the kernel writes it, with a port: words of four bytes in the machine's
    order.
    """
    words = bytes.fromhex(text.partition(":")[0])
    return _plain(b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4)))


def _plain(data: bytes) -> Address:
    """The address of these bytes; one of version 4 also where it is written as one of version 6."""
    found = ipaddress.ip_address(data)
    return getattr(found, "ipv4_mapped", None) or found
