"""Jobs as their users call them: by id, or by name."""

from __future__ import annotations

from oneflow.cli.output import say
from oneflow.cluster.client import Cluster
from oneflow.cluster.connection import GoneError
from oneflow.cluster.job import Job

MOST_ALIKE = 100


def job_called(cluster: Cluster, words: str) -> Job:
    """The job of this id, else the newest of this name; if several bear it, says which it is.
    Raises GoneError.
    """
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
