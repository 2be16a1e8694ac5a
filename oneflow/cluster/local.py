"""`oneflow cluster up` and `down`: a scheduler and one daemon per device on this machine.

They run in the background as processes of their own, on loopback only. Files and ports needed
before the first of them starts (tokens, a port) are made here, so that all of them can start at
once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.cluster.local_record import (
    LocalCluster,
    Process,
    folder,
    process_of,
    read_record,
    remove_record,
    write_record,
)
from oneflow.cluster.local_tokens import ADMIN_TOKEN, DAEMON_TOKEN, prepare_tokens
from oneflow.cluster.ray_daemons import Order, is_all_here, start_daemons, stop_daemons
from oneflow.cluster.settings import config_dir, load_settings, runtime_dir, state_dir
from oneflow.core.config import join_address, split_address
from oneflow.core.control_channel import MAX_SOCKET_NBYTES, resolve, socket_path
from oneflow.core.errors import ClusterUnreachableError, ConfigError, OneFlowError
from oneflow.core.folders import check_unwritten
from oneflow.core.log import get_logger
from oneflow.scheduler.jobs.tokens import read_token_file
from oneflow.scheduler.ports import check_port_is_free, describe_holder, free_port
from oneflow.services.metrics_http import make_private

if TYPE_CHECKING:
    from oneflow.cluster.client import Cluster
    from oneflow.cluster.connection import Patience
    from oneflow.protos import cluster_pb2 as pb

START_S = 60.0
LOOK_S = 0.1
DAEMON_END_S = 25.0  # a daemon gives its rank a grace of its own
SCHEDULER_END_S = 15.0
KILL_S = 5.0
STOPPED_S = 1.0  # a process that is stopped for so long is taken for frozen
LOG_TAIL_NBYTES = 4096
SOCKET = "scheduler.sock"


@dataclass(frozen=True)
class ClusterSpec:
    """The wish for a local cluster. devices: cpu:0, cpu:1, ... None: as before, or else not.
    listen: host:port, or unix:<path>; "": a socket in the cluster's own folder. scheduler_flags,
    daemon_flags: more of the command lines. num_asked, type_asked: of daemons, and of their
    devices, if that was said (else 0 and "").
    """

    devices: tuple[str, ...]
    allow_scripts: bool | None = None
    ui: bool | None = None
    listen: str = ""
    metrics_addr: str = "127.0.0.1:0"
    tls_dir: str = ""
    scheduler_flags: tuple[str, ...] = ()
    daemon_flags: tuple[str, ...] = ()
    num_asked: int = 0
    type_asked: str = ""


@dataclass(frozen=True)
class Up:
    """The outcome of `up`. was_running: nothing had to be started. restarted: names of those that
    had died. status: a ClusterStatus.
    """

    record: LocalCluster
    status: pb.ClusterStatus
    seconds: float
    was_running: bool = False
    restarted: tuple[str, ...] = ()


def start(wish: ClusterSpec, timeout_s: float = START_S) -> Up:
    """Start the processes that do not run yet; return when all daemons are attached.

    Raises OneFlowError with the last line of a process that ended at once; nothing is left running.
    """
    begun = time.monotonic()
    state = state_dir()
    _check_roots(wish)
    with _lock(state):
        check_unwritten(state)
        old = read_record(state)
        if old is not None and any(p.is_alive for p in old.processes):
            wish = _like(old, wish)
        if old is not None:
            _end_stopped(old)
        if old is not None and old.is_whole:
            return Up(old, _wait_ready(old, timeout_s), time.monotonic() - begun, True)
        return _start(state, wish, old, begun, timeout_s)


def _end_stopped(record: LocalCluster) -> None:
    """End the processes that somebody stopped, which would keep `up` waiting for ever."""
    if any(process.is_stopped for process in record.processes):
        time.sleep(STOPPED_S)
        _end([p for p in record.processes if p.is_stopped], signal.SIGKILL, KILL_S)


def _start(
    state: Path, wish: ClusterSpec, old: LocalCluster | None, begun: float, timeout_s: float
) -> Up:
    alive = {p.name: p for p in old.processes if p.is_alive} if old is not None else {}
    if "scheduler" not in alive:
        prepare_tokens(folder(state), config_dir())
    address = old.address if old is not None and alive else _address(state, wish.listen)
    names = ("scheduler", *wish.devices) if not alive or old is None else _names(old)
    started: dict[str, Any] = {}
    try:
        for name in names:
            if name not in alive:
                started[name] = _spawn(state, name, address, wish)
        processes = tuple(alive.get(n) or process_of(n, started[n].pid) for n in names)
        record = LocalCluster(
            address,
            processes,
            bool(wish.allow_scripts),
            bool(wish.ui),
            scheduler_flags=wish.scheduler_flags,
            daemon_flags=wish.daemon_flags,
        )
        write_record(state, record)
        status = _wait_ready(record, timeout_s, started)
    except BaseException:
        _end([process_of(n, p.pid) for n, p in started.items()], signal.SIGTERM, KILL_S)
        if not alive:
            remove_record(state)
        raise
    restarted = tuple(started) if alive else ()
    return Up(record, status, time.monotonic() - begun, restarted=restarted)


def _like(old: LocalCluster, wish: ClusterSpec) -> ClusterSpec:
    """Fill a wish from the cluster that runs, which cannot be changed. Raises ConfigError if
    something else is asked for.
    """
    for name, is_so in (("allow_scripts", old.allow_scripts), ("ui", old.ui)):
        if getattr(wish, name) not in (None, is_so):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"a cluster runs already, {'with' if is_so else 'without'} {flag}: end it with "
                "`oneflow cluster down` first"
            )
    _check_devices(old, wish)
    for name in ("scheduler_flags", "daemon_flags"):
        if getattr(wish, name) not in ((), getattr(old, name)):
            raise ConfigError(
                f"a cluster runs already, without {' '.join(getattr(wish, name))}: end it with "
                "`oneflow cluster down` first"
            )
    return replace(
        wish,
        allow_scripts=old.allow_scripts,
        ui=old.ui,
        scheduler_flags=old.scheduler_flags,
        daemon_flags=old.daemon_flags,
    )


def _check_roots(wish: ClusterSpec) -> None:
    """Raises ConfigError for a folder of data that this machine, where all daemons are, has not."""
    for flag, root in pairwise(wish.daemon_flags):
        if flag == "--data-root" and not os.path.isdir(root):
            raise ConfigError(f"--data-root {root}: there is no such folder on this machine")


def _check_devices(old: LocalCluster, wish: ClusterSpec) -> None:
    """Raises ConfigError for another number or type of devices than those that run."""
    types = {name.partition(":")[0] for name in _names(old)} - {"scheduler"}
    is_like = wish.num_asked in (0, old.num_daemons)
    if is_like and (not wish.type_asked or not types or wish.type_asked in types):
        return
    names = ", ".join(process.name for process in old.daemons) or f"on {old.ray}"
    number = f"{old.num_daemons} daemon{'' if old.num_daemons == 1 else 's'}"
    wanted = f"--daemons {wish.num_asked} " if wish.num_asked else ""
    wanted += f"--device-type {wish.type_asked}" if wish.type_asked else ""
    raise ConfigError(
        f"a cluster runs already, with {number} ({names}), not {wanted.rstrip()}: end it with "
        "`oneflow cluster down` first; jobs that have not ended go on at the next `up`"
    )


def start_on_ray(wish: ClusterSpec, ray_address: str, timeout_s: float = START_S) -> Up:
    """Start the scheduler here and a daemon for each of the wish's devices on the nodes of a Ray
    cluster, those that do not run yet.

    With other machines than this one, the scheduler listens beyond loopback, with TLS.
    """
    begun = time.monotonic()
    state = state_dir()
    with _lock(state):
        old = read_record(state)
        if old is not None and old.ray:
            return _mend_on_ray(state, wish, _on_same(old, ray_address), begun, timeout_s)
        if old is not None and any(p.is_alive for p in old.processes):
            raise ConfigError(
                "a cluster runs already, on this machine alone: end it with `oneflow cluster down` "
                "first"
            )
        prepare_tokens(folder(state), config_dir())
        if not is_all_here(ray_address):
            wish = _beyond_loopback(state, wish)
        address = _free_address(wish.listen or "127.0.0.1:0")
        record = LocalCluster(
            address,
            (),
            bool(wish.allow_scripts),
            bool(wish.ui),
            ray_address,
            len(wish.devices),
            wish.tls_dir,
            wish.scheduler_flags,
            wish.daemon_flags,
        )
        try:
            record, _, status = _fill_on_ray(state, wish, record, timeout_s)
        except BaseException:
            remove_record(state)
            raise
    return Up(record, status, time.monotonic() - begun)


def _on_same(old: LocalCluster, ray_address: str) -> LocalCluster:
    if old.ray == ray_address:
        return old
    raise ConfigError(
        f"a cluster runs already, on {old.ray}: end it with `oneflow cluster down` first"
    )


def _mend_on_ray(
    state: Path, wish: ClusterSpec, old: LocalCluster, begun: float, timeout_s: float
) -> Up:
    """Start the dead processes of a cluster on Ray."""
    wish = replace(_like(old, wish), tls_dir=old.tls)
    wish = replace(wish, devices=wish.devices[:1] * old.num_remote)
    record, started, status = _fill_on_ray(state, wish, old, timeout_s)
    spent = time.monotonic() - begun
    return Up(record, status, spent, was_running=not started, restarted=started)


def _fill_on_ray(
    state: Path, wish: ClusterSpec, record: LocalCluster, timeout_s: float
) -> tuple[LocalCluster, tuple[str, ...], pb.ClusterStatus]:
    """Start the missing processes of a cluster on Ray. Returns its record, their names, and its
    status. On an error the started ones are ended.
    """
    new: dict[str, subprocess.Popen[bytes]] = {}
    if not (record.processes and record.scheduler.is_alive):
        prepare_tokens(folder(state), config_dir())
        new["scheduler"] = _spawn(state, "scheduler", record.address, wish)
        record = replace(record, processes=(process_of("scheduler", new["scheduler"].pid),))
    try:
        write_record(state, record)
        _wait_ready(replace(record, num_remote=0), timeout_s, new)
        daemons = start_daemons(_order(state, wish, record))
        return record, (*new, *daemons), _wait_ready(record, timeout_s, new)
    except BaseException:
        if new:
            _end(record.processes, signal.SIGTERM, KILL_S)
        raise


def _beyond_loopback(state: Path, wish: ClusterSpec) -> ClusterSpec:
    """Listens where other machines can connect, and for that has certificates."""
    from oneflow.scheduler.cluster.certificates import init_tls

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: only asks for the way
        except OSError as error:
            raise ConfigError(f"no address that others can reach: {error.strerror}") from None
        host = str(probe.getsockname()[0])
    tls = folder(state) / "tls"
    init_tls(tls, [host])
    return replace(wish, listen=f"{host}:0", tls_dir=str(tls))


def _order(state: Path, wish: ClusterSpec, record: LocalCluster) -> Order:
    """Without TLS all daemons are on this machine, and find the files that a local cluster kept."""
    names = ("ca.crt", "daemon.crt", "daemon.key") if wish.tls_dir else ()
    return Order(
        address=record.ray,
        group=_group_name(state),
        count=len(wish.devices),
        device_type=wish.devices[0].partition(":")[0],
        token=read_token_file(folder(state) / DAEMON_TOKEN),
        scheduler=record.address,
        tls={name: (Path(wish.tls_dir) / name).read_bytes() for name in names},
        folder=f"ray/{_identity(state)}" if wish.tls_dir else str(folder(state) / "node"),
        flags=_daemon_flags(wish),
    )


def _group_name(state: Path) -> str:
    """The name of the cluster's daemons on Ray, where there may be those of others."""
    return f"oneflow-{_identity(state)}"


def _identity(state: Path) -> str:
    """The same at the next `up`, and not that of another cluster."""
    own = f"{socket.gethostname()}:{os.getuid()}:{folder(state).resolve()}"
    return hashlib.blake2b(own.encode(), digest_size=8).hexdigest()


def _names(record: LocalCluster) -> tuple[str, ...]:
    return tuple(process.name for process in record.processes)


def stop(drain_s: float = 0.0) -> LocalCluster | None:
    """Ends all of it; returns when nothing is left. None: nothing was running.

    drain_s: running jobs may go on for so long; nothing new is begun.
    """
    state = state_dir()
    with _lock(state):
        record = read_record(state)
        if record is None:
            return None
        if drain_s > 0 and record.scheduler.is_alive:
            _drain(record, drain_s)
        if record.ray:
            _stop_on_ray(record.ray, _group_name(state))
        _end(record.daemons, signal.SIGTERM, DAEMON_END_S)
        _end((record.scheduler,), signal.SIGTERM, SCHEDULER_END_S)
        remove_record(state)
        return record


def _stop_on_ray(address: str, group: str) -> None:
    """A Ray cluster that is gone has taken the daemons with it."""
    try:
        stop_daemons(address, group)
    except ConfigError as error:
        get_logger(__name__).warning("%s; its daemons end with it", error)


def log_path(name: str, state: Path | None = None) -> Path:
    """Return the file in which a process of the local cluster writes its output."""
    return folder(state or state_dir()) / "logs" / f"{name.replace(':', '-')}.log"


# ---- starting ------------------------------------------------------------------------------------


@contextmanager
def _lock(state: Path) -> Iterator[None]:
    """One `up` or `down` at a time."""
    base = folder(state)
    for made in (state, base):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(base / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _address(state: Path, listen: str) -> str:
    """A Unix socket, unless a port is asked for: no other user can take its place."""
    if listen:
        return listen if socket_path(listen) is not None else _free_address(listen)
    path = (folder(state) / SOCKET).absolute()
    if len(os.fsencode(path)) > MAX_SOCKET_NBYTES:
        own = hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()
        make_private(runtime_dir())
        path = runtime_dir() / f"{own}.sock"
    return f"unix:{path}"


def _free_address(listen: str) -> str:
    """`listen` with a port: daemons must know it before the scheduler has started. None that the
    kernel takes for connections, or one of the daemons' own could be given it while it is free.
    """
    host, port = split_address(listen)
    if port:
        _check_is_free(host, port)
        return listen
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}: {error.strerror}") from None
    return join_address(host, free_port(host))


def _check_is_free(host: str, port: int) -> None:
    """Or daemons would join the scheduler that is there, of another cluster of this user."""
    try:
        check_port_is_free(resolve(host), port)
    except ConfigError:
        raise ConfigError(
            f"cannot listen on {join_address(host, port)}: the port is in use"
            f"{describe_holder(port)}, or the address is not of this machine; name another with "
            "ONEFLOW_SCHEDULER_LISTEN, or none: then no port is needed"
        ) from None


def _spawn(state: Path, name: str, address: str, wish: ClusterSpec) -> subprocess.Popen[bytes]:
    argv = _scheduler_argv(state, address, wish)
    if name != "scheduler":
        argv = [*_daemon_argv(state, name, address), *_daemon_flags(wish)]
    path = log_path(name, state)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith("ONEFLOW_AUTH_")}
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "oneflow", *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd=folder(state),
            start_new_session=True,
        )


def _scheduler_argv(state: Path, address: str, wish: ClusterSpec) -> list[str]:
    where = ["--state-dir", str(folder(state) / "scheduler")]
    argv = ["scheduler", "run", "--listen", address, "--metrics-addr", wish.metrics_addr, *where]
    argv.append("--allow-scripts" if wish.allow_scripts else "--no-allow-scripts")
    argv += ["--ui" if wish.ui else "--no-ui", *wish.scheduler_flags]
    return [*argv, "--tls-dir", wish.tls_dir] if wish.tls_dir else argv


def _daemon_argv(state: Path, device: str, address: str) -> list[str]:
    base = folder(state)
    where = ["--state-dir", str(base / "node"), "--token-file", str(base / DAEMON_TOKEN)]
    return ["daemon", "run", "--device", device, "--scheduler", address, *where]


def _daemon_flags(wish: ClusterSpec) -> tuple[str, ...]:
    """Return the flags of daemons: a cluster that allows scripts allows them to its daemons, unless
    a setting of theirs says otherwise.
    """
    is_said = load_settings().origin("daemon.allow_scripts") != "default"
    return (
        *wish.daemon_flags,
        *(["--allow-scripts"] if wish.allow_scripts and not is_said else []),
    )


def _wait_ready(
    record: LocalCluster,
    timeout_s: float,
    started: dict[str, subprocess.Popen[bytes]] | None = None,
) -> Any:
    """The status once every daemon of the record is attached."""
    from oneflow.cluster.connection import Patience

    deadline = time.monotonic() + timeout_s
    cluster, status, wanted = None, None, record.num_daemons
    try:
        while True:
            for name, process in (started or {}).items():
                if process.poll() is not None:
                    raise _ended_early(name, process.returncode)
            try:
                cluster = cluster or _connect(record, Patience(0.0, 0.0))
                status = cluster.status()
                is_ours = status.pid == record.scheduler.pid
                if is_ours and sum(d.state in ("up", "draining") for d in status.daemons) >= wanted:
                    return status
            except ClusterUnreachableError:
                pass  # not listening yet: looked at again until the deadline
            if time.monotonic() > deadline:
                raise ClusterUnreachableError(
                    f"the cluster was not ready after {timeout_s:g} s{_missing(record, status)}; "
                    f"see {log_path('scheduler')}"
                )
            time.sleep(LOOK_S)
    finally:
        if cluster is not None:
            cluster.close()


def _missing(record: LocalCluster, status: pb.ClusterStatus | None) -> str:
    """Name the processes of a cluster that is not ready and their logs."""
    if status is None:
        return ": its scheduler does not answer"
    up = {d.device for d in status.daemons if d.state in ("up", "draining")}
    gone = [p for p in record.daemons if p.name not in up]
    named = ", ".join(f"{p.name} (process {p.pid}, {log_path(p.name)})" for p in gone)
    return f": no word of {named}" if named else ""


def _connect(record: LocalCluster, patience: Patience) -> Cluster:
    """Connect as the owner, even if the environment names another token."""
    from oneflow.cluster.client import connect

    path = config_dir() / ADMIN_TOKEN
    if not path.exists():
        raise ConfigError(
            f"the token file {path} is gone, and the cluster that runs knows no other: "
            "`oneflow cluster down`, then `oneflow cluster up` makes a new one; jobs are kept"
        )
    check_unwritten(path.parent)
    return connect(record.address, read_token_file(path), patience=patience)


def _ended_early(name: str, code: int) -> OneFlowError:
    """Return the error for a process that ended although it should have gone on."""
    path = log_path(name)
    with open(path, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - LOG_TAIL_NBYTES, 0))
        lines = file.read().decode(errors="replace").strip().splitlines()
    said = lines[-1] if lines else "it said nothing"
    error = ConfigError(f"{name} ended with code {code}: {said} (more in {path})")
    if code > 0:
        error.exit_code = code
    return error


# ---- ending --------------------------------------------------------------------------------------


def _drain(record: LocalCluster, drain_s: float) -> None:
    """Until no job runs, or the time is over."""
    from oneflow.cluster.connection import Patience

    deadline = time.monotonic() + drain_s
    with _connect(record, Patience()) as cluster:
        status = cluster.drain("", drain_s)
        while any(d.job for d in status.daemons) and time.monotonic() < deadline:
            time.sleep(2 * LOOK_S)
            status = cluster.status()


def _end(processes: Sequence[Process], signum: int, patience_s: float) -> None:
    """Signals them and waits; kills those that stay. Raises OneFlowError if one cannot be ended."""
    for step, wait_s in ((signum, patience_s), (signal.SIGKILL, KILL_S)):
        for process in processes:
            if process.is_alive:
                _signal(process.pid, step)
        deadline = time.monotonic() + wait_s
        while any(p.is_alive for p in processes) and time.monotonic() < deadline:
            time.sleep(0.02)
    stuck = [p for p in processes if p.is_alive]
    if stuck:
        raise OneFlowError(f"process {stuck[0].pid} ({stuck[0].name}) cannot be ended")


def _signal(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return  # it has just ended
