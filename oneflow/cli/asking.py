"""Verbs that ask a cluster: each gets it connected, or the job that it is about."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

ADDRESS = click.option("--address", metavar="HOST:PORT", help="The scheduler; else as configured.")
ID = click.argument("job_id", metavar="ID")

Verb = Callable[..., Any]


def on_cluster(verb: Verb) -> Verb:
    """Adds --address; the verb's first argument is the cluster there, connected while it runs."""

    @ADDRESS
    @wraps(verb)
    def run(*, address: str | None, **options: object) -> Any:
        from oneflow.cluster.client import connect

        with connect(address) as cluster:
            return verb(cluster, **options)

    return run


def on_job(verb: Verb) -> Verb:
    """Adds --address and ID; the verb's first argument is the job of this id, or of this name."""

    @wraps(verb)
    def run(cluster: Any, *, job_id: str, **options: object) -> Any:
        from oneflow.cli.naming import job_called

        return verb(job_called(cluster, job_id), **options)

    return on_cluster(ID(run))
