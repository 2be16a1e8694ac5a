"""The settings of a cluster's scheduler, and the one place where it reads its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oneflow.core.config import current_config, split_address
from oneflow.core.control_channel import is_loopback, resolve, socket_path
from oneflow.core.errors import ConfigError
from oneflow.scheduler.cluster import audit
from oneflow.scheduler.cluster.compiler import CompilerLimits
from oneflow.scheduler.jobs.settings import Settings as TableSettings


@dataclass(frozen=True)
class Limits:
    """Limits of each token, and of uploads. A daemon token may ask `daemon_factor` times as often:
    many daemons share it.
    """

    requests_per_s: float = 20.0
    burst: int = 60
    streams: int = 64
    daemon_factor: int = 1024
    blob_nbytes: int = 4 << 30
    blobs_nbytes: int = 64 << 30  # of all together
    upload_idle_s: float = 60.0  # an upload that says nothing for so long is given up
    orphan_s: float = 3600.0  # a blob that no job names is kept for so long


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the certificate authority of clients, and this server's certificate and key."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def in_folder(cls, folder: Path) -> TlsFiles:
        """Return the files of a folder under the names that `init_tls` gives them."""
        return cls(folder / "ca.crt", folder / "scheduler.crt", folder / "scheduler.key")


@dataclass(frozen=True)
class SchedulerSettings:
    """Everything that a scheduler was asked to do.

    listen: host:port, or unix:<path> in a folder of this user's; port 0: that of the last time, or
    any free one. metrics_addr: host:port for /metrics; "": none. token_file: a second place where
    the first admin token is written; None: none. hosts: names besides its addresses under which
    browsers and scrapers may ask. stop_s: calls under way get so long when it is told to end.
    tick_s: how often time passes. on_end: words of the command that is run for each job that ends;
    none: none is. audit_nbytes: of one file of the audit log. audit_files: so many
    older ones are kept.
    """

    state_dir: Path
    runtime_dir: Path = field(default_factory=lambda: current_config().runtime_dir)
    listen: str = "127.0.0.1:0"
    metrics_addr: str = "127.0.0.1:0"
    allow_scripts: bool = False
    ui: bool = False
    tls: TlsFiles | None = None
    token_file: Path | None = None
    hosts: tuple[str, ...] = ()
    heartbeat_s: float = 0.5  # a failure begins up to so long after the last one
    tick_s: float = 0.5
    stop_s: float = 5.0
    on_end: tuple[str, ...] = ()
    audit_nbytes: int = audit.MAX_NBYTES
    audit_files: int = audit.MAX_FILES
    table: TableSettings = field(default_factory=TableSettings)
    limits: Limits = Limits()
    compiler: CompilerLimits = field(default_factory=CompilerLimits)
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def notify_socket(self) -> str:
        return self.env.get("NOTIFY_SOCKET", "")

    @property
    def notify_every_s(self) -> float:
        """Return the period in which systemd wants to hear that the scheduler lives; 0: it does
        not.
        """
        text = self.env.get("WATCHDOG_USEC", "")
        return int(text) / 2e6 if text.isdecimal() else 0.0

    def check(self) -> None:
        """Raises ConfigError for values that cannot work."""
        if socket_path(self.listen) is None:
            split_address(self.listen)
        if self.metrics_addr:
            split_address(self.metrics_addr)
        self._check_page()
        self.table.check()
        self.compiler.check()
        if not 0 < self.heartbeat_s < self.table.suspect_s:
            raise ConfigError(
                f"heartbeat_s ({self.heartbeat_s:g}) must be less than suspect_s "
                f"({self.table.suspect_s:g})"
            )
        if not 0 < self.tick_s <= self.table.suspect_s / 2:
            raise ConfigError(f"tick_s ({self.tick_s:g}) must be at most half of suspect_s")

    def _check_page(self) -> None:
        """Its readers show a token, which anybody on the way could read."""
        if not (self.ui and self.metrics_addr):
            return
        host, _ = split_address(self.metrics_addr)
        if not is_loopback(resolve(host)):
            raise ConfigError(
                f"--ui: the page would be served at {self.metrics_addr} without TLS, and a token "
                "is typed into it: leave --metrics-addr on 127.0.0.1 and come by `ssh -L` or "
                "through a proxy with TLS, or leave out --ui"
            )
