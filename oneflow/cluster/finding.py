"""The search for the scheduler that a client means, and for the token that it shows."""

from __future__ import annotations

import re
from pathlib import Path

from oneflow.cluster.local_record import read_record
from oneflow.cluster.settings import Settings, state_dir
from oneflow.core.config import split_address
from oneflow.core.control_channel import socket_path
from oneflow.core.errors import ClusterUnreachableError, ConfigError


def find_address(settings: Settings) -> str:
    """The configured one, else that of this user's own cluster on this machine.

    Raises ClusterUnreachableError if there is neither, ConfigError for one that names no host.
    """
    if settings["client.address"]:
        check_target(found := str(settings["client.address"]), "client.address")
        return found
    record = read_record(state_dir())
    if record is None:
        raise ClusterUnreachableError(
            "no cluster runs on this machine and none is named: run `oneflow cluster up`, or set "
            "ONEFLOW_SCHEDULER_ADDRESS=host:port"
        )
    return record.address


def is_own(address: str) -> bool:
    """Whether this user's own cluster on this machine was started with that address."""
    record = read_record(state_dir())
    return record is not None and record.address == address


def runs_here(address: str) -> bool:
    """Whether all of that cluster is on this machine, so that it has this machine's files."""
    record = read_record(state_dir())
    return record is not None and record.address == address and not record.ray


def find_tls(settings: Settings) -> Path | None:
    """The folder of certificates, if the cluster uses TLS."""
    found = settings.path("client.tls_dir")
    if found is None:
        record = read_record(state_dir())
        if record is not None and record.tls and record.address == find_address(settings):
            return Path(record.tls)
    return found


def check_target(address: str, name: str) -> None:
    """Check an address. Raises ConfigError, in the name of a setting, for a host:port that nobody
    can have.
    """
    if socket_path(address) is not None:
        return
    _, port = split_address(address)
    if not re.fullmatch(r"[^\s/@]+", address) or address.startswith(":") or not port:
        raise ConfigError(
            f"{name}: {address!r} must be host:port of the scheduler, as 127.0.0.1:9400 or "
            "head.example.org:9400, without http:// or a path"
        )
