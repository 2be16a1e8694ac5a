"""The verb `oneflow job submit`: flags and job.toml together, then waiting if asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from oneflow.cli.output import say
from oneflow.cluster.client import Cluster, connect
from oneflow.cluster.connection import StoreTroubleError
from oneflow.cluster.job import Job
from oneflow.cluster.submitting import OPTIONS, new_job_id, own_folders, read_job_file
from oneflow.core.errors import ConfigError, JobSpecError
from oneflow.scheduler.jobs.queue import allowed

BESIDES = ("job_id", "working_dir", "requirements", "array", "array_file")
AGAIN_S = 5.0
AGAIN_FOR_S = 600.0
LARGE_NBYTES = 16 << 20  # of a folder: what is sent of it is said
"""Time between tries of a submission for which the scheduler has no room."""


def run_submit(
    what: tuple[str, ...], num_after: int | None, waits: bool, flags: Mapping[str, Any]
) -> int:
    """The exit code: 0, or with `waits` that of the job.

    num_after: how many words follow a --; None: there is none.
    """
    is_program = num_after is not None
    if num_after is not None and len(what) > num_after:
        raise JobSpecError(
            f"{what[0][:200]!r} stands before --: submit takes a job file or a program, not both"
        )
    asked = merged(what, is_program, flags)
    check_program(asked.get("argv", []))
    with connect(flags["address"]) as cluster:
        if asked.get("array") is not None or asked.get("array_file"):
            return _run_array(cluster, asked, waits)
        job = _submitted(cluster, asked) if waits else _submit(cluster, asked)
        click.echo(job.id)
        if not waits:
            _warn_of_too_few(cluster, job)
            return 0
        return _wait(job)


def _run_array(cluster: Cluster, asked: dict[str, Any], waits: bool) -> int:
    """Print the array's id. The exit code is 0, or with `waits` the largest of its members."""
    if "graph" in asked:
        raise JobSpecError("array: for programs only; a job file would do the same many times")
    asked = {**asked, "job_id": asked.get("job_id") or new_job_id()}
    jobs = cluster.submit_array(
        asked["argv"],
        asked.get("array") or "",
        array_file=asked.get("array_file"),
        **_script_options(asked),
    )
    click.echo(asked["job_id"])
    if not waits:
        _warn_of_too_few(cluster, jobs[0])
        return 0
    return max(_wait(job) for job in jobs)


def _submitted(cluster: Cluster, asked: dict[str, Any]) -> Job:
    """Submit the job as soon as the scheduler can write it down; print once why it cannot yet.

    Raises StoreTroubleError after AGAIN_FOR_S.
    """
    deadline = time.monotonic() + AGAIN_FOR_S
    asked = {**asked, "job_id": asked.get("job_id") or new_job_id()}
    said = ""
    while True:
        try:
            return _submit(cluster, asked)
        except StoreTroubleError as error:
            if time.monotonic() > deadline:
                raise
            if str(error) != said:
                say(f"{error}; tried again every {AGAIN_S:g} s for {AGAIN_FOR_S / 60:g} minutes")
                said = str(error)
            time.sleep(AGAIN_S)


def _warn_of_too_few(cluster: Cluster, job: Job) -> None:
    """Say so if a job needs more devices or nodes than there are: it may wait for ever."""
    spec = job.status().spec
    kind = spec.device_type
    found = [d for d in cluster.status().daemons if d.device.partition(":")[0] == kind]
    found = list(allowed(spec, found))
    nodes = len({daemon.node for daemon in found})
    if spec.devices > len(found):
        said = (
            f"{spec.devices} {kind} devices{spec.where}, and the cluster has {len(found) or 'none'}"
        )
    elif spec.nodes > nodes:
        said = f"{spec.nodes} nodes, and the cluster has {kind} devices on {nodes}"
    else:
        return
    say(f"job {job.id} needs {said}: it waits until more join; `oneflow job cancel {job.id}`")


def _wait(job: Job) -> int:
    from oneflow.cli.follow import follow_to_end, goes_on

    with goes_on(job.id):
        return follow_to_end(job)


def merged(what: tuple[str, ...], is_program: bool, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Merge flags over the file. Raises ConfigError, JobSpecError."""
    asked = read_job_file(flags["job_toml"]) if flags.get("job_toml") else {}
    for name in (*OPTIONS, *BESIDES):
        given = flags.get(name)
        if name == "env":
            asked["env"] = {**asked.get("env", {}), **dict(given or ())}
        elif given is not None and given != ():
            asked[name] = list(given) if isinstance(given, tuple) else given
    if what:
        asked = {k: v for k, v in asked.items() if k not in ("argv", "graph")}
        asked |= _named(what, is_program)
    if ("argv" in asked) == ("graph" in asked):
        raise JobSpecError(
            "submit needs one thing to run: a job file (`oneflow job submit digits.job`), or a "
            "program after -- (`oneflow job submit -- python train.py`)"
        )
    return asked


def _named(what: tuple[str, ...], is_program: bool) -> dict[str, Any]:
    if is_program:
        return {"argv": list(what)}
    if len(what) > 1:
        raise JobSpecError(
            f"{what[0]!r} and {what[1]!r}: a program goes after --, as in "
            "`oneflow job submit -- python train.py`; a job file stands alone"
        )
    if not os.path.isfile(what[0]):
        raise JobSpecError(f"there is no job file {what[0][:200]!r}; a program goes after --")
    if what[0].endswith((".py", ".sh")):
        raise JobSpecError(
            f"{what[0][:200]!r} is a program, not a job file; a program goes after --, as in "
            "`oneflow job submit -- python train.py`"
        )
    return {"graph": what[0]}


def _folder_of(argv: list[str]) -> Path | None:
    """The current folder, if a word of the command names a file in it: elsewhere it would not be
    found.
    """
    here = Path.cwd()
    _warn_of_missing(argv)
    for word in argv:
        path = Path(word)
        if path.is_absolute() or ".." in path.parts:
            continue
        if os.path.isfile(word):  # False for what can be no name: an inline program, say
            size = _size(*folder_size(here, hidden=False))
            say(
                f"sends the folder {here} along ({size}), without dot files, for {word}; "
                "--working-dir names another, or ''"
            )
            return here
    return None


def _say_if_large(folder: Path) -> None:
    num_files, nbytes = folder_size(folder) if folder.is_dir() else (0, 0)
    if nbytes >= LARGE_NBYTES:
        say(f"sends the folder {folder} along: {_size(num_files, nbytes)}")


def folder_size(folder: Path, hidden: bool = True) -> tuple[int, int]:
    """Return the number of files of a working directory that are sent, and their bytes."""
    from oneflow.launcher.daemon.archive import measure

    return measure(folder, hidden, own_folders())


def _size(num_files: int, nbytes: int) -> str:
    shown = f"{nbytes / 1e6:.1f} MB" if nbytes >= 100_000 else f"{nbytes / 1e3:.1f} kB"
    return f"{num_files} file{'' if num_files == 1 else 's'}, {shown}"


def check_program(argv: list[str]) -> None:
    """Refuse a command line that no host can run, with the likely one. Raises JobSpecError."""
    program = argv[0] if argv else ""
    if os.path.isfile(program) and "/" in program and os.access(program, os.X_OK):
        return
    shown = program[:200]
    if len(argv) == 1 and len(program.split()) > 1:
        raise JobSpecError(
            f"{shown!r} is one word, and no program has that name: leave out the quotes, as in "
            f"`oneflow job submit -- {shown}`; a shell runs it after `-- sh -c`"
        )
    if program.endswith(".py"):
        words = " ".join(argv)[:200]
        raise JobSpecError(
            f"{shown!r} is a file of Python, not a program: `oneflow job submit -- python {words}`"
        )


def _warn_of_missing(argv: list[str]) -> None:
    """Name a program of Python that is not here, nor can be sent."""
    words = argv[1:] if "python" in Path(argv[0]).name else argv[:1]
    program = next((word for word in words if not word.startswith("-")), "")
    if program.endswith(".py") and not os.path.isfile(program):
        say(f"there is no file {program[:200]} here, so nothing is sent; hosts must have it")


def _submit(cluster: Cluster, asked: dict[str, Any]) -> Job:
    if "graph" in asked:
        if asked.get("working_dir"):
            raise ConfigError("--working-dir: a graph job has no code, so it needs no folder")
        if asked.get("requirements"):
            raise ConfigError("--requirements: a graph job has no code, so it needs no packages")
        options = {name: asked[name] for name in OPTIONS if name in asked}
        return cluster.submit(asked["graph"], job_id=asked.get("job_id"), **options)
    return cluster.submit_script(asked["argv"], **_script_options(asked))


def _script_options(asked: dict[str, Any]) -> dict[str, Any]:
    """All that is submitted of a program besides its words; says which folder is sent along."""
    if asked.get("working_dir"):
        _say_if_large(Path(asked["working_dir"]))
    if asked.get("working_dir") is None:
        asked["working_dir"] = _folder_of(asked["argv"]) or ""  # said once
        asked["hidden_files"] = False  # nobody has named this folder, nor what is hidden in it
    return {
        "working_dir": asked["working_dir"],
        "hidden_files": asked.get("hidden_files", True),
        "requirements": asked.get("requirements"),
        "job_id": asked.get("job_id"),
        **{name: asked[name] for name in OPTIONS if name in asked},
    }
