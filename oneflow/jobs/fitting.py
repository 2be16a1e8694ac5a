"""Whether a job file can be run as it is asked for: said before there are devices for it."""

from __future__ import annotations

from pathlib import Path

from oneflow.jobs.errors import JobFileError
from oneflow.jobs.feeding import MANY_STEPS, check_steps, most_steps
from oneflow.jobs.jobfile import JobFile
from oneflow.jobs.running import placed_graph, spans_ranks


def check_fit(path: Path, kind: str, devices: int, device_type: str, steps: int) -> int:
    """Check that a job file can be run as asked.

    kind: graph or inference. steps: 0, as many as the file says.

    Digests are left to whoever uses the file. Returns the most steps for which it can be run
    so. Raises JobFileError or PlacementError.
    """
    with JobFile(path, check_data=False, check_digests=False) as file:
        check_kind(file, kind)
        if kind == "graph":
            check_steps(file, steps or file.description.steps)
        if kind == "graph" or spans_ranks(file):
            placed_graph(file, devices, device_type)
        return most_steps(file) if kind == "graph" else MANY_STEPS


def check_kind(file: JobFile, wanted: str) -> None:
    """Raises JobFileError if it was exported for another kind of job."""
    found = file.description.kind
    if found != wanted:
        raise JobFileError(
            f"{file.path} was exported for {'training' if found == 'graph' else 'inference'}, the "
            f"job is of kind {wanted}"
        )
