"""The places where a scheduler serves: the port it takes, and the files that tell this user's
programs.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path

from oneflow.core.config import join_address, split_address
from oneflow.core.control_channel import is_loopback, resolve, socket_path
from oneflow.core.errors import ConfigError
from oneflow.core.folders import check_private, write_private
from oneflow.core.rpc import Credentials, Server
from oneflow.scheduler.cluster.settings import SchedulerSettings
from oneflow.scheduler.ports import check_port_is_free, describe_holder, free_port
from oneflow.services.metrics_http import make_private, publish_target

CLUSTER_FILE = "cluster.json"
PORT_FILE = "port"
ADMIN_TOKEN_FILE = "token"
DAEMON_TOKEN_FILE = "daemon.token"
LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}


# ---- the port ------------------------------------------------------------------------------------


def bind(server: Server, settings: SchedulerSettings, credentials: Credentials | None) -> str:
    """Gives a gRPC server its port; returns the address for others.

    credentials: None for no TLS. Raises ConfigError for an address that cannot or may not be used.
    """
    if (path := socket_path(settings.listen)) is not None:
        return _bind_socket(server, path, credentials)
    host, port = split_address(settings.listen)
    resolved = resolve(host)
    if credentials is None and not is_loopback(resolved):
        raise ConfigError(
            f"{host} can be reached from other machines, but there is no TLS: make certificates "
            "with `oneflow cluster init-tls` and name their folder with --tls-dir, or listen on "
            "127.0.0.1"
        )
    port = port or _usual_port(settings, resolved)
    address = join_address(resolved, port)
    try:
        if credentials is None:
            bound = int(server.add_insecure_port(address))
        else:
            bound = int(server.add_secure_port(address, credentials))
    except RuntimeError:
        bound = 0
    if not bound:
        raise ConfigError(
            f"cannot listen on {address}: the port is in use{describe_holder(port)}, or the "
            "address is not of this machine; choose another with --listen"
        )
    write_private(settings.state_dir / PORT_FILE, str(bound))
    return join_address(socket.gethostname() if resolved in LOOPBACK_OF else host, bound)


def _bind_socket(server: Server, path: Path, credentials: Credentials | None) -> str:
    """Listen on a socket in a folder that keeps other users out. The socket of a dead scheduler
    there is removed.
    """
    address = f"unix:{path}"
    if credentials is not None:
        raise ConfigError(f"{address} is of this machine only: leave out --tls-dir")
    try:
        check_private(path.parent)
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise ConfigError(f"cannot listen on {address}: another scheduler does already")
        path.unlink(missing_ok=True)
        server.add_insecure_port(address)
        path.chmod(0o600)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"cannot listen on {address}: {error}") from None
    return address


def _usual_port(settings: SchedulerSettings, host: str) -> int:
    """That of the last time, for daemons that wait for us to come back; else a free one."""
    try:
        port = int((settings.state_dir / PORT_FILE).read_text())
        check_port_is_free(host, port)
        return port
    except (OSError, ValueError, OverflowError, ConfigError):
        return free_port(host)


# ---- telling -------------------------------------------------------------------------------------


def publish(settings: SchedulerSettings, address: str, metrics_address: str) -> None:
    """Says to programs of this user where we are. Raises ConfigError."""
    state, tls = settings.state_dir, settings.tls
    make_private(settings.runtime_dir)
    tokens = {"token_file": ADMIN_TOKEN_FILE, "daemon_token_file": DAEMON_TOKEN_FILE}
    found = {
        "address": _near(settings.listen, address),
        "metrics_address": metrics_address,
        "pid": os.getpid(),
        "state_dir": str(state),
        "tls": str(tls.certificate.parent) if tls is not None else "",
    }
    found |= {key: str(state / name) for key, name in tokens.items() if (state / name).exists()}
    write_private(settings.runtime_dir / CLUSTER_FILE, json.dumps(found))
    if metrics_address:
        publish_target(settings.runtime_dir, metrics_address, None)


def _near(listen: str, address: str) -> str:
    """The address for programs of this machine."""
    if socket_path(address) is not None:
        return address
    host, _ = split_address(listen)
    return join_address(LOOPBACK_OF.get(host, host), split_address(address)[1])


def unpublish(settings: SchedulerSettings) -> None:
    """Remove the files that are still ours."""
    _target_file(settings).unlink(missing_ok=True)
    path = settings.runtime_dir / CLUSTER_FILE
    with suppress(OSError, ValueError, AttributeError):
        if json.loads(path.read_bytes()).get("pid") == os.getpid():
            path.unlink()


def _target_file(settings: SchedulerSettings) -> Path:
    """Return the file by which `oneflow cluster metrics-targets` finds this scheduler."""
    return settings.runtime_dir / f"metrics-{os.getpid()}.json"
