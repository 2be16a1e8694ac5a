"""Is a TCP port free, and if not, which process holds it?

Standard library only: the launcher asks before it starts anything.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import weakref
from collections import deque
from pathlib import Path

from oneflow.core.config import join_address
from oneflow.core.control_channel import resolve
from oneflow.core.errors import ConfigError
from oneflow.services.listeners import LISTENS, has_socket, sockets_at

QUIET_PORTS = range(15_000, 32_000)
TRIES = 100
MAX_CLAIMS = 64
_claims: deque[int] = deque()
"""Descriptors of the claims of this process, the oldest first: not sockets, which would complain
when the interpreter ends.
"""


def check_port_is_free(host: str, port: int) -> None:
    """Binds and releases host:port.

    Raises ConfigError that names the port and, where /proc tells, its holder.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT is no holder
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(bind_failure(host, port, error)) from None


def bind_failure(host: str, port: int, error: OSError) -> str:
    """Say why host:port could not be bound, and a way out."""
    address = join_address(host, port)
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use{describe_holder(port)}; "
            "choose another with --master_port, or use --standalone to take any free one"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{address} is not an address of this machine, but rank 0 must listen there; "
            "check MASTER_ADDR"
        )
    return f"cannot listen on {address}: {error.strerror or error}"


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody uses at this moment, and that nobody else is given.

    Below the range the kernel takes for outgoing connections, or one of these could take the port
    before rank 0 does, which comes to it seconds later on a busy machine.
    """
    for _ in range(TRIES):
        port = secrets.choice(QUIET_PORTS)
        if not claim(port):
            continue
        try:  # after the claim: who binds it from here on sees that, and takes another one
            check_port_is_free(host, port)
        except ConfigError:
            continue
        return port
    raise ConfigError(f"no free port on {host} in {QUIET_PORTS[0]}..{QUIET_PORTS[-1]}")


def claim(port: int) -> bool:
    """Have others who look for a free port on this machine choose another one; whether nobody has
    claimed it before. A claim lasts until this process ends or has made MAX_CLAIMS newer ones.

    It is a name of a Unix socket, on which nobody listens: the port itself stays free.
    """
    try:
        found = _named(port)
    except OSError as error:
        return error.errno != errno.EADDRINUSE  # without a claim the port is most likely free, too
    if len(_claims) >= MAX_CLAIMS:
        os.close(_claims.popleft())
    _claims.append(found)
    return True


def _named(port: int) -> int:
    """Return the descriptor of a claim. Raises OSError, EADDRINUSE if another has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as name:
        name.bind(f"\0oneflow-port-{port}")
        return name.detach()


class ReservedPort:
    """A bound socket that does not listen: nobody else can bind the port, nobody can connect. The
    port is claimed for as long as this object lives.
    """

    def __init__(self, host: str) -> None:
        address = resolve(host)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        problem = "all that were tried are claimed"
        for _ in range(TRIES):
            self.port = secrets.choice(QUIET_PORTS)
            try:  # it also stands between `release` and the moment the rank binds
                claimed = _named(self.port)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
            else:
                weakref.finalize(self, os.close, claimed).atexit = False  # nor in a fork
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            try:
                self._socket.bind((address, self.port))
                return
            except OSError as error:
                problem = error.strerror or str(error)
                self._socket.close()
        raise ConfigError(f"no free port on {host}: {problem}")

    def release(self) -> None:
        """Now the rank may take it."""
        self._socket.close()


def describe_holder(port: int) -> str:
    """` by pid 812 (python train.py)` or, where that cannot be read, an empty text."""
    pid = port_holder(port)
    if pid is None:
        return ""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return f" by pid {pid}"
    shown = " ".join(word for word in words if word)[:80]
    return f" by pid {pid} ({shown})"


def port_holder(port: int) -> int | None:
    """The pid that listens on `port`, None if there is none or it belongs to somebody else."""
    inodes = sockets_at(port, LISTENS)
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return next((pid for pid in pids if has_socket(pid, inodes)), None)
