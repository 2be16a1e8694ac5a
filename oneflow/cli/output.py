"""Output of the verbs: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oneflow.core.errors import OneFlowError
from oneflow.launcher.logs import escape

if TYPE_CHECKING:
    from oneflow.core.json_values import Json

FORMATS = ("table", "wide", "json")
FORMAT = "oneflow.output"  # of the context's meta: the format that was chosen
F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """-o table|wide|json, else as configured: the verb's argument `how`."""
    return click.option(
        "-o",
        "--output",
        "how",
        type=click.Choice(FORMATS),
        callback=lambda context, option, given: chosen(given),
        help="How to show it.",
    )(command)


def chosen(output: str | None) -> str:
    """The format: of the flag, else as configured. Errors are shown in it from now on."""
    from oneflow.cluster.settings import load_settings

    context = click.get_current_context(silent=True)
    if context is not None and output:
        context.meta[FORMAT] = output  # what is configured may be what is wrong
    found = str(load_settings({"client.output": output})["client.output"])
    if context is not None:
        context.meta[FORMAT] = found
    return found


def show_json(value: Json) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=True, sort_keys=False))


def table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns as wide as they must be; no control character gets to the terminal."""
    cells = [[str(title).upper() for title in titles]]
    cells += [[escape(str(cell)).replace("\n", " ") or "-" for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
    lines = []
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def fields(pairs: Mapping[str, Any]) -> str:
    """`name: value` lines of one thing."""
    width = max((len(name) for name in pairs), default=0) + 2
    return "\n".join(
        f"{(name + ':').ljust(width)}{escape(str(value))}" for name, value in pairs.items()
    )


def error_line(error: OneFlowError) -> str:
    """An error for programs: one line of JSON."""
    kind = type(error).__name__
    told = {"type": kind, "reason": error.reason, "exit_code": error.exit_code}
    return json.dumps({"error": told | {"message": str(error)}})


def say(text: str) -> None:
    """Print a line for people, on standard error: standard output is for results."""
    print(f"oneflow: {escape(text)}", file=sys.stderr, flush=True)
