"""Processes as the kernel shows them: which there are, which resources they use, where they
listen.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """Figures of one process. nbytes: resident memory."""

    fds: int
    threads: int
    nbytes: int


def has_ipv6_loopback() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _read(pid: int, name: str) -> bytes:
    """A file of a process; b"" if it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def environ(pid: int) -> bytes:
    return _read(pid, "environ")


def cmdline(pid: int) -> bytes:
    return _read(pid, "cmdline")


def name_of(pid: int) -> str:
    """Name of a process, as the kernel has it; "" if it is gone."""
    return _read(pid, "comm").decode().strip()


def stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; [] if it is gone."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def state_of(pid: int) -> str:
    return (stat_fields(pid) or ["X"])[0]


def is_alive(pid: int) -> bool:
    return state_of(pid) not in "ZX"


def children(parent: int) -> list[int]:
    """Those that live."""
    found = []
    for pid in pids():
        fields = stat_fields(pid)
        if fields and fields[0] not in "ZX" and int(fields[1]) == parent:
            found.append(pid)
    return found


def below(pid: int) -> list[int]:
    """Children of a process, and theirs."""
    return [found for child in children(pid) for found in (child, *below(child))]


def usage(pid: int) -> Usage:
    fields = stat_fields(pid)
    if not fields:
        return Usage(0, 0, 0)
    try:
        fds = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        fds = 0
    return Usage(fds, int(fields[17]), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


def alive(*marks: str) -> list[int]:
    """Processes that live, other than this one, with all `marks` on their command line."""
    wanted = [mark.encode() for mark in marks]
    found = []
    for pid in set(pids()) - {os.getpid()}:
        words = cmdline(pid)
        if all(mark in words for mark in wanted) and is_alive(pid):
            found.append(pid)
    return sorted(found)


# ---- sockets -------------------------------------------------------------------------------------


def listening(pids: Iterable[int]) -> set[str]:
    """host:port of TCP and UDP sockets that take messages of others."""
    inodes, found = _sockets(pids), set()
    for name, states in (("tcp", {"0A"}), ("tcp6", {"0A"}), ("udp", {"07"}), ("udp6", {"07"})):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] in states and fields[9] in inodes:
                host, port = fields[1].split(":")
                kind = "" if name.startswith("tcp") else "udp "
                found.add(f"{kind}{_host(bytes.fromhex(host))}:{int(port, 16)}")
    return found


def listening_paths(pids: Iterable[int]) -> list[str]:
    """Names of Unix sockets that can be connected to; "@" begins one without a file."""
    inodes = _sockets(pids)
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    accepts = 0x10000  # of the flags
    return [f[7] for f in lines if f[6] in inodes and int(f[3], 16) & accepts and len(f) > 7]


def _sockets(pids: Iterable[int]) -> set[str]:
    """Inodes of the open files of these processes."""
    found = set()
    for pid in pids:
        with suppress(FileNotFoundError):  # of processes and files that have just gone
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    found.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
    return found


def _host(words: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as the kernel shows it: words of four bytes, each the wrong way round."""
    fixed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    found = ipaddress.ip_address(fixed)
    return getattr(found, "ipv4_mapped", None) or found
