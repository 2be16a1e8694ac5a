"""`oneflow scheduler run` and `oneflow daemon run`: services in the foreground, for systemd,
Kubernetes and `oneflow cluster up`.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oneflow.cli.group import choose_group
from oneflow.cli.keys import DATA_ROOTS, ON_END, given, limit_options
from oneflow.cli.output import say

if TYPE_CHECKING:
    from oneflow.cluster.settings import Settings
    from oneflow.launcher.daemon.settings import DaemonSettings
    from oneflow.scheduler.cluster.server import Scheduler
    from oneflow.scheduler.cluster.settings import SchedulerSettings

FILE = click.Path(exists=False, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
COMPILER = (sys.executable, "-m", "oneflow.jobs.compiling")


@choose_group("A cluster's scheduler.")
def scheduler() -> None:
    pass


@choose_group("The daemon of one device.")
def daemon() -> None:
    pass


@scheduler.command("run")
@click.option("--file", type=FILE, help="A cluster.toml.")
@click.option("--listen", metavar="HOST:PORT", help="Where clients and daemons connect.")
@click.option("--metrics-addr", metavar="HOST:PORT", help="Where /metrics is served.")
@click.option("--state-dir", type=FOLDER, help="What must survive; one scheduler at a time.")
@click.option("--allow-scripts/--no-allow-scripts", default=None, help="Jobs that run programs.")
@click.option("--ui/--no-ui", default=None, help="The web page beside /metrics.")
@ON_END
@click.option("--queues", metavar="JSON", help="The tables of [scheduler.queues] by name.")
@click.option("--tls-dir", type=FOLDER, help="ca.crt, scheduler.crt and scheduler.key.")
@click.option("--host", "hosts", multiple=True, help="More names by which /metrics is asked for.")
@limit_options("scheduler")
def run_scheduler(file: Path | None, **flags: object) -> None:
    """Serves a cluster until a signal ends it; SIGTERM in order, a second one at once.

    Beyond loopback it needs --tls-dir. Health: the gRPC health service of the same address.
    """
    from oneflow.cluster.settings import load_settings, use_log_settings
    from oneflow.core.config import Config
    from oneflow.core.log import set_up
    from oneflow.scheduler.cluster.server import run_scheduler as run

    asked = given(flags)
    flags["hosts"] = flags["hosts"] or None
    asked |= {f"scheduler.{name}": value for name, value in flags.items()}
    found = load_settings(asked, file)
    use_log_settings(found)
    set_up(Config.from_env(), component="scheduler")
    raise SystemExit(run(_scheduler_settings(found), COMPILER, _say_where))


def _say_where(scheduler: Scheduler) -> None:
    """Print the settings that a client and a daemon need."""
    say(
        f"the scheduler listens at {scheduler.address}; metrics on "
        f"http://{scheduler.metrics_address}/metrics; tokens in {scheduler.settings.state_dir}"
    )


def _scheduler_settings(found: Settings) -> SchedulerSettings:
    from oneflow.cluster.queue_settings import make_queues
    from oneflow.cluster.settings import state_dir
    from oneflow.scheduler.cluster.compiler import CompilerLimits
    from oneflow.scheduler.cluster.end_hook import parse_command
    from oneflow.scheduler.cluster.settings import Limits, SchedulerSettings, TlsFiles
    from oneflow.scheduler.jobs.settings import Settings as TableSettings

    tls, requests_per_s = found.path("scheduler.tls_dir"), found["scheduler.requests_per_s"]
    limits = Limits(
        requests_per_s=requests_per_s,
        burst=max(round(3 * requests_per_s), 1),
        streams=found["scheduler.streams_per_token"],
    )
    table = TableSettings(
        max_queued_per_owner=found["scheduler.queued_per_token"],
        max_time_limit_s=found["scheduler.max_time_limit"],
        usage_half_life_s=found["scheduler.usage_half_life"],
        queues=make_queues(found["scheduler.queues"], found.origin("scheduler.queues")),
        keep_jobs=found["scheduler.keep_jobs"],
        keep_s=found["scheduler.keep_for"],
        keep_failed_s=found["scheduler.keep_failed_for"],
    )
    return SchedulerSettings(
        state_dir=found.path("scheduler.state_dir") or state_dir() / "scheduler",
        listen=found["scheduler.listen"],
        metrics_addr=found["scheduler.metrics_addr"],
        allow_scripts=found["scheduler.allow_scripts"],
        ui=found["scheduler.ui"],
        tls=TlsFiles.in_folder(tls) if tls else None,
        hosts=found["scheduler.hosts"],
        on_end=parse_command(found["scheduler.on_end"]),
        table=table,
        limits=limits,
        audit_nbytes=found["scheduler.audit_nbytes"],
        audit_files=found["scheduler.audit_files"],
        compiler=CompilerLimits(
            nbytes=found["scheduler.compile_nbytes"], compile_s=found["scheduler.compile_time"]
        ),
    )


@daemon.command("run")
@click.option("--device", required=True, help="cpu:0, cuda:3; several: cuda:0-7.")
@click.option("--file", type=FILE, help="A cluster.toml.")
@click.option("--scheduler", metavar="HOST:PORT", help="The scheduler to join.")
@click.option("--node", help="Name of this node; else its host name.")
@click.option("--address", help="Under which ranks of other nodes reach this one; else found out.")
@click.option("--metrics-addr", metavar="HOST:PORT", help="Where /metrics is served.")
@click.option("--health-addr", metavar="ADDRESS", help="Health service: unix:<path> or host:port.")
@click.option("--state-dir", type=FOLDER, help="Logs, checkpoints and caches of this node.")
@click.option("--token-file", type=FILE, help="The token to join with; mode 0600.")
@click.option("--tls-dir", type=FOLDER, help="ca.crt, daemon.crt and daemon.key.")
@click.option("--allow-scripts/--no-allow-scripts", default=None, help="Run script jobs.")
@DATA_ROOTS
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Jobs may require it.")
@click.option("--train-loss/--no-train-loss", default=None, help="Show losses on /metrics.")
@limit_options("daemon")
def run_daemon(device: str, file: Path | None, **flags: object) -> None:
    """Serves a device, or several over one line, until a signal ends it; SIGTERM in order, a second
    one at once.
    """
    from oneflow.cluster.finding import check_target
    from oneflow.cluster.settings import load_settings, use_log_settings
    from oneflow.launcher.daemon import node, run
    from oneflow.launcher.daemon.settings import devices_in

    asked = given(flags)
    flags["data_roots"] = flags["data_roots"] or None
    flags["labels"] = flags["labels"] or None
    asked |= {f"daemon.{name}": value for name, value in flags.items()}
    found = load_settings(asked, file)
    use_log_settings(found)
    if found["daemon.scheduler"]:
        check_target(found["daemon.scheduler"], "daemon.scheduler")
    devices = devices_in(device)
    settings = _daemon_settings(devices[0], found)
    raise SystemExit(run.main(settings) if len(devices) == 1 else node.main(settings, devices))


HEALTH = click.option(
    "--address", metavar="ADDRESS", help="Of the service; else of what runs on this machine."
)
HEALTH_S = click.option("--timeout", type=float, default=5.0, show_default=True, help="Seconds.")


@scheduler.command("health")
@HEALTH
@HEALTH_S
@click.option("--tls-dir", type=FOLDER, help="ca.crt, client.crt and client.key.")
def scheduler_health(address: str | None, timeout: float, tls_dir: Path | None) -> None:
    """Asks its gRPC health service; exit code 0 if it serves, else 69. For probes.

    Without --address the scheduler that clients would ask.
    """
    from oneflow.cluster.finding import find_address, find_tls
    from oneflow.cluster.settings import load_settings

    found = load_settings({"client.address": address})
    tls_dir = tls_dir or (None if address else find_tls(found))
    _probe(address or find_address(found), "oneflow.Scheduler", timeout, tls_dir)


@daemon.command("health")
@HEALTH
@HEALTH_S
def daemon_health(address: str | None, timeout: float) -> None:
    """Asks its gRPC health service (--health-addr); exit code 0 if it serves, else 69.

    Without --address: all daemons of the cluster that `oneflow cluster up` started here.
    """
    if address:
        _probe(address, "oneflow.Daemon", timeout, None)
    else:
        _probe_local()


def _probe(address: str, service: str, timeout_s: float, tls: Path | None) -> None:
    from oneflow.cluster.connection import is_serving

    if not is_serving(address, service, timeout_s, tls):
        click.echo(f"oneflow: {service} at {address} does not serve", err=True)
        raise SystemExit(69)
    click.echo("serving")


def _probe_local() -> None:
    """Ask the local cluster about its daemons. Ends with 69 if one of them takes no work."""
    from oneflow.cluster.client import connect
    from oneflow.cluster.local_record import read_record
    from oneflow.cluster.settings import state_dir
    from oneflow.core.errors import ClusterUnreachableError

    record = read_record(state_dir())
    if record is None:
        raise ClusterUnreachableError(
            "no cluster runs on this machine: name a daemon's --health-addr by --address"
        )
    with connect(record.address) as cluster:
        found = {daemon.device: str(daemon.state) for daemon in cluster.status().daemons}
    found = {p.name: "gone" for p in record.daemons} | found
    for device, state in sorted(found.items()):
        click.echo(f"{device}: {'serving' if state == 'up' else state}")
    if set(found.values()) != {"up"}:
        raise SystemExit(69)


def _daemon_settings(device: str, found: Settings) -> DaemonSettings:
    from oneflow.cluster.finding import find_address
    from oneflow.cluster.settings import config_dir, environment, load_settings, state_dir
    from oneflow.launcher.daemon.logs import Limits as LogLimits
    from oneflow.launcher.daemon.settings import DaemonSettings, JobLimits
    from oneflow.scheduler.cluster.tls import channel_credentials
    from oneflow.scheduler.jobs.tokens import token_from

    tls, token_file = found.path("daemon.tls_dir"), found.path("daemon.token_file")
    token = "" if token_file else token_from(environment(), config_dir()) or ""
    return DaemonSettings(
        device=device,
        scheduler=found["daemon.scheduler"] or find_address(load_settings()),
        state_dir=found.path("daemon.state_dir") or state_dir() / "node",
        node=found["daemon.node"],
        address=found["daemon.address"],
        token=token,
        token_file=token_file,
        credentials=partial(channel_credentials, tls, "daemon") if tls else None,
        certificate=tls / "daemon.crt" if tls else None,
        metrics_addr=found["daemon.metrics_addr"],
        health_addr=found["daemon.health_addr"],
        data_roots=tuple(Path(root) for root in found["daemon.data_roots"]),
        allow_scripts=found["daemon.allow_scripts"],
        limits=JobLimits(
            pids=found["daemon.pids"],
            open_files=found["daemon.open_files"],
            memory_nbytes=found["daemon.memory_nbytes"],
        ),
        logs=LogLimits(
            file_nbytes=found["daemon.log_file_nbytes"], job_nbytes=found["daemon.log_nbytes"]
        ),
        cache_nbytes=found["daemon.cache_nbytes"],
        shows_loss=found["daemon.train_loss"],
        labels=found["daemon.labels"],
    )
