"""Checks of the process at the other end of a daemon's connection: may it speak for that node, and
is it still alive, if it is on this machine?

A connection that breaks says little: the network or the process may be gone. Of a process on this
machine we know which one it is (it says so, and the kernel's table of sockets confirms it), so its
death is noticed at once and not when its heartbeats have been missing for long.
"""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from oneflow.scheduler.cluster.refusals import DeniedError


def check_node(token: str, daemon: str, node: str) -> None:
    """A token named NAME@NODE is for daemons of that node only. Raises DeniedError for others.

    With a token each, no node can take the name of another one that is away. (Of one that is here
    nobody can: see the table of jobs.)
    """
    _, at, bound_to = token.partition("@")
    if at and bound_to != node:
        raise DeniedError(
            f"the token {token!r} is for daemons of node {bound_to!r}, and this is {daemon}"
        )


def check_file(token: str, digest: str, files: Set[str]) -> None:
    """Check that a daemon's token may read a file now.

    files: what ranks on this token's daemons need now. Raises DeniedError for any other.
    """
    if digest not in files:
        raise DeniedError(
            f"file {digest[:80]} is of no job that runs on a daemon of the token {token!r}"
        )


@dataclass(frozen=True)
class LocalProcess:
    """started: in clock ticks since boot, which tells it from a later process of the same pid."""

    pid: int
    started: int

    @property
    def is_gone(self) -> bool:
        """A zombie has gone: nothing of it runs any more."""
        found = _stat(self.pid)
        return found is None or found[1] != self.started or found[0] in ("Z", "X")


def local_process(peer: str, pid: int) -> LocalProcess | None:
    """The process at `peer` (as gRPC names it), if it is of this machine and is `pid`.

    Who comes over a Unix socket is a process of this user's, which is believed.
    """
    port, is_socket = _loopback_port(peer), peer.startswith("unix:")
    found = _stat(pid) if (port is not None or is_socket) and pid > 0 else None
    if found is None or (port is not None and not _holds_port(pid, port)):
        return None
    return LocalProcess(pid, found[1])


def _loopback_port(peer: str) -> int | None:
    """`ipv4:127.0.0.1:4711` and `ipv6:%5B::1%5D:4711`."""
    kind, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    is_loopback = host.startswith("127.") or host.strip("[]") == "::1"
    return int(port) if kind in ("ipv4", "ipv6") and is_loopback and port.isdecimal() else None


def _stat(pid: int) -> tuple[str, int] | None:
    """State and start time."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _holds_port(pid: int, port: int) -> bool:
    links = {f"socket:[{inode}]" for inode in _inodes(pid, port)}
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for name in names if links else ():
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}") in links:
                return True
        except OSError:
            continue
    return False


def _inodes(pid: int, port: int) -> list[str]:
    """List the inodes of sockets whose own end has this port."""
    found = []
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port:
                found.append(fields[9])
    return found
