"""Verbs of the `oneflow` command. Each imports its modules when it runs, so that `--help` is
quick.
"""

from __future__ import annotations

import os

import click

from oneflow import __version__
from oneflow.cli.group import CONTEXT, LazyVerbs
from oneflow.core.config import GRPC_SILENT, GRPC_VERBOSITY


class _Verbs(LazyVerbs):
    groups = {
        "cluster": ("oneflow.cli.cluster", "cluster", "A cluster that takes jobs: up, down, ..."),
        "job": ("oneflow.cli.job", "job", "Jobs of a cluster: submit, list, logs, wait, ..."),
        "scheduler": ("oneflow.cli.services", "scheduler", "A cluster's scheduler, in foreground."),
        "daemon": ("oneflow.cli.services", "daemon", "A device's daemon, in the foreground."),
        "serve": ("oneflow.cli.serve", "serve", "Language models and graphs, over HTTP."),
        "top": ("oneflow.cli.top", "top", "What a cluster does, now."),
        "debug": ("oneflow.cli.debug", "debug", "Why a job is stuck: stack, dump."),
        "trace": ("oneflow.cli.trace", "trace", "What each actor did when: start, stop, merge."),
        "ckpt": ("oneflow.cli.ckpt", "ckpt", "Checkpoints: ls, verify, convert."),
        "config": ("oneflow.cli.config", "config", "What is configured, and where."),
    }


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings=CONTEXT,
    epilog="Scripts on several processes, without a cluster: "
    "python -m oneflow.distributed.launch --nproc_per_node 2 script.py",
)
@click.version_option(__version__, prog_name="oneflow-actors")
@click.option("--doctor", "wants_doctor", is_flag=True, help="The same as the verb doctor.")
@click.pass_context
def cli(context: click.Context, wants_doctor: bool) -> None:
    """OneFlow: a distributed deep-learning runtime built of actor services."""
    os.environ.setdefault(GRPC_VERBOSITY, GRPC_SILENT)  # it repeats in its words what ours say
    if wants_doctor:
        print_doctor()
    elif context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command()
def doctor() -> None:
    """Prints versions, devices and hosts, for reports of defects."""
    print_doctor()


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(arguments: tuple[str, ...]) -> None:
    """Runs a script on several processes; takes the options of oneflow.distributed.launch."""
    from oneflow.launcher.launch import main

    raise SystemExit(main(list(arguments)))


def print_doctor() -> None:
    from oneflow.cli.doctor import doctor as lines

    click.echo("\n".join(lines()))
