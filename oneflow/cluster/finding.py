"""Which scheduler a client means, and what it shows to it."""

from __future__ import annotations

from pathlib import Path

from oneflow.cluster.local_record import read_record
from oneflow.cluster.settings import Settings, state_dir
from oneflow.core.errors import ClusterUnreachableError


def find_address(settings: Settings) -> str:
    """The configured one, else that of this user's own cluster on this machine.

    Raises ClusterUnreachableError if there is neither.
    """
    if settings["client.address"]:
        return str(settings["client.address"])
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


def find_tls(settings: Settings) -> Path | None:
    """The folder of certificates, if the cluster uses TLS."""
    found = settings.path("client.tls_dir")
    if found is None:
        record = read_record(state_dir())
        if record is not None and record.tls and record.address == find_address(settings):
            return Path(record.tls)
    return found
