"""The wish that `oneflow cluster up` is to meet: from flags, variables, files and the devices there
are.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oneflow.cluster.local import ClusterSpec
from oneflow.cluster.settings import MAX_DAEMONS, Settings, flags_for, load_settings
from oneflow.core.config import split_address
from oneflow.core.control_channel import is_loopback, resolve, socket_path
from oneflow.core.errors import ConfigError

DEVICE_FILES = "/dev/nvidia[0-9]*"


def local_wish(flags: Mapping[str, Any], file: Path | None = None) -> ClusterSpec:
    """Make the spec of a local cluster from flags and a file. Raises ConfigError for impossible
    ones.
    """
    found = load_settings(flags, file)
    is_asked = found.origin("scheduler.listen") != "default"
    listen = found["scheduler.listen"] if is_asked else ""
    for name in ("scheduler.listen", "scheduler.metrics_addr"):
        if socket_path(found[name]) is not None:
            continue
        host = split_address(found[name])[0]
        if not is_loopback(resolve(host)):
            raise ConfigError(
                f"{name}={found[name]}: `cluster up` serves this machine only; for others run "
                "`oneflow scheduler run` with --tls-dir"
            )
    return ClusterSpec(
        devices=_devices(found),
        allow_scripts=_unless_default(found, "scheduler.allow_scripts"),
        ui=_unless_default(found, "scheduler.ui"),
        listen=listen,
        metrics_addr=found["scheduler.metrics_addr"],
        scheduler_flags=flags_for(found, "scheduler"),
        daemon_flags=flags_for(found, "daemon"),
        num_asked=int(found["local.daemons"]),
        type_asked=str(found["local.device_type"]),
    )


def _unless_default(found: Settings, name: str) -> bool | None:
    return None if found.origin(name) == "default" else bool(found[name])


def _devices(found: Settings) -> tuple[str, ...]:
    kind, count = found["local.device_type"], found["local.daemons"]
    gpus = num_gpus() if kind != "cpu" else 0
    if kind == "cuda" and gpus < max(count, 1):
        raise ConfigError(f"{max(count, 1)} daemons for cuda were asked for; there are {gpus} GPUs")
    if kind == "cuda" or (not kind and gpus and count <= gpus):
        return tuple(f"cuda:{index}" for index in range(count or gpus))
    return tuple(f"cpu:{index}" for index in range(min(count or 1, MAX_DAEMONS)))


def num_gpus() -> int:
    """GPUs that this process may use; 0 without the CUDA libraries."""
    if not glob.glob(DEVICE_FILES):
        return 0
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # cupy is not installed, or finds no driver: each in its own way
        return 0
