"""A glance at a job file, without its arrays and NumPy: a client is quick."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oneflow.core.errors import CheckpointError
from oneflow.io.files import AnyPath, OpenFile, read_bytes
from oneflow.jobs.archive import Entry, Part, digest_of, read_entries
from oneflow.jobs.description import MAX_JSON_NBYTES, Description, JobFileError, decode

JOB = "job.json"
GRAPH = "graph.pb"
SCHEDULE = "schedule.safetensors"
VARIABLES = "variables.safetensors"
DATA = "data/arrays.safetensors"
NEEDED = (JOB, GRAPH, SCHEDULE, VARIABLES)


def describe(file: OpenFile) -> tuple[dict[str, Entry], Description]:
    """Its entries and its description; that they fit together has not been looked at."""
    entries = read_entries(file)
    missing = [n for n in NEEDED if n not in entries]
    if missing:
        raise JobFileError(f"there is no {missing[0]}")
    job = Part(file, entries[JOB])
    if job.nbytes > MAX_JSON_NBYTES:
        raise JobFileError(f"{JOB} has {job.nbytes} bytes, more than {MAX_JSON_NBYTES}")
    digest_of(job, entries[JOB].crc)
    return entries, decode(read_bytes(job, 0, job.nbytes), JOB)


def described(path: AnyPath) -> Description:
    """Return the description in a job file whose other entries were checked before, or will be.
    Raises JobFileError.
    """
    with open_job(path) as file, as_job_errors(str(path)):
        return describe(file)[1]


def open_job(path: AnyPath) -> OpenFile:
    try:
        return OpenFile(Path(os.path.abspath(os.fspath(path))))
    except (OSError, CheckpointError) as error:
        raise JobFileError(f"{path}: {error}") from error


@contextmanager
def as_job_errors(where: str) -> Iterator[None]:
    """Every defect is a JobFileError that names the file."""
    try:
        yield
    except JobFileError as error:
        text = str(error)
        raise JobFileError(text if where in text else f"{where}: {text}") from error.__cause__
    except (CheckpointError, OSError) as error:
        raise JobFileError(f"{where}: {error}") from error
