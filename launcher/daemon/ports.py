"""The port of rank 0, kept from the moment it is promised until the rank itself takes it."""

from __future__ import annotations

import secrets
import socket

from oneflow.core.control_channel import resolve
from oneflow.core.errors import ConfigError
from oneflow.scheduler.ports import QUIET_PORTS, TRIES, is_claimed


class ReservedPort:
    """A bound socket that does not listen: nobody else can bind the port, nobody can connect."""

    def __init__(self, host: str) -> None:
        address = resolve(host)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        for _ in range(TRIES):
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            try:
                self._socket.bind((address, secrets.choice(QUIET_PORTS)))
                self.port: int = self._socket.getsockname()[1]
                if not is_claimed(self.port):
                    return
                problem = "all that were tried are claimed"
            except OSError as error:
                problem = error.strerror or str(error)
            self._socket.close()
        raise ConfigError(f"no free port on {host}: {problem}")

    def release(self) -> None:
        """Now the rank may take it."""
        self._socket.close()
