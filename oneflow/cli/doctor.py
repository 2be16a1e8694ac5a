"""A report for people who report a defect: versions, devices and hosts."""

from __future__ import annotations

import os
import platform
import socket
from importlib import metadata

from oneflow import __version__
from oneflow.core.config import Config
from oneflow.core.errors import ClusterUnreachableError, OneFlowError
from oneflow.core.variables import unread

DEPENDENCIES = ("numpy", "numba", "grpcio", "protobuf", "ml_dtypes", "safetensors")
MISSING = "not installed"
CUPY = ("cupy-cuda12x", "cupy-cuda13x")


def doctor() -> list[str]:
    """Versions, devices and hosts, a line each, for a report of a defect."""
    config = Config.from_env()
    lines = [f"oneflow-actors {__version__}", f"python {platform.python_version()}"]
    installed = [name for name in CUPY if _version(name) != MISSING]
    lines += [f"{name} {_version(name)}" for name in (*DEPENDENCIES, *(installed or CUPY[:1]))]
    lines.append(f"host {socket.gethostname()} ({platform.platform()})")
    lines.append(_job(config))
    return lines + _devices() + [f"environment: {clause}" for clause in unread(os.environ)]


def _job(config: Config) -> str:
    """The job whose variables this process has; else the cluster that its jobs would go to."""
    if config.master_port:
        where = f"{config.rank} of {config.world_size}, which meet at {config.master_address}"
        return f"job: rank {where}"
    from oneflow.cluster.finding import find_address
    from oneflow.cluster.settings import load_settings

    try:
        return f"cluster: scheduler at {find_address(load_settings())}"
    except ClusterUnreachableError:
        return "cluster: none runs on this machine, and none is configured"
    except OneFlowError as error:
        return f"cluster: {error}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return MISSING


def _products() -> list[str]:
    """Return a line for each kind of matrix product: its library, GFLOP/s on one thread."""
    from oneflow.kernels.cpu_products import OWN, chosen, measured

    names = chosen()
    lines = []
    for kind, rates in measured().items():
        listed = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
        name = names[kind].name if kind in names else OWN
        lines.append(f"products, {kind}: {name} ({listed} GFLOP/s)")
    return lines


def _devices() -> list[str]:
    from oneflow.tensor.layout import has_cuda

    lines = [f"cpu: {os.cpu_count()} cores", *_products()]
    if has_cuda():
        import cupy

        for index in range(cupy.cuda.runtime.getDeviceCount()):
            properties = cupy.cuda.runtime.getDeviceProperties(index)
            gib = properties["totalGlobalMem"] / 2**30
            lines.append(f"cuda:{index}: {properties['name'].decode()}, {gib:.0f} GiB")
    else:
        lines.append("cuda: none")
    return lines
