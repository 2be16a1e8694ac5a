"""`oneflow cluster ...`: a cluster on this machine, and questions of operators to any cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oneflow.cli.asking import ADDRESS, on_cluster
from oneflow.cli.group import Verbs, choose_group
from oneflow.cli.keys import DATA_ROOTS, ON_END, given, limit_options
from oneflow.cli.output import FORMATS, fields, output_option, show_json, table
from oneflow.cli.types import DURATION, PAIR
from oneflow.services.quantities import show_time

if TYPE_CHECKING:
    from oneflow.cluster.client import Cluster
    from oneflow.cluster.local import Up
    from oneflow.core.rpc import Message
    from oneflow.protos import cluster_pb2 as pb

DAEMON_STATES = {"up", "suspect", "draining", "lost"}
ROLES = ("admin", "submit", "view", "daemon")


@choose_group("A cluster that takes jobs.")
def cluster() -> None:
    pass


@cluster.command("up")
@click.option("--daemons", type=click.IntRange(1, 256), help="So many; else one for each device.")
@click.option("--device-type", type=click.Choice(["cpu", "cuda"]), help="cuda if there is one.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="A cluster.toml.")
@click.option("--allow-scripts/--no-allow-scripts", default=None, help="Jobs that run programs.")
@click.option("--ui/--no-ui", default=None, help="The web page beside /metrics.")
@click.option("--on", "where", metavar="RAY", help="ray://host:10001 or auto: daemons there.")
@ON_END
@DATA_ROOTS
@limit_options("scheduler", "daemon")
@output_option
def up(
    daemons: int | None,
    device_type: str | None,
    file: Path | None,
    how: str,
    **flags: object,
) -> None:
    """Starts a scheduler and a daemon per device on this machine, in the background.

    Nothing has to be configured; only this machine can connect. `oneflow cluster down` ends it.
    """
    from oneflow.cli.records import status_as_dict
    from oneflow.cluster.cluster_spec import local_wish
    from oneflow.cluster.local import start, start_on_ray

    where, roots = flags.pop("where"), flags.pop("data_roots") or None
    asked = given(flags) | {"daemon.data_roots": roots}
    asked |= {"local.daemons": daemons, "local.device_type": device_type}
    asked |= {f"scheduler.{name}": value for name, value in flags.items()}
    wish = local_wish(asked, file)
    found = start_on_ray(wish, str(where)) if where else start(wish)
    if how == "json":
        show_json({"was_running": found.was_running} | status_as_dict(found.status))
    else:
        _show_up(found)
    if where and (note := _note_of_hosts(found.status, bool(roots))):
        click.echo(f"oneflow: {note}", err=True)


def _note_of_hosts(status: pb.ClusterStatus, has_roots: bool) -> str:
    """Warn about checkpoints if several hosts are asked for, else return ""."""
    nodes = {daemon.node for daemon in status.daemons}
    if len(nodes) < 2 or has_roots:
        return ""
    return (
        f"the daemons are on {len(nodes)} hosts: a job on several of them writes checkpoints only "
        "to a folder that all see; name it with --data-root here, with --checkpoint-dir at `job "
        "submit`"
    )


def _show_up(found: Up) -> None:
    status = found.status
    devices = " ".join(sorted(d.device for d in status.daemons if d.state == "up"))
    what = "runs already" if found.was_running else f"is ready after {found.seconds:.1f} s"
    if found.restarted:
        what = f"is whole again: {', '.join(found.restarted)} had ended or did not run"
    if status.allows_scripts:
        following = "oneflow job submit --wait -- python train.py"
    else:
        following = f"oneflow job submit digits.job --devices {len(status.daemons)} --wait"
    click.echo(f"oneflow: the cluster {what}: {devices}")
    click.echo(fields(_addresses(status) | {"next": following}))


def _addresses(status: pb.ClusterStatus) -> dict[str, str]:
    from oneflow.cli.records import page_url

    found = {"address": status.address}
    if status.metrics_address:
        found["metrics"] = f"http://{status.metrics_address}/metrics"
    if status.has_page:
        found["page"] = page_url(status)
    return found


@cluster.command("down")
@click.option("--drain", type=DURATION, default=0.0, help="What runs may go on for so long.")
def down(drain: float) -> None:
    """Ends the cluster of this machine. Jobs are kept: those that had not ended go on at the next
    `up`.
    """
    from oneflow.cluster.local import stop

    record = stop(drain)
    click.echo("oneflow: the cluster is down" if record else "oneflow: no cluster runs here")


@cluster.command("status")
@on_cluster
@output_option
def status(found: Cluster, how: str) -> None:
    """Addresses, daemons and jobs in numbers."""
    from oneflow.cli.records import status_as_dict, status_lines

    now = found.status()
    if how == "json":
        show_json(status_as_dict(now))
    else:
        click.echo(status_lines(now, how == "wide"))


@cluster.command("nodes")
@ADDRESS
@output_option
@click.option("-f", "--filter", "filters", type=PAIR, multiple=True, help="state=up, node=n1, ...")
def nodes(address: str | None, how: str, filters: tuple[tuple[str, str], ...]) -> None:
    """Every daemon, and its work. Filters: state, node, device, job."""
    from oneflow.cluster.client import connect

    wanted = _daemon_filters(filters)
    with connect(address) as found:
        daemons = [
            daemon
            for daemon in found.status().daemons
            if all(getattr(daemon, key) in values for key, values in wanted.items())
        ]
    _show_daemons(daemons, how)


def _show_daemons(daemons: Iterable[pb.DaemonStatus], how: str) -> None:
    from oneflow.cli.records import daemon_as_dict, daemon_table

    if how == "json":
        show_json({"daemons": [daemon_as_dict(daemon) for daemon in daemons]})
    else:
        click.echo(daemon_table(daemons, how == "wide"))


def _daemon_filters(given: tuple[tuple[str, str], ...]) -> dict[str, set[str]]:
    wanted = {}
    for key, value in given:
        if key not in ("state", "node", "device", "job"):
            raise click.UsageError(f"filter {key!r}: must be one of state, node, device, job")
        values = set(value.split(","))
        if key == "state":
            values = {state.lower() for state in values}
            if unknown := values - DAEMON_STATES:
                there_are = ", ".join(sorted(DAEMON_STATES))
                raise click.UsageError(f"filter state={min(unknown)}: must be one of {there_are}")
        wanted[key] = values
    return wanted


@cluster.command("drain")
@ADDRESS
@click.option("--grace", type=DURATION, default=0.0, help="What runs may go on for so long.")
@click.argument("node", metavar="NODE|--all", required=False, default="")
@click.option("--all", "is_all", is_flag=True, help="The whole cluster.")
@click.option("--undo", "is_undone", is_flag=True, help="It takes work again.")
@output_option
def drain(
    address: str | None, grace: float, node: str, is_all: bool, is_undone: bool, how: str
) -> None:
    """A node takes no new work; jobs there are stopped after the grace, and restarted.

    It stays so until --undo, or until its daemons are started anew.
    """
    from oneflow.cluster.client import connect

    if bool(node) == is_all:
        raise click.UsageError("name a node, or --all")
    if is_undone and grace:
        raise click.UsageError("--grace is of a drain, not of its --undo")
    with connect(address) as found:
        daemons = (found.undrain(node) if is_undone else found.drain(node, grace)).daemons
    _show_daemons(daemons, how)


@cluster.command("init-tls")
@click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path), required=True)
@click.option("--host", "hosts", multiple=True, help="A name or address of the scheduler.")
def init_tls(folder: Path, hosts: tuple[str, ...]) -> None:
    """Makes an authority and certificates for scheduler, daemons and clients; again renews them."""
    from oneflow.scheduler.cluster.certificates import init_tls as make

    for path in make(folder, hosts):
        click.echo(path)


@cluster.command("metrics-targets")
@ADDRESS
@click.option("-o", "--output", type=click.Choice(FORMATS), default="json", help="How to show it.")
def metrics_targets(address: str | None, output: str) -> None:
    """Print where /metrics is served on this machine: JSON for Prometheus's file_sd_configs."""
    from oneflow.cluster.settings import runtime_dir
    from oneflow.services.metrics_http import metrics_targets as found

    targets = found(runtime_dir())
    if output == "json":
        show_json(targets)
        return
    rows = [(t["targets"][0], t["labels"]["host"], t["labels"].get("rank", "")) for t in targets]
    click.echo(table(("target", "host", "rank"), rows))


# ---- tokens --------------------------------------------------------------------------------------


@cluster.group("token", cls=Verbs)
def token() -> None:
    """Manage tokens and their roles."""


@token.command("create")
@on_cluster
@click.option("--role", type=click.Choice(ROLES), required=True)
@click.option("--lifetime", type=DURATION, default=0.0, help="Else for good.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="Written to, 0600.")
@click.argument("name")
def create(found: Cluster, role: str, lifetime: float, file: Path | None, name: str) -> None:
    """Makes a token. Its secret is shown now and never again."""
    from oneflow.protos import cluster_pb2 as pb

    _made(found, "CreateToken", pb.TokenRequest(name=name, role=role, lifetime_s=lifetime), file)


@token.command("rotate")
@on_cluster
@click.option("--lifetime", type=DURATION, help="Else as long as the old one's; 0: for good.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="Written to, 0600.")
@click.argument("name")
def rotate(found: Cluster, lifetime: float | None, file: Path | None, name: str) -> None:
    """Makes a new secret; the old one stays valid for an hour."""
    from oneflow.protos import cluster_pb2 as pb

    _made(found, "RotateToken", pb.TokenRequest(name=name, lifetime_s=lifetime), file)


def _made(cluster: Cluster, method: str, request: Message, file: Path | None) -> None:
    from oneflow.scheduler.jobs.tokens import write_token_file

    reply = cluster.ask(method, request)
    until = f"until {show_time(reply.expires_at)}" if reply.expires_at else "for good"
    click.echo(f"oneflow: {reply.name}: {reply.role}, valid {until}", err=True)
    if file is not None:
        write_token_file(file, reply.secret)
        click.echo(file)
        return
    click.echo(reply.secret)
    if sys.stdout.isatty():
        click.echo("oneflow: this is the only time that it is shown", err=True)


@token.command("revoke")
@on_cluster
@click.argument("name")
def revoke(found: Cluster, name: str) -> None:
    """No secret of this name is valid any more."""
    from oneflow.protos import cluster_pb2 as pb

    found.ask("RevokeToken", pb.TokenRequest(name=name))
    click.echo(f"{name} revoked")


@token.command("list")
@on_cluster
@output_option
def list_tokens(found: Cluster, how: str) -> None:
    """Names, roles and ends of the valid tokens; never their secrets."""
    from oneflow.protos import cluster_pb2 as pb

    tokens = found.ask("ListTokens", pb.Empty()).tokens
    rows = [(t.name, t.role, _clock(t.created_at), _clock(t.expires_at)) for t in tokens]
    if how == "json":
        names = ("name", "role", "created_at", "expires_at")
        show_json({"tokens": [{n: getattr(t, n) for n in names} for t in tokens]})
    else:
        click.echo(table(("name", "role", "created", "expires"), rows))


def _clock(at: float) -> str:
    return show_time(at) if at else "never"
