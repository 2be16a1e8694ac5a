"""Verbs that ask a cluster: each gets it connected, or the job that it is about."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from oneflow.cli.output import say

if TYPE_CHECKING:
    from oneflow.cluster.client import Cluster
    from oneflow.cluster.job import Job

ADDRESS = click.option("--address", metavar="HOST:PORT", help="The scheduler; else as configured.")
ID = click.argument("job_id", metavar="ID")
MOST_ALIKE = 100

Verb = Callable[..., Any]


def on_cluster(verb: Verb) -> Verb:
    """Adds --address; the verb's first argument is the cluster there, connected while it runs."""

    @ADDRESS
    @wraps(verb)
    def run(*, address: str | None, **options: object) -> Any:
        from oneflow.cluster.client import connect

        for value in options.values():
            if isinstance(value, str):
                value.encode()  # bytes that are no text are refused, cluster or none
        with connect(address) as cluster:
            return verb(cluster, **options)

    return run


def on_job(verb: Verb) -> Verb:
    """Adds --address and ID; the verb's first argument is the job of this id, or of this name."""

    @wraps(verb)
    def run(cluster: Cluster, *, job_id: str, **options: object) -> Any:
        return verb(job_called(cluster, job_id), **options)

    return on_cluster(ID(run))


def jobs_called(cluster: Cluster, words: str, state: str = "") -> list[Job]:
    """The job of this id, else all members of the array of this id, else the newest job of this
    name. state: of the members that are meant; "": any. Raises GoneError.
    """
    from oneflow.cluster.connection import GoneError

    found = cluster.job(words)
    try:
        found.status()
        return [found]
    except GoneError:
        members = cluster.array(words) if words and "," not in words else []
    if members and state:
        return cluster.array(words, state=state)
    return members or [job_called(cluster, words)]


def on_jobs(verb: Verb) -> Verb:
    """Adds --address and ID; the verb's first argument is the jobs that are meant by it."""

    @wraps(verb)
    def run(cluster: Cluster, *, job_id: str, **options: object) -> Any:
        return verb(jobs_called(cluster, job_id), **options)

    return on_cluster(ID(run))


def job_called(cluster: Cluster, words: str) -> Job:
    """The job of this id, else the newest of this name; if several bear it, says which it is.
    Raises GoneError.
    """
    from oneflow.cluster.connection import GoneError

    try:
        found = cluster.job(words)
        found.status()
        return found
    except GoneError:
        if not words or "," in words:  # to a filter a comma ends a value
            raise
        alike = list(cluster.jobs(limit=MOST_ALIKE, name=words))
        if not alike:
            raise
    newest = alike[0]
    if len(alike) > 1:
        many = f"{len(alike)}{' or more' if len(alike) == MOST_ALIKE else ''}"
        say(f"{many} jobs are called {words!r}; this is the newest, {newest.id} ({newest.state})")
    return cluster.job(newest.id)
