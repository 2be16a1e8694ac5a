"""`oneflow debug ...`: why a job is stuck."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oneflow.cli.asking import on_job
from oneflow.cli.group import choose_group
from oneflow.cli.output import output_option, say, show_json
from oneflow.cli.types import RANKS

if TYPE_CHECKING:
    from oneflow.cluster.job import Job, RankDebug

RANK = click.option("--rank", "ranks", type=RANKS, default=(), help="0, or 0,3, or 0-3; else all.")
NOTHING = 75  # no rank answered; the job goes on


@choose_group("Why a job is stuck.")
def debug() -> None:
    pass


@debug.command("stack")
@on_job
@RANK
@output_option
def stack(job: Job, ranks: tuple[int, ...], how: str) -> None:
    """The stacks of all threads of a job's ranks, now, and the waits of their actors.

    Threads in the program's own code come first, and where they are stands above all.
    Each rank writes them to its standard error, where they stay. Ten seconds for each node; one
    that does not answer is named. The exit code is 0 if any rank answered.
    """

    pieces = sorted(job.debug("stack", ranks), key=lambda p: p.rank)
    if how == "json":
        show_json({"ranks": [_as_dict(piece, "stack") for piece in pieces]})
    else:
        _show_stacks(pieces)
    raise SystemExit(0 if any(piece.text for piece in pieces) else NOTHING)


def _show_stacks(pieces: list[RankDebug]) -> None:
    from oneflow.cli.stacks import ordered
    from oneflow.launcher.logs import escape

    for piece in pieces:
        if piece.text:
            click.echo(f"==== rank {piece.rank} on {piece.host} ({piece.phase}) ====")
            click.echo("\n".join(escape(line) for line in ordered(piece.text).splitlines()))
        if piece.error:
            say(f"rank {piece.rank} on {piece.host}: {piece.error}")


@debug.command("dump")
@on_job
@RANK
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Written to, 0600.")
def dump(job: Job, ranks: tuple[int, ...], out: Path | None) -> None:
    """All that is known of a job as JSON: its record, and of each rank the process with its
    threads, stacks, the ends of its logs and its failure. Without secrets.

    Ten seconds for each node; a rank that does not answer has an error instead.
    """
    from oneflow.cli.records import record_as_dict

    record = record_as_dict(job.status())
    found: dict[str, Any] = {"job": record | {"spec": _without_secrets(record["spec"])}}
    found["waits"] = [
        {"rank": w.rank, "waiting": w.waiting, "shares": dict(w.shares)} for w in job.waits()
    ]
    pieces = list(job.debug("dump", ranks)) if record["assignments"] else []
    found["ranks"] = list(_dumps(sorted(pieces, key=lambda p: p.rank)))
    text = json.dumps(found, indent=1, ensure_ascii=True)
    if out is None:
        click.echo(text)
        return
    with open(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text + "\n")
    click.echo(out)


def _without_secrets(spec: dict[str, Any]) -> dict[str, Any]:
    from oneflow.core.log import mask
    from oneflow.launcher.daemon.inspecting import without_secrets

    words = [mask(word) for word in spec["argv"]]
    return spec | {"env": without_secrets(spec["env"]), "argv": words}


def _dumps(pieces: list[RankDebug]) -> Iterator[dict[str, Any]]:
    for piece in pieces:
        found = _as_dict(piece, "")
        if piece.text:
            found |= json.loads(piece.text)
        yield found


def _as_dict(piece: RankDebug, text_name: str) -> dict[str, Any]:
    found = {"rank": piece.rank, "host": piece.host, "phase": piece.phase}
    if piece.error:
        found["error_of_debug"] = piece.error
    return found | ({text_name: piece.text} if text_name else {})
