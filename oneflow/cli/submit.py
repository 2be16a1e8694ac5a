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
from oneflow.cluster.submitting import OPTIONS, new_job_id, read_job_file
from oneflow.core.errors import ConfigError, JobSpecError

AGAIN_S = 5.0
AGAIN_FOR_S = 600.0
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
    with connect(flags["address"]) as cluster:
        job = _submitted(cluster, asked) if waits else _submit(cluster, asked)
        click.echo(job.id)
        if not waits:
            return 0
        return _wait(job)


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


def _wait(job: Job) -> int:
    from oneflow.cli.follow import follow_to_end, goes_on

    with goes_on(job.id):
        return follow_to_end(job)


def merged(what: tuple[str, ...], is_program: bool, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Merge flags over the file. Raises ConfigError, JobSpecError."""
    asked = read_job_file(flags["job_toml"]) if flags.get("job_toml") else {}
    for name in (*OPTIONS, "job_id", "working_dir"):
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
            say(
                f"sends the folder {here} along, without dot files, for {word}; --working-dir "
                "names another, or ''"
            )
            return here
    return None


def _warn_of_missing(argv: list[str]) -> None:
    """Name a program of Python that is not here, nor can be sent."""
    words = argv[1:] if "python" in Path(argv[0]).name else argv[:1]
    program = next((word for word in words if not word.startswith("-")), "")
    if program.endswith(".py") and not os.path.isfile(program):
        say(f"there is no file {program[:200]} here, so nothing is sent; hosts must have it")


def _submit(cluster: Cluster, asked: dict[str, Any]) -> Job:
    options = {name: asked[name] for name in OPTIONS if name in asked}
    job_id = asked.get("job_id")
    if "graph" in asked:
        if asked.get("working_dir"):
            raise ConfigError("--working-dir: a graph job has no code, so it needs no folder")
        return cluster.submit(asked["graph"], job_id=job_id, **options)
    argv = asked["argv"]
    if asked.get("working_dir") is None:
        asked["working_dir"] = _folder_of(argv) or ""  # said once, however often it is tried
        asked["hidden_files"] = False  # nobody has named this folder, nor what is hidden in it
    folder, hidden = asked["working_dir"], asked.get("hidden_files", True)
    return cluster.submit_script(
        argv, working_dir=folder, hidden_files=hidden, job_id=job_id, **options
    )
