"""The way from a user's program, folder, graph or job file to a JobSpec and its
files.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.cluster.connection import Connection
from oneflow.cluster.settings import config_dir, state_dir
from oneflow.cluster.toml import check_keys, read_toml, suggestion
from oneflow.core.control_channel import CHUNK_NBYTES
from oneflow.core.errors import ConfigError, JobSpecError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.limits import MAX_NAME_CHARS, check_job_id, check_spec
from oneflow.scheduler.jobs.records import JobKind, JobRecord, JobSpec
from oneflow.scheduler.jobs.specs import record_from_proto, spec_to_proto
from oneflow.services.quantities import parse_duration, parse_size

if TYPE_CHECKING:
    from oneflow.graph.graph import Graph
    from oneflow.io.files import AnyPath


UPLOAD_S = 3600.0
MAX_REQUIREMENTS_NBYTES = 256 << 10
ID_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # none that look alike

OPTIONS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "devices": (int, str),
    "device_type": str,
    "nodes": int,
    "priority": int,
    "env": dict,
    "steps": int,
    "max_restarts": int,
    "restart_on": list,
    "time_limit": (int, float, str),
    "checkpoint_every": int,
    "checkpoint_keep": int,
    "checkpoint_dir": str,
    "resume_from": str,
    "auto_parallel": bool,
    "zero": int,
    "amp": str,
    "after": list,
    "hold": bool,
    "queue": str,
    "preemptible": bool,
    "only_nodes": list,
    "exclude_nodes": list,
    "require_labels": list,
    "cpus": (int, float),
    "memory": (int, str),
}
"""Wishes of a job besides what it runs; keys of job.toml and arguments of `submit` alike."""

LISTS = ("after", "only_nodes", "exclude_nodes", "require_labels")
"""Those for which one text may stand in place of a list."""

GRAPH_OPTIONS = ("data", "inputs", "steps", "outputs", "record", "stop_on_nonfinite")
"""Names of further arguments of `submit` for a graph: see `flow.jobs.save`."""

FILE_KEYS = {
    "job_id": str,
    "argv": list,
    "working_dir": str,
    "requirements": str,
    "graph": str,
    "array": str,
    "array_file": str,
}


def new_job_id() -> str:
    """Short enough to type, long enough never to meet another: 32**8."""
    return "j" + "".join(secrets.choice(ID_LETTERS) for _ in range(8))


def make_spec(
    kind: JobKind,
    options: Mapping[str, Any],
    *,
    argv: tuple[str, ...] = (),
    archive: str = "",
    requirements: str = "",
    graph: str = "",
) -> JobSpec:
    """Make the spec of a job.

    options: see OPTIONS; None: not given. Raises JobSpecError, or ConfigError for a time.
    """
    given = {name: value for name, value in options.items() if value is not None}
    check_keys(given, OPTIONS, "job")
    for name, value in given.items():
        wanted = OPTIONS[name]
        if name in LISTS and isinstance(value, str):
            given[name] = value = [value]
        if isinstance(value, tuple) and wanted is list:
            given[name] = value = list(value)
        if isinstance(value, bool) is not (wanted is bool) or not isinstance(value, wanted):
            raise JobSpecError(f"{name}={value!r}: must be {_kind_name(wanted)}")
    if "devices" in given:
        given |= _devices(given["devices"])
    if "time_limit" in given:
        given["time_limit_s"] = parse_duration(given.pop("time_limit"), "time_limit")
    for name in ("restart_on", "only_nodes", "exclude_nodes", "require_labels"):
        if name in given:
            given[name] = tuple(str(word) for word in given[name])
    if "memory" in given:
        given["memory_nbytes"] = parse_size(given.pop("memory"), "memory")
    if "cpus" in given:
        given["cpus"] = float(given["cpus"])
    if "after" in given:
        given["after"] = ",".join(str(job_id) for job_id in given["after"])
    given["env"] = {str(k): str(v) for k, v in given.get("env", {}).items()}
    return JobSpec(
        kind=kind, argv=argv, archive=archive, requirements=requirements, graph=graph, **given
    )


def _devices(asked: int | str) -> dict[str, int]:
    """Read a number, or the MIN:MAX of an elastic job."""
    least, colon, most = str(asked).partition(":")
    try:
        return {"devices": int(least)} | ({"max_devices": int(most)} if colon else {})
    except ValueError:
        raise JobSpecError(
            f"devices={asked!r}: must be a whole number, or MIN:MAX of an elastic job"
        ) from None


def read_job_file(path: Path) -> dict[str, Any]:
    """A job.toml: keys of OPTIONS and FILE_KEYS. Raises ConfigError.

    working_dir, requirements, graph and array_file are meant from where the file is.
    """
    found = read_toml(path)
    check_keys(found, [*OPTIONS, *FILE_KEYS], str(path))
    for key, kind in FILE_KEYS.items():
        if key in found and not isinstance(found[key], kind):
            raise ConfigError(f"{path}: {key} must be {_kind_name(kind)}")
    if not all(isinstance(word, str) for word in found.get("argv", ())):
        raise ConfigError(f"{path}: argv must be a list of texts, a word of the command each")
    for key in ("working_dir", "requirements", "graph", "array_file"):
        if key in found:
            found[key] = str(path.resolve().parent / found[key])
    return found


def _kind_name(kind: type | tuple[type, ...]) -> str:
    names = {str: "a text", int: "a whole number", list: "a list", dict: "a table"}
    names[bool] = "true or false"
    if isinstance(kind, type):
        return names[kind]
    if str not in kind:
        return "a number"
    if float not in kind:
        return "a whole number, or a text like 3:4"
    return "a number of seconds, or a text like 2h"


# ---- sending it ----------------------------------------------------------------------------------


def send_job(connection: Connection, job_id: str, spec: JobSpec) -> JobRecord:
    """Submits it under an id, so that asking again changes nothing."""
    check_job_id(job_id)
    check_spec(spec)
    request = pb.SubmitRequest(job_id=job_id, spec=spec_to_proto(spec))
    return record_from_proto(connection.call("Jobs", "Submit", request))


def upload(connection: Connection, path: Path) -> str:
    """Sends a file. Returns its digest; the cluster keeps it once, however often it is sent."""
    digest, nbytes = _digest_of(path)

    def chunks() -> Iterator[pb.BlobChunk]:
        return _chunks(path, digest, nbytes)

    connection.call("Jobs", "Upload", chunks, timeout_s=UPLOAD_S)
    return digest


def _chunks(path: Path, digest: str, nbytes: int) -> Iterator[pb.BlobChunk]:
    with open(path, "rb") as file:
        data = file.read(CHUNK_NBYTES)
        yield pb.BlobChunk(digest=digest, nbytes=nbytes, data=data)
        while data := file.read(CHUNK_NBYTES):
            yield pb.BlobChunk(data=data)


def _digest_of(path: Path) -> tuple[str, int]:
    """blake2b-256, hex, and the number of bytes."""
    found, nbytes = hashlib.blake2b(digest_size=32), 0
    try:
        with open(path, "rb") as file:
            while data := file.read(CHUNK_NBYTES):
                found.update(data)
                nbytes += len(data)
    except OSError as error:
        raise JobSpecError(f"cannot read {path}: {error.strerror}") from None
    return found.hexdigest(), nbytes


def upload_folder(connection: Connection, folder: Path, hidden: bool = True) -> str:
    """Send a working directory as an archive, with names that begin with a dot if `hidden`. Returns
    the archive's digest.
    """
    from oneflow.launcher.daemon.archive import pack

    with tempfile.TemporaryDirectory(prefix="oneflow-submit-") as temporary:
        target = Path(temporary) / "archive"
        pack(folder, target, hidden, own_folders())
        return upload(connection, target)


def upload_requirements(connection: Connection, path: Path) -> str:
    """Send a list of packages as pip reads it. Returns its digest. Raises JobSpecError."""
    nbytes = path.stat().st_size if path.is_file() else 0
    if nbytes > MAX_REQUIREMENTS_NBYTES:
        raise JobSpecError(
            f"requirements {path}: {nbytes} bytes, at most {MAX_REQUIREMENTS_NBYTES} allowed"
        )
    return upload(connection, path)


def own_folders() -> frozenset[Path]:
    """Folders of state and configuration of this user's clusters, which no job needs."""
    return frozenset((state_dir().resolve(), config_dir().resolve()))


def send_job_file(connection: Connection, path: Path) -> tuple[str, JobKind, str]:
    """Its digest, kind and name. One that the cluster has was checked when it was sent the first
    time; the ranks check it in any case. Raises JobFileError.
    """
    from oneflow.jobs.peek import described

    digest, _ = _digest_of(path)
    kept = connection.call("Jobs", "FindBlob", pb.BlobInfo(digest=digest))
    if kept.digest:
        description = described(path)
        return digest, JobKind(description.kind), _shown_name(description.name)
    from oneflow.jobs.jobfile import JobFile

    with JobFile(path, check_data=False) as file:
        description = file.description
    return upload(connection, path), JobKind(description.kind), _shown_name(description.name)


def _shown_name(name: str) -> str:
    """A file's name for its job, as far as the name of a job may be so."""
    return "".join(char for char in name if char.isprintable())[:MAX_NAME_CHARS]


@contextmanager
def job_file_of(source: Graph | AnyPath, options: Mapping[str, Any]) -> Iterator[Path]:
    """The job file for a path or a graph. options: of `flow.jobs.save`, for a graph only."""
    for name in options:
        if name not in GRAPH_OPTIONS:
            near = suggestion(name, [*OPTIONS, *GRAPH_OPTIONS])
            raise JobSpecError(f"submit: unknown option {name!r}{near}")
    if isinstance(source, (str, os.PathLike)):
        if options:
            raise JobSpecError(f"{', '.join(options)}: the job file {source} says that already")
        yield Path(source)
        return
    from oneflow.jobs.export import save

    with tempfile.TemporaryDirectory(prefix="oneflow-submit-") as folder:
        path = Path(folder) / "graph.job"
        save(source, path, **options)
        yield path


def checkpoint_here(path: str) -> str:
    """The whole path, for a cluster that is all on this machine. Raises JobSpecError if there is
    nothing there.
    """
    if not os.path.exists(path):
        raise JobSpecError(f"resume_from {path[:200]!r}: there is no such checkpoint or folder")
    return os.path.abspath(path)


def check_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Raises JobSpecError for a command that is one text: nobody would split it."""
    if isinstance(argv, str):
        raise JobSpecError(f"argv {argv[:80]!r}: give a list of words; no shell will split it")
    return tuple(str(word) for word in argv)
