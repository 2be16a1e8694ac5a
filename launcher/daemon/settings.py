"""The settings of a daemon, and the one place where it reads its environment."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from oneflow.core.config import FALSE_WORDS, GRPC_SILENT, GRPC_VERBOSITY, split_address
from oneflow.core.control_channel import check_plain, socket_path
from oneflow.core.errors import ConfigError
from oneflow.launcher.daemon.daemon import Times
from oneflow.launcher.daemon.logs import Limits
from oneflow.launcher.daemon.pulse import Patience

# Never handed on to a rank: they are the daemon's own.
PRIVATE_VARIABLES = (
    "ONEFLOW_AUTH_TOKEN",
    "ONEFLOW_AUTH_TOKEN_FILE",
    "ONEFLOW_DAEMON_TOKEN_FILE",
    "ONEFLOW_DAEMON_TLS_DIR",
    "ONEFLOW_CLIENT_TLS_DIR",
    "ONEFLOW_METRICS_ADDR",
    "ONEFLOW_JOB_TOKEN",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
)
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")
MAX_PIDS = 4096
MAX_OPEN_FILES = 65_536
_DEVICE = re.compile(r"(cpu|cuda):([0-9]{1,4})")
_DEVICES = re.compile(r"(cpu|cuda):([0-9]{1,4})-([0-9]{1,4})")


def devices_in(text: str) -> list[str]:
    """The devices that `--device` names: cpu:0, cuda:0-7. Raises ConfigError."""
    if _DEVICE.fullmatch(text):
        return [text]
    match = _DEVICES.fullmatch(text)
    if match is None or int(match[2]) > int(match[3]):
        raise ConfigError(f"--device {text!r} is not like cpu:0, cuda:3 or cuda:0-7")
    return [f"{match[1]}:{number}" for number in range(int(match[2]), int(match[3]) + 1)]


@dataclass(frozen=True)
class JobLimits:
    """Limits of each rank, with all that it starts. memory_nbytes: 0 is none; needs a control group
    that this user may write to.
    """

    pids: int = MAX_PIDS
    open_files: int = MAX_OPEN_FILES
    memory_nbytes: int = 0


@dataclass(frozen=True)
class DaemonSettings:
    """Everything that a daemon was asked to do.

    device: cpu:0, cuda:3. scheduler: host:port. address: under which ranks of other nodes reach
    this node; "": found out. credentials: of gRPC, for TLS, or a function that makes them for each
    connection; None: no TLS. token_file: instead of the token, read for each connection.
    health_addr: unix:<path> or host:port of the health service; "": none. state_dir: of this node,
    shared by its daemons. warm: keep a worker ready for graph jobs. use_groups: give ranks control
    groups of their own, where this user may make them. certificate: of this daemon, so that its end
    is on the page of metrics; None: no TLS. data_roots: folders whose files graph jobs may use
    besides their own; (): as env says. shows_loss: the losses of jobs are on the page of metrics,
    for all readers of that. labels: name=value, of this node, which jobs may require.
    """

    device: str
    scheduler: str
    state_dir: Path
    node: str = ""
    address: str = ""
    token: str = ""
    token_file: Path | None = None
    credentials: Any = None
    certificate: Path | None = None
    metrics_addr: str = ""
    health_addr: str = ""
    allow_scripts: bool = False
    warm: bool = True
    use_groups: bool = True
    data_roots: tuple[Path, ...] = ()
    shows_loss: bool = False
    labels: tuple[str, ...] = ()
    heartbeat_s: float = 1.0
    suspect_s: float = 3.0
    act_s: float = 10.0
    stuck_s: float = 14.0
    cache_nbytes: int = 20 << 30
    times: Times = field(default_factory=Times)
    logs: Limits = field(default_factory=Limits)
    limits: JobLimits = field(default_factory=JobLimits)
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __post_init__(self) -> None:
        """Ranks and workers start in folders of their own, where a relative path means another."""
        object.__setattr__(self, "state_dir", self.state_dir.absolute())

    @property
    def jobs_dir(self) -> Path:
        """Return the folder in which each job has its own."""
        return self.state_dir / "jobs"

    @property
    def removed_dir(self) -> Path:
        """Return the folder in which those of retired jobs are kept for a day."""
        return self.state_dir / "removed"

    @property
    def id(self) -> str:
        return f"{self.node_name}/{self.device}"

    @property
    def node_name(self) -> str:
        return self.node or socket.gethostname()

    @property
    def device_type(self) -> str:
        return self._device()[0]

    @property
    def device_index(self) -> int:
        return self._device()[1]

    @property
    def notify_socket(self) -> str:
        return self.env.get("NOTIFY_SOCKET", "")

    @property
    def notify_every_s(self) -> float:
        """Return the period in which systemd wants to hear that the daemon lives; 0: it
        does not.
        """
        text = self.env.get("WATCHDOG_USEC", "")
        return int(text) / 2e6 if text.isdecimal() else 0.0

    @property
    def patience(self) -> Patience:
        """Return the patience with a worker process that stands still: a beat less than its peers
        and the scheduler have, so that the one who knows why speaks first.
        """
        stopped_s, stuck_s = self.act_s - self.heartbeat_s, self.stuck_s - self.heartbeat_s
        least_s = self.suspect_s
        return Patience(self.suspect_s, max(stopped_s, least_s), max(stuck_s, least_s))

    def current_token(self) -> str:
        """The file's, read anew, if there is one: a token may be replaced while we run.

        Raises ConfigError for a file that cannot be read or that others can read.
        """
        path = self.token_file
        if path is None:
            return self.token
        try:
            with open(path) as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise ConfigError(f"--token-file {path}: others can read it; chmod 600 it")
                return file.read(4096).strip()
        except OSError as error:
            raise ConfigError(f"--token-file {path}: {error.strerror}") from None

    def current_credentials(self) -> Any:
        """Made anew for each connection if they can be: certificates are renewed."""
        return self.credentials() if callable(self.credentials) else self.credentials

    def rank_base_env(self) -> dict[str, str]:
        """Return the part of our environment that a rank gets. Where daemons speak TLS, so do
        ranks.
        """
        found = {k: v for k, v in self.env.items() if k not in PRIVATE_VARIABLES}
        if found.get(GRPC_VERBOSITY) == GRPC_SILENT:  # for our own verbs, not for a user's program
            del found[GRPC_VERBOSITY]
        if self.data_roots:
            found["ONEFLOW_DATA_ROOTS"] = os.pathsep.join(map(str, self.data_roots))
        return {"ONEFLOW_JOB_TLS": str(int(self.credentials is not None))} | found

    def roots(self) -> tuple[str, ...]:
        """data_roots as ranks get them: as they were given, and with links followed."""
        given = self.rank_base_env().get("ONEFLOW_DATA_ROOTS", "").split(os.pathsep)
        found = [
            form(text) for text in given if text for form in (os.path.normpath, os.path.realpath)
        ]
        return tuple(dict.fromkeys(found))

    def check(self) -> None:
        """Raises ConfigError for values that cannot work."""
        kind, _ = self._device()
        if kind == "cuda" and not any(Path(p).exists() for p in GPU_DRIVERS):
            raise ConfigError(f"--device {self.device}: this host has no driver for NVIDIA's GPUs")
        for root in self.data_roots:
            if not root.is_absolute():
                raise ConfigError(f"daemon.data_roots: {str(root)!r} is not an absolute path")
        self.current_token()
        self._check_line()
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,253}", self.node_name):
            raise ConfigError(f"node {self.node_name!r}: use letters, digits, dots and hyphens")
        if not 0 < self.heartbeat_s < self.suspect_s < self.act_s:
            raise ConfigError(
                f"the times must grow: heartbeat_s ({self.heartbeat_s:g}) < suspect_s "
                f"({self.suspect_s:g}) < act_s ({self.act_s:g})"
            )

    def _check_rank_tls(self) -> None:
        """Now, not when the first job comes."""
        is_off = self.rank_base_env()["ONEFLOW_JOB_TLS"].lower() in FALSE_WORDS
        if is_off or find_spec("cryptography"):
            return
        raise ConfigError(
            "TLS between ranks needs the package `cryptography` here: pip install "
            "'oneflow-actors[cluster]'; ONEFLOW_JOB_TLS=0 lets ranks speak in the clear"
        )

    def _check_line(self) -> None:
        """A name that cannot be resolved yet is looked at when it can be."""
        if self.credentials is not None:
            self.current_credentials()
            self._check_rank_tls()
            return
        if socket_path(self.scheduler) is not None:
            return
        host, _ = split_address(self.scheduler)
        with suppress(OSError):
            resolved = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
            check_plain(self.scheduler, resolved, "--tls-dir")

    def _device(self) -> tuple[str, int]:
        match = _DEVICE.fullmatch(self.device)
        if match is None:
            raise ConfigError(f"--device {self.device!r} is not like cpu:0 or cuda:3")
        return match[1], int(match[2])
